//! The attachments of a network, by whatever trace they have left, and what is known of each.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use bridge::inspect::Masquerade;
use cni::ip::Cidr;
use cni::key::AliasOwner;
use cni::netlink::{Link, LinkIndex};
use cni::{Error, Netns};
use host_local::inspect::{Lease, Owner};
use serde_json::Value;

use super::evidence::{Evidence, Place, State};
use super::{Network, Node, note, owner};
use crate::cache::{Cache, Entry};

/// An attachment that the cache of results knows.
#[derive(Debug)]
pub(super) struct Cached {
    pub(super) network: String,
    container: String,
    ifname: String,
    pub(super) netns: Option<PathBuf>,
    addresses: Vec<IpAddr>,
}

/// An interface of a container, with all that is known of it.
#[derive(Clone, Debug)]
pub(crate) struct Attachment {
    pub(crate) container: String,
    /// Old leases tell the container only.
    pub(crate) ifname: Option<String>,
    pub(crate) leases: Vec<Lease>,
    pub(crate) port: Option<LinkIndex>,
    /// Does the cache of results know it?
    pub(crate) cached: bool,
    /// Its namespace, as the cache tells it.
    pub(crate) netns: Option<PathBuf>,
    /// The keys of its rules.
    keys: [String; 2],
    pub(crate) state: State,
    /// How that is known.
    pub(crate) why: &'static str,
}

impl Attachment {
    /// Is it a rule of this attachment?
    pub(crate) fn has_rule(&self, rule: &Masquerade) -> bool {
        self.keys.iter().any(|key| key == rule.key())
    }
}

impl Node {
    /// All attachments of a network, by whatever trace they have left.
    pub(crate) fn attachments(&self, network: &Network) -> Vec<Attachment> {
        let mut found: BTreeMap<(String, Option<String>), Attachment> = BTreeMap::new();
        let mut entry = |container: &str, ifname: Option<&str>, change: &mut dyn FnMut(&mut Attachment)| {
            let key = (container.to_owned(), ifname.map(str::to_owned));
            change(found.entry(key.clone()).or_insert_with(|| Attachment {
                keys: bridge::inspect::rule_keys(&network.name, container, ifname.unwrap_or_default()),
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
            if let Owner::Container(container, ifname) = &lease.owner {
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
            ports_known: self.all_guests_seen && !self.has_strangers(network, &bridges),
            ..Evidence::default()
        };
        let aliases: BTreeSet<&str> = self.links.iter().map(|link| link.alias.as_str()).collect();
        let mut told: BTreeMap<&str, Vec<&Cached>> = BTreeMap::new();
        for cached in self.cached.iter().filter(|cached| cached.network == network.name) {
            told.entry(&cached.container).or_default().push(cached);
        }
        for at in &mut found {
            let told = told.get(at.container.as_str()).map(Vec::as_slice).unwrap_or_default();
            (at.state, at.why) = self.evidence(network, at, told, &aliases, general).judge();
        }
        found.sort_by_key(|at| at.leases.first().map(|lease| lease.ip));
        found
    }

    /// What speaks for and against one attachment; `general` is what does for all of the network.
    fn evidence(
        &self,
        network: &Network,
        at: &Attachment,
        told: &[&Cached],
        aliases: &BTreeSet<&str>,
        general: Evidence,
    ) -> Evidence {
        let told = told.iter().filter(|cached| at.ifname.as_ref().is_none_or(|ifname| *ifname == cached.ifname));
        let ips = told.clone().flat_map(|cached| cached.addresses.iter().copied());
        let mut ips = ips.chain(at.leases.iter().map(|lease| lease.ip));
        let is_used = |ip: &IpAddr| {
            let only_beyond = general.on_bridge && self.all_guests_seen;
            self.beyond.contains(ip) || (!only_beyond && self.elsewhere.contains(ip))
        };
        let port = match &at.ifname {
            Some(ifname) => aliases.contains(bridge::inspect::alias(&network.name, &at.container, ifname).as_str()),
            // Any interface of the container.
            None => self.links.iter().filter_map(owner).any(|owner| {
                owner.network == network.name && owner.attachment.is_some_and(|(id, _)| id == at.container)
            }),
        };
        Evidence {
            port,
            place: told.filter_map(|cached| cached.netns.as_deref()).map(place).next(),
            address: ips.any(|ip| is_used(&ip)),
            before_boot: !at.leases.is_empty() && at.leases.iter().all(|lease| network.earlier.contains(&lease.ip)),
            ..general
        }
    }

    /// Has a bridge of the network a port of which nothing tells whose it is? The reference gives its ports no alias;
    /// then the address at the other end tells.
    fn has_strangers(&self, network: &Network, bridges: &[&Link]) -> bool {
        let leases: BTreeSet<IpAddr> = network.leases.iter().map(|lease| lease.ip).collect();
        let is_stranger = |port: &Link| {
            let cut_short = owner(port).is_some_and(|owner| owner.attachment.is_none());
            let leads_away = port.peer_netns.is_some() && owner(port).is_none();
            cut_short || (leads_away && !self.guest(port.index).is_some_and(|guest| guest.has_any(&leases)))
        };
        bridges.iter().any(|bridge| self.ports(bridge).any(is_stranger))
    }
}

/// What the cache of results knows. Entries that cannot be read are told.
pub(super) fn cached(unseen: &mut Vec<String>, corrupt: &mut Vec<Error>) -> Vec<Cached> {
    let Some((entries, failures)) = note(unseen, Cache::of_host().all()) else { return Vec::new() };
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

/// The addresses in a result of any version.
fn addresses(result: &Value) -> Vec<IpAddr> {
    let listed = result.get("ips").and_then(Value::as_array).into_iter().flatten().filter_map(|ip| ip.get("address"));
    let oldest = ["ip4", "ip6"].into_iter().filter_map(|key| result.get(key)?.get("ip"));
    let texts = listed.chain(oldest).filter_map(Value::as_str);
    texts.filter_map(|text| text.parse::<Cidr>().ok()).map(|cidr| cidr.ip()).collect()
}

/// Returns whether nothing can be concluded from the absence of `path`: the directory that it should be in is missing
/// too, as `/run/netns` in a container with its own `/run`. The directory of a process goes with the process.
fn is_out_of_sight(path: &Path) -> bool {
    !path.starts_with("/proc") && path.parent().is_none_or(|directory| !directory.is_dir())
}

/// Looks at the path of a namespace.
pub(crate) fn place(path: &Path) -> Place {
    match Netns::open_if_there(path) {
        Ok(None) if is_out_of_sight(path) => Place::Hidden,
        Ok(None) => Place::Empty,
        Ok(Some(netns)) => match Netns::current().and_then(|own| own.same_as(&netns)) {
            Ok(true) => Place::Empty,
            _ => Place::There,
        },
        Err(_) => Place::Hidden,
    }
}
