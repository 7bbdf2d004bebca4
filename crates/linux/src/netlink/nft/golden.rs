//! Compares our messages with those that `nft` and `iptables-nft` send for the same operation (`testdata/wire`).
#![cfg(target_endian = "little")]

use super::*;
use crate::ip::{Cidr, MacAddr};
use crate::netlink::golden::captured;
use crate::netlink::wire::{NESTED, Request};

const IP: Table<'_> = Table { family: Family::Ipv4, name: "t" };
const IP6: Table<'_> = Table { family: Family::Ipv6, name: "t" };
const INET: Table<'_> = Table { family: Family::Inet, name: "t" };
const BRIDGE: Table<'_> = Table { family: Family::Bridge, name: "t" };
const MAC: MacAddr = MacAddr([0x0a, 0x58, 0x0a, 0xf4, 0, 1]);

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

/// Returns attributes with their flags, which [`wire::attributes`] removes.
fn attributes(bytes: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut found = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let len = usize::from(u16::from_ne_bytes([rest[0], rest[1]]));
        found.push((u16::from_ne_bytes([rest[2], rest[3]]), rest[4..len].to_vec()));
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

/// Returns the attributes without those that only the tools write, sorted, because the kernel does not read them in
/// order:
/// - numbers of sets, by which messages refer to them; ours use names
/// - in the user data of a set, everything but the byte orders (types 0 and 1)
fn comparable(kind: u8, bytes: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut found = attributes(bytes);
    found.retain(|(attribute, _)| !matches!((kind, attribute), (9, 10) | (12, 4)));
    for (attribute, value) in &mut found {
        if (kind, *attribute) == (9, 13) {
            let orders = value.chunks(6).take_while(|entry| entry[0] <= 1 && entry[1] == 4).count();
            value.truncate(6 * orders);
        }
        if (kind, *attribute) == (6, NESTED | 4) {
            *value =
                attributes(value).into_iter().flat_map(|(_, expression)| comparable_expression(&expression)).collect();
        }
    }
    found.sort();
    found
}

/// Returns an expression without what only the tools write:
/// - the number of a set
/// - the zeros from which a counter starts
fn comparable_expression(bytes: &[u8]) -> Vec<u8> {
    let parts = attributes(bytes);
    let [(name_kind, name), (data_kind, data)] = &parts[..] else { panic!("{parts:?}") };
    let mut list = Request::part();
    list.nest(NESTED | 1, |element| {
        element.attr(*name_kind, name);
        element.nest(*data_kind, |inner| {
            for (kind, value) in attributes(data) {
                let only_theirs = match wire::text(name).as_str() {
                    "lookup" => kind == 4,
                    "dynset" => kind == 2,
                    "counter" => value == [0; 8],
                    _ => false,
                };
                if !only_theirs {
                    inner.attr(kind, &value);
                }
            }
        });
    });
    list.bytes().to_vec()
}

/// Compares the type, the flags except those that request an answer, the family and the attributes.
#[track_caller]
fn same(ours: &[u8], name: &str) {
    let theirs = captured(name);
    let flags = |message: &[u8]| {
        let is_question = matches!(message[4..6], [4 | 7 | 10 | 13 | 16, 10]);
        let dump = if is_question { libc::NLM_F_DUMP } else { 0 };
        u16::from_ne_bytes([message[6], message[7]])
            & !u16::try_from(libc::NLM_F_ACK | libc::NLM_F_ECHO | dump).unwrap()
    };
    assert_eq!((&ours[4..6], flags(ours)), (&theirs[4..6], flags(&theirs)), "type and flags");
    assert_eq!(ours[16..20], theirs[16..20], "family");
    assert_eq!(comparable(ours[4], &ours[20..]), comparable(theirs[4], &theirs[20..]));
}

#[track_caller]
fn agrees(edit: &Edit, name: &str) {
    same(&edit.message, name);
}

#[track_caller]
fn agrees_rule(rule: &RuleSpec<'_>, name: &str) {
    agrees(&Edit::add_rule(rule), name);
}

fn rule(table: Table<'static>) -> RuleSpec<'static> {
    RuleSpec::new(table.chain("c"))
}

#[test]
fn tables_and_chains() {
    agrees(&Edit::add_table(Table { name: "filter", ..IP }), "iptables_add_table");
    agrees(&Edit::add_chain(IP.chain("c")), "nft_add_chain");
    agrees(&Edit::create_chain(IP.chain("e")), "nft_create_chain");
    agrees(&Edit::delete_chain(IP.chain("e")), "nft_delete_chain");
    agrees(&Edit::flush(IP.chain("c")), "nft_flush_chain");
    let nat = Table { name: "nat", ..IP };
    agrees(&Edit::add_base_chain(nat.chain("POSTROUTING"), Hook::SOURCE_NAT), "iptables_add_base_chain");
}

#[test]
fn matches() {
    let addresses = rule(INET).source([10, 0, 0, 2].into()).destination_outside(cidr("10.0.0.0/20"));
    agrees_rule(&addresses.masquerade().comment("c1"), "nft_rule_addresses");
    let addresses = rule(INET).source_in(cidr("fd00::/61")).destination_in(cidr("fd00::/64"));
    agrees_rule(&addresses.verdict(Verdict::Return), "nft_rule_addresses6");
    agrees_rule(&rule(IP).input_link("br0").output_link_not("br1").verdict(Verdict::Drop), "nft_rule_links");
    let links = rule(IP).input_link_not("br0").output_link("br1");
    agrees_rule(&links.verdict(Verdict::Accept), "nft_rule_other_links");
    agrees_rule(&rule(BRIDGE).source_mac(MAC).goto("d"), "nft_rule_mac");
    let established = rule(IP).matches_any_bit(Field::CONNECTION_STATE, 6);
    agrees_rule(&established.counter().verdict(Verdict::Accept), "nft_rule_connection_state");
}

#[test]
fn translations() {
    let to_port = |table| rule(table).destination_port(Field::TCP, 80);
    agrees_rule(&to_port(IP).translate_destination("10.0.0.2:8080".parse().unwrap()), "nft_rule_dnat");
    agrees_rule(&to_port(IP6).translate_destination("[fd00::2]:8080".parse().unwrap()), "nft_rule_dnat6");
    agrees_rule(&to_port(IP).redirect(8080), "nft_rule_redirect");
    agrees_rule(&rule(IP).set_packet_mark(0x2000).jump("d"), "nft_rule_set_packet_mark");
}

#[test]
fn lookups() {
    let ports = [Field::PROTOCOL, Field::DESTINATION_PORT];
    let local = rule(IP).destination_is_local();
    agrees_rule(&local.translate_destination_by(Family::Ipv4, &ports, "m"), "nft_rule_map");
    let addressed = [Field::DESTINATION_V6, Field::PROTOCOL, Field::DESTINATION_PORT];
    agrees_rule(&rule(IP6).translate_destination_by(Family::Ipv6, &addressed, "m"), "nft_rule_map6");
    let pair = [Field::SOURCE_V4, Field::DESTINATION_V4];
    let translated = rule(IP).matches_any_bit(Field::CONNECTION_STATUS, Field::TRANSLATED);
    agrees_rule(&translated.in_set(&pair, "s").masquerade(), "nft_rule_in_set");
    let added = rule(INET).destination_outside(cidr("127.0.0.0/8")).add_to_set(&[Field::DESTINATION_V4], "d");
    agrees_rule(&added, "nft_rule_add_to_set");
    let original = rule(INET).in_set(&[Field::ORIGINAL_DESTINATION_V4], "d").masquerade();
    agrees_rule(&original, "nft_rule_original_destination");
    agrees_rule(&rule(IP).not_in_set(&pair, "s").verdict(Verdict::Return), "nft_rule_not_in_set");
    agrees_rule(&rule(IP).verdict_map(&[Field::INPUT_LINK], "v"), "nft_rule_verdict_map");
}

#[test]
fn positions() {
    const HANDLE: u64 = 12;
    agrees(&Edit::insert_rule(&rule(IP).verdict(Verdict::Accept), Position::First), "nft_insert_rule");
    let accept = RuleSpec::new(IP.chain("d")).verdict(Verdict::Accept);
    agrees(&Edit::insert_rule(&accept, Position::Before(HANDLE)), "nft_insert_rule_before");
    agrees(&Edit::insert_rule(&accept, Position::After(HANDLE)), "nft_add_rule_after");
    let drop = RuleSpec::new(IP.chain("d")).verdict(Verdict::Drop);
    agrees(&Edit::replace_rule(HANDLE, &drop), "nft_replace_rule");
    agrees(&Edit::delete_rule(IP.chain("d"), &Rule { handle: HANDLE, ..Rule::default() }), "nft_delete_rule");
}

#[test]
fn extensions_of_iptables() {
    let nat = Table { name: "nat", ..IP };
    // struct xt_conntrack_mtinfo3: match_flags at 146, state_mask at 150.
    let mut state = [0; 168];
    state[146] = 1;
    state[150] = 6;
    let rule_of = |rule: RuleSpec<'static>, protocol| rule.compat_protocol(protocol);
    let established = rule(nat).destination_in(cidr("10.0.0.2/32")).compat_match("conntrack", 3, &state);
    agrees_rule(&rule_of(established.counter().verdict(Verdict::Accept), 0), "iptables_conntrack");
    let mut range = [0; 24];
    range[0] = 1;
    let marked = rule(nat).matches_bits(Field::PACKET_MARK, 0x2000, 0x2000).counter();
    agrees_rule(&rule_of(marked.compat_target("MASQUERADE", 0, &range), 0), "iptables_mark");
    let tcp = rule(nat).matches(Field::PROTOCOL, Comparison::Equal, &[Field::TCP]);
    let mut ports = [0; 48];
    ports[..6].copy_from_slice(&[1, 2, 0x90, 0x1f, 0x29, 0x23]);
    let mark = [0x2000_u32.to_ne_bytes(), 0x2000_u32.to_ne_bytes()].concat();
    let ports = tcp.compat_match("multiport", 1, &ports).counter().compat_target("MARK", 2, &mark);
    agrees_rule(&rule_of(ports, Field::TCP), "iptables_multiport");
    let mut range = [0; 48];
    range[0] = 3;
    range[4..8].copy_from_slice(&[10, 0, 0, 2]);
    range[20..24].copy_from_slice(&[10, 0, 0, 2]);
    range[36..40].copy_from_slice(&[0x1f, 0x90, 0x1f, 0x90]);
    let port = rule(nat).destination_port(Field::TCP, 80).counter().compat_target("DNAT", 2, &range);
    agrees_rule(&rule_of(port, Field::TCP), "iptables_dnat");
}

const MAP: SetSpec<'_> = SetSpec {
    set: IP.set("m"),
    key: &[DataType::Protocol, DataType::Port],
    maps_to: MapsTo::Values(&[DataType::Ipv4, DataType::Port]),
    elements: Elements::Keys,
};

#[test]
fn sets() {
    agrees(&Edit::add_set(&MAP), "nft_add_map");
    let addressed = SetSpec {
        set: IP6.set("m"),
        key: &[DataType::Ipv6, DataType::Protocol, DataType::Port],
        maps_to: MapsTo::Values(&[DataType::Ipv6, DataType::Port]),
        ..MAP
    };
    agrees(&Edit::add_set(&addressed), "nft_add_map6");
    let verdicts = SetSpec { set: IP.set("v"), key: &[DataType::LinkName], maps_to: MapsTo::Verdicts, ..MAP };
    agrees(&Edit::add_set(&verdicts), "nft_add_verdict_map");
    let ranges =
        SetSpec { set: IP.set("s"), key: &[DataType::Ipv4; 2], maps_to: MapsTo::Nothing, elements: Elements::Ranges };
    agrees(&Edit::add_set(&ranges), "nft_add_range_set");
    let dynamic = SetSpec {
        set: INET.set("d"),
        key: &[DataType::Ipv4],
        maps_to: MapsTo::Nothing,
        elements: Elements::AddedByRules(1024),
    };
    agrees(&Edit::add_set(&dynamic), "nft_add_dynamic_set");
    agrees(&Edit::flush_set(IP.set("s")), "nft_flush_set");
    agrees(&Edit::delete_set(IP.set("s")), "nft_delete_set");
}

#[test]
fn elements() {
    let ip = |text: &str| Value::Ip(text.parse().unwrap());
    let [edit] = &Edit::add_elements(MAP.set, &[tcp(80).comment("c1")])[..] else { panic!() };
    agrees(edit, "nft_add_element");
    let [edit] = &Edit::create_elements(MAP.set, &[tcp(81)])[..] else { panic!() };
    agrees(edit, "nft_create_element");
    let [edit] = &Edit::delete_elements(MAP.set, &[tcp(81)])[..] else { panic!() };
    agrees(edit, "nft_delete_element");
    let dns =
        Element::new(&[ip("fd00::1"), Value::Protocol(17), Value::Port(53)]).to(&[ip("fd00::2"), Value::Port(53)]);
    let [edit] = &Edit::add_elements(IP6.set("m"), &[dns])[..] else { panic!() };
    agrees(edit, "nft_add_element6");
    let jump = Element::new(&[Value::LinkName("br0".into())]).verdict(Verdict::Jump("d".into()));
    let [edit] = &Edit::add_elements(IP.set("v"), &[jump])[..] else { panic!() };
    agrees(edit, "nft_add_verdict_element");
    let range = Element::range(&[ip("10.0.0.0"), ip("10.0.0.2")], &[ip("10.0.0.255"), ip("10.0.0.2")]);
    let [edit] = &Edit::add_elements(IP.set("s"), &[range])[..] else { panic!() };
    agrees(edit, "nft_add_range_element");
}

fn tcp(port: u16) -> Element {
    let to = [Value::Ip([10, 0, 0, 2].into()), Value::Port(8080)];
    Element::new(&[Value::Protocol(Field::TCP), Value::Port(port)]).to(&to)
}

#[test]
fn questions() {
    same(&get_generation(), "nft_get_generation");
    let key = Value::concatenate(&[Value::Protocol(Field::TCP), Value::Port(81)]);
    same(&set::get_element(MAP.set, &key), "nft_get_element");
    same(&about(set::GETSET, NlmF::empty(), IP6).finish(), "nft_list_sets");
    same(&set::about_set(set::GETSETELEM, NlmF::empty(), IP6.set("m")).finish(), "nft_list_elements");
}

#[test]
fn transactions() {
    let theirs = captured("iptables_begin");
    let generation = u32::from_be_bytes(theirs[24..28].try_into().unwrap());
    same(&begin_batch(Some(generation)), "iptables_begin");
}
