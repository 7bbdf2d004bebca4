//! The state of this host: networks with their leases, bridges with their ports, rules, namespaces. Read-only.
//!
//! What this process may not inspect is missing here and listed in [`Node::unseen`]. Code that uses this module must
//! not treat something as gone because it could not be inspected.

mod attachment;
mod evidence;
mod namespaces;
mod network;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use cni::inspect::{LeaseHolder, Object, ObjectKind, Owner, network_marks};
use cni::key::AliasOwner;
use cni::{Error, Result};
use cni0::PLUGINS;
use linux::Netns;
use linux::ip::{Cidr, MacAddr};
use linux::netlink::{Address, Link, LinkIndex, Netlink, NetnsId};

use crate::conf::{self, Broken, NetworkList};
use crate::privilege::require_capabilities;
use crate::{hint, settings, table};

pub(crate) use attachment::{Attachment, place};
use attachment::{Cached, cached};
pub(crate) use evidence::{Place, State};
pub(crate) use namespaces::require_host;
pub(crate) use namespaces::same as same_namespace;
use namespaces::{identity, mounted, of_processes};
pub(crate) use network::{Network, Part, called_plugins, inspect, ipam_type, lease_store, misplaced};

/// The result of an inspection of this host.
#[derive(Debug)]
pub(crate) struct Node {
    /// Files that are not valid configurations.
    pub(crate) broken: Vec<Broken>,
    /// Configurations that are never used, because an earlier one has the same name.
    pub(crate) shadowed: Vec<NetworkList>,
    /// Networks with a configuration in the order of their files, then networks of which only traces are left.
    pub(crate) networks: Vec<Network>,
    pub(crate) links: Vec<Link>,
    /// The link of the preferred default route.
    uplink: Option<LinkIndex>,
    addresses: Vec<(LinkIndex, Address)>,
    /// What plugins have created for attachments, in the order of their kinds.
    pub(crate) objects: Vec<Object>,
    /// The plugins whose objects could not be listed.
    pub(crate) unlisted: Vec<&'static str>,
    /// The container veth of each port, if it is in another namespace and could be inspected.
    guests: BTreeMap<LinkIndex, Guest>,
    /// Addresses in the namespaces that veth pairs of this host lead to.
    guest_addresses: BTreeSet<IpAddr>,
    /// Addresses in all other namespaces that were found.
    other_addresses: BTreeSet<IpAddr>,
    /// Whether the container veths of all ports could be inspected.
    all_guests_seen: bool,
    cached: Vec<Cached>,
    /// Entries of the cache that cannot be read.
    pub(crate) corrupt: Vec<(PathBuf, Error)>,
    /// What could not be inspected, and why.
    pub(crate) unseen: Vec<String>,
}

/// The container veth of a port.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) name: String,
    pub(crate) mac: Option<MacAddr>,
    pub(crate) mtu: u32,
    /// Whether it asks for the MAC addresses of neighbours.
    pub(crate) arp: bool,
    pub(crate) addresses: Vec<Cidr>,
    /// A path at which its namespace can be opened.
    pub(crate) netns: Option<PathBuf>,
}

impl Guest {
    /// Returns whether it has one of these addresses.
    fn has_any(&self, ips: &BTreeSet<IpAddr>) -> bool {
        self.addresses.iter().any(|cidr| ips.contains(&cidr.ip()))
    }
}

impl Node {
    /// Inspects the host. Reads leases before ports, because ADD creates them in the opposite order: a lease without a
    /// port is then not that of an ADD in progress.
    pub(crate) fn inspect() -> Result<Node> {
        let conf::Found { lists, broken } = conf::all(&settings::configurations())?;
        let mut unseen = Vec::new();
        let mut corrupt = Vec::new();
        let cached = cached(&mut unseen, &mut corrupt);
        let (networks, shadowed) = network::configured(lists, &mut unseen);
        let (mut objects, mut unlisted) = (Vec::<Object>::new(), Vec::new());
        let mut listed: Vec<&ObjectKind> = Vec::new();
        for plugin in PLUGINS {
            match value_or_unseen(&mut unseen, plugin.objects()) {
                // Several plugins can create objects of one kind, and each lists those of all networks.
                Some(found) => {
                    objects.extend(found.into_iter().filter(|object| !listed.contains(&object.kind)));
                    listed.extend(plugin.kinds());
                }
                None => unlisted.push(plugin.name()),
            }
        }
        let mut host = Netlink::open()?;
        let mut node = Node {
            broken,
            shadowed,
            networks,
            links: host.links(None)?,
            uplink: host.default_routes()?.first().and_then(|route| route.link),
            addresses: host.all_addresses()?,
            objects,
            unlisted,
            guests: BTreeMap::new(),
            guest_addresses: BTreeSet::new(),
            other_addresses: BTreeSet::new(),
            all_guests_seen: true,
            cached,
            corrupt,
            unseen,
        };
        node.inspect_guests(&mut host)?;
        node.add_traces();
        Ok(node)
    }

    /// Inspects the container veths of all pairs, and the addresses in all namespaces that can be found.
    fn inspect_guests(&mut self, host: &mut Netlink) -> Result<()> {
        let mut by_id: BTreeMap<NetnsId, Option<Vec<(LinkIndex, Address)>>> = BTreeMap::new();
        let mut refused = None;
        for netns in self.links.iter().filter_map(|link| link.lower_netns) {
            by_id.entry(netns).or_insert_with(|| {
                host.addresses_in_netns(netns).map_err(|error| refused.get_or_insert(error).clone()).ok()
            });
        }
        let paths = self.inspect_paths(host, &by_id)?;
        for link in &self.links {
            let (Some(netns), Some(peer)) = (link.lower_netns, link.lower) else { continue };
            let Some(Some(addresses)) = by_id.get(&netns) else {
                self.all_guests_seen = false;
                continue;
            };
            let guest = match host.link_in_netns(netns, peer) {
                Ok(Some(guest)) => guest,
                // It has been deleted meanwhile.
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
            let Link { name, mac, mtu, arp, .. } = guest;
            self.guests.insert(link.index, Guest { name, mac, mtu, arp, addresses, netns });
        }
        let all = by_id.into_values().flatten().flatten();
        self.guest_addresses.extend(all.map(|(_, address)| address.cidr.ip()));
        // Every namespace has loopback addresses.
        self.guest_addresses.retain(|ip| !ip.is_loopback());
        self.other_addresses.retain(|ip| !ip.is_loopback());
        if let Some(error) = refused {
            self.unseen.push(format!("the container veths of ports: {error}"));
        }
        Ok(())
    }

    /// Finds namespaces by their paths. Returns the paths of those that ports lead to, and collects the addresses in
    /// all others.
    fn inspect_paths(
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
            // Most processes share a namespace, which is opened only once.
            match identity(&path) {
                Ok(inode) if known.insert(inode) => {}
                Ok(_) => continue,
                Err(error) => {
                    hidden |= error.kind() == io::ErrorKind::PermissionDenied;
                    continue;
                }
            }
            let netns = match Netns::open_if_exists(&path) {
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
                Ok(addresses) => self.other_addresses.extend(addresses.iter().map(|(_, address)| address.cidr.ip())),
                Err(_) => refused += 1,
            }
        }
        // With all capabilities, this error only means that a process has ended.
        if hidden && require_capabilities().is_err() {
            self.unseen.push("the namespaces of other users' processes".to_owned());
        }
        if refused > 0 {
            let what = table::count(refused, "namespace");
            self.unseen.push(format!("the addresses in {what}: no permission to enter"));
        }
        Ok(paths)
    }

    /// Adds the networks of which only traces are left: ports, results in the cache, lease directories.
    fn add_traces(&mut self) {
        let mut names: BTreeSet<String> = self.cached.iter().map(|cached| cached.network.clone()).collect();
        names.extend(self.links.iter().filter_map(|link| Some(owner(link)?.network)));
        let mut stores = BTreeMap::new();
        for store in PLUGINS.iter().filter_map(|plugin| plugin.lease_store()) {
            for directory in store.default_lease_dirs() {
                let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
                stores.insert(name, (store, directory));
            }
        }
        names.extend(stores.keys().cloned());
        names.retain(|name| !self.networks.iter().any(|network| network.name == *name));
        for name in names {
            let mut network = Network::named(name);
            network.store = stores.remove(&network.name);
            network.read_leases(&mut self.unseen);
            self.networks.push(network);
        }
    }

    /// Formats what could not be inspected, for the end of the output.
    pub(crate) fn not_seen(&self) -> String {
        let item = |what: &String| format!("  - {}", table::wrap(what, 4).trim_start());
        let lines: String = self.unseen.iter().map(item).collect();
        let advice = if require_capabilities().is_ok() { "" } else { " (root sees more)" };
        if lines.is_empty() { lines } else { format!("\nnot seen{advice}:\n{lines}") }
    }

    /// Returns the network of this name, or all networks.
    pub(crate) fn chosen(&self, name: Option<&str>) -> Result<Vec<&Network>> {
        let chosen: Vec<&Network> =
            self.networks.iter().filter(|network| name.is_none_or(|name| network.name == name)).collect();
        match name {
            Some(name) if chosen.is_empty() => Err(self.unknown(name)),
            _ => Ok(chosen),
        }
    }

    /// Returns the error for a network that does not exist.
    pub(crate) fn unknown(&self, name: &str) -> Error {
        unknown(name, &self.networks, &self.broken)
    }

    /// Returns the link of the preferred default route.
    pub(crate) fn uplink(&self) -> Option<&Link> {
        self.links.iter().find(|link| Some(link.index) == self.uplink)
    }

    /// Returns the link of this name.
    pub(crate) fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name)
    }

    /// Returns the sorted global addresses of a link.
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

    /// Returns all addresses of a link, as the kernel describes them.
    pub(crate) fn raw_addresses(&self, link: LinkIndex) -> Vec<Address> {
        self.addresses.iter().filter(|(owner, _)| *owner == link).map(|(_, address)| *address).collect()
    }

    /// Returns the container veth of a port.
    pub(crate) fn guest(&self, port: LinkIndex) -> Option<&Guest> {
        self.guests.get(&port)
    }

    /// Returns whether the address is in use in any other namespace that was found.
    pub(crate) fn is_used(&self, ip: IpAddr) -> bool {
        self.guest_addresses.contains(&ip) || self.other_addresses.contains(&ip)
    }

    /// Returns the ports of a bridge.
    pub(crate) fn ports(&self, bridge: &Link) -> impl Iterator<Item = &Link> {
        self.links.iter().filter(|link| link.master == Some(bridge.index))
    }

    /// Returns the ports that lead to containers of a network, on any bridge. Ports of the reference have no alias;
    /// they are recognised by the address of the container veth.
    pub(crate) fn ports_of(&self, network: &Network) -> Vec<&Link> {
        let leases: BTreeSet<IpAddr> = network.leases.iter().map(|lease| lease.ip).collect();
        let is_its = |link: &&Link| match owner(link) {
            Some(owner) => owner.network == network.name,
            None => self.guest(link.index).is_some_and(|guest| guest.has_any(&leases)),
        };
        self.links.iter().filter(|link| link.lower_netns.is_some()).filter(is_its).collect()
    }

    /// Returns the bridges of a network: the one in its configuration, and those that have its ports.
    pub(crate) fn bridges(&self, network: &Network) -> Vec<&Link> {
        let ports = self.links.iter().filter(|link| owner(link).is_some_and(|owner| owner.network == network.name));
        let of_ports: BTreeSet<LinkIndex> = ports.filter_map(|port| port.master).collect();
        let named = network.bridge.as_ref().map(|bridge| bridge.name.as_str());
        let is_its = |link: &&Link| of_ports.contains(&link.index) || named == Some(link.name.as_str());
        self.links.iter().filter(|link| link.kind == "bridge").filter(is_its).collect()
    }

    /// Returns the objects of a network, except those that only name a port.
    pub(crate) fn objects_of(&self, network: &str) -> Vec<&Object> {
        let marks = network_marks(network);
        let is_its = |object: &&Object| match &object.owner {
            Owner::Container(id) => self.network_of(object, id).is_some_and(|found| found.name == network),
            Owner::Marked(_) | Owner::Port(_) => object.has_mark_of(&marks),
        };
        self.objects.iter().filter(is_its).collect()
    }

    /// Returns the network of an object that names only its container: the one in which the container has the object's
    /// address, according to leases and cache. Without a trace of the container, it is the only network that could have
    /// created the object.
    fn network_of(&self, object: &Object, container: &str) -> Option<&Network> {
        let ip = object.address?;
        let is_leased = |network: &Network| {
            let is_holder = |holder: &LeaseHolder| matches!(holder, LeaseHolder::Container(id, _) if id == container);
            network.leases.iter().any(|lease| lease.ip == ip && is_holder(&lease.owner))
        };
        let is_cached =
            |network: &Network| self.cached.iter().any(|at| at.network == network.name && at.has(container, ip));
        let known = self.networks.iter().find(|network| is_leased(network) || is_cached(network));
        let only = |is_possible: &dyn Fn(&Network) -> bool| {
            let is_possible = |network: &&Network| network.creates(object.kind) && is_possible(network);
            let mut possible = self.networks.iter().filter(is_possible);
            possible.next().filter(|_| possible.next().is_none())
        };
        let is_in_range = |network: &Network| network.ranges.iter().flatten().any(|range| range.subnet.contains(ip));
        known.or_else(|| only(&is_in_range)).or_else(|| only(&|network| network.ranges.is_empty()))
    }
}

/// Returns the kinds of all plugins.
pub(crate) fn kinds() -> impl Iterator<Item = &'static ObjectKind> {
    kinds_of(|_| true).into_iter()
}

/// Returns the kinds of the plugins that are `wanted`. Several plugins can have the same kind.
pub(crate) fn kinds_of(wanted: impl Fn(&str) -> bool) -> Vec<&'static ObjectKind> {
    let mut kinds: Vec<&'static ObjectKind> = Vec::new();
    for kind in PLUGINS.iter().filter(|plugin| wanted(plugin.name())).flat_map(|plugin| plugin.kinds()) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

/// Returns the attachment that a port belongs to, according to its alias. The ifb link of an attachment has the same
/// alias, but does not prove that the container exists.
pub(crate) fn owner(link: &Link) -> Option<AliasOwner> {
    AliasOwner::parse(&link.alias).filter(|_| link.kind != "ifb")
}

/// Returns the value, or adds the error to `unseen`.
fn value_or_unseen<T>(unseen: &mut Vec<String>, outcome: Result<T>) -> Option<T> {
    outcome.map_err(|error| unseen.push(error.to_string())).ok()
}

/// Returns the error for a network that does not exist.
fn unknown(name: &str, networks: &[Network], broken: &[Broken]) -> Error {
    let what = format!("there is no network {name:?} in {}, nor a trace of one", settings::configurations().display());
    let names: Vec<&str> = networks.iter().map(|network| network.name.as_str()).collect();
    let error = Error::new(cni::Code::CONFIG, what);
    let error = hint::add(error, name, names.iter().copied(), || match names.is_empty() {
        true => "there is no network".to_owned(),
        false => format!("the networks are {}", names.join(", ")),
    });
    broken.iter().fold(error, |error, broken| error.details(format!("broken: {broken}")))
}
