//! `cnitool show WHAT`: everything about one container, found by its ID, an address, a published port, its namespace,
//! or a link.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cni::inspect::{Lease, Object, Property};
use cni::{Code, Error, Result};
use linux::netlink::{Link, Netlink};
use serde_json::{Value, json};

use super::{PortView, json as describe, port};
use crate::cache::Cache;
use crate::node::{Attachment, Network, Node, same_namespace};
use crate::table::{self, Paint, Tone};
use crate::{leases, netns};

/// The shortest beginning of an ID.
const MIN_PREFIX: usize = 3;
/// The property of an object that is a published port.
const HOST_PORT: &str = "hostPort";
/// The width of the first column.
const LABEL: usize = 11;

/// An attachment, with everything that is known about it.
pub(super) struct Found<'a> {
    network: &'a Network,
    at: Attachment,
    /// The end of its interface on the host, if it has one.
    link: Option<&'a Link>,
    objects: Vec<&'a Object>,
    flags: Vec<&'static str>,
}

/// Returns the attachments that `what` means: all of one container. Fails if it means several containers; returns none
/// if it means nothing.
pub(super) fn find<'a>(node: &'a Node, what: &str) -> Result<Vec<Found<'a>>> {
    let mut netlink = Netlink::open()?;
    let mut found: Vec<(&'static str, Found<'a>)> = Vec::new();
    for network in &node.networks {
        let attachments = node.attachments(network);
        let links = node.ports_of(network);
        for at in &attachments {
            let is_its = |link: &&&Link| {
                let owner = node.attachment_of(link, &attachments);
                owner.is_some_and(|owner| (&owner.container, &owner.ifname) == (&at.container, &at.ifname))
            };
            let link = links.iter().find(is_its).copied();
            let one = Found::new(node, &mut netlink, network, at.clone(), link)?;
            found.extend(one.is_meant(node, what).map(|how| (how, one)));
        }
    }
    // A whole ID is not a part of another one.
    if found.iter().any(|(_, one)| one.at.container == what) {
        found.retain(|(_, one)| one.at.container == what);
    }
    let containers: BTreeSet<&str> = found.iter().map(|(_, one)| one.at.container.as_str()).collect();
    if containers.len() > 1 {
        let meant = found.iter().map(|(how, one)| format!("{} ({how})", one.at.container));
        let meant: BTreeSet<String> = meant.collect();
        let error = Error::new(Code::CONFIG, format!("{what:?} means {}", table::count(containers.len(), "container")));
        let list = meant.into_iter().take(5).collect::<Vec<_>>().join(", ");
        return Err(error.details(format!("write more of the ID: {list}")));
    }
    Ok(found.into_iter().map(|(_, one)| one).collect())
}

impl<'a> Found<'a> {
    fn new(
        node: &'a Node,
        netlink: &mut Netlink,
        network: &'a Network,
        at: Attachment,
        link: Option<&'a Link>,
    ) -> Result<Found<'a>> {
        let master = link.and_then(|link| node.links.iter().find(|one| Some(one.index) == link.master));
        let view = link.map(|link| port(node, netlink, master, link)).transpose()?;
        let flags = view.as_ref().map(PortView::flags).unwrap_or_default();
        let objects = match view {
            Some(view) => view.objects,
            None => node.objects.iter().filter(|object| at.owns(object)).collect(),
        };
        Ok(Found { network, at, link, objects, flags })
    }

    /// Returns how `what` names the attachment; `None` if it means another one.
    fn is_meant(&self, node: &Node, what: &str) -> Option<&'static str> {
        let is_prefix = what.len() >= MIN_PREFIX && self.at.container.starts_with(what);
        let ip: Option<IpAddr> = what.split('/').next().and_then(|ip| ip.parse().ok());
        let number: Option<u16> = what.trim_start_matches(':').parse().ok();
        let is_published = |object: &&Object| {
            let mut ports = object.properties.iter().filter(|(key, _)| *key == HOST_PORT);
            ports.any(|(_, value)| number.is_some_and(|number| *value == Property::Number(number.into())))
        };
        let is_path = || {
            let given = netns::path(Path::new(what)).ok()?;
            let own = self.namespace(node)?;
            (given == own || same_namespace(&given, &own)).then_some(())
        };
        match () {
            () if self.at.container == what => Some("its ID"),
            () if is_prefix => Some("the beginning of its ID"),
            () if ip.is_some_and(|ip| self.addresses(node).contains(&ip)) => Some("its address"),
            () if self.objects.iter().any(is_published) => Some("a published port"),
            () if self.link.is_some_and(|link| link.name == what) => Some("its host side"),
            () if self.at.ifname.as_deref() == Some(what) => Some("its interface"),
            () if is_path().is_some() => Some("its namespace"),
            () => None,
        }
    }

    fn namespace(&self, node: &Node) -> Option<PathBuf> {
        let beyond = || node.guest(self.link?.index)?.netns.clone();
        self.at.netns.clone().or_else(beyond)
    }

    /// Returns the addresses of the interface, or, if it cannot be seen, those of its ADD.
    fn addresses(&self, node: &Node) -> Vec<IpAddr> {
        let guest = self.link.and_then(|link| node.guest(link.index));
        let seen: Vec<IpAddr> = guest.iter().flat_map(|guest| &guest.addresses).map(|cidr| cidr.ip()).collect();
        if seen.is_empty() { node.addresses_of(self.network, &self.at) } else { seen }
    }

    /// Returns the MTU of each link from the container to the outside.
    fn hops(&self, node: &Node) -> Vec<(String, u32)> {
        let guest = self.link.and_then(|link| node.guest(link.index));
        let mut hops: Vec<(String, u32)> = guest.iter().map(|guest| (guest.name.clone(), guest.mtu)).collect();
        let master = self.link.and_then(|link| node.links.iter().find(|one| Some(one.index) == link.master));
        let uplink = node.uplink().filter(|uplink| Some(uplink.index) != master.map(|master| master.index));
        hops.extend(self.link.into_iter().chain(master).chain(uplink).map(|link| (link.name.clone(), link.mtu)));
        hops
    }

    fn cache(&self) -> Option<PathBuf> {
        let ifname = self.at.ifname.as_deref().filter(|_| self.at.cached)?;
        Some(Cache::of_host().path(&self.network.name, &self.at.container, ifname))
    }

    fn master(&self, node: &Node) -> Option<String> {
        let master = self.link?.master?;
        node.links.iter().find(|one| one.index == master).map(|link| link.name.clone())
    }

    /// Formats the attachment for a reader.
    pub(super) fn page(&self, node: &Node, paint: Paint) -> String {
        let ifname = self.at.ifname.as_deref().unwrap_or("-");
        let title = format!("container {}, {ifname} on network {}", self.at.container, self.network.name);
        let mut text = paint.paint(Tone::Bold, &table::shorten(&title, table::width())) + "\n";
        let mut fact = |label: &str, values: Vec<String>| {
            if !values.is_empty() {
                let wrapped = table::wrap(&values.join(", "), 2 + LABEL);
                text += &format!("  {label:<LABEL$}{}", wrapped.trim_start());
            }
        };
        let state = format!("{}: {}", self.at.state.text(), self.at.why);
        fact("state", vec![state.trim_end_matches(": ").to_owned()]);
        fact("namespace", self.namespace(node).map(|path| path.display().to_string()).into_iter().collect());
        let guest = self.link.and_then(|link| node.guest(link.index));
        let seen: Vec<String> = guest.iter().flat_map(|guest| &guest.addresses).map(ToString::to_string).collect();
        let added = || self.addresses(node).iter().map(IpAddr::to_string).collect();
        fact("addresses", if seen.is_empty() { added() } else { seen });
        fact("mac", guest.and_then(|guest| guest.mac).map(|mac| mac.to_string()).into_iter().collect());
        fact("leases", self.at.leases.iter().map(leases::line).collect());
        if let Some(link) = self.link {
            let place = self.master(node).map_or_else(String::new, |master| format!(" on {master}"));
            let mut words = vec![format!("{}{place}", link.name)];
            words.extend(self.flags.iter().map(|flag| (*flag).to_owned()));
            fact("host side", words);
        }
        fact("mtu", self.hops(node).into_iter().map(|(link, mtu)| format!("{link} {mtu}")).collect());
        for object in &self.objects {
            let what = if object.detail.is_empty() { &object.name } else { &object.detail };
            fact(object.kind.name, vec![format!("{what} ({})", object.backend)]);
        }
        fact("cache", self.cache().map(|path| path.display().to_string()).into_iter().collect());
        text
    }

    /// Returns the attachment as JSON.
    pub(super) fn json(&self, node: &Node) -> Value {
        let guest = self.link.and_then(|link| node.guest(link.index));
        let lease = |lease: &Lease| json!({ "address": lease.ip, "ageSeconds": leases::elapsed(lease).as_secs() });
        let host_side = self.link.map(|link| {
            json!({
                "name": link.name, "master": self.master(node), "up": link.up, "mtu": link.mtu, "flags": self.flags,
            })
        });
        let mtus: Vec<Value> =
            self.hops(node).into_iter().map(|(link, mtu)| json!({ "link": link, "mtu": mtu })).collect();
        let objects: Vec<Value> = self.objects.iter().map(|object| describe::object_of(object)).collect();
        json!({
            "network": self.network.name, "container": self.at.container, "interface": self.at.ifname,
            "state": self.at.state.json(), "why": self.at.why, "netns": self.namespace(node),
            "addresses": self.addresses(node), "mac": guest.and_then(|guest| guest.mac).map(|mac| mac.to_string()),
            "leases": self.at.leases.iter().map(lease).collect::<Vec<_>>(), "hostSide": host_side, "mtus": mtus,
            "objects": objects, "cache": self.cache(),
        })
    }
}
