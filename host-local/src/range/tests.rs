//! Tests of ranges, some against a slow model that checks every address one by one.

use std::collections::BTreeSet;

use super::*;
use cni::lease::Index;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn range(subnet: &str, start: &str, end: &str, gateway: &str) -> Result<Range, RangeError> {
    let optional = |text: &str| text.parse().ok();
    Range::new(RangeSpec {
        subnet: subnet.parse().ok(),
        start: optional(start),
        end: optional(end),
        gateway: optional(gateway),
    })
}

#[test]
fn defaults_exclude_network_and_broadcast_address() {
    for (subnet, want, gateway, size) in [
        ("10.1.0.0/29", "10.1.0.1-10.1.0.6", "10.1.0.1", 5),
        ("10.1.0.0/30", "10.1.0.1-10.1.0.2", "10.1.0.1", 1),
        ("10.1.0.0/16", "10.1.0.1-10.1.255.254", "10.1.0.1", 65533),
        ("255.255.255.0/24", "255.255.255.1-255.255.255.254", "255.255.255.1", 253),
        ("2001:db8:1::/126", "2001:db8:1::1-2001:db8:1::3", "2001:db8:1::1", 2),
        ("::100:0/112", "::100:1-::100:ffff", "::100:1", 65534),
        ("8000::/1", "8000::1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "8000::1", (1 << 127) - 2),
    ] {
        let range = range(subnet, "", "", "").unwrap();
        assert_eq!((range.to_string().as_str(), range.gateway()), (want, ip(gateway)), "{subnet}");
        assert_eq!(range.size(), size, "{subnet}");
    }
}

#[test]
fn a_range_may_use_its_whole_subnet_and_a_gateway_outside() {
    let whole = range("10.1.0.0/30", "10.1.0.0", "10.1.0.3", "192.168.0.1").unwrap();
    assert_eq!((whole.to_string().as_str(), whole.size()), ("10.1.0.0-10.1.0.3", 4));
}

#[test]
fn errors_quote_the_value() {
    for (subnet, start, end, gateway, want) in [
        ("", "", "", "", "no \"subnet\""),
        ("10.1.0.0/31", "", "", "", "10.1.0.0/31"),
        ("10.1.0.0/32", "", "", "", "10.1.0.0/32"),
        ("0.0.0.0/0", "", "", "", "0.0.0.0/0"),
        ("::/0", "", "", "", "::/0"),
        ("fd00::/127", "", "", "", "fd00::/127"),
        ("::ffff:10.0.0.0/120", "", "", "", "::ffff:10.0.0.0/120"),
        ("10.1.0.1/24", "", "", "", "10.1.0.1/24"),
        ("10.1.0.0/24", "10.2.0.1", "", "", "10.2.0.1"),
        ("10.1.0.0/24", "fd00::1", "", "", "fd00::1"),
        ("10.1.0.0/24", "", "10.1.1.0", "", "10.1.1.0"),
        ("10.1.0.0/24", "10.1.0.9", "10.1.0.8", "", "\"rangeStart\" 10.1.0.9 is after \"rangeEnd\" 10.1.0.8"),
        ("10.1.0.0/24", "10.1.0.255", "", "", "10.1.0.255"),
        ("10.1.0.0/24", "", "", "fd00::1", "fd00::1"),
        ("fd00::/64", "", "", "10.0.0.1", "10.0.0.1"),
    ] {
        let error = range(subnet, start, end, gateway).unwrap_err();
        assert!(error.what.contains(want) && !error.hint.is_empty(), "{subnet}: {error:?}");
    }
}

#[test]
fn sets_have_one_family_and_no_overlap() {
    let (a, b) = (range("10.1.0.0/24", "", "10.1.0.99", ""), range("10.1.0.0/24", "10.1.0.100", "", ""));
    let (a, b, six) = (a.unwrap(), b.unwrap(), range("fd00::/64", "", "", "").unwrap());
    assert!(RangeSet::new(vec![a.clone(), b.clone()]).is_ok());
    for bad in [vec![], vec![a.clone(), six], vec![a.clone(), b, a]] {
        assert!(RangeSet::new(bad).is_err());
    }
}

/// A pseudorandom number generator with a fixed seed, so that every run is the same.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// Returns a set of up to three small ranges, side by side in a subnet near `base`.
fn random_set(dice: &mut Dice, base: IpAddr) -> RangeSet {
    let ranges = (0..=dice.roll(2)).map(|i| {
        let width = if base.is_ipv4() { 32 } else { 128 };
        let size = 4 + u8::try_from(dice.roll(3)).unwrap();
        let subnet = Cidr::new(like(base, bits(base) + u128::from(i) * 64), width - size).unwrap();
        let at = |n: u64| Some(like(base, bits(subnet.ip()) + u128::from(n)));
        let all = 1 << size;
        let (a, b) = (dice.roll(all), dice.roll(all));
        let (start, end) = if dice.roll(2) == 0 { (None, None) } else { (at(a.min(b)), at(a.max(b))) };
        let gateway = if dice.roll(2) == 0 { None } else { at(dice.roll(2 * all)) };
        Range::new(RangeSpec { subnet: Some(subnet), start, end, gateway }).unwrap()
    });
    RangeSet::new(ranges.collect()).unwrap()
}

/// Returns the next address as the reference finds it, one address at a time.
fn model(set: &RangeSet, last: Option<IpAddr>, taken: &BTreeSet<IpAddr>) -> Option<IpAddr> {
    let mut all: Vec<(IpAddr, IpAddr)> = Vec::new();
    for range in &set.0 {
        let mut n = bits(range.start);
        while n <= bits(range.end) {
            all.push((like(range.start, n), range.gateway));
            n += 1;
        }
    }
    let from = last.and_then(|last| all.iter().position(|(ip, _)| *ip == last)).map_or(0, |at| at + 1);
    let (before, after) = all.split_at(from);
    after.iter().chain(before).find(|(ip, gateway)| ip != gateway && !taken.contains(ip)).map(|(ip, _)| *ip)
}

/// Returns the next address as `host-local` finds it, with spans and bitmaps of blocks.
fn ours(set: &RangeSet, last: Option<IpAddr>, taken: &BTreeSet<IpAddr>) -> Option<IpAddr> {
    let mut index = Index::default();
    for ip in taken {
        index.insert(*ip, None).unwrap();
    }
    index.first_free(&set.round(last)).unwrap()
}

#[test]
#[cfg_attr(miri, ignore = "too many steps")]
fn the_next_address_matches_the_model() {
    let mut dice = Dice(0x5eed);
    let bases = [
        "10.0.31.192",
        "255.255.255.0",
        "0.0.0.0",
        "fd00::1fc0",
        "::ff:ff80",
        "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff00",
    ];
    for turn in 0..4000 {
        let base = ip(bases[turn % bases.len()]);
        let set = random_set(&mut dice, base);
        let around = |dice: &mut Dice| like(base, bits(base) + u128::from(dice.roll(192)));
        let density = dice.roll(100);
        let addresses: Vec<IpAddr> = set.round(None).into_iter().flat_map(Span::addresses).collect();
        assert!(u128::try_from(addresses.len()).unwrap() == set.size(), "{set}");
        let taken: BTreeSet<IpAddr> = addresses.iter().copied().filter(|_| dice.roll(100) < density * 2).collect();
        let last = (dice.roll(4) > 0).then(|| around(&mut dice));
        assert_eq!(
            ours(&set, last, &taken),
            model(&set, last, &taken),
            "turn {turn}: {set}, last {last:?}, taken {taken:?}"
        );
    }
}

#[test]
#[cfg_attr(miri, ignore = "too many steps")]
fn a_round_visits_every_address_once_and_the_last_one_last() {
    let mut dice = Dice(0xabcd);
    for _ in 0..500 {
        let set = random_set(&mut dice, ip("10.0.0.0"));
        let addresses = |last| set.round(last).into_iter().flat_map(Span::addresses).collect::<Vec<_>>();
        let all = addresses(None);
        for last in all.iter().copied().take(20) {
            let round = addresses(Some(last));
            assert_eq!(round.last(), Some(&last));
            assert_eq!(BTreeSet::from_iter(&round), BTreeSet::from_iter(&all));
            assert_eq!(round.len(), all.len());
        }
    }
}
