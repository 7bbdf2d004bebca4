//! `nft` and `iptables` understand what this crate writes, and the other way round.

use linux::ip::MacAddr;
use linux::netlink::nft::{
    Chain, Comparison, Data, DataType, Edit, Element, Elements, Family, Field, Hook, MapsTo, Nftables, RuleSpec,
    SetSpec, Table, Value, Verdict,
};
use testing::Lab;

use super::{CHAIN, PORTS, TABLE, ip, port, prepared, rule};

/// Returns the rules of a chain as `nft` shows them.
fn listed(lab: &Lab, chain: Chain<'_>) -> Vec<String> {
    let text = lab.sh(&format!("nft list chain {chain}"));
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.ends_with('{') && *line != "}");
    lines.filter(|line| !line.starts_with("type ")).map(str::to_owned).collect()
}

#[test]
fn nft_understands_rules() {
    let (lab, mut nft) = prepared();
    let (nat, other) = (TABLE.chain("nat"), TABLE.chain("other"));
    let hairpin = SetSpec {
        set: TABLE.set("hairpin"),
        key: &[DataType::Ipv4; 2],
        maps_to: MapsTo::Nothing,
        elements: Elements::Ranges,
    };
    let links = SetSpec {
        set: TABLE.set("links"),
        key: &[DataType::LinkName],
        maps_to: MapsTo::Verdicts,
        elements: Elements::Keys,
    };
    let pair = [Field::SOURCE_V4, Field::DESTINATION_V4];
    let mut edits = vec![
        Edit::add_base_chain(nat, Hook::SOURCE_NAT),
        Edit::add_chain(other),
        Edit::add_set(&hairpin),
        Edit::add_set(&links),
    ];
    let rules = [
        rule().input_link("br0").output_link_not("br0").jump("other"),
        rule().destination_port(Field::TCP, 80).counter().verdict(Verdict::Accept).comment("web").mark("mine"),
        rule().matches_bits(Field::PACKET_MARK, 0x2000, 0x2000).set_packet_mark(1),
        rule().verdict_map(&[Field::INPUT_LINK], "links"),
        rule().destination_is_local().verdict(Verdict::Return),
        rule().not_in_set(&pair, "hairpin").verdict(Verdict::Drop),
        rule().matches(Field::PACKET_TYPE, Comparison::NotEqual, &[Field::TO_HOST]).verdict(Verdict::Drop),
        RuleSpec::new(nat)
            .matches_any_bit(Field::CONNECTION_STATUS, Field::TRANSLATED)
            .in_set(&pair, "hairpin")
            .masquerade(),
    ];
    edits.extend(rules.iter().map(Edit::add_rule));
    nft.apply(&edits).unwrap();
    assert_eq!(
        listed(&lab, CHAIN),
        [
            "iifname \"br0\" oifname != \"br0\" jump other",
            "tcp dport 80 counter packets 0 bytes 0 accept comment \"web\"",
            "meta mark & 0x00002000 == 0x00002000 meta mark set 0x00000001",
            "iifname vmap @links",
            "fib daddr type local return",
            "ip saddr . ip daddr != @hairpin drop",
            "meta pkttype != host drop",
        ]
    );
    assert_eq!(listed(&lab, nat), ["ct status dnat ip saddr . ip daddr @hairpin masquerade"]);
    let marked = nft.rules_with_mark(CHAIN, &|mark| mark == "mine").unwrap();
    assert_eq!(marked.iter().map(|rule| rule.comment.as_str()).collect::<Vec<_>>(), ["web"]);
    assert_eq!(nft.rules(CHAIN).unwrap()[0].target(), Some("other"));
}

#[test]
fn nft_understands_any_expression() {
    let (lab, mut nft) = prepared();
    let limit = rule().expression("limit", |limit| {
        limit.bytes(1, &5_u64.to_be_bytes()); // NFTA_LIMIT_RATE
        limit.bytes(2, &1_u64.to_be_bytes()); // NFTA_LIMIT_UNIT, in seconds
        limit.number(3, 5); // NFTA_LIMIT_BURST
        limit.number(4, 0); // NFTA_LIMIT_TYPE: packets
    });
    nft.apply(&[Edit::add_rule(&limit.verdict(Verdict::Accept))]).unwrap();
    assert_eq!(listed(&lab, CHAIN), ["limit rate 5/second accept"]);
}

#[test]
fn nft_understands_sets_and_maps() {
    let (lab, mut nft) = prepared();
    let six = Table { family: Family::Ipv6, name: "t6" };
    let addressed = SetSpec {
        set: six.set("ports"),
        key: &[DataType::Ipv6, DataType::Protocol, DataType::Port],
        maps_to: MapsTo::Values(&[DataType::Ipv6, DataType::Port]),
        elements: Elements::Keys,
    };
    let macs =
        SetSpec { set: six.set("macs"), key: &[DataType::Mac], maps_to: MapsTo::Nothing, elements: Elements::Keys };
    let links = SetSpec {
        set: six.set("links"),
        key: &[DataType::LinkName],
        maps_to: MapsTo::Verdicts,
        elements: Elements::Keys,
    };
    let both = SetSpec {
        set: six.set("both"),
        key: &[DataType::LinkName, DataType::Port],
        maps_to: MapsTo::Values(&[DataType::LinkName]),
        elements: Elements::Keys,
    };
    let pairs = SetSpec {
        set: TABLE.set("pairs"),
        key: &[DataType::Ipv4; 2],
        maps_to: MapsTo::Nothing,
        elements: Elements::Ranges,
    };
    let mut edits = vec![Edit::add_table(six), Edit::add_chain(six.chain("next"))];
    edits.extend([&addressed, &macs, &links, &both, &pairs].map(Edit::add_set));
    let range = Element::range(&[ip("10.0.0.0"), ip("10.0.0.2")], &[ip("10.0.0.255"), ip("10.0.0.2")]);
    let dns = Element::new(&[ip("fd00::1"), Value::Protocol(17), Value::Port(53)]);
    let link = |name: &str| Value::LinkName(name.into());
    let mac = MacAddr([0x0a, 0x58, 1, 2, 3, 4]);
    for (set, element) in [
        (PORTS.set, port(8080).comment("c1").mark("net1 c1 eth0")),
        (addressed.set, dns.to(&[ip("fd00::2"), Value::Port(5353)])),
        (macs.set, Element::new(&[Value::Mac(mac)]).comment("known")),
        (links.set, Element::new(&[link("br0")]).verdict(Verdict::Goto("next".into()))),
        (both.set, Element::new(&[link("br0"), Value::Port(80)]).to(&[link("br1")])),
        (pairs.set, range.clone()),
    ] {
        edits.extend(Edit::create_elements(set, std::slice::from_ref(&element)));
    }
    nft.apply(&edits).unwrap();
    let shown = lab.sh("nft list ruleset");
    for line in [
        "type inet_proto . inet_service : ipv4_addr . inet_service",
        "elements = { tcp . 8080 comment \"c1\" : 10.0.0.2 . 80 }",
        "type ipv6_addr . inet_proto . inet_service : ipv6_addr . inet_service",
        "elements = { fd00::1 . udp . 53 : fd00::2 . 5353 }",
        "type ether_addr",
        "elements = { 0a:58:01:02:03:04 comment \"known\" }",
        "type ifname : verdict",
        "elements = { \"br0\" : goto next }",
        "type ifname . inet_service : ifname",
        "elements = { \"br0\" . 80 : \"br1\" }",
        "type ipv4_addr . ipv4_addr",
        "elements = { 10.0.0.0/24 . 10.0.0.2 }",
    ] {
        assert!(shown.lines().any(|shown| shown.trim() == line), "{line} is not in\n{shown}");
    }
    let json = lab.sh("nft -j list map ip t ports");
    assert!(json.contains(r#""comment": "c1""#) && !json.contains("net1"), "{json}");
    assert_eq!(nft.elements(pairs.set).unwrap(), [range]);
    let goto = nft.elements(links.set).unwrap().remove(0);
    assert_eq!(goto.data, Some(Data::Verdict(Verdict::Goto("next".into()))));
    lab.sh("nft 'add element ip t ports { udp . 53 : 10.0.0.3 . 53 }'");
    let dns = nft.element(PORTS.set, &[Value::Protocol(17), Value::Port(53)]).unwrap().unwrap();
    let to = dns.data.and_then(Data::into_value).unwrap();
    assert_eq!(Value::split(&[DataType::Ipv4, DataType::Port], &to).unwrap(), [ip("10.0.0.3"), Value::Port(53)]);
}

/// The conntrack match of `iptables` for these states: struct xt_conntrack_mtinfo3.
fn connection_state(states: u16) -> Vec<u8> {
    let mut info = vec![0; 168];
    info[146..148].copy_from_slice(&1_u16.to_ne_bytes());
    info[150..152].copy_from_slice(&states.to_ne_bytes());
    info
}

#[test]
fn iptables_understands_rules() {
    let lab = Lab::without_plugins();
    let mut nft = Nftables::open().unwrap();
    let filter = Table { family: Family::Ipv4, name: "filter" };
    let (forward, own) = (filter.chain("FORWARD"), filter.chain("CNI-FORWARD"));
    let address = "10.9.0.2/32".parse().unwrap();
    let established = RuleSpec::new(own).destination_in(address).compat_match("conntrack", 3, &connection_state(6));
    let rules = [
        RuleSpec::new(forward).counter().jump("CNI-FORWARD").comment("CNI firewall plugin rules"),
        established.counter().verdict(Verdict::Accept).mark("c1"),
        RuleSpec::new(own).source_in(address).counter().verdict(Verdict::Accept).mark("c1"),
        RuleSpec::new(own).input_link("br0").output_link_not("br0").counter().verdict(Verdict::Drop),
        RuleSpec::new(own)
            .matches(Field::PROTOCOL, Comparison::Equal, &[Field::TCP])
            .compat_match(
                "multiport",
                1,
                &[&[1, 2][..], &80_u16.to_ne_bytes(), &443_u16.to_ne_bytes(), &[0; 42]].concat(),
            )
            .counter()
            .compat_target("MARK", 2, &[0x2000_u32.to_ne_bytes(), 0x2000_u32.to_ne_bytes()].concat())
            .compat_protocol(Field::TCP),
    ];
    let mut edits = vec![Edit::add_table(filter), Edit::add_base_chain(forward, Hook::FORWARD), Edit::add_chain(own)];
    edits.extend(rules.iter().map(Edit::add_rule));
    nft.apply(&edits).unwrap();
    let saved = lab.sh("iptables-nft-save -t filter");
    let rules: Vec<_> = saved.lines().filter(|line| line.starts_with("-A")).collect();
    assert_eq!(
        rules,
        [
            "-A FORWARD -m comment --comment \"CNI firewall plugin rules\" -j CNI-FORWARD",
            "-A CNI-FORWARD -d 10.9.0.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            "-A CNI-FORWARD -s 10.9.0.2/32 -j ACCEPT",
            "-A CNI-FORWARD -i br0 ! -o br0 -j DROP",
            "-A CNI-FORWARD -p tcp -m multiport --dports 80,443 -j MARK --set-xmark 0x2000/0x2000",
        ]
    );
    lab.sh("iptables-nft -C CNI-FORWARD -d 10.9.0.2 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT");
    assert_eq!(nft.rules_with_mark(own, &|mark| mark == "c1").unwrap().len(), 2);
    lab.sh("iptables-nft -D CNI-FORWARD -s 10.9.0.2 -j ACCEPT");
    assert_eq!(nft.rules_with_mark(own, &|mark| mark == "c1").unwrap().len(), 1);
}

#[test]
fn rules_of_nft_are_read() {
    let lab = Lab::without_plugins();
    lab.sh("nft 'table inet n { chain other { }; chain c {
            tcp dport 80 dnat ip to 10.9.0.2:8080
            tcp dport 81 dnat ip6 to [fd00::2]:8081
            tcp dport 82 dnat ip to 10.9.0.2
            tcp dport 83 dnat ip to 10.9.0.2-10.9.0.3:80
            tcp dport 84 dnat ip to 10.9.0.2:80-90
            tcp dport 85 snat ip to 10.9.0.2:80
            tcp dport 86 dnat ip to meta mark map { 1 : 10.9.0.2 . 80 }
            tcp dport 87 accept
            tcp dport 88 drop
            tcp dport 89 return
            tcp dport 90 jump other
            tcp dport 91 goto other
            tcp dport 92 counter
        }; }'");
    let table = Table { family: Family::Inet, name: "n" };
    let rules = Nftables::open().unwrap().table_rules(table).unwrap();
    assert!(rules.iter().all(|rule| rule.chain == "c" && rule.extensions.is_empty()), "{rules:?}");
    let translations: Vec<_> = rules.iter().map(|rule| rule.translates_to).collect();
    let expected = ["10.9.0.2:8080", "[fd00::2]:8081"].map(|to| to.parse().ok());
    assert_eq!(translations, [&expected[..], &[None; 11]].concat());
    let jump = |to: fn(String) -> Verdict| Some(to("other".into()));
    let verdicts: Vec<_> = rules[7..].iter().map(|rule| rule.verdict.clone()).collect();
    let plain = [Verdict::Accept, Verdict::Drop, Verdict::Return].map(Some);
    assert_eq!(verdicts, [&plain[..], &[jump(Verdict::Jump), jump(Verdict::Goto), None]].concat());
    assert_eq!(rules.iter().filter_map(|rule| rule.target()).collect::<Vec<_>>(), ["other"; 2]);
    let ports: Vec<_> = rules.iter().map(|rule| rule.values.last().unwrap().clone()).collect();
    assert_eq!(ports, (80..93).map(|port| vec![0, port]).collect::<Vec<_>>());
}

#[test]
fn rules_of_iptables_are_read() {
    let lab = Lab::without_plugins();
    lab.sh(
        "iptables-nft -t nat -N CNI-DN-1
        iptables-nft -t nat -A CNI-DN-1 -p tcp -m multiport --dports 80,443 -m comment --comment mine -j MARK --set-mark 1
        iptables-nft -t nat -A CNI-DN-1 -p tcp --dport 80 -j DNAT --to-destination 10.9.0.2:8080
        iptables-nft -t nat -A CNI-DN-1 -j MASQUERADE
        iptables-nft -t nat -A CNI-DN-1 -j RETURN",
    );
    let nat = Table { family: Family::Ipv4, name: "nat" };
    let rules = Nftables::open().unwrap().rules(nat.chain("CNI-DN-1")).unwrap();
    let [ports, translation, masquerade, verdict] = &rules[..] else { panic!("{rules:?}") };
    let [multiport, comment, mark] = &ports.extensions[..] else { panic!("{ports:?}") };
    assert_eq!((multiport.name.as_str(), multiport.revision), ("multiport", 1));
    // struct xt_multiport_v1: flags, count, ports
    assert_eq!(multiport.info[1..6], [&[2][..], &80_u16.to_ne_bytes(), &443_u16.to_ne_bytes()].concat());
    assert_eq!((comment.name.as_str(), ports.comment.as_str(), ports.verdict.as_ref()), ("comment", "mine", None));
    assert_eq!(mark.name, "MARK");
    let dnat = translation.extensions.last().unwrap();
    assert_eq!((dnat.name.as_str(), translation.translates_to), ("DNAT", None));
    assert!(dnat.info.windows(4).any(|bytes| bytes == [10, 9, 0, 2]), "{dnat:?}");
    assert!(masquerade.masquerades && !translation.masquerades);
    assert_eq!((verdict.verdict.as_ref(), verdict.extensions.len()), (Some(&Verdict::Return), 0));
}
