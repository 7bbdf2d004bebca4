//! Sets, maps and their elements.

use std::net::{TcpListener, TcpStream};

use linux::netlink::nft::{Edit, Element, Family, Field, Hook, RuleSpec, Set, Table, Value};

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
    let keys = |ports: &[u16]| ports.iter().map(|port| key(*port).to_vec()).collect::<Vec<_>>();
    assert_eq!(
        nft.find_elements(PORTS.set, &keys(&[2000, 7, 3000, 3, 4000])).unwrap(),
        [elements[6].clone(), elements[2].clone()]
    );
    assert_eq!(nft.find_elements(PORTS.set, &keys(&[5, 2000])).unwrap(), elements[4..5]);
    assert_eq!(nft.find_elements(PORTS.set, &keys(&[2000, 2001])).unwrap(), []);
    assert_eq!(nft.find_elements(PORTS.set, &[]).unwrap(), []);
    assert_eq!(nft.find_elements(TABLE.set("none"), &keys(&[1, 2])).unwrap(), []);
    let all: Vec<_> = (1..=1000).collect();
    assert_eq!(nft.find_elements(PORTS.set, &keys(&all)).unwrap(), elements);
    nft.apply(&[Edit::flush_set(PORTS.set)]).unwrap();
    assert_eq!(nft.find_elements(PORTS.set, &keys(&all)).unwrap(), []);
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
