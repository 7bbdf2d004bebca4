//! nf_tables against the kernel, verified with `nft` and `iptables`.

mod sets;
mod tools;
mod transactions;

use linux::netlink::nft::{
    Chain, DataType, Edit, Element, Elements, Family, Field, MapsTo, Nftables, RuleSpec, SetSpec, Table, Value,
};
use testing::Lab;

const TABLE: Table<'_> = Table { family: Family::Ipv4, name: "t" };
const CHAIN: Chain<'_> = TABLE.chain("c");
const PORTS: SetSpec<'_> = SetSpec {
    set: TABLE.set("ports"),
    key: &[DataType::Protocol, DataType::Port],
    maps_to: MapsTo::Values(&[DataType::Ipv4, DataType::Port]),
    elements: Elements::Keys,
};

/// Creates the table, the chain and the map of ports.
fn prepared() -> (Lab, Nftables) {
    let lab = Lab::without_plugins();
    let mut nft = Nftables::open().unwrap();
    nft.apply(&[Edit::add_table(TABLE), Edit::add_chain(CHAIN), Edit::add_set(&PORTS)]).unwrap();
    (lab, nft)
}

fn ip(text: &str) -> Value {
    Value::Ip(text.parse().unwrap())
}

fn key(port: u16) -> [Value; 2] {
    [Value::Protocol(Field::TCP), Value::Port(port)]
}

fn port(port: u16) -> Element {
    Element::new(&key(port)).to(&[ip("10.0.0.2"), Value::Port(80)])
}

fn rule() -> RuleSpec<'static> {
    RuleSpec::new(CHAIN)
}

/// Returns the comments of the rules of the chain, in order.
fn comments(nft: &mut Nftables) -> Vec<String> {
    nft.rules(CHAIN).unwrap().into_iter().map(|rule| rule.comment).collect()
}
