//! Rules as they are read: from messages that a `RuleSpec` wrote, and as `nft` writes them.

use std::net::IpAddr;

use super::*;
use crate::ip::Cidr;
use crate::netlink::nft::{Family, Field, RuleSpec};

fn in_family(family: Family) -> RuleSpec<'static> {
    RuleSpec::new(Table { family, name: "t" }.chain("c"))
}

pub(super) fn read_back(spec: &RuleSpec<'_>) -> Rule {
    let mut request = super::super::about_rule(6, neli::consts::nl::NlmF::empty(), spec.chain);
    request.attr(RULE_HANDLE, &7_u64.to_be_bytes());
    spec.write(&mut request);
    Rule::read(&request.finish()[16..]).unwrap().unwrap()
}

#[test]
fn a_rule_is_read_back_as_it_was_written() {
    let ip: IpAddr = "10.1.0.2".parse().unwrap();
    let net: Cidr = "10.1.0.2/20".parse().unwrap();
    let spec = in_family(Family::Inet).source(ip).destination_outside(net).masquerade();
    let rule = read_back(&spec.comment("x, net: n").mark("m"));
    assert_eq!(rule.handle, 7);
    assert_eq!((rule.comment.as_str(), rule.mark.as_str()), ("x, net: n", "m"));
    assert!(rule.masquerades);
    assert_eq!(rule.values, [vec![2], vec![10, 1, 0, 2], vec![10, 1, 0, 0]]);
    assert_eq!(rule.source(), Some(Cidr::host(ip)));
    assert_eq!(read_back(&in_family(Family::Inet).source_outside(net)).source(), None);

    assert!(
        rule.is_same_as(&in_family(Family::Inet).source(ip).destination_outside(net).masquerade().comment("x, net: n"))
    );

    let rule = read_back(&in_family(Family::Bridge).input_link("veth1").jump("next"));
    assert_eq!((rule.chain.as_str(), rule.target()), ("c", Some("next")));
    assert_eq!(rule.verdict, Some(Verdict::Jump("next".into())));
    assert_eq!(wire::text(&rule.values[0]), "veth1");
}

#[test]
fn a_prefix_of_whole_bytes_is_loaded_and_any_other_masked() {
    for (net, value) in [
        ("10.1.2.3/24", vec![10, 1, 2]),
        ("10.1.2.3/32", vec![10, 1, 2, 3]),
        ("10.1.2.3/23", vec![10, 1, 2, 0]),
        ("0.0.0.0/0", vec![0; 4]),
        ("fd00::/8", vec![0xfd]),
    ] {
        let net: Cidr = net.parse().unwrap();
        let rule = read_back(&in_family(Family::Inet).destination_in(net));
        assert_eq!(rule.values[1], value, "{net}");
    }
}

#[test]
fn only_an_address_with_a_port_is_a_translation() {
    let rule = || in_family(Family::Ipv4);
    let nat = |spec: RuleSpec<'static>, attributes: &[(u16, u32)]| {
        read_back(&spec.expression("nat", |data| {
            for (kind, value) in attributes {
                data.number(*kind, *value);
            }
        }))
        .translates_to
    };
    for to in ["10.9.0.2:80", "[fd00::2]:443"] {
        let to = to.parse().unwrap();
        assert_eq!(read_back(&rule().destination_port(6, 80).translate_destination(to)).translates_to, Some(to));
    }
    let loaded = || {
        let ip = |last| [10, 9, 0, last];
        rule()
            .immediate(Register::FIRST, &ip(2))
            .immediate(Register::SECOND, &[0, 80])
            .immediate(Register::at_word(8), &ip(3))
            .immediate(Register::at_word(12), &[0, 90])
    };
    let to = "10.9.0.2:80".parse().ok();
    assert_eq!(nat(loaded(), &[(1, 1), (3, 1), (5, 2)]), to);
    assert_eq!(nat(loaded(), &[(1, 1), (3, 1), (4, 1), (5, 2), (6, 2)]), to);
    assert_eq!(nat(loaded(), &[(1, 1), (3, 1), (4, 3), (5, 2), (6, 2)]), None, "several addresses");
    assert_eq!(nat(loaded(), &[(1, 1), (3, 1), (4, 1), (5, 2), (6, 4)]), None, "several ports");
    assert_eq!(nat(loaded(), &[(1, 0), (3, 1), (5, 2)]), None, "source NAT");
    assert_eq!(nat(loaded(), &[(1, 1), (3, 1)]), None, "no port");
    assert_eq!(nat(loaded(), &[(1, 1), (3, 2), (5, 1)]), None, "values of other lengths");
    assert_eq!(nat(loaded(), &[(1, 1), (3, 9), (5, 2)]), None, "a register without a value");
    assert_eq!(nat(loaded().map(&[Field::PROTOCOL], "m"), &[(1, 1), (3, 1), (5, 2)]), None, "a map");
    assert_eq!(nat(rule(), &[]), None);
}

#[test]
fn extensions_are_read_in_order() {
    let spec = in_family(Family::Ipv4)
        .compat_match("comment", 0, b"mine\0\0\0\0")
        .compat_match("multiport", 1, &[1; 48])
        .compat_target("DNAT", 2, &[2; 44]);
    let rule = read_back(&spec);
    let extension = |name: &str, revision, info: &[u8]| Extension { name: name.into(), revision, info: info.into() };
    let expected =
        [extension("comment", 0, b"mine\0\0\0\0"), extension("multiport", 1, &[1; 48]), extension("DNAT", 2, &[2; 44])];
    assert_eq!(rule.extensions, expected);
    assert_eq!((rule.comment.as_str(), rule.verdict, rule.masquerades), ("mine", None, false));
    assert!(read_back(&in_family(Family::Ipv4).compat_target("MASQUERADE", 0, &[0; 24])).masquerades);
}

#[test]
fn rules_are_the_same_if_all_their_parts_are() {
    let ip = |text: &str| Cidr::host(text.parse().unwrap());
    let rule = || in_family(Family::Ipv4);
    let specs = || {
        [
            rule().verdict(Verdict::Accept),
            rule().verdict(Verdict::Drop),
            rule().comment("c").verdict(Verdict::Drop),
            rule().source_in(ip("10.1.0.2")).verdict(Verdict::Accept),
            rule().source_outside(ip("10.1.0.2")).verdict(Verdict::Accept),
            rule().destination_in(ip("10.1.0.2")).verdict(Verdict::Accept),
            rule().destination_in("10.1.0.2/30".parse().unwrap()).verdict(Verdict::Accept),
            rule().source_in(ip("10.1.0.3")).verdict(Verdict::Accept),
            rule().input_link("br0").verdict(Verdict::Drop),
            rule().output_link("br0").verdict(Verdict::Drop),
            rule().output_link_not("br0").verdict(Verdict::Drop),
            rule().matches(Field::OUTPUT_LINK, Comparison::Equal, b"br0").verdict(Verdict::Drop),
            rule().compat_match("conntrack", 3, &[1, 0]).verdict(Verdict::Accept),
            rule().compat_match("conntrack", 3, &[2, 0]).verdict(Verdict::Accept),
            rule().in_set(&[Field::DESTINATION_V4], "s").verdict(Verdict::Accept),
            rule().masquerade(),
            rule().set_packet_mark(1),
        ]
    };
    for (i, spec) in specs().into_iter().enumerate() {
        let listed = read_back(&spec.mark("m"));
        for (j, other) in specs().into_iter().enumerate() {
            assert_eq!(listed.is_same_as(&other), i == j, "{i} {j}");
        }
    }
    // As `iptables` writes them.
    let short = rule().matches(Field::OUTPUT_LINK, Comparison::Equal, b"br0\0").counter().verdict(Verdict::Drop);
    assert!(read_back(&short).is_same_as(&specs()[9]));
    let padded = rule().compat_match("conntrack", 3, &[1, 0, 0, 0]).verdict(Verdict::Accept);
    assert!(read_back(&padded).is_same_as(&specs()[12]));
    let comment = rule().compat_match("comment", 0, b"c\0\0").verdict(Verdict::Drop);
    assert!(read_back(&comment).is_same_as(&specs()[2]));
    let masked = |mask: [u8; 4], value: [u8; 4]| {
        let loaded = rule().load(Field::SOURCE_V4, Register::FIRST).mask(Register::FIRST, &mask);
        read_back(&loaded.compare(Register::FIRST, Comparison::Equal, &value).verdict(Verdict::Accept))
    };
    for (mask, value, net, is_same) in [
        ([255; 4], [10, 1, 0, 2], "10.1.0.2/32", true),
        ([255, 255, 255, 0], [10, 1, 0, 0], "10.1.0.0/24", true),
        ([255, 255, 255, 0], [10, 1, 0, 0], "10.1.0.0/16", false),
        ([255, 255, 0, 0], [10, 1, 0, 0], "10.1.0.0/24", false),
        ([255, 0, 255, 0], [10, 0, 0, 0], "10.0.0.0/16", false),
    ] {
        let spec = rule().source_in(net.parse().unwrap()).verdict(Verdict::Accept);
        assert_eq!(masked(mask, value).is_same_as(&spec), is_same, "{net}");
    }
}

#[test]
fn links_and_refusals_are_recognised() {
    let rule = || in_family(Family::Ipv4);
    let both = read_back(&rule().input_link("br0").output_link_not("br1").jump("next"));
    assert_eq!(both.links(), ["br0", "br1"]);
    assert_eq!(read_back(&rule().matches(Field::INPUT_LINK, Comparison::Equal, b"br")).links(), [""; 0]);
    let reject = |spec: RuleSpec<'static>| read_back(&spec.expression("reject", |_| ()));
    assert!(reject(rule()).refuses() && reject(rule()).is_unconditional());
    assert!(reject(rule().input_link("br0")).refuses() && !reject(rule().input_link("br0")).is_unconditional());
    let jump = read_back(&rule().comment("c").compat_match("comment", 0, b"c").jump("next"));
    assert!(jump.is_unconditional() && !jump.refuses());
    assert!(!read_back(&rule().in_set(&[Field::PROTOCOL], "s").jump("next")).is_unconditional());
}

#[test]
fn the_networks_of_destinations_are_read_back() {
    for family in
        [["10.0.0.0/8", "10.1.2.3/32", "0.0.0.0/0", "10.1.2.0/23"], ["fd00::/8", "fd01::1/128", "::/0", "fd01::/63"]]
    {
        let nets = family.map(|net| net.parse::<Cidr>().unwrap());
        let spec = in_family(Family::Inet).source(nets[1].ip()).destination_in(nets[0]);
        let rule = read_back(&nets.iter().fold(spec, |spec, net| spec.destination_outside(*net)));
        assert_eq!(rule.destinations(Comparison::NotEqual), nets);
        assert_eq!(rule.destinations(Comparison::Equal), [nets[0]]);
    }
    let rule = read_back(&in_family(Family::Inet).source("10.1.0.2".parse().unwrap()).output_link_not("br0"));
    assert_eq!(rule.destinations(Comparison::Equal), []);
    assert_eq!(rule.destinations(Comparison::NotEqual), []);
}
