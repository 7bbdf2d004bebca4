//! The published ports of the reference with nftables: rules in the tables `ip cni_hostport` and `ip6 cni_hostport`.
//!
//! ```text
//! chain hostports         { ip daddr 10.9.0.1 tcp dport 8080 dnat to 10.9.0.2:80 comment "CONTAINER" }
//! chain hostip_hostports  the same in versions 1.6.0 to 1.8.0, for ports with "hostIP"
//! chain masquerading      { ip saddr 127.0.0.1 ip daddr 10.9.0.2 masquerade comment "CONTAINER" }
//! ```
//!
//! They name neither the network nor the interface. The tables and all other rules in them are shared, and stay.

use std::net::IpAddr;

use cni::{AttachmentKey, Ownership, Result, Trace};
use linux::ip::Protocol;
use linux::netlink::nft::{self, Edit, Family, Nftables, Rule, Table};

use crate::config::Masquerade;
use crate::mapping::{Key, Mapping};
use crate::publication::Publication;
use crate::published::{Form, PortOwner, PublishedPort};

/// The name of the tables.
pub(crate) const TABLE: &str = "cni_hostport";
const TABLES: [Table<'_>; 2] =
    [Table { family: Family::Ipv4, name: TABLE }, Table { family: Family::Ipv6, name: TABLE }];
/// The chains with rules of containers.
const PORTS: [&str; 2] = ["hostports", "hostip_hostports"];
const MASQUERADING: &str = "masquerading";

/// Lists the published ports of all networks.
pub(crate) fn list(nft: &mut Nftables) -> Result<Vec<PublishedPort>> {
    let mut found = Vec::new();
    for table in TABLES {
        for rule in nft.table_rules(table)? {
            if let Some(mapping) = read_mapping(&rule) {
                let owner = PortOwner::Container(rule.comment);
                found.push(PublishedPort { mapping, owner, port: None, form: Form::Rules });
            }
        }
    }
    Ok(found)
}

/// Returns whether the ports of an attachment are published completely: by one rule for each, those for masquerade, and
/// those that lead to them.
pub(crate) fn publishes(nft: &mut Nftables, publication: &Publication<'_>) -> Result<bool> {
    for (address, mappings) in &publication.addresses {
        let ip = address.ip();
        let rules = nft.table_rules(Table { family: Family::of(ip), name: TABLE })?;
        let leads_on = |base: &&str| rules.iter().any(|rule| rule.chain == **base && rule.target().is_some());
        let ours: Vec<&Rule> = rules.iter().filter(|rule| rule.comment == publication.owner.container).collect();
        let is_published = |wanted: &Mapping| ours.iter().any(|rule| read_mapping(rule).as_ref() == Some(wanted));
        // From the container itself, and for IPv4 from 127.0.0.1; from everywhere with `masqAll`.
        let sources = match publication.config.masquerade {
            Masquerade::Never => 0,
            Masquerade::Local if ip.is_ipv4() => 2,
            Masquerade::Local | Masquerade::Always => 1,
        };
        let masquerades = |rule: &&&Rule| rule.chain == MASQUERADING && container_address(rule) == Some(ip);
        let is_complete = ["prerouting", "output"].iter().all(leads_on)
            && mappings.iter().all(is_published)
            && ours.iter().filter(masquerades).count() >= sources;
        if !is_complete {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes the rules of an attachment. `ips` are its addresses, if known. Leases come first: a runtime may pass the
/// result of another interface. Returns the mappings.
///
/// Unlike the reference, which removes the rules of all networks of the container.
pub(crate) fn remove(nft: &mut Nftables, owner: AttachmentKey<'_>, ips: &[IpAddr]) -> Result<Vec<Mapping>> {
    nft::retry(|| {
        let (mut edits, mut removed) = (Vec::new(), Vec::new());
        let ownership = Ownership::new(owner).with_addresses(ips);
        for table in TABLES {
            for rule in nft.table_rules(table)?.iter().filter(|rule| rule.comment == owner.container) {
                let Some(address) = container_address(rule) else { continue };
                if ownership.judge(Trace::OfContainer(address)).is_ours() {
                    edits.push(Edit::delete_rule(table.chain(&rule.chain), rule));
                    removed.extend(read_mapping(rule));
                }
            }
        }
        if !edits.is_empty() {
            nft.apply(&edits)?;
        }
        Ok(removed)
    })
}

/// Returns the mapping of a rule; `None` if it does not translate a port.
fn read_mapping(rule: &Rule) -> Option<Mapping> {
    if !PORTS.contains(&rule.chain.as_str()) {
        return None;
    }
    let target = rule.translates_to?;
    let protocol = rule.values.iter().find_map(|value| match value[..] {
        [number] => Protocol::numbered(number),
        _ => None,
    })?;
    let port = rule.values.iter().find_map(|value| <[u8; 2]>::try_from(value.as_slice()).ok())?;
    let host_ip = rule.values.iter().find_map(|value| read_ip(value));
    Some(Mapping { key: Key { host_ip, protocol, port: u16::from_be_bytes(port) }, target })
}

/// Returns the address of the container in a rule; `None` if it is not the rule of a container.
fn container_address(rule: &Rule) -> Option<IpAddr> {
    match rule.chain.as_str() {
        // The destination follows the source.
        MASQUERADING => read_ip(rule.values.last().filter(|_| rule.masquerades)?),
        chain if PORTS.contains(&chain) => Some(rule.translates_to?.ip()),
        _ => None,
    }
}

fn read_ip(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
        _ => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
    }
}
