//! `cnitool show`: bridges, their ports with containers, and rules, which otherwise takes six commands.

mod container;
mod json;

use std::net::IpAddr;

use cni::inspect::{LeaseHolder, Marks, Object, ObjectKind, Owner};
use cni::{AttachmentKey, Result};
use linux::netlink::{Link, Netlink, Vlan};
use serde_json::Value;

use crate::conf;
use crate::node::{Network, Node, State, kinds, owner};
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
    /// Ports of the networks that are on no bridge, for example because theirs was deleted.
    detached: Vec<PortView<'a>>,
}

struct PortView<'a> {
    link: &'a Link,
    network: Option<String>,
    container: Option<String>,
    ifname: Option<String>,
    vlans: Vec<Vlan>,
    /// Whether no plugin has created it.
    is_foreign: bool,
    /// Whether its network has no bridge, so that it should not be on one.
    is_routed: bool,
    /// What plugins have created for its attachment.
    objects: Vec<&'a Object>,
}

/// An object with its attachment, as far as that is known.
struct OwnedObject<'a> {
    object: &'a Object,
    container: Option<String>,
    ifname: Option<String>,
    /// Whether its attachment exists.
    is_live: bool,
}

/// Prints what is known about `what`: a network, that of a bridge, or a container. Without it, prints all networks.
pub(crate) fn run(what: Option<&str>, as_json: bool) -> Result<()> {
    let node = Node::inspect()?;
    conf::warn_of_broken(&node.broken);
    let Some(what) = what.filter(|what| node.networks.iter().all(|network| network.name != *what)) else {
        return networks(&node, what, as_json);
    };
    let on_bridge = node.networks.iter().find(|one| node.bridges(one).iter().any(|bridge| bridge.name == what));
    if let Some(network) = on_bridge {
        return networks(&node, Some(&network.name), as_json);
    }
    let found = container::find(&node, what)?;
    if found.is_empty() {
        return Err(node.unknown(what).details("nor a container, an address, a published port, a namespace or a link"));
    }
    if as_json {
        let containers: Vec<Value> = found.iter().map(|one| one.json(&node)).collect();
        return out::print_versioned(serde_json::json!({ "containers": containers, "notSeen": node.unseen }));
    }
    let pages: Vec<String> = found.iter().map(|one| one.page(&node, Paint::of_stdout())).collect();
    out::print(pages.join("\n") + &node.not_seen())
}

/// Prints the bridges of a network, or all bridges of configurations and of ports. Then prints the networks without a
/// bridge for whose attachments plugins have created something.
fn networks(node: &Node, network: Option<&str>, as_json: bool) -> Result<()> {
    let chosen = node.chosen(network)?;
    let views = views(node, &chosen, network)?;
    let has_bridge =
        |network: &Network| views.iter().flat_map(|view| &view.networks).any(|one| one.name == network.name);
    let others = chosen.into_iter().filter(|network| !has_bridge(network));
    let mut netlink = Netlink::open()?;
    let others = others.map(|network| Ok((network, detached(node, &mut netlink, network)?)));
    let others: Vec<(&Network, Vec<PortView<'_>>)> = others.collect::<Result<_>>()?;
    if as_json {
        let bridges: Vec<Value> = views.iter().map(|view| json::bridge(node, view)).collect();
        let others: Vec<Value> = others.iter().map(|(network, ports)| json::network(node, network, ports)).collect();
        return out::print_versioned(
            serde_json::json!({ "bridges": bridges, "otherNetworks": others, "notSeen": node.unseen }),
        );
    }
    let paint = Paint::of_stdout();
    let mut pages: Vec<String> = views.iter().map(|view| page(node, view, paint)).collect();
    pages.extend(others.iter().filter_map(|(network, ports)| network_page(node, network, ports, paint)));
    let mut text = pages.join("\n");
    if pages.is_empty() {
        text = match network {
            Some(name) => format!("network {} has no bridge\n", table::sanitize(name)),
            None => "no network has a bridge\n".to_owned(),
        };
    }
    out::print(text + &node.not_seen())
}

/// Returns the bridges of the networks, with their ports. With `only`, ports of other networks are left out.
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
                    detached: Vec::new(),
                }),
            }
        }
    }
    let mut netlink = Netlink::open()?;
    for network in networks {
        // A network with several bridges has its detached ports below the first.
        if let Some(view) = views.iter_mut().find(|view| view.networks.iter().any(|one| one.name == network.name)) {
            view.detached.extend(detached(node, &mut netlink, network)?);
        }
    }
    for view in &mut views {
        let Some(bridge) = view.link else { continue };
        for link in node.ports(bridge) {
            let port = port(node, &mut netlink, Some(bridge), link)?;
            // For a single network, ports of other networks on the same bridge are omitted, but not unknown ports.
            if only.is_none() || port.network.is_none() || port.network.as_deref() == only {
                view.ports.push(port);
            }
        }
    }
    Ok(views)
}

/// Returns the ports of a network that are on no bridge.
fn detached<'a>(node: &'a Node, netlink: &mut Netlink, network: &Network) -> Result<Vec<PortView<'a>>> {
    // Without an alias, only the bridge in the configuration proves that the veth of a container should be on one.
    let is_detached = |link: &&&Link| link.master.is_none() && (owner(link).is_some() || network.bridge.is_some());
    let links: Vec<&'a Link> = node.ports_of(network).into_iter().filter(|link| is_detached(&link)).collect();
    links.into_iter().map(|link| port(node, netlink, None, link)).collect()
}

/// Returns whether no plugin has created a port whose attachment is unknown. Plugins create veth pairs that lead to
/// another namespace, named `veth` and eight hexadecimal digits.
fn is_foreign(link: &Link) -> bool {
    let digits = link.name.strip_prefix("veth").unwrap_or_default();
    let is_named = digits.len() == 8 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    link.kind != "veth" || link.lower_netns.is_none() || !is_named
}

/// Collects what is known about a port of the bridge `master`, or of none.
fn port<'a>(node: &'a Node, netlink: &mut Netlink, master: Option<&Link>, link: &'a Link) -> Result<PortView<'a>> {
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
        (Some(network), Some(container), Some(ifname)) => {
            Some(Marks::new(AttachmentKey { network, container, ifname }))
        }
        _ => None,
    };
    // An object that names only the container may belong to its attachment to another network.
    let leads_here = |object: &Object| match (guest, object.address) {
        (Some(guest), Some(ip)) => guest.addresses.iter().any(|cidr| cidr.ip() == ip),
        _ => true,
    };
    let is_its = |object: &&Object| match &object.owner {
        Owner::Port(name) => *name == link.name || master.is_some_and(|master| *name == master.name),
        Owner::Marked(_) => marks.as_ref().is_some_and(|marks| marks.match_object(object)),
        Owner::Container(_) => marks.as_ref().is_some_and(|marks| marks.match_object(object)) && leads_here(object),
    };
    let objects = node.objects.iter().filter(is_its).collect();
    let vlans = match master.and_then(|master| master.vlan_filtering) {
        Some(true) => netlink.vlans(link.index)?,
        _ => Vec::new(),
    };
    let is_foreign = network.is_none() && is_foreign(link);
    let has_no_bridge = |one: &&Network| one.list.is_some() && one.bridge.is_none();
    let mut known = node.networks.iter().filter(has_no_bridge);
    let is_routed = master.is_none() && known.any(|one| network.as_ref() == Some(&one.name));
    Ok(PortView { link, network, container, ifname, vlans, is_foreign, is_routed, objects })
}

impl PortView<'_> {
    /// Returns the flags, named after the keys of the configuration.
    fn flags(&self) -> Vec<&'static str> {
        let port = self.link.port.unwrap_or_default();
        let is_detached = self.link.master.is_none() && !self.is_routed;
        let flags = [
            (is_detached, "detached"),
            (!self.link.up, "down"),
            (port.hairpin, "hairpin"),
            (port.isolated, "isolated"),
        ];
        let flags = flags.into_iter().filter_map(|(set, name)| set.then_some(name));
        flags.chain(kinds().filter(|kind| self.has(kind)).map(|kind| kind.flag)).collect()
    }

    /// Returns whether it has an object of this kind.
    fn has(&self, kind: &ObjectKind) -> bool {
        self.objects.iter().any(|object| object.kind == kind)
    }

    /// Returns the VLANs in a short form, with `*` for the VLAN of untagged frames.
    fn vlan_text(&self) -> String {
        let one = |vlan: &Vlan| format!("{}{}", vlan.range, if vlan.pvid { "*" } else { "" });
        self.vlans.iter().map(one).collect::<Vec<_>>().join(" ")
    }
}

impl<'a> BridgeView<'a> {
    /// Returns the objects of a kind. Those of none of the shown ports are not live.
    fn objects(&self, node: &'a Node, kind: &ObjectKind) -> Vec<OwnedObject<'a>> {
        let find = |object: &Object| {
            self.ports
                .iter()
                .chain(&self.detached)
                .find(|port| port.objects.iter().any(|other| std::ptr::eq(*other, object)))
        };
        let of_networks = self.networks.iter().flat_map(|network| owned_objects(node, network, kind));
        of_networks
            .map(|owned| match find(owned.object) {
                Some(port) => OwnedObject {
                    object: owned.object,
                    container: port.container.clone(),
                    ifname: port.ifname.clone(),
                    is_live: true,
                },
                None => OwnedObject { is_live: false, ..owned },
            })
            .collect()
    }
}

/// Returns the objects of a kind that belong to a network.
fn owned_objects<'a>(node: &'a Node, network: &Network, kind: &ObjectKind) -> Vec<OwnedObject<'a>> {
    let objects = node.objects_of(&network.name).into_iter().filter(|object| object.kind == kind);
    let attachments = node.attachments(network);
    let owned = |object: &'a Object| {
        let owner = attachments.iter().find(|at| at.owns(object));
        let named = match &object.owner {
            Owner::Container(id) => Some(id.clone()),
            Owner::Marked(_) | Owner::Port(_) => None,
        };
        OwnedObject {
            object,
            container: owner.map(|at| at.container.clone()).or(named),
            ifname: owner.and_then(|at| at.ifname.clone()),
            is_live: owner.is_some_and(|at| at.state != State::Gone),
        }
    };
    objects.map(owned).collect()
}

/// Returns the kinds whose objects are listed.
fn listed_kinds() -> impl Iterator<Item = &'static ObjectKind> {
    kinds().filter(|kind| kind.is_listed)
}

/// Formats a bridge with its networks, its ports and the objects of its attachments.
fn page<'a>(node: &'a Node, view: &BridgeView<'a>, paint: Paint) -> String {
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
        text += &table::wrap(&format!("network {} ({})", network.name, file(network)), 2);
    }
    let with_network = view.networks.len() > 1;
    match view.ports.is_empty() {
        true => text += "  no ports\n",
        false => text += &format!("\n{}", port_table(node, &view.ports, with_network).render(paint, 2)),
    }
    text += &detached_ports(node, &view.detached, with_network, paint);
    let listed = |kind| objects(&view.objects(node, kind), kind, paint, ("of ports above", "of no port above"));
    let objects: String = listed_kinds().map(listed).collect();
    if !objects.is_empty() {
        text += "\n";
    }
    text + &objects
}

/// Formats the ports that are on no bridge; empty if there are none.
fn detached_ports(node: &Node, ports: &[PortView<'_>], with_network: bool, paint: Paint) -> String {
    if ports.is_empty() {
        return String::new();
    }
    let title = match ports.iter().all(|port| port.is_routed) {
        true => "host veths:".to_owned(),
        false => paint.paint(Tone::Bad, "on no bridge:"),
    };
    format!("\n  {title}\n{}", port_table(node, ports, with_network).render(paint, 2))
}

/// Returns a table with a row for each port, and below it the addresses, the namespace and the objects of its
/// container.
fn port_table(node: &Node, ports: &[PortView<'_>], with_network: bool) -> Table {
    let mut rows = Table::new(&["PORT", "CONTAINER**", "INTERFACE*", "ITS MAC", "FLAGS"]);
    for port in ports {
        // The other end of a foreign port is not a container's interface.
        let guest = node.guest(port.link.index).filter(|_| !port.is_foreign);
        let mac = guest.and_then(|guest| guest.mac).map_or_else(|| "-".to_owned(), |mac| mac.to_string());
        let unknown = match port.network {
            Some(_) => "(id too long)",
            None if port.is_foreign => "(foreign)",
            None => "-",
        };
        let flags = port.flags().join(" ");
        // If the flags do not fit into the column, they go below the row.
        let fit = flags.len() <= MAX_FLAGS_WIDTH;
        let ifname = port.ifname.as_deref().or_else(|| guest.map(|guest| guest.name.as_str()));
        let is_good = port.link.up && (port.link.master.is_some() || port.is_routed);
        rows.row(vec![
            (Tone::Plain, port.link.name.clone()),
            (Tone::Plain, port.container.as_deref().unwrap_or(unknown).to_owned()),
            (Tone::Plain, ifname.unwrap_or("-").to_owned()),
            (Tone::Plain, mac),
            (if is_good { Tone::Plain } else { Tone::Bad }, if fit { flags.clone() } else { String::new() }),
        ]);
        let mut more: Vec<String> = guest.iter().flat_map(|guest| &guest.addresses).map(ToString::to_string).collect();
        more.extend((!fit).then_some(flags));
        more.extend((!port.vlans.is_empty()).then(|| format!("vlan {}", port.vlan_text())));
        if with_network {
            more.extend(port.network.as_ref().map(|network| format!("network {network}")));
        }
        more.extend(guest.and_then(|guest| guest.netns.as_deref()).map(|netns| format!("in {}", netns.display())));
        if !more.is_empty() {
            rows.more(more.join(", "));
        }
        for object in port.objects.iter().filter(|object| !object.detail.is_empty()) {
            rows.more(object.detail.clone());
        }
    }
    rows
}

/// Returns the file of a network's configuration.
fn file(network: &Network) -> String {
    let file = network.list.as_ref().map(|list| list.path.display().to_string());
    file.unwrap_or_else(|| "no configuration".to_owned())
}

/// Formats a network without a bridge; `None` if plugins have created nothing for its attachments, and give them no
/// link.
fn network_page(node: &Node, network: &Network, detached: &[PortView<'_>], paint: Paint) -> Option<String> {
    let mut text = detached_ports(node, detached, false, paint);
    if network.link.is_some() {
        text += &attachment_table(node, network)
            .map_or_else(|| "  no containers\n".to_owned(), |table| table.render(paint, 2));
    }
    for kind in listed_kinds() {
        let owned = owned_objects(node, network, kind);
        text += &objects(&owned, kind, paint, ("of live containers", "of containers that are gone"));
        for owned in owned.iter().filter(|owned| owned.is_live) {
            text += &line(owned.object);
        }
    }
    let title = paint.paint(Tone::Bold, &table::shorten(&format!("network {}", network.name), table::width()));
    let what = network.link.as_ref().map_or_else(|| "no bridge".to_owned(), ToString::to_string);
    let head = table::wrap(&format!("{what} ({})", file(network)), 2);
    (!text.is_empty()).then(|| format!("{title}\n{head}\n{text}"))
}

/// Returns a table with a row for each attachment whose link is only in the container; `None` without any.
fn attachment_table(node: &Node, network: &Network) -> Option<Table> {
    let attachments = node.attachments(network);
    let mut rows = Table::new(&["CONTAINER**", "INTERFACE*", "STATE", "ADDRESSES"]);
    for at in &attachments {
        let addresses: Vec<String> = node.addresses_of(network, at).iter().map(IpAddr::to_string).collect();
        rows.row(vec![
            (Tone::Plain, at.container.clone()),
            (Tone::Plain, at.ifname.as_deref().unwrap_or("-").to_owned()),
            (if at.state == State::Gone { Tone::Warning } else { Tone::Plain }, at.state.text().to_owned()),
            (Tone::Plain, if addresses.is_empty() { "-".to_owned() } else { addresses.join(" ") }),
        ]);
    }
    (!attachments.is_empty()).then_some(rows)
}

/// Formats an object with its owner.
fn line(object: &Object) -> String {
    let what = if object.detail.is_empty() { &object.name } else { &object.detail };
    table::wrap(&format!("{what}: {}", object.about), 4)
}

/// Formats the number of objects of a kind, and those that are not live. `words` say what live ones belong to, and
/// others.
fn objects(owned: &[OwnedObject<'_>], kind: &ObjectKind, paint: Paint, words: (&str, &str)) -> String {
    let mut by_backend: Vec<(&str, usize)> = Vec::new();
    for OwnedObject { object, .. } in owned {
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
    let stale: Vec<&Object> = owned.iter().filter(|owned| !owned.is_live).map(|owned| owned.object).collect();
    match stale.is_empty() {
        true => text += &format!(", all {}\n", words.0),
        false => {
            text += &paint.paint(Tone::Warning, &format!(", {} {}:", stale.len(), words.1));
            text.push('\n');
        }
    }
    text + &stale.into_iter().map(line).collect::<String>()
}
