//! Entry points for the fuzzer: they read arbitrary configurations, elements and listings, and assert the properties
//! that must hold.
#![allow(clippy::panic, clippy::expect_used, reason = "the fuzzer detects a failure by a panic")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni::{Attachment, Call, ContainerId, IfName};
use linux::netlink::nft::{Data, Element, Family, RuleSpec, Table};

use crate::condition::Condition;
use crate::config::{Backend, Config, Marking};
use crate::entry::Entry;
use crate::mapping::{Mapping, mappings};
use crate::publication::Publication;
use crate::published::PortOwner;
use crate::table::Scope;
use crate::{inventory, iptables};

/// Parses a configuration, and derives what an ADD with it would publish.
pub fn config(call: &Call<'_>) {
    let Ok(config) = Config::parse(call) else { return };
    assert!(config.ports.iter().all(|port| port.host_port > 0 && port.container_port > 0));
    if let Marking::Bit(mark) = config.marking {
        assert_eq!(mark.count_ones(), 1);
    }
    assert!(config.backend != Backend::Nftables || !matches!(config.marking, Marking::Chain(_)));
    for container in [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)] {
        assert_distinct(&mappings(&config.ports, container));
    }
    conditions(&config.conditions_v4, Family::Ipv4);
    conditions(&config.conditions_v6, Family::Ipv6);

    let at = Attachment {
        container: ContainerId::parse("c1".as_ref()).expect("a container ID"),
        ifname: IfName::from_config("eth0").expect("the name of an interface"),
        netns: None,
    };
    let Ok(result) = call.chained_result() else { return };
    let publication = Publication::new(call, &at, &config, &result);
    assert!(publication.addresses.len() <= 2);
    let scopes = publication.scopes();
    let entries = publication.entries(&scopes);
    let read: Vec<Mapping> = entries.iter().filter_map(Entry::read_mapping).collect();
    assert_eq!(read, publication.mappings());
    assert!(read.iter().all(|mapping| mapping.key.host_ip.is_none_or(|ip| ip.is_ipv4() == mapping.target.is_ipv4())));
    assert!(entries.iter().all(|entry| entry.comment() == publication.owner.comment()));
    inventory::fuzz(&entries);
}

/// Asserts that packets can select each mapping.
fn assert_distinct(mappings: &[Mapping]) {
    let mut keys: Vec<_> = mappings.iter().map(|mapping| mapping.key).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), mappings.len(), "{mappings:?}");
}

/// Asserts that conditions become few rules, and that the tools of iptables would read them with the same meaning.
fn conditions(conditions: &[Condition], family: Family) {
    let alternatives = Condition::alternatives(conditions);
    assert!((1..=64).contains(&alternatives.len()));
    let table = Table { family: Family::Inet, name: "t" };
    for alternative in alternatives {
        let rule = RuleSpec::new(table.chain("c")).family(family);
        drop(alternative.iter().fold(rule, |rule, condition| condition.apply(rule)));
        let options: Vec<String> = alternative.iter().flat_map(Condition::options).collect();
        let words: Vec<String> = options.iter().flat_map(|option| option.split(' ')).map(str::to_owned).collect();
        let again = Condition::parse(&words, family).expect("options that were printed can be read");
        assert_eq!(again.iter().flat_map(Condition::options).collect::<Vec<_>>(), options);
    }
}

/// Reads an arbitrary element of an arbitrary set: the name of the set and the comment, each followed by a NUL, the
/// length of the key, the key, and the value.
pub fn element(input: &[u8]) {
    let mut parts = input.splitn(3, |byte| *byte == 0);
    let (Some(set), Some(comment), Some([len, bytes @ ..])) = (parts.next(), parts.next(), parts.next()) else {
        return;
    };
    let Some((key, value)) = bytes.split_at_checked(usize::from(*len)) else { return };
    let comment = String::from_utf8_lossy(comment).into_owned();
    drop(PortOwner::Attachment(comment.clone()).to_string());
    let mut element = Element::new(&[]).comment(comment);
    element.key = key.to_vec();
    element.data = Some(Data::Value(value.to_vec()));
    let entry = Entry { set: String::from_utf8_lossy(set).into_owned(), element };
    assert_eq!(entry.key().set, entry.set);
    inventory::fuzz(std::slice::from_ref(&entry));

    let Some(mapping) = entry.read_mapping() else { return };
    assert!(mapping.key.host_ip.is_none_or(|ip| ip.is_ipv4() == mapping.target.is_ipv4()), "{mapping:?}");
    let begins = |prefix| entry.set.starts_with(prefix);
    let has_address = begins("ipv4_address_ports") || begins("ipv6_address_ports");
    assert_eq!(mapping.key.host_ip.is_some(), has_address);
    let again = Entry::mapping(&Scope::new(mapping.target.ip(), &[]), &mapping, "");
    assert_eq!(again.read_mapping(), Some(mapping));
    assert!(entry.set.starts_with(&again.set), "{} and {}", entry.set, again.set);
    assert_eq!(again.element.key.len(), key.len());
}

/// Reads the ports that the listing of a legacy table publishes.
pub fn legacy_table(lines: &[String]) {
    iptables::fuzz(lines);
}
