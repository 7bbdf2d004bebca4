//! What is on this host: networks with their leases, bridges with their ports, rules, namespaces. Changes nothing.
//!
//! What may not be looked at is missing, and [`Node::unseen`] says so. Nothing is taken for gone because it could not
//! be seen.

mod evidence;
mod namespaces;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bridge::inspect::{Masquerade, PortOwner, Settings, SpoofCheck};
use cni::ip::{Cidr, MacAddr};
use cni::netlink::nft::Nftables;
use cni::netlink::{Address, Link, LinkIndex, Netlink, NetnsId};
use cni::{Call, Error, Netns, Result};
use host_local::inspect::{Lease, Owner, Range};
use serde_json::Value;

use crate::cache::{Cache, Entry};
use crate::conf::{self, Broken, NetworkList};
use crate::settings;
use crate::table;

pub(crate) use evidence::State;
use evidence::{Evidence, Place};
use namespaces::{identity, mounted, of_processes};

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
    boot: Option<SystemTime>,
    /// What could not be looked at, and why.
    pub(crate) unseen: Vec<String>,
}

/// A network, and what of it is not on links.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) name: String,
    /// `None` if only traces are left.
    pub(crate) list: Option<NetworkList>,
    /// What its bridge should be, if it has one.
    pub(crate) bridge: Option<Settings>,
    /// What its plugins would refuse.
    pub(crate) faults: Vec<Error>,
    /// Where host-local keeps its leases, if that gives its addresses.
    pub(crate) directory: Option<PathBuf>,
    /// A list for each address that a container gets; none if only the runtime knows.
    pub(crate) ranges: Vec<Vec<Range>>,
    pub(crate) leases: Vec<Lease>,
    /// Could the directory be listed? Otherwise there may be leases of which nothing is known.
    pub(crate) leases_seen: bool,
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

/// An attachment that the cache of results knows.
#[derive(Debug)]
struct Cached {
    network: String,
    container: String,
    ifname: String,
    netns: Option<PathBuf>,
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
    /// Looks at everything. What was there first is looked at last: a port is made before its lease, so a lease whose
    /// port is missing was not just begun.
    pub(crate) fn look() -> Result<Node> {
        let conf::Found { lists, broken } = conf::all(&settings::configurations())?;
        let mut unseen = Vec::new();
        let mut corrupt = Vec::new();
        let cached = cached(&mut unseen, &mut corrupt);
        let (networks, shadowed) = networks(lists, &mut unseen);
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
            boot: note(&mut unseen, host_local::inspect::boot()),
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
            // It may have gone meanwhile.
            let Ok(Some(guest)) = host.link_elsewhere(netns, peer) else { continue };
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
        let mut known = BTreeSet::from([identity(home.path())]);
        let mut refused = 0;
        let cached = self.cached.iter().filter_map(|cached| cached.netns.clone());
        for path in cached.chain(mounted()).chain(of_processes()) {
            // Most processes share a namespace: each is opened once.
            let inode = identity(&path);
            if inode.is_none() || !known.insert(inode) {
                continue;
            }
            let Ok(Some(netns)) = Netns::open_if_there(&path) else { continue };
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
            if let Some(PortOwner { network: name, attachment: Some((container, ifname)) }) = owner(link)
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
            before_boot: !at.leases.is_empty()
                && at.leases.iter().all(|lease| self.boot.is_some_and(|boot| lease.since < boot)),
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

impl Network {
    fn named(name: String) -> Network {
        Network {
            name,
            list: None,
            bridge: None,
            faults: Vec::new(),
            directory: None,
            ranges: Vec::new(),
            leases: Vec::new(),
            leases_seen: true,
        }
    }

    /// Reads what the plugins would read.
    fn read(list: NetworkList) -> Network {
        let mut network = Network::named(list.name.to_string());
        for plugin in &list.plugins {
            let mut config = plugin.config.clone();
            config.insert("name".to_owned(), Value::from(network.name.as_str()));
            config.insert("cniVersion".to_owned(), Value::from(list.version.as_str()));
            let text = Value::Object(config).to_string();
            if let Err(error) = network.read_plugin(&plugin.kind, &text, &plugin.config) {
                network.faults.push(error);
            }
        }
        network.list = Some(list);
        network
    }

    fn read_plugin(&mut self, kind: &str, text: &str, config: &serde_json::Map<String, Value>) -> Result<()> {
        let call = Call::about(text)?;
        let is = |value: Option<&Value>, wanted: &str| value.and_then(Value::as_str) == Some(wanted);
        if is(config.get("ipam").and_then(|ipam| ipam.get("type")), "host-local") {
            self.directory = Some(host_local::inspect::directory(&call)?);
            // Ranges may come with each call; then only the runtime knows them.
            let from_runtime = config.get("capabilities").and_then(|all| all.get("ipRanges"));
            match host_local::inspect::ranges(&call) {
                Ok(ranges) => self.ranges = ranges,
                Err(_) if from_runtime == Some(&Value::Bool(true)) => {}
                Err(error) => self.faults.push(error),
            }
        }
        if kind == "bridge" {
            self.bridge = Some(bridge::inspect::settings(&call)?);
        }
        Ok(())
    }

    fn read_leases(&mut self, unseen: &mut Vec<String>) {
        let Some(directory) = &self.directory else { return };
        let listing = note(unseen, host_local::inspect::leases(directory));
        self.leases_seen = listing.is_some();
        let leases = listing.flatten().unwrap_or_default();
        let hidden = leases.iter().filter(|lease| lease.owner == Owner::Unknown).count();
        if hidden > 0 {
            let what = table::count(hidden, "lease");
            unseen.push(format!("the owners of {what} in {}: their files cannot be read", directory.display()));
        }
        self.leases = leases;
    }

    /// How many leases are in a range.
    pub(crate) fn used(&self, range: &Range) -> usize {
        self.leases.iter().filter(|lease| lease.owner != Owner::Nobody && range.contains(lease.ip)).count()
    }
}

/// Whose port a link is, by its alias.
pub(crate) fn owner(link: &Link) -> Option<PortOwner> {
    bridge::inspect::port_owner(&link.alias)
}

/// The networks of all configurations, and those configurations that another one of the same name hides.
fn networks(lists: Vec<NetworkList>, unseen: &mut Vec<String>) -> (Vec<Network>, Vec<NetworkList>) {
    let (mut networks, mut shadowed): (Vec<Network>, _) = (Vec::new(), Vec::new());
    for list in lists {
        if networks.iter().any(|network| network.name == list.name.as_str()) {
            shadowed.push(list);
            continue;
        }
        let mut network = Network::read(list);
        network.read_leases(unseen);
        networks.push(network);
    }
    (networks, shadowed)
}

/// What the cache of results knows. Entries that cannot be read are told.
fn cached(unseen: &mut Vec<String>, corrupt: &mut Vec<Error>) -> Vec<Cached> {
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

/// Keeps what was found; what was not is told.
fn note<T>(unseen: &mut Vec<String>, outcome: Result<T>) -> Option<T> {
    outcome.map_err(|error| unseen.push(error.to_string())).ok()
}

fn place(path: &Path) -> Place {
    match Netns::open_if_there(path) {
        Ok(None) => Place::Empty,
        Ok(Some(netns)) => match Netns::current().and_then(|own| own.same_as(&netns)) {
            Ok(true) => Place::Empty,
            _ => Place::There,
        },
        Err(_) => Place::Hidden,
    }
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
