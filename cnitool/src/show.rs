//! `cnitool show`: bridges, their ports with containers, and rules, which otherwise takes six commands.

use std::collections::BTreeSet;

use cni::inspect::{Kind, LeaseHolder, Object, Owner, marks};
use cni::{AttachmentKey, Result};
use linux::netlink::{Link, Netlink, Vlan};
use serde_json::{Value, json};

use crate::conf;
use crate::node::{Network, Node, kinds, owner};
use crate::out;
use crate::table::{self, Paint, Table, Tone};

/// The maximum width of the column of flags.
const MAX_FLAGS_WIDTH: usize = 16;

/// A bridge, and the networks that use it.
struct BridgeView<'a> {
    name: &'a str,
    /// `None` if it does not exist yet: the first add creates it.
    link: Option<&'a Link>,
    networks: Vec<&'a Network>,
    ports: Vec<PortView<'a>>,
    /// What plugins have created for attachments to these networks.
    objects: Vec<&'a Object>,
}

struct PortView<'a> {
    link: &'a Link,
    network: Option<String>,
    container: Option<String>,
    ifname: Option<String>,
    vlans: Vec<Vlan>,
    /// The marks of its objects.
    marks: Vec<String>,
    /// The kinds of objects that it has.
    kinds: Vec<&'static Kind>,
}

/// Prints the bridges of a network, or all bridges of configurations and of ports.
pub(crate) fn run(network: Option<&str>, as_json: bool) -> Result<()> {
    let node = Node::inspect()?;
    let chosen = node.chosen(network)?;
    conf::warn_of_broken(&node.broken);
    let views = views(&node, &chosen, network)?;
    if as_json {
        let bridges: Vec<Value> = views.iter().map(|view| describe(&node, view)).collect();
        return out::print_json(&json!({ "bridges": bridges, "notSeen": node.unseen }));
    }
    let paint = Paint::of_stdout();
    let pages: Vec<String> = views.iter().map(|view| page(&node, view, paint)).collect();
    let mut text = pages.join("\n");
    if pages.is_empty() {
        text = match network {
            Some(name) => format!("network {} has no bridge\n", table::sanitize(name)),
            None => "no network has a bridge\n".to_owned(),
        };
    }
    out::print(text + &node.not_seen())
}

fn views<'a>(node: &'a Node, networks: &[&'a Network], only: Option<&str>) -> Result<Vec<BridgeView<'a>>> {
    let mut views: Vec<BridgeView<'a>> = Vec::new();
    for network in networks {
        let links = node.bridges(network);
        let named = network.bridge.as_ref().map(|bridge| bridge.name.as_str());
        let names = named.into_iter().chain(links.iter().map(|link| link.name.as_str()));
        for name in names {
            let link = node.link(name).filter(|link| link.kind == "bridge");
            match views.iter_mut().find(|view| view.name == name) {
                Some(view) if view.networks.iter().any(|other| other.name == network.name) => {}
                Some(view) => view.networks.push(network),
                None => views.push(BridgeView {
                    name,
                    link,
                    networks: vec![network],
                    ports: Vec::new(),
                    objects: Vec::new(),
                }),
            }
        }
    }
    let mut netlink = Netlink::open()?;
    for view in &mut views {
        view.objects = view.networks.iter().flat_map(|network| node.objects_of(&network.name)).collect();
        let Some(bridge) = view.link else { continue };
        for link in node.ports(bridge) {
            let port = port(node, &mut netlink, bridge, link)?;
            // For a single network, ports of other networks on the same bridge are omitted, but not unknown ports.
            if only.is_none() || port.network.is_none() || port.network.as_deref() == only {
                view.ports.push(port);
            }
        }
    }
    Ok(views)
}

/// Collects what is known about a port.
fn port<'a>(node: &Node, netlink: &mut Netlink, master: &Link, link: &'a Link) -> Result<PortView<'a>> {
    let owner = owner(link);
    let network = owner.as_ref().map(|owner| owner.network.clone());
    let (mut container, mut ifname) = owner.and_then(|owner| owner.attachment).unzip();
    let guest = node.guest(link.index);
    let mut network = network;
    if network.is_none()
        && let Some(guest) = guest
    {
        // Ports of the reference have no alias. The lease of the container veth's address identifies the container.
        let leases = node.networks.iter().flat_map(|one| one.leases.iter().map(move |lease| (one, lease)));
        for (one, lease) in leases {
            if let LeaseHolder::Container(id, name) = &lease.owner
                && guest.addresses.iter().any(|cidr| cidr.ip() == lease.ip)
            {
                network = Some(one.name.clone());
                container = Some(id.clone());
                ifname = name.clone().or_else(|| Some(guest.name.clone()));
            }
        }
    }
    let marks = match (&network, &container, &ifname) {
        (Some(network), Some(container), Some(ifname)) => marks(AttachmentKey { network, container, ifname }).into(),
        _ => Vec::new(),
    };
    let is_its = |object: &Object| match &object.owner {
        Owner::Marked(_) => object.has_mark_in(&marks),
        Owner::Port(port) => *port == link.name,
    };
    let has = |kind: &&Kind| node.objects.iter().any(|object| object.kind == *kind && is_its(object));
    let vlans = match master.vlan_filtering {
        Some(true) => netlink.vlans(link.index)?,
        _ => Vec::new(),
    };
    Ok(PortView { kinds: kinds().filter(has).collect(), link, network, container, ifname, vlans, marks })
}

impl PortView<'_> {
    /// Returns the flags, named after the keys of the configuration.
    fn flags(&self) -> Vec<&'static str> {
        let port = self.link.port.unwrap_or_default();
        let flags = [(!self.link.up, "down"), (port.hairpin, "hairpin"), (port.isolated, "isolated")];
        let flags = flags.into_iter().filter_map(|(set, name)| set.then_some(name));
        flags.chain(self.kinds.iter().map(|kind| kind.flag)).collect()
    }

    /// Returns the VLANs in a short form, with `*` for the VLAN of untagged frames.
    fn vlan_text(&self) -> String {
        let one = |vlan: &Vlan| format!("{}{}", vlan.range, if vlan.pvid { "*" } else { "" });
        self.vlans.iter().map(one).collect::<Vec<_>>().join(" ")
    }
}

impl<'a> BridgeView<'a> {
    /// Returns the objects of a kind, and those of them that belong to none of the shown ports.
    fn objects(&self, kind: &Kind) -> (Vec<&'a Object>, Vec<&'a Object>) {
        let marks: BTreeSet<&str> = self.ports.iter().flat_map(|port| &port.marks).map(String::as_str).collect();
        let is_stale =
            |object: &&Object| !matches!(&object.owner, Owner::Marked(mark) if marks.contains(mark.as_str()));
        let all: Vec<&Object> = self.objects.iter().copied().filter(|object| object.kind == kind).collect();
        let stale = all.iter().copied().filter(is_stale).collect();
        (all, stale)
    }
}

/// Returns the kinds whose objects are listed.
fn listed_kinds() -> impl Iterator<Item = &'static Kind> {
    kinds().filter(|kind| kind.is_listed)
}

fn page(node: &Node, view: &BridgeView<'_>, paint: Paint) -> String {
    let mut text = paint.paint(Tone::Bold, &format!("bridge {}", view.name)) + "\n";
    match view.link {
        None => text += &table::wrap("does not exist yet: the first add creates it", 2),
        Some(link) => {
            let mut facts =
                vec![if link.up { "up".to_owned() } else { "down".to_owned() }, format!("mtu {}", link.mtu)];
            facts.extend(link.mac.map(|mac| mac.to_string()));
            facts.extend((link.promiscuous).then(|| "promiscuous".to_owned()));
            facts.extend((link.vlan_filtering == Some(true)).then(|| "filters VLANs".to_owned()));
            facts.extend(node.addresses(link.index).iter().map(ToString::to_string));
            text += &table::wrap(&facts.join(", "), 2);
        }
    }
    for network in &view.networks {
        let file = network.list.as_ref().map(|list| list.path.display().to_string());
        let file = file.unwrap_or_else(|| "no configuration".to_owned());
        text += &table::wrap(&format!("network {} ({file})", network.name), 2);
    }
    let mut ports = Table::new(&["PORT", "CONTAINER*", "INTERFACE*", "ITS MAC", "FLAGS"]);
    for port in &view.ports {
        let guest = node.guest(port.link.index);
        let mac = guest.and_then(|guest| guest.mac).map_or_else(|| "-".to_owned(), |mac| mac.to_string());
        let unknown = if port.network.is_some() { "(id too long)" } else { "-" };
        let flags = port.flags().join(" ");
        // If the flags do not fit into the column, they go below the row.
        let fit = flags.len() <= MAX_FLAGS_WIDTH;
        let ifname = port.ifname.as_deref().or_else(|| guest.map(|guest| guest.name.as_str()));
        ports.row(vec![
            (Tone::Plain, port.link.name.clone()),
            (Tone::Plain, table::shorten(port.container.as_deref().unwrap_or(unknown), 24)),
            (Tone::Plain, ifname.unwrap_or("-").to_owned()),
            (Tone::Plain, mac),
            (if port.link.up { Tone::Plain } else { Tone::Bad }, if fit { flags.clone() } else { String::new() }),
        ]);
        let mut more: Vec<String> = guest.iter().flat_map(|guest| &guest.addresses).map(ToString::to_string).collect();
        more.extend((!fit).then_some(flags));
        more.extend((!port.vlans.is_empty()).then(|| format!("vlan {}", port.vlan_text())));
        if view.networks.len() > 1 {
            more.extend(port.network.as_ref().map(|network| format!("network {network}")));
        }
        if !more.is_empty() {
            ports.more(more.join(", "));
        }
    }
    match ports.is_empty() {
        true => text += "  no ports\n",
        false => text += &format!("\n{}", ports.render(paint, 2)),
    }
    let objects: String = listed_kinds().map(|kind| objects(view, kind, paint)).collect();
    if !objects.is_empty() {
        text += "\n";
    }
    text + &objects
}

/// Formats the number of objects of a kind, and those that belong to no port.
fn objects(view: &BridgeView<'_>, kind: &Kind, paint: Paint) -> String {
    let (all, stale) = view.objects(kind);
    let mut by_backend: Vec<(&str, usize)> = Vec::new();
    for object in &all {
        match by_backend.iter_mut().find(|(backend, _)| *backend == object.backend) {
            Some((_, count)) => *count += 1,
            None => by_backend.push((object.backend, 1)),
        }
    }
    if by_backend.is_empty() {
        return String::new();
    }
    let counts: Vec<String> = by_backend.iter().map(|(backend, count)| format!("{count} by {backend}")).collect();
    let mut text = format!("  {}: {}", kind.name, counts.join(", "));
    match stale.is_empty() {
        true => text += ", all of ports above\n",
        false => {
            text += &paint.paint(Tone::Warning, &format!(", {} of no port above:", stale.len()));
            text.push('\n');
        }
    }
    for object in stale {
        let address = object.address.map_or_else(|| "-".to_owned(), |ip| ip.to_string());
        text += &table::wrap(&format!("{address}: {}", object.about), 4);
    }
    text
}

fn describe(node: &Node, view: &BridgeView<'_>) -> Value {
    let bridge = view.link.map(|link| {
        json!({
            "up": link.up, "mtu": link.mtu, "mac": link.mac.map(|mac| mac.to_string()),
            "promiscuous": link.promiscuous, "vlanFiltering": link.vlan_filtering.unwrap_or_default(),
            "addresses": node.addresses(link.index),
        })
    });
    let networks: Vec<Value> = view
        .networks
        .iter()
        .map(|network| json!({ "name": network.name, "file": network.list.as_ref().map(|list| &list.path) }))
        .collect();
    let ports: Vec<Value> = view.ports.iter().map(|port| describe_port(node, port)).collect();
    let value = json!({ "name": view.name, "link": bridge, "networks": networks, "ports": ports });
    let objects = listed_kinds().map(|kind| {
        let (all, stale) = view.objects(kind);
        let describe = |object: &&Object| {
            json!({
                "source": object.address, "backend": object.backend, "comment": object.comment,
                "ofPort": !stale.contains(object),
            })
        };
        (kind.json, all.iter().map(describe).collect())
    });
    with_members(value, objects)
}

/// Adds members to a JSON object.
fn with_members(value: Value, members: impl Iterator<Item = (&'static str, Value)>) -> Value {
    let Value::Object(mut object) = value else { return value };
    object.extend(members.map(|(key, value)| (key.to_owned(), value)));
    Value::Object(object)
}

fn describe_port(node: &Node, port: &PortView<'_>) -> Value {
    let guest = node.guest(port.link.index);
    let vlans: Vec<Value> = port
        .vlans
        .iter()
        .map(|vlan| {
            json!({
                "first": vlan.range.first, "last": vlan.range.last, "pvid": vlan.pvid, "untagged": vlan.untagged,
            })
        })
        .collect();
    let settings = port.link.port.unwrap_or_default();
    let value = json!({
        "name": port.link.name, "network": port.network, "container": port.container, "interface": port.ifname,
        "up": port.link.up, "mtu": port.link.mtu, "mac": port.link.mac.map(|mac| mac.to_string()),
        "hairpin": settings.hairpin, "isolated": settings.isolated, "vlans": vlans,
        "guest": guest.map(|guest| json!({
            "name": guest.name, "mac": guest.mac.map(|mac| mac.to_string()), "addresses": guest.addresses,
            "netns": guest.netns,
        })),
    });
    with_members(value, kinds().map(|kind| (kind.json, port.kinds.contains(&kind).into())))
}
