//! Entry points for the fuzzer: every parser reads the input as if it were a datagram from the kernel.

use super::answer::{Answers, Listing};
use super::conntrack::{self, Flow};
use super::nft::{BaseChain, Comparison, DataType, Element, Rule, Value, read_set_name};
use super::{
    Address, KernelRoute, Link, LinkIndex, ListedRoute, Neighbour, Qdisc, Rule as RoutingRule, TokenBucket, neighbour,
    route, tc, vlan, wire,
};
use crate::error::Result;
use crate::ip::Cidr;

/// Returns the sequence number and the link of the first message, so that the parsers do not skip it.
fn first(datagram: &[u8]) -> Result<(u32, LinkIndex)> {
    Ok((wire::number(datagram, 8)?, LinkIndex::read(wire::number(datagram, 20).map_or(1, |link| link.max(1)))?))
}

fn list<T>(datagram: &[u8], seq: u32, kind: u16, read: impl Fn(&[u8]) -> Result<Option<T>>) -> Vec<T> {
    let mut items = Vec::new();
    let mut listing = Listing { seq, kind, interrupted: false };
    let _ = listing.take(datagram, &mut |payload| read(payload).map(|found| items.extend(found)));
    items
}

fn assert_valid(cidr: Cidr) {
    assert!(cidr.prefix() <= if cidr.ip().is_ipv4() { 32 } else { 128 } && cidr.contains(cidr.network().ip()));
}

/// Reads an answer about links, addresses, routes, neighbours, VLANs, traffic control and connection tracking, to a
/// query and to changes.
pub fn reply(datagram: &[u8]) {
    let Ok((seq, link)) = first(datagram) else { return };
    for link in list(datagram, seq, libc::RTM_NEWLINK, |payload| Link::read(payload).map(Some)) {
        assert!(![&link.name, &link.alias, &link.kind].into_iter().any(|text| text.contains('\0')));
    }
    for address in list(datagram, seq, libc::RTM_NEWADDR, |payload| Address::read(payload, link)) {
        assert_valid(address.cidr);
    }
    for route in list(datagram, seq, libc::RTM_NEWROUTE, KernelRoute::read) {
        assert_valid(route.route.dst);
    }
    list(datagram, seq, libc::RTM_NEWROUTE, ListedRoute::read);
    list(datagram, seq, libc::RTM_NEWROUTE, route::read_outgoing_link);
    for rule in list(datagram, seq, libc::RTM_NEWRULE, RoutingRule::read) {
        assert!(rule.source.is_none_or(|source| source.table == rule.table));
    }
    list(datagram, seq, libc::RTM_NEWNEIGH, |payload| Neighbour::read(payload, link));
    list(datagram, seq, libc::RTM_NEWNEIGH, |payload| neighbour::read_received(payload, link));
    for vlan in list(datagram, seq, wire::RTM_NEWVLAN, |payload| vlan::read(payload, link).map(Some)).concat() {
        assert!(vlan.range.first <= vlan.range.last);
    }
    for qdisc in list(datagram, seq, libc::RTM_NEWQDISC, |payload| Qdisc::read(payload).map(Some)) {
        let is_bucket = qdisc.is_token_bucket(&TokenBucket { rate: 1, burst: 1, limit: 1 });
        assert!(!qdisc.kind.contains('\0') && (!is_bucket || qdisc.kind == "tbf"));
    }
    list(datagram, seq, libc::RTM_NEWTFILTER, tc::redirect::read_redirect);
    list(datagram, seq, libc::RTM_NEWTFILTER, tc::loopback::read_loopback_filter);
    for deletion in list(datagram, seq, conntrack::NEW, |payload| Ok(Flow::read(payload)?.deletion())) {
        // Without a tuple, the kernel would delete every entry.
        assert!(wire::attributes(&deletion, 20).any(|attribute| matches!(attribute, Ok((1, _)))), "{deletion:?}");
    }
    let mut answers = Answers { first: seq, count: 3, absent: &[libc::ENOENT], refused: None };
    let _ = answers.take(
        datagram,
        |place, refused| place == 2 || refused,
        |message| {
            match message.kind {
                libc::RTM_NEWLINK => drop(Link::read(message.payload)?),
                libc::RTM_NEWADDR => drop(Address::read(message.payload, link)?),
                _ => {}
            }
            Ok(())
        },
    );
    if let Some((place, error)) = answers.refused {
        assert!(place < 3 && error.errno().is_some_and(|errno| errno != libc::ENOENT), "{error:?}");
    }
}

/// Reads an answer of nf_tables.
pub fn rules(datagram: &[u8]) {
    const NEWCHAIN: u16 = 10 << 8 | 3;
    const NEWRULE: u16 = 10 << 8 | 6;
    const NEWSET: u16 = 10 << 8 | 9;
    const NEWSETELEM: u16 = 10 << 8 | 12;
    let Ok((seq, _)) = first(datagram) else { return };
    let read = |payload: &[u8]| {
        let userdata = Rule::userdata_of(payload)?;
        assert!(!userdata.comment.contains('\0') && !userdata.mark.contains('\0'));
        Rule::read(payload)
    };
    for rule in list(datagram, seq, NEWRULE, read) {
        assert!(rule.handle != 0 && !rule.comment.contains('\0') && !rule.chain.contains('\0'));
        assert!(rule.target().is_none() || rule.verdict.is_some());
        assert!(rule.extensions.iter().all(|extension| !extension.name.contains('\0')));
        assert!(!rule.is_unconditional() || rule.conditions().is_empty(), "{rule:?}");
        rule.destinations(Comparison::Equal).into_iter().for_each(assert_valid);
    }
    for chain in list(datagram, seq, NEWCHAIN, BaseChain::read) {
        assert!(!chain.table.contains('\0') && !chain.name.contains('\0'), "{chain}");
    }
    assert!(list(datagram, seq, NEWSET, |payload| read_set_name("t", payload)).iter().all(|name| !name.contains('\0')));
    for element in list(datagram, seq, NEWSETELEM, |payload| Element::read_all(payload).map(Some)).concat() {
        assert!(!element.userdata.comment.contains('\0') && !element.userdata.mark.contains('\0'));
        for kind in [DataType::Ipv4, DataType::Ipv6, DataType::Mac, DataType::LinkName] {
            let Some(values) = Value::split(&[kind], &element.key) else { continue };
            assert_eq!(Value::concatenate(&values).len(), element.key.len(), "{values:?}");
        }
    }
}
