//! Finds published ports that are NodePorts of Kubernetes: kube-proxy translates their connections first, so that they
//! reach a service and not the container.
//!
//! In its nftables mode, kube-proxy has a map of all NodePorts, whose keys are looked up. In its iptables mode, they
//! are the rules of one chain.

use std::net::IpAddr;

use cni::{Result, SortedSet};
use linux::iptables::{FAMILIES, View};
use linux::log::{Level, debug, is_enabled, warn};
use linux::netlink::nft::{Family, Nftables, Set, Table, Value};

use crate::iptables::{self, NAT};
use crate::mapping::{Key, Mapping};

const TABLE: &str = "kube-proxy";
const NODE_PORTS: &str = "service-nodeports";
/// The addresses of this host that have NodePorts. Without the set, all have.
const ADDRESSES: &str = "nodeport-ips";
const CHAIN: &str = "KUBE-NODEPORTS";
/// The rules that an ADD lists, in about 3 ms. It does not look for NodePorts in more.
const MOST_RULES: u32 = 128;

/// Logs a warning for each port that is a NodePort. Reads nothing unless warnings are logged.
pub(crate) fn warn_of_services(nft: &mut Nftables, mappings: &[Mapping]) {
    if !is_enabled(Level::Warn) {
        return;
    }
    match find(nft, mappings, MOST_RULES) {
        // A port of all addresses has a mapping for each family.
        Ok(found) => found.into_iter().map(|mapping| mapping.key).collect::<SortedSet<_>>().iter().for_each(|key| {
            warn!("{key} is a NodePort of Kubernetes: connections reach its service, not the container");
        }),
        Err(error) => debug!("the NodePorts of Kubernetes are unknown: {error}"),
    }
}

/// Returns the mappings whose ports are NodePorts. Lists at most `limit` rules. Legacy tables are not read: that needs
/// a process, and `cnitool doctor` finds their rules with those of other programs.
pub(crate) fn find(nft: &mut Nftables, mappings: &[Mapping], limit: u32) -> Result<Vec<Mapping>> {
    let mut found = in_nftables(nft, mappings)?;
    for tools in &FAMILIES {
        let mut of_family = mappings.iter().filter(|mapping| tools.includes(mapping.target.ip())).peekable();
        let table = tools.table(NAT);
        if of_family.peek().is_some() && nft.uses_of(table.chain(CHAIN))?.is_some_and(|rules| rules <= limit) {
            found.extend(in_iptables(&mut View::Nft(nft, table), of_family)?);
        }
    }
    Ok(found)
}

/// Returns the mappings whose ports are NodePorts of kube-proxy in its nftables mode.
fn in_nftables(nft: &mut Nftables, mappings: &[Mapping]) -> Result<Vec<Mapping>> {
    let key = |key: &Key| Value::concatenate(&[Value::Protocol(key.protocol.number()), Value::Port(key.port)]);
    let keys: Vec<Vec<u8>> = mappings.iter().map(|mapping| key(&mapping.key)).collect();
    let questions = mappings.iter().zip(&keys).map(|(mapping, key)| (set_of(mapping.target.ip(), NODE_PORTS), &**key));
    let found = nft.find_elements(questions)?;
    let mut taken: Vec<Mapping> = mappings.iter().zip(found).filter_map(|(at, found)| found.map(|_| *at)).collect();
    let mut is_elsewhere = |mapping: &Mapping| -> Result<bool> {
        let Some(ip) = mapping.key.host_ip else { return Ok(false) };
        let addresses = set_of(ip, ADDRESSES);
        let has_all = !nft.sets(addresses.table)?.iter().any(|name| name == ADDRESSES);
        Ok(ip.is_loopback() || (!has_all && nft.element(addresses, &[Value::Ip(ip)])?.is_none()))
    };
    let mut elsewhere = Vec::new();
    for mapping in &taken {
        elsewhere.push(is_elsewhere(mapping)?);
    }
    let mut elsewhere = elsewhere.into_iter();
    taken.retain(|_| elsewhere.next() == Some(false));
    Ok(taken)
}

/// Returns the mappings whose ports are NodePorts of kube-proxy in its iptables mode.
fn in_iptables<'a>(view: &mut View<'_>, mappings: impl Iterator<Item = &'a Mapping>) -> Result<Vec<Mapping>> {
    let leads = iptables::ports_that_leave(view, CHAIN)?;
    let is_loopback = |key: &Key| key.host_ip.is_some_and(|ip| ip.is_loopback());
    Ok(mappings.filter(|mapping| !is_loopback(&mapping.key) && leads(&mapping.key)).copied().collect())
}

fn set_of(ip: IpAddr, name: &'static str) -> Set<'static> {
    Set { table: Table { family: Family::of(ip), name: TABLE }, name }
}
