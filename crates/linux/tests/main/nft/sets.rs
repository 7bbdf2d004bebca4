//! Sets, maps and their elements.

use std::net::{TcpListener, TcpStream};

use linux::netlink::nft::{
    DataType, Edit, Element, Elements, Family, Field, Hook, MapsTo, RuleSpec, Set, SetSpec, Table, Value, Verdict,
};

use super::{PORTS, TABLE, ip, key, port, prepared};

#[test]
fn an_existing_key_is_an_error_and_nothing_of_the_transaction_is_applied() {
    let (_lab, mut nft) = prepared();
    let taken = port(8080).comment("first");
    nft.apply(&Edit::create_elements(PORTS.set, std::slice::from_ref(&taken))).unwrap();
    let error = nft.apply(&Edit::create_elements(PORTS.set, &[port(9000), port(8080)])).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EEXIST), "{error}");
    assert_eq!(nft.elements(PORTS.set).unwrap(), std::slice::from_ref(&taken));
    nft.apply(&Edit::add_elements(PORTS.set, &[port(8080)])).unwrap();
    let other = Element::new(&key(8080)).to(&[ip("10.0.0.3"), Value::Port(80)]);
    let error = nft.apply(&Edit::add_elements(PORTS.set, &[other])).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EEXIST), "the same key with another value");
    assert_eq!(nft.elements(PORTS.set).unwrap(), [taken]);
}

#[test]
fn one_element_is_looked_up() {
    let (_lab, mut nft) = prepared();
    let elements = [port(80).comment("c1").mark("net1 c1 eth0"), port(81)];
    nft.apply(&Edit::create_elements(PORTS.set, &elements)).unwrap();
    assert_eq!(nft.element(PORTS.set, &key(80)).unwrap().as_ref(), Some(&elements[0]));
    assert_eq!(nft.element(PORTS.set, &key(81)).unwrap().as_ref(), Some(&elements[1]));
    assert_eq!(nft.element(PORTS.set, &key(82)).unwrap(), None);
    assert_eq!(nft.element(TABLE.set("none"), &key(80)).unwrap(), None);
    assert_eq!(nft.elements(TABLE.set("none")).unwrap(), []);
}

#[test]
fn several_elements_are_looked_up() {
    let (_lab, mut nft) = prepared();
    let elements: Vec<_> = (1..=1000).map(|n| port(n).comment("c".repeat(100)).mark("m".repeat(100))).collect();
    nft.apply(&Edit::create_elements(PORTS.set, &elements)).unwrap();
    let mut find = |set, ports: &[u16]| {
        let keys: Vec<_> = ports.iter().map(|port| Value::concatenate(&key(*port))).collect();
        nft.find_elements(keys.iter().map(|key| (set, key.as_slice()))).unwrap()
    };
    let element = |n: usize| Some(elements[n - 1].clone());
    assert_eq!(find(PORTS.set, &[2000, 7, 3000, 3, 4000]), [None, element(7), None, element(3), None]);
    assert_eq!(find(PORTS.set, &[5, 2000]), [element(5), None]);
    assert_eq!(find(PORTS.set, &[2000, 2001]), [None, None]);
    assert_eq!(find(PORTS.set, &[]), []);
    assert_eq!(find(TABLE.set("none"), &[1, 2]), [None, None]);
    let all: Vec<_> = (1..=1000).collect();
    assert_eq!(find(PORTS.set, &all), elements.iter().cloned().map(Some).collect::<Vec<_>>());
}

/// A key in a set of ranges, and keys of several sets at once.
#[test]
fn a_range_is_looked_up_by_a_key_in_it() {
    let (_lab, mut nft) = prepared();
    let pairs = SetSpec {
        set: TABLE.set("pairs"),
        key: &[DataType::Ipv4, DataType::Ipv4],
        maps_to: MapsTo::Nothing,
        elements: Elements::Ranges,
    };
    let pair = |one: &str, other: &str| [ip(one), ip(other)];
    let range = Element::range(&pair("10.1.0.0", "10.1.0.2"), &pair("10.1.0.255", "10.1.0.2")).comment("range");
    let mut edits = vec![Edit::add_set(&pairs)];
    edits.extend(Edit::create_elements(pairs.set, std::slice::from_ref(&range)));
    edits.extend(Edit::create_elements(PORTS.set, &[port(80)]));
    nft.apply(&edits).unwrap();
    let keys = [
        (pairs.set, Value::concatenate(&pair("10.1.0.7", "10.1.0.2"))),
        (PORTS.set, Value::concatenate(&key(80))),
        (pairs.set, Value::concatenate(&pair("10.1.1.0", "10.1.0.2"))),
        (pairs.set, Value::concatenate(&pair("10.1.0.0", "10.1.0.2"))),
        (pairs.set, Value::concatenate(&pair("10.1.0.7", "10.1.0.3"))),
    ];
    assert_eq!(
        nft.find_elements(keys.iter().map(|(set, key)| (*set, key.as_slice()))).unwrap(),
        [Some(range.clone()), Some(port(80)), None, Some(range.clone()), None]
    );
    // It is deleted as it was found.
    nft.apply(&Edit::delete_elements(pairs.set, &[range])).unwrap();
    assert_eq!(nft.elements(pairs.set).unwrap(), []);
}

/// An element whose key exists with the same value changes nothing, and another value is refused: a comparison that is
/// part of the transaction.
#[test]
fn an_element_is_compared_in_a_transaction() {
    let (lab, mut nft) = prepared();
    let versions = SetSpec {
        set: TABLE.set("versions"),
        key: &[DataType::LinkName],
        maps_to: MapsTo::Values(&[DataType::PacketMark]),
        elements: Elements::Keys,
    };
    let version = |number| Element::new(&[Value::LinkName("v".into())]).to(&[Value::PacketMark(number)]);
    let with = |number, n| {
        let mut edits = Edit::add_elements(versions.set, &[version(number)]);
        edits.extend(Edit::create_elements(PORTS.set, &[port(n)]));
        edits
    };
    nft.apply(&[Edit::add_set(&versions)]).unwrap();
    nft.apply(&with(1, 80)).unwrap();
    nft.apply(&with(1, 81)).unwrap();
    let shown = lab.sh("nft list map ip t versions");
    assert!(shown.contains("type ifname : mark") && shown.contains("\"v\" : 0x00000001"), "{shown}");
    assert_eq!(nft.apply(&with(2, 82)).unwrap_err().errno(), Some(libc::EEXIST));
    assert_eq!(nft.elements(PORTS.set).unwrap(), [port(80), port(81)]);
}

/// Elements that lead to a chain count as its users.
#[test]
fn the_users_of_a_chain_are_counted() {
    let (lab, mut nft) = prepared();
    let links = SetSpec {
        set: TABLE.set("links"),
        key: &[DataType::LinkName],
        maps_to: MapsTo::Verdicts,
        elements: Elements::Keys,
    };
    let target = TABLE.chain("target");
    let element =
        |name: &str| Element::new(&[Value::LinkName(name.into())]).verdict(Verdict::Goto(target.name.to_owned()));
    assert_eq!(nft.uses_of(target).unwrap(), None);
    nft.apply(&[Edit::add_chain(target), Edit::add_set(&links)]).unwrap();
    assert_eq!(nft.uses_of(target).unwrap(), Some(0));
    nft.apply(&Edit::create_elements(links.set, &[element("a"), element("b")])).unwrap();
    lab.sh("nft 'add rule ip t target return; add rule ip t c jump target'");
    assert_eq!(nft.uses_of(target).unwrap(), Some(4));
    nft.apply(&Edit::delete_elements(links.set, &[element("a")])).unwrap();
    assert_eq!(nft.uses_of(target).unwrap(), Some(3));
    assert_eq!(nft.apply(&[Edit::flush(target), Edit::delete_chain(target)]).unwrap_err().errno(), Some(libc::EBUSY));
}

/// Other programs change their tables all the time.
#[test]
fn elements_are_listed_beside_transactions_of_others() {
    let (lab, mut nft) = prepared();
    let elements: Vec<_> = (1..=20_000).map(|n| port(n).comment("c".repeat(100))).collect();
    nft.apply(&Edit::create_elements(PORTS.set, &elements)).unwrap();
    testing::parallel::beside(&lab, "nft 'add table inet other; delete table inet other'", || {
        for _ in 0..5 {
            let found = nft.elements(PORTS.set).unwrap();
            assert!(found == elements, "{} elements", found.len());
        }
    });
}

#[test]
fn sets_and_maps_are_listed() {
    let (lab, mut nft) = prepared();
    lab.sh("nft 'add set ip t addresses { type ipv4_addr; }; add rule ip t c tcp dport { 80, 81 } accept
        table ip other { set more { type ipv4_addr; }; }
        table ip6 t { set six { type ipv6_addr; }; }'");
    assert!(lab.sh("nft --debug=netlink list chain ip t c").contains("__set"), "the rule has an anonymous set");
    assert_eq!(nft.sets(TABLE).unwrap(), ["ports", "addresses"]);
    assert_eq!(nft.sets(Table { family: Family::Ipv6, ..TABLE }).unwrap(), ["six"]);
    assert_eq!(nft.sets(Table { name: "none", ..TABLE }).unwrap(), [""; 0]);
}

#[test]
fn elements_and_sets_are_deleted() {
    let (lab, mut nft) = prepared();
    nft.apply(&Edit::create_elements(PORTS.set, &[port(80), port(81), port(82)])).unwrap();
    nft.apply(&Edit::delete_elements(PORTS.set, &[port(81)])).unwrap();
    assert_eq!(nft.elements(PORTS.set).unwrap(), [port(80), port(82)]);
    let error = nft.apply(&Edit::delete_elements(PORTS.set, &[port(81)])).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENOENT));
    nft.apply(&[Edit::flush_set(PORTS.set)]).unwrap();
    assert_eq!(nft.elements(PORTS.set).unwrap(), []);
    nft.apply(&[Edit::delete_set(PORTS.set)]).unwrap();
    assert!(!lab.sh("nft list ruleset").contains("ports"));
}

/// The kernel enlarges its hash table in the background, often while the elements are listed.
#[test]
fn thousands_of_elements_are_one_transaction_and_listed_completely() {
    let (_lab, mut nft) = prepared();
    let elements: Vec<_> = (1..=3000).map(|n| port(n).comment("c".repeat(60)).mark("m".repeat(60))).collect();
    for _ in 0..20 {
        nft.apply(&Edit::create_elements(PORTS.set, &elements)).unwrap();
        let found = nft.elements(PORTS.set).unwrap();
        assert!(found == elements, "{} elements", found.len());
        nft.apply(&[Edit::delete_set(PORTS.set), Edit::add_set(&PORTS)]).unwrap();
    }
}

#[test]
fn connections_are_translated_by_a_map() {
    let (lab, mut nft) = prepared();
    lab.sh("ip link set lo up");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap().port();
    let output = TABLE.chain("output");
    let fields = [Field::PROTOCOL, Field::DESTINATION_PORT];
    let rule = RuleSpec::new(output).destination_is_local().translate_destination_by(Family::Ipv4, &fields, "ports");
    let mut edits = vec![Edit::add_base_chain(output, Hook::LOCAL_DESTINATION_NAT), Edit::add_rule(&rule)];
    let element = Element::new(&key(8080)).to(&[ip("127.0.0.1"), Value::Port(target)]);
    edits.extend(Edit::create_elements(PORTS.set, &[element]));
    assert!(TcpStream::connect("127.0.0.1:8080").is_err(), "nothing listens there");
    nft.apply(&edits).unwrap();
    TcpStream::connect("127.0.0.1:8080").unwrap();
}

#[test]
fn the_name_of_a_set_is_in_the_error() {
    let (_lab, mut nft) = prepared();
    let none: Set<'_> = TABLE.set("none");
    let error = nft.apply(&Edit::create_elements(none, &[port(80)])).unwrap_err();
    assert!(error.to_string().contains("create elements of set ip t none"), "{error}");
}
