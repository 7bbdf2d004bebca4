//! Layer 2: the bridge, and the veth pair between it and the container.

use std::time::Duration;

use cni::{AddResult, Attachment, AttachmentKey, Call, Code, Context, Error, Home, Interface, Result, Undo};
use linux::Netns;
use linux::ip::{Cidr, MacAddr};
use linux::netlink::{
    Address, BridgeSpec, Change, DuplicateDetection, Link, LinkChange, LinkIndex, Netlink, NewPort, Port, VethEnd,
    VethSpec,
};
use linux::sysctl::set_best_effort;

use crate::config::Config;
use crate::{name, vlan};

/// Attempts to create a veth pair: a name may be taken, or the bridge deleted meanwhile.
const ATTEMPTS: u32 = 10;
/// How long a port or the bridge may take to come up.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The most ports that the kernel allows on a bridge (BR_MAX_PORTS - 1).
const MAX_PORTS: u32 = 1023;

/// The namespaces and the socket that the steps of an ADD and its rollback use.
#[derive(Debug)]
pub(crate) struct AddContext {
    /// The host's namespace.
    pub(crate) home: Netns,
    /// The container namespace.
    pub(crate) netns: Netns,
    /// A netlink socket in the host's namespace.
    pub(crate) host: Netlink,
}

impl AddContext {
    /// Opens both namespaces and the socket.
    pub(crate) fn open(call: &Call<'_>, at: &Attachment) -> Result<AddContext> {
        let netns = at.open_netns()?;
        let Home { netns: home, netlink: host } = call.home()?;
        Ok(AddContext { home, netns, host })
    }

    /// Returns this thread to the host's namespace. If the thread is already there, this needs no permission.
    pub(crate) fn return_home(&self) -> Result<()> {
        match Netns::current()?.same_as(&self.home)? {
            true => Ok(()),
            false => self.home.run(&self.home, || Ok(())),
        }
    }

    /// Runs `work` in the container namespace, and opens a netlink socket there.
    pub(crate) fn enter(&self, work: impl FnOnce()) -> Result<Netlink> {
        self.netns.run(&self.home, || {
            work();
            Ok(Netlink::open()?)
        })
    }
}

/// A veth pair between the bridge and the container.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) bridge: Link,
    /// The bridge's IPv4 addresses.
    pub(crate) addresses: Vec<Address>,
    /// The host veth.
    pub(crate) port: LinkIndex,
    pub(crate) port_name: String,
    pub(crate) port_mac: MacAddr,
    /// The container veth; `None` if the kernel did not report its index.
    peer: Option<LinkIndex>,
    /// The MAC address of the container veth.
    pub(crate) mac: MacAddr,
}

impl Pair {
    /// Returns a result that lists the interfaces: bridge, host veth, container veth.
    pub(crate) fn describe(&self, at: &Attachment) -> AddResult {
        let interface = |name: &str, mac: Option<MacAddr>, sandbox: String| Interface {
            name: name.to_owned(),
            mac: mac.map_or_else(String::new, |mac| mac.to_string()),
            sandbox,
            ..Interface::default()
        };
        let interfaces = vec![
            interface(&self.bridge.name, self.bridge.mac, String::new()),
            interface(&self.port_name, Some(self.port_mac), String::new()),
            interface(at.ifname.as_str(), Some(self.mac), at.sandbox()),
        ];
        AddResult { interfaces, ..AddResult::default() }
    }

    /// Returns the index of the container veth. `guest` is a socket in the container namespace.
    pub(crate) fn guest(&self, guest: &mut Netlink, at: &Attachment) -> Result<LinkIndex> {
        if let Some(peer) = self.peer {
            return Ok(peer);
        }
        let name = at.ifname.as_str();
        guest
            .link_index(name)?
            .ok_or_else(|| Error::new(Code::TRY_LATER, format!("{name:?} vanished from {:?}", at.sandbox())))
    }

    /// Returns whether the bridge will forward the container's frames, at the latest after the next change to a link.
    /// The container veth must be up. This costs no message; if it returns `false`, use [`Pair::await_up`].
    pub(crate) fn seems_up(&self, host: &Netlink) -> bool {
        (self.bridge.running || self.bridge.spanning_tree) && host.is_probably_running(&self.port_name)
    }

    /// Waits until the bridge forwards the container's frames.
    pub(crate) fn await_up(&self, host: &mut Netlink) -> Result<()> {
        let Pair { bridge, port, port_name, .. } = self;
        host.await_running(*port, port_name, TIMEOUT, || {
            format!("port {port_name:?} of bridge {:?} to come up", bridge.name)
        })?;
        // With a spanning tree, a port forwards only after half a minute, too long to wait for.
        if bridge.running || bridge.spanning_tree {
            return Ok(());
        }
        // The first port brings a bridge up. Until the kernel has done that, it drops the gateway's packets.
        host.await_running(bridge.index, &bridge.name, TIMEOUT, || format!("bridge {:?} to come up", bridge.name))?;
        Ok(())
    }
}

/// Creates the veth pair with its port on the bridge, and the bridge if it does not exist.
pub(crate) fn create(
    undo: &mut Undo<'_, AddContext>,
    config: &Config,
    owner: AttachmentKey<'_>,
    at: &Attachment,
) -> Result<Pair> {
    let mut failure = None;
    for _ in 0..ATTEMPTS {
        let (port_name, port_mac, mac) = name::random_pair()?;
        let mac = config.mac.unwrap_or(mac);
        let (bridge, created) = ensure_bridge(&mut undo.context().host, config)?;
        let bridge_mac = undo.context().host.mac_of(config.bridge.as_str());
        let link = port_name.clone();
        undo.push(format!("delete link {link:?}"), move |context| Ok(context.host.delete_link(link.as_str())?));
        let host = VethEnd { name: &port_name, mac: Some(port_mac) };
        let guest = VethEnd { name: at.ifname.as_str(), mac: Some(mac) };
        match create_port(undo.context(), bridge, config, owner, host, guest) {
            Ok(created_port) => {
                let mut pair = Pair {
                    peer: created_port.port.peer,
                    port: created_port.port.index,
                    // The kernel first reports a carrier for a new bridge although there is none.
                    bridge: Link { running: created_port.bridge.running && !created, ..created_port.bridge },
                    addresses: created_port.addresses,
                    port_name,
                    port_mac,
                    mac,
                };
                reconcile_bridge(&mut undo.context().host, config, &mut pair, bridge_mac)?;
                return Ok(pair);
            }
            Err(error) if error.errno() == Some(libc::EEXIST) => {
                // The existing link with one of the names is not ours to delete.
                undo.pop();
                refuse_existing_interface(undo.context(), at)?;
                failure = Some(error);
            }
            // Another program deleted the bridge meanwhile. The kernel may have created the pair, without a bridge.
            Err(error) if error.errno() == Some(libc::ENODEV) => {
                undo.context().host.delete_link(port_name.as_str())?;
                failure = Some(error);
            }
            Err(error) => {
                if is_forbidden(&error) {
                    // The kernel created nothing, so there is nothing to delete.
                    undo.pop();
                }
                return Err(explain(&mut undo.context().host, config, error));
            }
        }
    }
    Err(failure.unwrap_or_else(|| Error::new(Code::INTERNAL, "no attempt was made")))
}

/// Creates the veth pair with one message. A separate change sets the port up last: the kernel sends no notifications
/// for changes to a link that is down, and no frame passes the port before it has its flags.
fn create_port<'a>(
    context: &'a mut AddContext,
    bridge: LinkIndex,
    config: &Config,
    owner: AttachmentKey<'_>,
    host: VethEnd<'a>,
    guest: VethEnd<'a>,
) -> Result<NewPort> {
    let spec = VethSpec { host, guest, netns: &context.netns, bridge: Some(bridge), mtu: config.mtu };
    let alias = owner.alias();
    let mut changes = vec![Change::create_veth(&spec)];
    // A new port has the default settings.
    if config.port != Port::default() {
        changes.push(Change::set_port(host.name, config.port));
    }
    changes.push(Change::set_link(host.name, &LinkChange { alias: Some(&alias), ..LinkChange::default() }));
    changes.push(Change::set_link(host.name, &LinkChange { up: Some(true), ..LinkChange::default() }));
    Ok(context.host.create_port(bridge, &changes)?)
}

/// Returns the index of the bridge, and whether this call created it. An existing link of that name is not checked
/// here: it may not be a bridge.
fn ensure_bridge(host: &mut Netlink, config: &Config) -> Result<(LinkIndex, bool)> {
    let name = config.bridge.as_str();
    if let Some(index) = host.link_index(name)? {
        return Ok((index, false));
    }
    let spec = BridgeSpec { name, mac: name::random_mac()?, mtu: config.mtu, vlan_filtering: config.vlans.is_some() };
    match host.create(&[Change::create_bridge(&spec)]) {
        Ok(bridge) => {
            start_bridge(host, &bridge).map_err(|error| explain(host, config, error))?;
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
fn start_bridge(host: &mut Netlink, bridge: &Link) -> Result<()> {
    prepare_bridge(&bridge.name);
    let mut changes = vec![Change::set_link(bridge.index, &LinkChange { up: Some(true), ..LinkChange::default() })];
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
    set_best_effort(&["net", "ipv6", "conf", name, "accept_ra"], "0");
    set_best_effort(&["net", "ipv6", "conf", name, "accept_dad"], "0");
}

/// Changes the settings of the bridge where they differ from the configuration, and adds the VLANs of the port.
/// `bridge_mac` is the MAC address that the bridge had before the port was added.
fn reconcile_bridge(host: &mut Netlink, config: &Config, pair: &mut Pair, bridge_mac: Option<MacAddr>) -> Result<()> {
    let bridge = &mut pair.bridge;
    let name = bridge.name.as_str();
    if bridge.kind != "bridge" {
        return Err(not_a_bridge(bridge));
    }
    let mut change = LinkChange::default();
    if !bridge.up {
        prepare_bridge(name);
        change.up = Some(true);
    } else {
        set_best_effort(&["net", "ipv6", "conf", name, "accept_ra"], "0");
    }
    if config.promiscuous && !bridge.promiscuous {
        change.promiscuous = Some(true);
    }
    // Unlike upstream, which does not change it: the container's largest packets would not fit through the gateway. A
    // larger MTU is harmless, and other networks may need it.
    change.mtu = config.mtu.filter(|mtu| bridge.mtu < *mtu);
    // A bridge that another program created takes the lowest MAC address of its ports. To its neighbours it would
    // become another host. If its last port was deleted, the kernel has set its address to zero.
    if bridge.mac == Some(pair.port_mac)
        && let Some(before) = bridge_mac
    {
        let mac = if before == MacAddr::ZERO { name::random_mac()? } else { before };
        (change.mac, bridge.mac) = (Some(mac), Some(mac));
    }
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
    // In time: the port has no carrier until the container veth is up.
    set_best_effort(&["net", "ipv6", "conf", &pair.port_name, "accept_ra"], "0");
    match &config.vlans {
        Some(vlans) => vlans.apply(host, pair.port),
        None => Ok(()),
    }
}

/// Returns an error if the container already has an interface with the requested name. Otherwise the name of the host
/// veth is taken, and another name helps.
fn refuse_existing_interface(context: &AddContext, at: &Attachment) -> Result<()> {
    let name = at.ifname.as_str();
    let mut guest = context.enter(|| ())?;
    if guest.link_index(name).context(|| format!("list links in {:?}", at.sandbox()))?.is_none() {
        return Ok(());
    }
    let what = format!("interface {name:?} already exists in {:?}", at.sandbox());
    Err(Error::new(Code::INTERNAL, what)
        .details("the container is already attached: call DEL first, or use another CNI_IFNAME"))
}

/// Returns the error for a link that has the name of the bridge but is not one.
fn not_a_bridge(link: &Link) -> Error {
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

/// Returns whether the kernel answered that this process lacks permission. That is a definite answer, unlike the
/// failure of a system call, which can hide what the kernel did.
fn is_forbidden(error: &Error) -> bool {
    error.code() == Code::INTERNAL && error.errno() == Some(libc::EPERM)
}

/// Adds the permissions that the plugin needs to the kernel's answer that it lacks them.
pub(crate) fn explain_forbidden(error: Error) -> Error {
    match is_forbidden(&error) {
        true => error.details("needs CAP_NET_ADMIN and CAP_SYS_ADMIN: run the plugin as root"),
        false => error,
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
