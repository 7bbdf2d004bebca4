//! The attachments of a network, found by their leases, ports and cache entries.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cni::inspect::{Lease, LeaseHolder, Object, marks};
use cni::key::AliasOwner;
use cni::{AttachmentKey, Error};
use linux::Netns;
use linux::ip::Cidr;
use linux::netlink::{Link, LinkIndex};
use serde_json::Value;

use super::evidence::{Evidence, Place, State};
use super::{Network, Node, owner, value_or_unseen};
use crate::cache::{Cache, Entry};

/// An attachment in the cache of results.
#[derive(Debug)]
pub(super) struct Cached {
    pub(super) network: String,
    container: String,
    ifname: String,
    pub(super) netns: Option<PathBuf>,
    addresses: Vec<IpAddr>,
}

/// An interface of a container, with everything that is known about it.
#[derive(Clone, Debug)]
pub(crate) struct Attachment {
    pub(crate) container: String,
    /// `None` for an old lease, which names only the container.
    pub(crate) ifname: Option<String>,
    pub(crate) leases: Vec<Lease>,
    pub(crate) port: Option<LinkIndex>,
    /// Whether it has an entry in the cache of results.
    pub(crate) cached: bool,
    /// Its namespace according to the cache.
    pub(crate) netns: Option<PathBuf>,
    /// The marks of its objects.
    pub(crate) marks: [String; 2],
    pub(crate) state: State,
    /// The reason for the state.
    pub(crate) why: &'static str,
}

impl Attachment {
    /// Returns whether the object belongs to this attachment.
    pub(crate) fn owns(&self, object: &Object) -> bool {
        object.has_mark_in(&self.marks)
    }
}

impl Node {
    /// Returns all attachments of a network that have a lease, a port or a cache entry.
    pub(crate) fn attachments(&self, network: &Network) -> Vec<Attachment> {
        let mut found: BTreeMap<(String, Option<String>), Attachment> = BTreeMap::new();
        let mut entry = |container: &str, ifname: Option<&str>, change: &mut dyn FnMut(&mut Attachment)| {
            let key = (container.to_owned(), ifname.map(str::to_owned));
            change(found.entry(key.clone()).or_insert_with(|| Attachment {
                marks: marks(AttachmentKey { network: &network.name, container, ifname: ifname.unwrap_or_default() }),
                container: key.0,
                ifname: key.1,
                leases: Vec::new(),
                port: None,
                cached: false,
                netns: None,
                state: State::Unknown,
                why: "",
            }));
        };
        for lease in &network.leases {
            if let LeaseHolder::Container(container, ifname) = &lease.owner {
                entry(container, ifname.as_deref(), &mut |at| at.leases.push(lease.clone()));
            }
        }
        for link in &self.links {
            if let Some(AliasOwner { network: name, attachment: Some((container, ifname)) }) = owner(link)
                && name == network.name
            {
                entry(&container, Some(&ifname), &mut |at| at.port = Some(link.index));
            }
        }
        for cached in self.cached.iter().filter(|cached| cached.network == network.name) {
            entry(&cached.container, Some(&cached.ifname), &mut |at| {
                at.cached = true;
                at.netns.clone_from(&cached.netns);
            });
        }
        let mut found: Vec<Attachment> = found.into_values().collect();
        let bridges = self.bridges(network);
        let general = Evidence {
            on_bridge: !bridges.is_empty(),
            ports_known: self.all_guests_seen && !self.has_unknown_ports(network, &bridges),
            ..Evidence::default()
        };
        let aliases: BTreeSet<&str> = self.links.iter().map(|link| link.alias.as_str()).collect();
        let mut by_container: BTreeMap<&str, Vec<&Cached>> = BTreeMap::new();
        for cached in self.cached.iter().filter(|cached| cached.network == network.name) {
            by_container.entry(&cached.container).or_default().push(cached);
        }
        for at in &mut found {
            let cached = by_container.get(at.container.as_str()).map(Vec::as_slice).unwrap_or_default();
            (at.state, at.why) = self.evidence(network, at, cached, &aliases, general).judge();
        }
        found.sort_by_key(|at| at.leases.first().map(|lease| lease.ip));
        found
    }

    /// Collects the evidence for one attachment. `general` is the evidence for all attachments of the network.
    fn evidence(
        &self,
        network: &Network,
        at: &Attachment,
        cached: &[&Cached],
        aliases: &BTreeSet<&str>,
        general: Evidence,
    ) -> Evidence {
        let cached = cached.iter().filter(|cached| at.ifname.as_ref().is_none_or(|ifname| *ifname == cached.ifname));
        let ips = cached.clone().flat_map(|cached| cached.addresses.iter().copied());
        let mut ips = ips.chain(at.leases.iter().map(|lease| lease.ip));
        let is_used = |ip: &IpAddr| {
            let only_guests = general.on_bridge && self.all_guests_seen;
            self.guest_addresses.contains(ip) || (!only_guests && self.other_addresses.contains(ip))
        };
        let port = match &at.ifname {
            Some(ifname) => {
                let key = AttachmentKey { network: &network.name, container: &at.container, ifname };
                key.aliases().iter().any(|alias| aliases.contains(alias.as_str()))
            }
            // An old lease counts for any interface of the container.
            None => self.links.iter().filter_map(owner).any(|owner| {
                owner.network == network.name && owner.attachment.is_some_and(|(id, _)| id == at.container)
            }),
        };
        Evidence {
            port,
            place: cached.filter_map(|cached| cached.netns.as_deref()).map(place).next(),
            address: ips.any(|ip| is_used(&ip)),
            before_boot: !at.leases.is_empty() && at.leases.iter().all(|lease| network.earlier.contains(&lease.ip)),
            ..general
        }
    }

    /// Returns whether a bridge of the network has a port whose owner is unknown. Ports of the reference have no alias;
    /// they are recognised by the address of the container veth.
    fn has_unknown_ports(&self, network: &Network, bridges: &[&Link]) -> bool {
        let leases: BTreeSet<IpAddr> = network.leases.iter().map(|lease| lease.ip).collect();
        let is_unknown = |port: &Link| {
            let is_truncated = owner(port).is_some_and(|owner| owner.attachment.is_none());
            let leads_away = port.peer_netns.is_some() && owner(port).is_none();
            is_truncated || (leads_away && !self.guest(port.index).is_some_and(|guest| guest.has_any(&leases)))
        };
        bridges.iter().any(|bridge| self.ports(bridge).any(is_unknown))
    }
}

/// Reads the cache of results. Adds the errors of unreadable entries to `corrupt`.
pub(super) fn cached(unseen: &mut Vec<String>, corrupt: &mut Vec<Error>) -> Vec<Cached> {
    let Some((entries, failures)) = value_or_unseen(unseen, Cache::of_host().all()) else { return Vec::new() };
    corrupt.extend(failures);
    let cached = |entry: Entry| Cached {
        addresses: entry.result.as_ref().map(addresses).unwrap_or_default(),
        network: entry.network,
        container: entry.container,
        ifname: entry.ifname,
        netns: entry.netns,
    };
    entries.into_iter().map(cached).collect()
}

/// Returns the addresses in a result of any version.
fn addresses(result: &Value) -> Vec<IpAddr> {
    let listed = result.get("ips").and_then(Value::as_array).into_iter().flatten().filter_map(|ip| ip.get("address"));
    let oldest = ["ip4", "ip6"].into_iter().filter_map(|key| result.get(key)?.get("ip"));
    let texts = listed.chain(oldest).filter_map(Value::as_str);
    texts.filter_map(|text| text.parse::<Cidr>().ok()).map(|cidr| cidr.ip()).collect()
}

/// Returns whether nothing follows from the absence of `path`, because its parent directory is missing too, such as
/// `/run/netns` in a container with its own `/run`. The directory of a process disappears with the process.
fn is_inconclusive(path: &Path) -> bool {
    !path.starts_with("/proc") && path.parent().is_none_or(|directory| !directory.is_dir())
}

/// Inspects the path of a namespace.
pub(crate) fn place(path: &Path) -> Place {
    match Netns::open_if_exists(path) {
        Ok(None) if is_inconclusive(path) => Place::Hidden,
        Ok(None) => Place::Absent,
        Ok(Some(netns)) => match Netns::current().and_then(|own| own.same_as(&netns)) {
            Ok(true) => Place::Absent,
            _ => Place::Exists,
        },
        Err(_) => Place::Hidden,
    }
}
