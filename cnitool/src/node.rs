//! What is on this host: networks with their leases, bridges with their ports, rules, namespaces. Changes nothing.
//!
//! What may not be looked at is missing, and [`Node::unseen`] says so. Nothing is taken for gone because it could not
//! be seen.

mod attachment;
mod evidence;
mod namespaces;
mod network;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use bridge::inspect::{Masquerade, SpoofCheck};
use cni::ip::{Cidr, MacAddr};
use cni::key::AliasOwner;
use cni::netlink::nft::Nftables;
use cni::netlink::{Address, Link, LinkIndex, Netlink, NetnsId};
use cni::{Error, Netns, Result};

use crate::conf::{self, Broken, NetworkList};
use crate::privilege::require_capabilities;
use crate::settings;
use crate::table;

pub(crate) use attachment::{Attachment, place};
use attachment::{Cached, cached};
pub(crate) use evidence::{Place, State};
pub(crate) use namespaces::require_host;
use namespaces::{identity, mounted, of_processes};
pub(crate) use network::Network;

/// All that was found.
#[derive(Debug)]
pub(crate) struct Node {
    /// Files that are no configurations.
    pub(crate) broken: Vec<Broken>,
    /// Configurations that are never used, because the one before has the same name.
    pub(crate) shadowed: Vec<NetworkList>,
    /// Those with a configuration in the order of their files, then those of which only traces are left.
    pub(crate) networks: Vec<Network>,
    pub(crate) links: Vec<Link>,
    addresses: Vec<(LinkIndex, Address)>,
    pub(crate) masquerades: Vec<Masquerade>,
    /// Does no packet come to those of nftables?
    pub(crate) masquerade_is_cut_off: bool,
    pub(crate) spoof_checks: Vec<SpoofCheck>,
    /// The other end of a port, if it is in another namespace and could be looked at.
    guests: BTreeMap<LinkIndex, Guest>,
    /// Addresses in the namespaces that pairs of this host lead to.
    beyond: BTreeSet<IpAddr>,
    /// Addresses in all other namespaces that could be found.
    elsewhere: BTreeSet<IpAddr>,
    /// Could the other ends of all ports be looked at?
    all_guests_seen: bool,
    cached: Vec<Cached>,
    /// Entries of the cache that cannot be read.
    pub(crate) corrupt: Vec<Error>,
    /// What could not be looked at, and why.
    pub(crate) unseen: Vec<String>,
}

/// The other end of a port.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) name: String,
    pub(crate) mac: Option<MacAddr>,
    pub(crate) addresses: Vec<Cidr>,
    /// A path at which its namespace can be opened.
    pub(crate) netns: Option<PathBuf>,
}

impl Guest {
    /// Has it one of these addresses?
    fn has_any(&self, ips: &BTreeSet<IpAddr>) -> bool {
        self.addresses.iter().any(|cidr| ips.contains(&cidr.ip()))
    }
}

impl Node {
    /// Looks at everything. What was there first is looked at last: a port is made before its lease, so a lease whose
    /// port is missing was not just begun.
    pub(crate) fn look() -> Result<Node> {
        let conf::Found { lists, broken } = conf::all(&settings::configurations())?;
        let mut unseen = Vec::new();
        let mut corrupt = Vec::new();
        let cached = cached(&mut unseen, &mut corrupt);
        let (networks, shadowed) = network::configured(lists, &mut unseen);
        let mut nft = Nftables::open()?;
        let masquerades = note(&mut unseen, bridge::inspect::masquerades(&mut nft)).unwrap_or_default();
        // Who may not list them was told above.
        let masquerade_is_cut_off = bridge::inspect::masquerade_is_cut_off(&mut nft).unwrap_or_default();
        let spoof_checks = note(&mut unseen, bridge::inspect::spoof_checks(&mut nft)).unwrap_or_default();
        let mut host = Netlink::open()?;
        let mut node = Node {
            broken,
            shadowed,
            networks,
            links: host.links(None)?,
            addresses: host.all_addresses()?,
            masquerades,
            masquerade_is_cut_off,
            spoof_checks,
            guests: BTreeMap::new(),
            beyond: BTreeSet::new(),
            elsewhere: BTreeSet::new(),
            all_guests_seen: true,
            cached,
            corrupt,
            unseen,
        };
        node.look_elsewhere(&mut host)?;
        node.add_traces();
        Ok(node)
    }

    /// Looks at the other ends of all pairs, and at the addresses of all namespaces that can be found.
    fn look_elsewhere(&mut self, host: &mut Netlink) -> Result<()> {
        let mut by_id: BTreeMap<NetnsId, Option<Vec<(LinkIndex, Address)>>> = BTreeMap::new();
        let mut refused = None;
        for netns in self.links.iter().filter_map(|link| link.peer_netns) {
            by_id.entry(netns).or_insert_with(|| {
                host.addresses_elsewhere(netns).map_err(|error| refused.get_or_insert(error).clone()).ok()
            });
        }
        let paths = self.look_into_paths(host, &by_id)?;
        for link in &self.links {
            let (Some(netns), Some(peer)) = (link.peer_netns, link.peer) else { continue };
            let Some(Some(addresses)) = by_id.get(&netns) else {
                self.all_guests_seen = false;
                continue;
            };
            let guest = match host.link_elsewhere(netns, peer) {
                Ok(Some(guest)) => guest,
                // It has gone meanwhile.
                Ok(None) => continue,
                Err(error) => {
                    self.all_guests_seen = false;
                    refused.get_or_insert(error);
                    continue;
                }
            };
            let addresses = addresses.iter().filter(|(owner, address)| *owner == peer && address.global);
            let addresses = addresses.map(|(_, address)| address.cidr).collect();
            let netns = paths.get(&netns).cloned();
            self.guests.insert(link.index, Guest { name: guest.name, mac: guest.mac, addresses, netns });
        }
        let all = by_id.into_values().flatten().flatten();
        self.beyond.extend(all.map(|(_, address)| address.cidr.ip()));
        if let Some(error) = refused {
            self.unseen.push(format!("the containers' ends of ports: {error}"));
        }
        Ok(())
    }

    /// Looks for namespaces by their paths: those that ports lead to by their numbers, and the addresses in all others.
    fn look_into_paths(
        &mut self,
        host: &mut Netlink,
        seen: &BTreeMap<NetnsId, Option<Vec<(LinkIndex, Address)>>>,
    ) -> Result<BTreeMap<NetnsId, PathBuf>> {
        let home = Netns::current()?;
        let mut paths = BTreeMap::new();
        let mut known: BTreeSet<_> = identity(home.path()).into_iter().collect();
        let (mut refused, mut hidden) = (0, false);
        let cached = self.cached.iter().filter_map(|cached| cached.netns.clone());
        for path in cached.chain(mounted()).chain(of_processes()) {
            // Most processes share a namespace: each is opened once.
            match identity(&path) {
                Ok(inode) if known.insert(inode) => {}
                Ok(_) => continue,
                Err(error) => {
                    hidden |= error.kind() == io::ErrorKind::PermissionDenied;
                    continue;
                }
            }
            let netns = match Netns::open_if_there(&path) {
                Ok(Some(netns)) => netns,
                Ok(None) => continue,
                Err(_) => {
                    refused += 1;
                    continue;
                }
            };
            if let Some(id) = host.netns_id(&netns)?
                && seen.contains_key(&id)
            {
                paths.insert(id, path);
                continue;
            }
            match netns.run(&home, || Netlink::open()?.all_addresses()) {
                Ok(addresses) => self.elsewhere.extend(addresses.iter().map(|(_, address)| address.cidr.ip())),
                Err(_) => refused += 1,
            }
        }
        // Loopback addresses are everybody's.
        self.elsewhere.retain(|ip| !ip.is_loopback());
        // The kernel says the same of processes that have ended.
        if hidden && require_capabilities().is_err() {
            self.unseen.push("the namespaces of the processes of others".to_owned());
        }
        if refused > 0 {
            let what = table::count(refused, "namespace");
            self.unseen.push(format!("the addresses in {what}, which may not be entered"));
        }
        Ok(paths)
    }

    /// Adds the networks of which only traces are left: ports, results in the cache, directories of leases.
    fn add_traces(&mut self) {
        let mut names: BTreeSet<String> = self.cached.iter().map(|cached| cached.network.clone()).collect();
        names.extend(self.links.iter().filter_map(|link| Some(owner(link)?.network)));
        let data_dir = Path::new(host_local::inspect::DATA_DIR);
        for entry in fs::read_dir(data_dir).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                names.insert(entry.file_name().to_string_lossy().into_owned());
            }
        }
        names.retain(|name| !self.networks.iter().any(|network| network.name == *name));
        for name in names {
            let mut network = Network::named(name);
            network.directory = Some(data_dir.join(&network.name)).filter(|dir| dir.is_dir());
            network.read_leases(&mut self.unseen);
            self.networks.push(network);
        }
    }

    /// What could not be looked at, for the end of a page.
    pub(crate) fn not_seen(&self) -> String {
        let item = |what: &String| format!("  - {}", table::wrap(what, 4).trim_start());
        let lines: String = self.unseen.iter().map(item).collect();
        let advice = if require_capabilities().is_ok() { "" } else { " (root sees more)" };
        if lines.is_empty() { lines } else { format!("\nnot seen{advice}:\n{lines}") }
    }

    /// The networks that were asked for: the one of this name, or all.
    pub(crate) fn chosen(&self, name: Option<&str>) -> Result<Vec<&Network>> {
        let chosen: Vec<&Network> =
            self.networks.iter().filter(|network| name.is_none_or(|name| network.name == name)).collect();
        match name {
            Some(name) if chosen.is_empty() => Err(unknown(name, &self.networks, &self.broken)),
            _ => Ok(chosen),
        }
    }

    /// The link of this name.
    pub(crate) fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name)
    }

    /// The addresses of a link that count beyond it.
    pub(crate) fn addresses(&self, link: LinkIndex) -> Vec<Cidr> {
        let mut found: Vec<Cidr> = self
            .addresses
            .iter()
            .filter(|(owner, address)| *owner == link && address.global)
            .map(|(_, address)| address.cidr)
            .collect();
        found.sort_by_key(|cidr| cidr.ip());
        found
    }

    /// All addresses of a link, as the kernel describes them.
    pub(crate) fn raw_addresses(&self, link: LinkIndex) -> Vec<Address> {
        self.addresses.iter().filter(|(owner, _)| *owner == link).map(|(_, address)| *address).collect()
    }

    /// The links that have an address.
    pub(crate) fn holders(&self, ip: IpAddr) -> impl Iterator<Item = &Link> {
        let has = move |link: &&Link| self.addresses.iter().any(|(i, a)| *i == link.index && a.cidr.ip() == ip);
        self.links.iter().filter(has)
    }

    /// The other end of a port.
    pub(crate) fn guest(&self, port: LinkIndex) -> Option<&Guest> {
        self.guests.get(&port)
    }

    /// Is the address in use in any other namespace that could be found?
    pub(crate) fn is_used(&self, ip: IpAddr) -> bool {
        self.beyond.contains(&ip) || self.elsewhere.contains(&ip)
    }

    /// The ports of a bridge.
    pub(crate) fn ports(&self, bridge: &Link) -> impl Iterator<Item = &Link> {
        self.links.iter().filter(|link| link.master == Some(bridge.index))
    }

    /// The ports that lead to containers of a network, wherever they are. The reference gives its ports no alias: then
    /// the address at the other end tells.
    pub(crate) fn ports_of(&self, network: &Network) -> Vec<&Link> {
        let leases: BTreeSet<IpAddr> = network.leases.iter().map(|lease| lease.ip).collect();
        let is_its = |link: &&Link| match owner(link) {
            Some(owner) => owner.network == network.name,
            None => self.guest(link.index).is_some_and(|guest| guest.has_any(&leases)),
        };
        self.links.iter().filter(|link| link.peer_netns.is_some()).filter(is_its).collect()
    }

    /// The bridges of a network: the one that its configuration names, and those that its ports are on.
    pub(crate) fn bridges(&self, network: &Network) -> Vec<&Link> {
        let ports = self.links.iter().filter(|link| owner(link).is_some_and(|owner| owner.network == network.name));
        let of_ports: BTreeSet<LinkIndex> = ports.filter_map(|port| port.master).collect();
        let named = network.bridge.as_ref().map(|settings| settings.bridge.as_str());
        let is_its = |link: &&Link| of_ports.contains(&link.index) || named == Some(link.name.as_str());
        self.links.iter().filter(|link| link.kind == "bridge").filter(is_its).collect()
    }

    /// The masquerade rules of a network.
    pub(crate) fn rules(&self, network: &str) -> Vec<&Masquerade> {
        let keys = bridge::inspect::network_keys(network);
        self.masquerades.iter().filter(|rule| keys.iter().any(|key| rule.key().starts_with(key))).collect()
    }
}

/// Whose port a link is, by its alias.
pub(crate) fn owner(link: &Link) -> Option<AliasOwner> {
    AliasOwner::parse(&link.alias)
}

/// Keeps what was found; what was not is told.
fn note<T>(unseen: &mut Vec<String>, outcome: Result<T>) -> Option<T> {
    outcome.map_err(|error| unseen.push(error.to_string())).ok()
}

fn unknown(name: &str, networks: &[Network], broken: &[Broken]) -> Error {
    let what = format!("there is no network {name:?} in {}, nor a trace of one", settings::configurations().display());
    let names: Vec<&str> = networks.iter().map(|network| network.name.as_str()).collect();
    let error = Error::new(cni::Code::CONFIG, what);
    let error = match names.is_empty() {
        true => error.details("there is none at all"),
        false => error.details(format!("there is {}", names.join(", "))),
    };
    broken.iter().fold(error, |error, broken| error.details(format!("broken: {broken}")))
}
