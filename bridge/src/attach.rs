//! Layer 2: the bridge, and the veth pair between it and the container.

use std::time::Duration;

use cni::{Attachment, AttachmentKey, Code, Error, Guest, Home, Interface, Namespaces, Result, Undo};
use interface::attach::is_forbidden;
use interface::container::{ContainerInterface, State};
use interface::name;
use linux::ip::{Cidr, MacAddr};
use linux::netlink::{
    Address, Change, DuplicateDetection, Link, LinkChange, LinkIndex, LinkKind, Netlink, NewLink, NewPort, Port,
    VethPeer,
};
use linux::sysctl::{ignore_router_advertisements, set_best_effort};

use crate::config::Config;
use crate::{mtu, vlan};

/// Attempts to create a veth pair: a name may be taken, or the bridge deleted meanwhile.
const ATTEMPTS: u32 = 10;
/// How long a port or the bridge may take to come up.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);
/// The most ports that the kernel allows on a bridge (BR_MAX_PORTS - 1).
const MAX_PORTS: u32 = 1023;

/// A veth pair between the bridge and the container.
#[derive(Debug)]
pub(crate) struct Pair<'a> {
    at: &'a Attachment,
    pub(crate) bridge: Link,
    /// The bridge's IPv4 addresses.
    pub(crate) bridge_addresses: Vec<Address>,
    /// Whether the bridge may have to come up before it forwards frames.
    bridge_is_pending: bool,
    /// The host veth.
    port: LinkIndex,
    pub(crate) port_name: String,
    port_mac: MacAddr,
    /// The container veth; `None` if the kernel did not report its index.
    peer: Option<LinkIndex>,
    /// The MAC address of the container veth.
    pub(crate) mac: MacAddr,
}

impl<'a> Pair<'a> {
    /// Returns the interfaces for the result: bridge, host veth, container veth.
    pub(crate) fn interfaces(&self) -> [Interface; 3] {
        [
            Interface::new(&self.bridge.name, self.bridge.mac, ""),
            Interface::new(&self.port_name, Some(self.port_mac), ""),
            Interface::new(self.at.ifname.as_str(), Some(self.mac), self.at.sandbox()),
        ]
    }

    /// Opens the container veth. Before that, runs `prepare` in the container namespace.
    pub(crate) fn open_container(
        &self,
        namespaces: &Namespaces,
        detects_duplicates: bool,
        prepare: impl FnOnce(),
    ) -> Result<ContainerInterface<'a>> {
        let mut guest = namespaces.in_guest(|| {
            prepare();
            Guest::open_here(self.at)
        })?;
        let vanished = || {
            let what = format!("{:?} vanished from {:?}", self.at.ifname.as_str(), self.at.sandbox());
            Error::new(Code::TRY_LATER, what)
        };
        let index = match self.peer {
            Some(peer) => peer,
            None => guest.find_interface_index()?.ok_or_else(vanished)?,
        };
        Ok(ContainerInterface { guest, index, mac: Some(self.mac), detects_duplicates, state: State::Up })
    }

    /// Waits until the bridge forwards the container's frames. The container veth must be up.
    pub(crate) fn await_up(&self, host: &mut Netlink) -> Result<()> {
        let Pair { bridge, port, port_name, .. } = self;
        host.await_running(*port, port_name, TIMEOUT, || {
            format!("port {port_name:?} of bridge {:?} to come up", bridge.name)
        })?;
        if self.bridge_is_pending {
            // The first port brings a bridge up. Until the kernel has done that, it drops the gateway's packets.
            host.await_running(bridge.index, &bridge.name, TIMEOUT, || format!("bridge {:?} to come up", bridge.name))?;
        }
        Ok(())
    }
}

/// Creates the veth pair with its port on the bridge, and the bridge if it does not exist. `mac` is that of the
/// container veth; `None` for a random one.
pub(crate) fn create<'a>(
    undo: &mut Undo<'_, Namespaces>,
    config: &Config,
    key: AttachmentKey<'_>,
    at: &'a Attachment,
    mac: Option<MacAddr>,
) -> Result<Pair<'a>> {
    let alias = key.alias();
    let mut failure = None;
    for _ in 0..ATTEMPTS {
        let (port_name, port_mac, random) = name::random_pair()?;
        let mac = mac.unwrap_or(random);
        let before = ensure_bridge(&mut undo.context().host.netlink, config, key.network)?;
        let link = port_name.clone();
        undo.push(format!("delete link {link:?}"), move |namespaces| {
            Ok(namespaces.host.netlink.delete_link(link.as_str())?)
        });
        let Namespaces { host: Home { netlink: host, .. }, guest } = undo.context();
        let peer = VethPeer { name: at.ifname.as_str(), mac: Some(mac), netns: guest, index: None };
        let new = NewLink {
            name: Some(&port_name),
            mac: Some(port_mac),
            bridge: Some(before.index),
            mtu: config.mtu,
            ..NewLink::of(LinkKind::Veth(peer))
        };
        match create_port(host, before.index, &new, config.port, &alias) {
            Ok(NewPort { port, bridge, addresses }) => {
                // A bridge that another program created takes the lowest MAC address of its ports. To its neighbours
                // it would become another host.
                let lost_mac = before.mac.filter(|_| bridge.mac == Some(port_mac));
                let bridge = reconcile_bridge(host, config, bridge, lost_mac, before.mtu)?;
                prepare_port(host, config, port.index, &port_name)?;
                return Ok(Pair {
                    at,
                    // The kernel first reports a carrier for a new bridge although there is none. With a spanning tree,
                    // a port forwards only after half a minute, too long to wait for.
                    bridge_is_pending: (before.created || !bridge.running) && !bridge.spanning_tree,
                    bridge,
                    bridge_addresses: addresses,
                    port: port.index,
                    port_name,
                    port_mac,
                    peer: port.lower,
                    mac,
                });
            }
            Err(error) => failure = Some(prepare_retry(undo, config, at, &port_name, error)?),
        }
    }
    Err(failure.unwrap_or_else(|| Error::new(Code::INTERNAL, "no attempt was made")))
}

/// Cleans up after the kernel has refused to create the veth pair whose deletion is the newest step of `undo`. Returns
/// the kernel's error if another attempt may succeed, and fails otherwise.
fn prepare_retry(
    undo: &mut Undo<'_, Namespaces>,
    config: &Config,
    at: &Attachment,
    port_name: &str,
    error: Error,
) -> Result<Error> {
    match error.errno() {
        Some(libc::EEXIST) => {
            // The existing link with one of the names is not ours to delete. If the interface does not exist, the name
            // of the host veth is taken: the next attempt uses another one.
            undo.pop();
            undo.context().refuse_existing_interface(at)?;
        }
        // Another program deleted the bridge meanwhile. The kernel may have created the pair, without a bridge.
        Some(libc::ENODEV) => undo.context().host.netlink.delete_link(port_name)?,
        _ => {
            let error = explain(&mut undo.context().host.netlink, config, error);
            if is_forbidden(&error) {
                // The kernel created nothing, so there is nothing to delete.
                undo.pop();
            }
            return Err(error);
        }
    }
    Ok(error)
}

/// Creates the veth pair with one message. A separate change sets the port up last: the kernel sends no notifications
/// for changes to a link that is down, and no frame passes the port before it has its flags.
fn create_port(
    host: &mut Netlink,
    bridge: LinkIndex,
    new: &NewLink<'_>,
    settings: Port,
    alias: &str,
) -> Result<NewPort> {
    let name = new.name.unwrap_or_default();
    let mut changes = vec![Change::create_link(new)];
    // A new port has the default settings.
    if settings != Port::default() {
        changes.push(Change::set_port(name, settings));
    }
    changes.push(Change::set_link(name, &LinkChange { alias: Some(alias), ..LinkChange::default() }));
    changes.push(Change::set_link(name, &LinkChange { up: Some(true), ..LinkChange::default() }));
    Ok(host.create_port(bridge, &changes)?)
}

/// The bridge before the port is added.
struct BridgeBefore {
    index: LinkIndex,
    mac: Option<MacAddr>,
    /// Whether this ADD created it.
    created: bool,
    /// The MTU that it shall have. `None`: its own.
    mtu: Option<u32>,
}

/// Returns the bridge, and creates it if it does not exist. An existing link of that name may not be a bridge; that is
/// checked later.
fn ensure_bridge(host: &mut Netlink, config: &Config, network: &str) -> Result<BridgeBefore> {
    let name = config.bridge.as_str();
    let (index, created) = match host.link_index(name)? {
        Some(index) => (index, false),
        None => create_bridge(host, config)?,
    };
    let mtu = mtu::prepare(host, config, network, index)?;
    Ok(BridgeBefore { index, mac: host.mac_of(name), created, mtu })
}

/// Creates the bridge. Returns its index, and `false` if another ADD has created it meanwhile.
fn create_bridge(host: &mut Netlink, config: &Config) -> Result<(LinkIndex, bool)> {
    let name = config.bridge.as_str();
    let kind = LinkKind::Bridge { vlan_filtering: config.vlans.is_some() };
    let new = NewLink { name: Some(name), mac: Some(name::random_mac()?), mtu: config.mtu, ..NewLink::of(kind) };
    match host.create(&[Change::create_link(&new)]) {
        Ok(bridge) => {
            start_bridge(host, &bridge, config.mtu).map_err(|error| explain(host, config, error))?;
            Ok((bridge.index, true))
        }
        // Another ADD has created it meanwhile.
        Err(error) if error.errno() == Some(libc::EEXIST) => {
            host.link_index(name)?.map(|index| (index, false)).ok_or_else(|| error.into())
        }
        Err(error) => Err(explain(host, config, error.into())),
    }
}

/// Sets a new bridge up, with its link-local address.
///
/// If a bridge was created with a MAC address, the kernel assumes that it has no carrier, and adds no link-local
/// address until a port has a carrier. Programs that serve the bridge, such as radvd, need the address earlier.
fn start_bridge(host: &mut Netlink, bridge: &Link, mtu: Option<u32>) -> Result<()> {
    prepare_bridge(&bridge.name);
    let mut changes: Vec<_> = mtu.into_iter().flat_map(|mtu| mtu::pin(bridge.index, mtu)).collect();
    changes.push(Change::set_link(bridge.index, &LinkChange { up: Some(true), ..LinkChange::default() }));
    // If the administrator chose another kind of link-local address, or none, the kernel decides.
    let link_local = bridge.mac.filter(|_| bridge.eui64).and_then(|mac| Cidr::new(mac.link_local().into(), 64));
    changes.extend(link_local.map(|address| Change::add_address(bridge.index, address, DuplicateDetection::Off)));
    match host.apply(&changes) {
        // The kernel has added the address already, or IPv6 is disabled on the bridge.
        Err(error) if matches!(error.errno(), Some(libc::EEXIST | libc::EACCES)) => Ok(()),
        // Another program deleted the bridge meanwhile. Adding a port will detect that.
        Err(error) if error.errno() == Some(libc::ENODEV) => Ok(()),
        outcome => Ok(outcome?),
    }
}

/// Writes the IPv6 settings of a bridge that is still down: the host must not accept router advertisements from
/// containers, and its own addresses need no duplicate detection.
fn prepare_bridge(name: &str) {
    ignore_router_advertisements(name);
    set_best_effort(&["net", "ipv6", "conf", name, "accept_dad"], "0");
}

/// Changes the settings of the bridge where they differ from the configuration. `lost_mac` is the MAC address that it
/// had before it took that of the new port, `mtu` the one that it shall have. Returns the bridge with its final MAC
/// address.
fn reconcile_bridge(
    host: &mut Netlink,
    config: &Config,
    bridge: Link,
    lost_mac: Option<MacAddr>,
    mtu: Option<u32>,
) -> Result<Link> {
    let name = bridge.name.as_str();
    if bridge.kind != "bridge" {
        return Err(not_a_bridge(&bridge));
    }
    let mut change = LinkChange::default();
    if !bridge.up {
        prepare_bridge(name);
        change.up = Some(true);
    } else {
        ignore_router_advertisements(name);
    }
    if config.promiscuous && !bridge.promiscuous {
        change.promiscuous = Some(true);
    }
    change.mtu = mtu.filter(|mtu| *mtu != bridge.mtu);
    change.mac = match lost_mac {
        // The kernel has set it to zero when the last port was deleted.
        Some(MacAddr::ZERO) => Some(name::random_mac()?),
        lost => lost,
    };
    let mut changes = Vec::new();
    if change != LinkChange::default() {
        changes.push(Change::set_link(bridge.index, &change));
    }
    if config.vlans.is_some() && bridge.vlan_filtering != Some(true) {
        changes.push(Change::filter_vlans(bridge.index));
    }
    if !changes.is_empty() {
        host.apply(&changes).map_err(|error| explain(host, config, error.into()))?;
    }
    Ok(Link { mac: change.mac.or(bridge.mac), ..bridge })
}

/// Writes the settings of a new port, and adds its VLANs. This is in time: the port has no carrier until the container
/// veth is up.
fn prepare_port(host: &mut Netlink, config: &Config, port: LinkIndex, name: &str) -> Result<()> {
    ignore_router_advertisements(name);
    match &config.vlans {
        Some(vlans) => vlans.apply(host, port),
        None => Ok(()),
    }
}

/// Returns the error for a link that has the name of the bridge but is not one.
pub(crate) fn not_a_bridge(link: &Link) -> Error {
    let kind = if link.kind.is_empty() { "link of another kind" } else { &link.kind };
    let what = format!("link {:?} is a {kind}, not a bridge", link.name);
    Error::new(Code::INTERNAL, what).details("set \"bridge\" to another name, or remove that link")
}

/// Adds the reason for an error of the kernel, if it can be determined.
fn explain(host: &mut Netlink, config: &Config, error: Error) -> Error {
    let name = config.bridge.as_str();
    match error.errno() {
        Some(libc::EXFULL) => error.details(format!(
            "bridge {name:?} has {MAX_PORTS} ports, which is the most a bridge can have; use a second one"
        )),
        Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ELOOP | libc::EBUSY) => match host.link(name) {
            Ok(Some(link)) if link.kind != "bridge" => not_a_bridge(&link),
            _ if config.vlans.is_some() => error.with_code(Code::UNSUPPORTED).details(vlan::NEEDS_FILTERING),
            _ => error,
        },
        _ => error,
    }
}

/// STATUS: returns an error if ADD could neither use nor create the bridge.
pub(crate) fn status(host: &mut Netlink, config: &Config) -> Result<()> {
    let name = config.bridge.as_str();
    match host.link(name)? {
        Some(link) if link.kind != "bridge" => Err(not_a_bridge(&link)),
        link if config.vlans.is_some() => vlan::refuse_unsupported(host, name, link.as_ref()),
        _ => Ok(()),
    }
}
