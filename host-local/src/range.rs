//! Ranges of addresses: their canonical form, and the order in which they are tried. No input, no output.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni::IpConfig;
use cni::ip::{self, Cidr};

/// What is wrong with a range, and what to do about it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Flaw {
    pub(crate) what: String,
    pub(crate) remedy: String,
}

fn flaw(what: impl Into<String>, remedy: impl Into<String>) -> Flaw {
    Flaw { what: what.into(), remedy: remedy.into() }
}

/// Consecutive addresses of one subnet, with a way out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    subnet: Cidr,
    start: IpAddr,
    end: IpAddr,
    gateway: IpAddr,
}

/// A range as it is written: only the subnet is required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Draft {
    pub(crate) subnet: Option<Cidr>,
    pub(crate) start: Option<IpAddr>,
    pub(crate) end: Option<IpAddr>,
    pub(crate) gateway: Option<IpAddr>,
}

impl Range {
    pub(crate) fn new(draft: Draft) -> Result<Range, Flaw> {
        let Some(subnet) = draft.subnet else {
            return Err(flaw("the range has no \"subnet\"", "give it one, such as \"10.1.0.0/16\""));
        };
        let (v4, width) = (subnet.ip().is_ipv4(), width(subnet.ip()));
        if subnet.ip().to_canonical().is_ipv4() != v4 {
            let what = format!("\"subnet\" {subnet} is IPv4 written as IPv6");
            return Err(flaw(what, "write it as IPv4"));
        }
        if u32::from(subnet.prefix()) + 2 > width || subnet.prefix() == 0 {
            let what = format!("\"subnet\" {subnet} has no use as a range");
            return Err(flaw(what, format!("the prefix must be from 1 to {}", width - 2)));
        }
        if subnet.network() != subnet {
            let what = format!("\"subnet\" {subnet} has host bits set");
            return Err(flaw(what, format!("write {}", subnet.network())));
        }
        let first = like(subnet.ip(), bits(subnet.ip()) + 1);
        // The last address of an IPv4 subnet is its broadcast address.
        let last = like(subnet.ip(), bits(subnet.last()) - u128::from(v4));
        let inside = |key: &str, ip: Option<IpAddr>, default: IpAddr| match ip {
            Some(ip) if !subnet.contains(ip) => {
                let what = format!("{key:?} {ip} is not in \"subnet\" {subnet}");
                Err(flaw(what, format!("give an address from {first} to {last}, or leave it out")))
            }
            given => Ok(given.unwrap_or(default)),
        };
        let start = inside("rangeStart", draft.start, first)?;
        let end = inside("rangeEnd", draft.end, last)?;
        if start > end {
            return Err(match (draft.start, draft.end) {
                (Some(_), Some(_)) => {
                    flaw(format!("\"rangeStart\" {start} is after \"rangeEnd\" {end}"), "exchange them")
                }
                (Some(_), None) => flaw(
                    format!("\"rangeStart\" {start} is after the last address of \"subnet\" {subnet}, {end}"),
                    "set it lower, or \"rangeEnd\" too",
                ),
                _ => flaw(
                    format!("\"rangeEnd\" {end} is before the first address of \"subnet\" {subnet}, {start}"),
                    "set it higher, or \"rangeStart\" too",
                ),
            });
        }
        // Unlike upstream: a gateway of the other family is refused. One outside the subnet is not, it may be meant.
        let gateway = draft.gateway.unwrap_or(first);
        if gateway.is_ipv4() != v4 {
            let what = format!("\"gateway\" {gateway} is of another family than \"subnet\" {subnet}");
            return Err(flaw(what, "give a gateway of the subnet's family"));
        }
        Ok(Range { subnet, start, end, gateway })
    }

    pub(crate) fn contains(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.start.is_ipv4() && self.start <= ip && ip <= self.end
    }

    fn overlaps(&self, other: &Range) -> bool {
        self.contains(other.start) || other.contains(self.start)
    }

    fn span(&self, first: IpAddr, last: IpAddr) -> Span {
        Span { first, last, gateway: self.gateway }
    }

    /// How many addresses can be given out.
    pub(crate) fn size(&self) -> u128 {
        let all = (bits(self.end) - bits(self.start)).saturating_add(1);
        all - u128::from(self.contains(self.gateway))
    }

    /// Is it all of its subnet that can be given out?
    pub(crate) fn is_whole(&self) -> bool {
        let whole = Range::new(Draft { subnet: Some(self.subnet), start: None, end: None, gateway: None });
        whole.is_ok_and(|whole| (whole.start, whole.end) == (self.start, self.end))
    }

    pub(crate) fn subnet(&self) -> Cidr {
        self.subnet
    }

    pub(crate) fn gateway(&self) -> IpAddr {
        self.gateway
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.start, self.end)
    }
}

/// Ranges of one family, out of which a container gets one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RangeSet(Vec<Range>);

impl RangeSet {
    pub(crate) fn new(ranges: Vec<Range>) -> Result<RangeSet, Flaw> {
        let Some(first) = ranges.first() else {
            return Err(flaw("the range set is empty", "give it a range, or leave it out"));
        };
        if let Some(other) = ranges.iter().find(|r| r.start.is_ipv4() != first.start.is_ipv4()) {
            let what = format!("the range set mixes IPv4 and IPv6: {first} and {other}");
            return Err(flaw(what, "make a range set for each family"));
        }
        for (i, range) in ranges.iter().enumerate() {
            if let Some(other) = ranges.iter().take(i).find(|other| range.overlaps(other)) {
                let what = format!("the ranges {other} and {range} overlap");
                return Err(flaw(what, "set \"rangeStart\" and \"rangeEnd\" so that they do not"));
            }
        }
        Ok(RangeSet(ranges))
    }

    pub(crate) fn is_ipv4(&self) -> bool {
        self.0.first().is_some_and(|range| range.start.is_ipv4())
    }

    pub(crate) fn ranges(&self) -> &[Range] {
        &self.0
    }

    pub(crate) fn overlaps(&self, other: &RangeSet) -> bool {
        self.0.iter().any(|range| other.0.iter().any(|other| range.overlaps(other)))
    }

    /// The range that holds `ip`.
    pub(crate) fn range_of(&self, ip: IpAddr) -> Option<&Range> {
        self.0.iter().find(|range| range.contains(ip))
    }

    pub(crate) fn contains(&self, ip: IpAddr) -> bool {
        self.range_of(ip).is_some()
    }

    /// `ip` as it stands in an answer: with the prefix and the gateway of its range.
    pub(crate) fn describe(&self, ip: IpAddr) -> IpConfig {
        let range = self.range_of(ip);
        let address = range.and_then(|range| Cidr::new(ip, range.subnet.prefix()));
        let gateway = range.map(|range| range.gateway);
        IpConfig { address: address.unwrap_or_else(|| Cidr::host(ip)), gateway, interface: None }
    }

    /// How many addresses can be given out.
    pub(crate) fn size(&self) -> u128 {
        self.0.iter().map(Range::size).fold(0, u128::saturating_add)
    }

    /// All addresses in the order in which they are tried: round the set once, from the one after `last` to `last`
    /// itself, or from the beginning if `last` is none of them.
    pub(crate) fn round(&self, last: Option<IpAddr>) -> Vec<Span> {
        let whole = |range: &Range| range.span(range.start, range.end);
        let found = last.and_then(|last| {
            let at = self.0.iter().position(|range| range.contains(last))?;
            Some((last, self.0.get(at)?, self.0.split_at(at)))
        });
        let Some((last, range, (before, from))) = found else {
            return self.0.iter().map(whole).collect();
        };
        let rest = ip::next(last).filter(|next| *next <= range.end);
        let mut spans: Vec<Span> = rest.map(|next| range.span(next, range.end)).into_iter().collect();
        spans.extend(from.iter().skip(1).chain(before).map(whole));
        spans.push(range.span(range.start, last));
        spans
    }
}

impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, range) in self.0.iter().enumerate() {
            write!(f, "{}{range}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// Consecutive addresses to be tried, both ends among them, the gateway not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: IpAddr,
    pub(crate) last: IpAddr,
    pub(crate) gateway: IpAddr,
}

impl Span {
    /// The addresses one by one.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn addresses(self) -> impl Iterator<Item = IpAddr> {
        let within = move |ip: &IpAddr| *ip <= self.last;
        std::iter::successors(Some(self.first).filter(within), move |ip| ip::next(*ip).filter(within))
            .filter(move |ip| *ip != self.gateway)
    }
}

/// An address as a number.
pub(crate) fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

/// The address with this number, of the family of `model`. Bits that the family lacks are cut off.
pub(crate) fn like(model: IpAddr, bits: u128) -> IpAddr {
    match model {
        IpAddr::V4(_) => Ipv4Addr::from_bits(u32::try_from(bits & u128::from(u32::MAX)).unwrap_or(0)).into(),
        IpAddr::V6(_) => Ipv6Addr::from_bits(bits).into(),
    }
}

fn width(ip: IpAddr) -> u32 {
    if ip.is_ipv4() { Ipv4Addr::BITS } else { Ipv6Addr::BITS }
}

#[cfg(test)]
mod tests;
