//! The attachments of a network, found by their leases, ports and cache entries.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cni::inspect::{Added, Lease, LeaseHolder, Marks, Object, Owner, Subject};
use cni::key::AliasOwner;
use cni::{AddResult, AttachmentKey, ContainerId, Error, IfName, Version};
use linux::Netns;
use linux::ip::Cidr;
use linux::netlink::{Link, LinkIndex};
use serde_json::{Map, Value};

use super::evidence::{Evidence, Place, State};
use super::{Network, Node, Part, owner, value_or_unseen};
use crate::cache::{Cache, Entry};

/// An attachment in the cache of results.
#[derive(Debug)]
pub(super) struct Cached {
    pub(super) network: String,
    container: String,
    ifname: String,
    pub(super) netns: Option<PathBuf>,
    addresses: Vec<IpAddr>,
    /// The arguments for plugins that declare the capability.
    capabilities: Map<String, Value>,
    result: Option<Value>,
}

impl Cached {
    /// Returns whether it is an attachment of this container with this address.
    pub(super) fn has(&self, container: &str, ip: IpAddr) -> bool {
        self.container == container && self.addresses.contains(&ip)
    }
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
    pub(crate) marks: Marks,
    pub(crate) state: State,
    /// The reason for the state.
    pub(crate) why: &'static str,
}

impl Attachment {
    /// Returns the attachment for findings about it.
    pub(crate) fn subject(&self) -> Subject {
        Subject::container(&self.container, self.ifname.as_deref())
    }

    /// Returns whether the object belongs to this attachment, or may belong to it if it names only the container.
    pub(crate) fn owns(&self, object: &Object) -> bool {
        self.marks.match_object(object)
    }
}

impl Node {
    /// Returns all attachments of a network that have a lease, a port or a cache entry, with their states.
    pub(crate) fn attachments(&self, network: &Network) -> Vec<Attachment> {
        let mut found = self.find_attachments(network);
        let bridges = self.bridges(network);
        let general = Evidence {
            on_bridge: !bridges.is_empty(),
            ports_known: self.all_guests_seen && !self.has_unknown_ports(network, &bridges),
            ..Evidence::default()
        };
        let ports = self.links.iter().filter(|link| owner(link).is_some());
        let aliases: BTreeSet<&str> = ports.map(|link| link.alias.as_str()).collect();
        let mut by_container: BTreeMap<&str, Vec<&Cached>> = BTreeMap::new();
        for cached in self.cached_in(network) {
            by_container.entry(&cached.container).or_default().push(cached);
        }
        for at in &mut found {
            let cached = by_container.get(at.container.as_str()).map(Vec::as_slice).unwrap_or_default();
            (at.state, at.why) = self.evidence(network, at, cached, &aliases, general).judge();
        }
        found.sort_by_key(|at| at.leases.first().map(|lease| lease.ip));
        found
    }

    /// Returns all attachments of a network that have a lease, a port or a cache entry. Their states are not determined
    /// yet.
    fn find_attachments(&self, network: &Network) -> Vec<Attachment> {
        let mut found: BTreeMap<(String, Option<String>), Attachment> = BTreeMap::new();
        let mut entry = |container: &str, ifname: Option<&str>, change: &mut dyn FnMut(&mut Attachment)| {
            let key = (container.to_owned(), ifname.map(str::to_owned));
            change(found.entry(key.clone()).or_insert_with(|| Attachment {
                marks: Marks::new(AttachmentKey {
                    network: &network.name,
                    container,
                    ifname: ifname.unwrap_or_default(),
                }),
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
        for cached in self.cached_in(network) {
            entry(&cached.container, Some(&cached.ifname), &mut |at| {
                at.cached = true;
                at.netns.clone_from(&cached.netns);
            });
        }
        found.into_values().collect()
    }

    /// Returns the cache entries of a network.
    fn cached_in(&self, network: &Network) -> impl Iterator<Item = &Cached> {
        self.cached.iter().filter(|cached| cached.network == network.name)
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

    /// Returns the attachment of a port among `attachments`. A port of the reference has no alias; it is recognised by
    /// the address of the container veth.
    pub(crate) fn attachment_of<'a>(&self, port: &Link, attachments: &'a [Attachment]) -> Option<&'a Attachment> {
        let guest = self.guest(port.index);
        let has_address = |at: &&Attachment| {
            let leases: BTreeSet<IpAddr> = at.leases.iter().map(|lease| lease.ip).collect();
            at.port.is_none() && guest.is_some_and(|guest| guest.has_any(&leases))
        };
        let by_alias = attachments.iter().find(|at| at.port == Some(port.index));
        by_alias.or_else(|| attachments.iter().find(has_address))
    }

    /// Returns the entry of an attachment in the cache.
    fn cached(&self, network: &Network, at: &Attachment) -> Option<&Cached> {
        self.cached.iter().find(|cached| {
            cached.network == network.name
                && cached.container == at.container
                && Some(&cached.ifname) == at.ifname.as_ref()
        })
    }

    /// Returns the result of the ADD of an attachment as the cache has it.
    pub(crate) fn result(&self, network: &Network, at: &Attachment) -> Option<AddResult> {
        let result = self.cached(network, at)?.result.as_ref()?;
        AddResult::read_answer(&result.to_string(), Version::NEWEST).ok()
    }

    /// Returns the leased addresses of an attachment. If its IPAM plugin keeps no leases, returns those of its ADD.
    pub(crate) fn addresses_of(&self, network: &Network, at: &Attachment) -> Vec<IpAddr> {
        match self.cached(network, at) {
            Some(cached) if at.leases.is_empty() => cached.addresses.clone(),
            _ => at.leases.iter().map(|lease| lease.ip).collect(),
        }
    }

    /// Returns the ADD of an attachment as the cache has it, for a plugin of the network.
    pub(crate) fn added(&self, network: &Network, part: &Part, at: &Attachment) -> Option<Added> {
        let cached = self.cached(network, at)?;
        let config = part.check_config(network.list.as_ref()?, &cached.capabilities, cached.result.as_ref()?)?;
        let attachment = cni::Attachment {
            container: ContainerId::parse(at.container.as_ref()).ok()?,
            ifname: IfName::parse(at.ifname.as_deref()?.as_ref()).ok()?,
            netns: cached.netns.clone(),
        };
        Some(Added { attachment, config })
    }

    /// Returns the objects of a network that belong only to attachments that are gone, or to none. `attachments` are
    /// all of the network.
    pub(crate) fn left_objects(&self, network: &Network, attachments: &[Attachment]) -> Vec<&Object> {
        let mut left = self.objects_of(&network.name);
        left.retain(|object| !attachments.iter().any(|at| at.state != State::Gone && at.owns(object)));
        self.retain_without_container(&mut left);
        left
    }

    /// Returns the objects that name only a container, which is gone, and whose network cannot be determined.
    pub(crate) fn left_objects_without_network(&self) -> Vec<&Object> {
        let has_none = |object: &&Object| match &object.owner {
            Owner::Container(id) => self.network_of(object, id).is_none(),
            Owner::Marked(_) | Owner::Port(_) => false,
        };
        let mut left: Vec<&Object> = self.objects.iter().filter(has_none).collect();
        self.retain_without_container(&mut left);
        left
    }

    /// Removes from `left` the objects that name only a container, unless the container is gone from all networks and
    /// its address is not in use.
    fn retain_without_container(&self, left: &mut Vec<&Object>) {
        if !left.iter().any(|object| matches!(object.owner, Owner::Container(_))) {
            return;
        }
        let all = self.networks.iter().flat_map(|network| self.attachments(network));
        let kept: BTreeSet<String> = all.filter(|at| at.state != State::Gone).map(|at| at.container).collect();
        left.retain(|object| match &object.owner {
            Owner::Container(id) => {
                let is_used = object.address.is_none_or(|ip| self.is_used(ip));
                self.all_guests_seen && !is_used && !kept.contains(id)
            }
            Owner::Marked(_) | Owner::Port(_) => true,
        });
    }

    /// Returns whether a bridge of the network has a port whose owner is unknown. Ports of the reference have no alias;
    /// they are recognised by the address of the container veth.
    fn has_unknown_ports(&self, network: &Network, bridges: &[&Link]) -> bool {
        let leases: BTreeSet<IpAddr> = network.leases.iter().map(|lease| lease.ip).collect();
        let is_unknown = |port: &Link| {
            let is_truncated = owner(port).is_some_and(|owner| owner.attachment.is_none());
            let leads_away = port.lower_netns.is_some() && owner(port).is_none();
            is_truncated || (leads_away && !self.guest(port.index).is_some_and(|guest| guest.has_any(&leases)))
        };
        bridges.iter().any(|bridge| self.ports(bridge).any(is_unknown))
    }
}

/// Reads the cache of results. Adds the errors of unreadable entries to `corrupt`.
pub(super) fn cached(unseen: &mut Vec<String>, corrupt: &mut Vec<(PathBuf, Error)>) -> Vec<Cached> {
    let Some((entries, failures)) = value_or_unseen(unseen, Cache::of_host().all()) else { return Vec::new() };
    corrupt.extend(failures);
    let cached = |entry: Entry| Cached {
        addresses: entry.result.as_ref().map(addresses).unwrap_or_default(),
        network: entry.network,
        container: entry.container,
        ifname: entry.ifname,
        netns: entry.netns,
        capabilities: entry.capabilities,
        result: entry.result,
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
