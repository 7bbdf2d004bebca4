//! Layer 2: the bridge, and a pair of interfaces between it and the container.

use std::time::Duration;

use cni::ip::{Cidr, MacAddr};
use cni::netlink::{
    Address, BridgeSpec, Change, DuplicateDetection, Link, LinkChange, LinkIndex, LinkRef, Netlink, NewPort, Port,
    VethEnd, VethSpec,
};
use cni::sysctl::{self, Setting};
use cni::{AddResult, Attachment, AttachmentKey, Call, Code, Context, Error, Home, Interface, Netns, Result, Undo};
use log::warn;

use crate::config::Config;
use crate::{name, vlan};

/// How often a name, or a bridge that vanished, is tried again.
const ATTEMPTS: u32 = 10;
/// How long a port may take to come up.
const PATIENCE: Duration = Duration::from_secs(5);
/// As many as a bridge can number (BR_MAX_PORTS less one).
const MAX_PORTS: u32 = 1023;

/// What an ADD changes, and what its steps back need.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) home: Netns,
    pub(crate) netns: Netns,
    pub(crate) host: Netlink,
}

impl World {
    pub(crate) fn open(call: &Call<'_>, at: &Attachment) -> Result<World> {
        let netns = at.open_netns()?;
        let Home { netns: home, netlink: host } = call.home()?;
        Ok(World { home, netns, host })
    }

    /// Makes sure that this thread is where it began. Changes nothing if it never left, which needs no permission.
    pub(crate) fn go_home(&self) -> Result<()> {
        match Netns::current()?.same_as(&self.home)? {
            true => Ok(()),
            false => self.home.run(&self.home, || Ok(())),
        }
    }

    /// Runs `work` inside the container, and opens a socket there.
    pub(crate) fn enter(&self, work: impl FnOnce()) -> Result<Netlink> {
        self.netns.run(&self.home, || {
            work();
            Netlink::open()
        })
    }
}

/// A pair between bridge and container.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) bridge: Link,
    /// The bridge's IPv4 addresses.
    pub(crate) addresses: Vec<Address>,
    /// The host's end.
    pub(crate) port: LinkIndex,
    pub(crate) port_name: String,
    pub(crate) port_mac: MacAddr,
    /// The container's end; `None` if the kernel did not tell.
    peer: Option<LinkIndex>,
    pub(crate) mac: MacAddr,
}

impl Pair {
    /// The interfaces as an answer lists them: bridge, host's end, container's end.
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

    /// The container's end by number.
    pub(crate) fn guest(&self, guest: &mut Netlink, at: &Attachment) -> Result<LinkIndex> {
        if let Some(peer) = self.peer {
            return Ok(peer);
        }
        let name = at.ifname.as_str();
        guest
            .link_index(name)?
            .ok_or_else(|| Error::new(Code::TRY_LATER, format!("{name:?} vanished from {:?}", at.sandbox())))
    }

    /// Will the bridge forward what the container sends, at the latest when the next change is made? The container's end
    /// must be up. `false` if it takes a closer look.
    pub(crate) fn seems_up(&self, host: &Netlink) -> bool {
        (self.bridge.running || self.bridge.spanning_tree) && host.seems_running(&self.port_name)
    }

    /// Waits until the bridge forwards what the container sends.
    pub(crate) fn await_up(&self, host: &mut Netlink) -> Result<()> {
        let Pair { bridge, port, port_name, .. } = self;
        host.await_running(*port, port_name, PATIENCE, || {
            format!("port {port_name:?} of bridge {:?} to come up", bridge.name)
        })?;
        // With a spanning tree that takes half a minute, and the port forwards no sooner.
        if bridge.running || bridge.spanning_tree {
            return Ok(());
        }
        // Its first port brings a bridge up, and until that is done the gateway's answers are thrown away.
        host.await_running(bridge.index, &bridge.name, PATIENCE, || format!("bridge {:?} to come up", bridge.name))
    }
}

/// Makes the pair on the bridge, and the bridge if it is not there.
pub(crate) fn create(
    undo: &mut Undo<'_, World>,
    config: &Config,
    owner: AttachmentKey<'_>,
    at: &Attachment,
) -> Result<Pair> {
    let mut failure = None;
    for _ in 0..ATTEMPTS {
        let (port_name, port_mac, mac) = name::random_pair()?;
        let mac = config.mac.unwrap_or(mac);
        let (bridge, created) = ensure_bridge(&mut undo.world().host, config)?;
        let bridge_mac = undo.world().host.mac_of(config.bridge.as_str());
        let doomed = port_name.clone();
        undo.push(format!("delete link {doomed:?}"), move |world| delete(&mut world.host, doomed.as_str()));
        let host = VethEnd { name: &port_name, mac: Some(port_mac) };
        let guest = VethEnd { name: at.ifname.as_str(), mac: Some(mac) };
        match make(undo.world(), bridge, config, owner, host, guest) {
            Ok(made) => {
                let mut pair = Pair {
                    peer: made.port.peer,
                    port: made.port.index,
                    // A new one has a carrier only in the kernel's first guess.
                    bridge: Link { running: made.bridge.running && !created, ..made.bridge },
                    addresses: made.addresses,
                    port_name,
                    port_mac,
                    mac,
                };
                settle(&mut undo.world().host, config, &mut pair, bridge_mac)?;
                return Ok(pair);
            }
            Err(error) if error.errno() == Some(libc::EEXIST) => {
                // Whoever has one of the names must keep it.
                undo.forget_last();
                refuse_taken(undo.world(), at)?;
                failure = Some(error);
            }
            // Somebody deleted the bridge after we had looked; the pair may be there, and on no bridge.
            Err(error) if error.errno() == Some(libc::ENODEV) => {
                delete(&mut undo.world().host, port_name.as_str())?;
                failure = Some(error);
            }
            Err(error) => {
                if is_forbidden(&error) {
                    // Nothing was made, so there is nothing to delete.
                    undo.forget_last();
                }
                return Err(explain(&mut undo.world().host, config, error));
            }
        }
    }
    Err(failure.unwrap_or_else(|| Error::new(Code::INTERNAL, "no attempt was made")))
}

/// Makes the pair, with one message. Its port comes up last, by a change of its own: of what it is given before, the
/// kernel tells nobody, and nothing goes through it before it has its flags.
fn make<'a>(
    world: &'a mut World,
    bridge: LinkIndex,
    config: &Config,
    owner: AttachmentKey<'_>,
    host: VethEnd<'a>,
    guest: VethEnd<'a>,
) -> Result<NewPort> {
    let spec = VethSpec { host, guest, netns: &world.netns, bridge: Some(bridge), mtu: config.mtu };
    let alias = owner.alias();
    let mut changes = vec![Change::create_veth(&spec)];
    // A new port has neither.
    if config.port != Port::default() {
        changes.push(Change::set_port(host.name, config.port));
    }
    changes.push(Change::set_link(host.name, &LinkChange { alias: Some(&alias), ..LinkChange::default() }));
    changes.push(Change::set_link(host.name, &LinkChange { up: Some(true), ..LinkChange::default() }));
    world.host.create_port(bridge, &changes)
}

/// Deletes a link that may be gone already.
pub(crate) fn delete<'a>(netlink: &mut Netlink, link: impl Into<LinkRef<'a>>) -> Result<()> {
    match netlink.apply(&[Change::delete_link(link)]) {
        Err(error) if matches!(error.errno(), Some(libc::ENODEV | libc::ENXIO)) => Ok(()),
        outcome => outcome,
    }
}

/// Returns the index of the bridge, and whether this call created it. An existing link of that name is not checked here:
/// it may be something else than a bridge.
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
        // Another ADD was faster.
        Err(error) if error.errno() == Some(libc::EEXIST) => {
            host.link_index(name)?.map(|index| (index, false)).ok_or(error)
        }
        Err(error) => Err(explain(host, config, error)),
    }
}

/// Sets a new bridge up, with its link-local address.
///
/// The kernel takes a bridge that was given a hardware address for one without a carrier, and gives it no link-local
/// address before a port has one. Programs that serve the bridge, such as radvd, need it earlier.
fn start_bridge(host: &mut Netlink, bridge: &Link) -> Result<()> {
    prepare_bridge(&bridge.name);
    let mut changes = vec![Change::set_link(bridge.index, &LinkChange { up: Some(true), ..LinkChange::default() })];
    // Where the administrator chose another kind of address, or none, it is left to the kernel.
    let link_local = bridge.mac.filter(|_| bridge.eui64).and_then(|mac| Cidr::new(mac.link_local().into(), 64));
    changes.extend(link_local.map(|address| Change::add_address(bridge.index, address, DuplicateDetection::Off)));
    match host.apply(&changes) {
        // The kernel was faster with the address, or IPv6 is disabled on the bridge.
        Err(error) if matches!(error.errno(), Some(libc::EEXIST | libc::EACCES)) => Ok(()),
        // The bridge was deleted meanwhile, which is noticed when it gets a port.
        Err(error) if error.errno() == Some(libc::ENODEV) => Ok(()),
        outcome => outcome,
    }
}

/// Writes the IPv6 settings of a bridge that is still down: the host must neither take a container for a router, nor wait
/// for its own address there.
fn prepare_bridge(name: &str) {
    wish(&["net", "ipv6", "conf", name, "accept_ra"], "0");
    wish(&["net", "ipv6", "conf", name, "accept_dad"], "0");
}

/// Brings the bridge to the state that the configuration wants, and gives the port its VLANs. `bridge_mac` is what the
/// bridge had before the port.
fn settle(host: &mut Netlink, config: &Config, pair: &mut Pair, bridge_mac: Option<MacAddr>) -> Result<()> {
    let bridge = &mut pair.bridge;
    let name = bridge.name.as_str();
    if bridge.kind != "bridge" {
        return Err(no_bridge(bridge));
    }
    let mut change = LinkChange::default();
    if !bridge.up {
        prepare_bridge(name);
        change.up = Some(true);
    } else {
        wish(&["net", "ipv6", "conf", name, "accept_ra"], "0");
    }
    if config.promiscuous && !bridge.promiscuous {
        change.promiscuous = Some(true);
    }
    // Unlike upstream, which leaves it: what a container may send would not fit through its gateway. A larger one
    // harms nobody, and other networks may need it.
    change.mtu = config.mtu.filter(|mtu| bridge.mtu < *mtu);
    // One that somebody else made takes the lowest address of its ports, and would be another host to its neighbours.
    if bridge.mac == Some(pair.port_mac) && bridge_mac.is_some() {
        (change.mac, bridge.mac) = (bridge_mac, bridge_mac);
    }
    let mut changes = Vec::new();
    if change != LinkChange::default() {
        changes.push(Change::set_link(bridge.index, &change));
    }
    if config.vlans.is_some() && bridge.vlan_filtering != Some(true) {
        changes.push(Change::filter_vlans(bridge.index));
    }
    if !changes.is_empty() {
        host.apply(&changes).map_err(|error| explain(host, config, error))?;
    }
    // It is up without a carrier until the container's end is, so this is in time.
    wish(&["net", "ipv6", "conf", &pair.port_name, "accept_ra"], "0");
    match &config.vlans {
        Some(vlans) => vlans.apply(host, pair.port),
        None => Ok(()),
    }
}

/// Sets what should be set, and goes on if it cannot be.
pub(crate) fn wish(key: &[&str], value: &str) {
    match sysctl::set(key, value) {
        Ok(Setting::ReadOnly) => warn!("{} is not {value}, and /proc/sys is read-only", key.join(".")),
        Ok(_) => {}
        Err(error) => warn!("{error}"),
    }
}

/// Tells whether it is the container's interface that exists, in which case another name for ours does not help.
fn refuse_taken(world: &World, at: &Attachment) -> Result<()> {
    let name = at.ifname.as_str();
    let mut guest = world.enter(|| ())?;
    if guest.link_index(name).trying(|| format!("look into {:?}", at.sandbox()))?.is_none() {
        return Ok(());
    }
    let what = format!("interface {name:?} already exists in {:?}", at.sandbox());
    Err(Error::new(Code::INTERNAL, what)
        .details("the container is attached already: DEL it first, or use another CNI_IFNAME"))
}

fn no_bridge(link: &Link) -> Error {
    let kind = if link.kind.is_empty() { "another kind" } else { &link.kind };
    let what = format!("link {:?} is no bridge, it is of kind {kind:?}", link.name);
    Error::new(Code::INTERNAL, what).details("give \"bridge\" another name, or remove the link that has this one")
}

/// The reason behind the kernel's refusal, where it can be told.
fn explain(host: &mut Netlink, config: &Config, error: Error) -> Error {
    let name = config.bridge.as_str();
    match error.errno() {
        Some(libc::EXFULL) => error.details(format!(
            "bridge {name:?} has {MAX_PORTS} ports, which is the most a bridge can have; use a second one"
        )),
        Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ELOOP | libc::EBUSY) => match host.link(name) {
            Ok(Some(link)) if link.kind != "bridge" => no_bridge(&link),
            _ if config.vlans.is_some() => error.code_is(Code::UNSUPPORTED).details(vlan::NEEDS_FILTERING),
            _ => error,
        },
        _ => error,
    }
}

/// Returns whether the kernel answered that this process lacks permission. That is a definite answer, unlike the failure
/// of a system call, which can hide what the kernel did.
fn is_forbidden(error: &Error) -> bool {
    error.code() == Code::INTERNAL && error.errno() == Some(libc::EPERM)
}

/// Adds the permissions that the plugin needs to the kernel's answer that it lacks them.
pub(crate) fn explain_forbidden(error: Error) -> Error {
    match is_forbidden(&error) {
        true => error.details("that needs CAP_NET_ADMIN and CAP_SYS_ADMIN: run the plugin as root"),
        false => error,
    }
}

/// STATUS: could the bridge be used, or made?
pub(crate) fn status(host: &mut Netlink, config: &Config) -> Result<()> {
    let name = config.bridge.as_str();
    match host.link(name)? {
        Some(link) if link.kind != "bridge" => Err(no_bridge(&link)),
        link if config.vlans.is_some() => vlan::refuse_unsupported(host, name, link.as_ref()),
        _ => Ok(()),
    }
}
