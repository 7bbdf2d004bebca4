//! ADD of a plugin that creates a link in the container.

use cni::{AddResult, Attachment, Code, Delegate, Error, IfName, Interface, Namespaces, Result};
use linux::ip::MacAddr;
use linux::netlink::{Change, Link, LinkChange, LinkIndex, LinkKind, Netlink, NewLink, Upper};

use super::{LinkType, no_such_kind};
use crate::attach::Add;
use crate::config::{Common, MacSource};
use crate::container::{self, ContainerInterface, State};
use crate::ipam::works_over_interface;
use crate::plan::{AddressPlan, Wanted};
use crate::{name, shared_vlan};

/// Creates the link, configures it, and returns the result.
pub(super) fn attach<'a, T: LinkType>(
    add: &mut Add<'a>,
    config: &'a T::Config,
    ipam: Option<&'a Delegate<'a>>,
) -> Result<AddResult> {
    let common = T::common(config);
    let master = T::master(config);
    let in_container = master.is_some_and(|master| master.in_container);
    let mut lower = master.map(|master| master.find(add.undo.context(), add.at)).transpose()?;
    // Holds a lock until the container's link is on top of what it shares.
    let mut shared = None;
    if let (Some(tag), Some(link), Some(master)) = (T::shared_vlan(config), &mut lower, master) {
        add.undo
            .push("remove the shared VLAN link", |namespaces| shared_vlan::remove_unused(&mut namespaces.host.netlink));
        let kind = LinkKind::Upper(Upper::Vlan(tag));
        let (vlan, lock) = shared_vlan::join(&mut add.undo.context().host.netlink, link, tag)
            .map_err(|error| explain(error, kind, Some(link)))?;
        master.refuse_mtu(&vlan)?;
        (*link, shared) = (vlan, Some(lock));
    } else if let Some(link) = lower.as_ref().filter(|_| !in_container) {
        shared = T::agree(config, add.undo.context(), link)?;
    }
    let mac = match T::mac(config) {
        MacSource::Random => Some(name::random_mac()?),
        source => source.address(add.call, add.at)?,
    };
    let new = NewLink {
        mac,
        mtu: common.mtu,
        lower: lower.as_ref().map(|lower| lower.index),
        ..NewLink::of(T::kind(config))
    };
    let index = match create(add, new, in_container) {
        Ok(index) => index,
        Err(error) => {
            // A repeated ADD finds its own VLAN, too.
            if error.errno() == Some(libc::EEXIST) {
                add.undo.context().refuse_existing_interface(add.at)?;
            }
            return Err(explain(error, new.kind, lower.as_ref()));
        }
    };
    drop(shared);
    let mut change = LinkChange { arp_notify: master.map(|_| true), ..LinkChange::default() };
    if let LinkKind::Tap { .. } = new.kind {
        (change.mac, change.mtu) = (new.mac, new.mtu);
    }
    // No program has opened a new TAP device yet.
    let has_carrier = lower.as_ref().map_or(!matches!(new.kind, LinkKind::Tap { .. }), |lower| lower.running);
    let mut interface = start(add, index, change, has_carrier)?;
    if let Some(bridge) = T::bridge(config) {
        let found = interface.guest.netlink.link(bridge.as_str())?.filter(|link| link.kind == "bridge");
        let Some(link) = found else { return Err(no_bridge(add.at, bridge)) };
        interface.set(&LinkChange { bridge: Some(link.index), ..LinkChange::default() })?;
    }
    if let Some(rules) = T::frames(config) {
        interface.set(&LinkChange { frames: Some(rules), ..LinkChange::default() })?;
    }
    if let Some(accept) = master.and_then(|master| master.accept_ra) {
        add.undo.context().in_guest(|| container::accept_ra(add.at.ifname.as_str(), accept))?;
    }
    let plan = match (ipam, T::previous(config)) {
        (Some(ipam), _) => {
            let leased = add.lease_addresses(ipam, move |namespaces| delete(namespaces, index))?;
            if works_over_interface(ipam) {
                // The kernel has nothing to announce when the link comes up: it is up already.
                interface.mac = mac;
            }
            AddressPlan::new(leased, &wanted(common))?
        }
        (None, Some(previous)) => AddressPlan::new(previous.clone(), &wanted(common))?,
        (None, None) => AddressPlan::default(),
    };
    interface.configure(add.undo.context(), &plan).map_err(|error| explain_mac(error, mac, lower.as_ref()))?;
    if let (Some(access), Some(master)) = (T::host_access(config), &lower) {
        access.add(add, master, &plan.ips).map_err(|error| explain(error, new.kind, Some(master)))?;
    }
    let mac = mac.or_else(|| lower.as_ref().and_then(|lower| lower.mac));
    let mtu = common.mtu.or_else(|| lower.as_ref().map(|lower| lower.mtu)).filter(|_| add.call.version.has_mtu());
    let listed = Interface::new(add.at.ifname.as_str(), mac, add.at.sandbox());
    Ok(AddResult {
        interfaces: vec![Interface { mtu: mtu.unwrap_or_default(), ..listed }],
        ips: plan.ips,
        routes: plan.routes,
        dns: common.dns.clone().unwrap_or(plan.dns),
    })
}

/// Adds the reason to the kernel's refusal to create a link.
fn explain(error: Error, kind: LinkKind<'_>, master: Option<&Link>) -> Error {
    if error.errno() == Some(libc::EOPNOTSUPP) {
        return no_such_kind(kind);
    }
    let Some(Link { name, .. }) = master else { return error };
    match error.errno() {
        Some(libc::EBUSY) => error.details(format!(
            "{name:?} is the port of a bridge or bond, or has links of another kind: use another master"
        )),
        Some(libc::EEXIST) => error.details(format!(
            "another container, or the host, has a link with the same tag on {name:?}: only one can have it"
        )),
        Some(libc::EINVAL) => {
            error.details(format!("{name:?} cannot have such a link, or no other one beside its own"))
        }
        _ => error,
    }
}

/// Returns the error for a bridge that the container does not have.
fn no_bridge(at: &Attachment, bridge: &IfName) -> Error {
    // The text of the reference, by which users recognise the mistake.
    let what = format!("in {:?}: failed to get bridge {bridge}: Link not found", at.sandbox());
    Error::new(Code::INTERNAL, what).details("create the bridge in the container first, or correct \"bridge\"")
}

/// Adds the reason to the kernel's refusal to set the link up, if its MAC address is in use.
fn explain_mac(error: Error, mac: Option<MacAddr>, master: Option<&Link>) -> Error {
    match (mac, master) {
        (Some(mac), Some(master)) if matches!(error.errno(), Some(libc::EADDRINUSE | libc::EBUSY)) => {
            error.details(format!("another link on {:?} has the MAC address {mac}: use another address", master.name))
        }
        _ => error,
    }
}

/// Returns what the configuration says about layer 3.
fn wanted(common: &Common) -> Wanted<'_> {
    Wanted {
        ipam: common.ipam.as_deref().unwrap_or_default(),
        interface: 0,
        gateway: false,
        default_gateway: false,
        mtu: common.mtu,
        has_layer2: false,
    }
}

/// Creates the link in the container, without a name: older kernels refuse one that a link on the host has. The index
/// is chosen here, so that the link can be changed and deleted without looking for it.
///
/// The socket is in the namespace of the master.
fn create(add: &mut Add<'_>, new: NewLink<'_>, in_container: bool) -> Result<LinkIndex> {
    let mut failure = None;
    for index in name::indexes(add.key) {
        // The answer may be lost. Until it arrives, the index can be that of a link that an earlier ADD created and
        // marked.
        add.undo.push(format!("delete link {index}"), move |namespaces| delete_unmarked(namespaces, index));
        let at = add.at;
        let namespaces = add.undo.context();
        let new = NewLink { index: Some(index), ..new };
        let outcome = match (new.kind, in_container) {
            (LinkKind::Tap { tap, label }, _) => namespaces.in_guest(|| Ok(tap.create(index, label)))?,
            (_, true) => namespaces.open_guest(at)?.netlink.apply(&[Change::create_link(&new)]),
            (_, false) => {
                let Namespaces { host, guest } = namespaces;
                host.netlink.apply(&[Change::create_link(&NewLink { netns: Some(guest), ..new })])
            }
        };
        match outcome {
            Ok(()) => {
                add.undo.push(format!("delete link {index}"), move |namespaces| delete(namespaces, index));
                return Ok(index);
            }
            // Another link has the index, which is unlikely, or the kernel has another reason.
            Err(error) if matches!(error.errno(), Some(libc::EEXIST | libc::EBUSY)) => {
                add.undo.pop();
                failure = Some(error.into());
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(failure.unwrap_or_else(|| Error::bug("no attempt was made")))
}

/// Gives the link its name and the mark of its owner. If others are on its wire, the kernel will announce its
/// addresses.
fn start<'a>(
    add: &mut Add<'a>,
    index: LinkIndex,
    change: LinkChange<'_>,
    has_carrier: bool,
) -> Result<ContainerInterface<'a>> {
    let (at, alias) = (add.at, add.key.alias());
    let namespaces = add.undo.context();
    let guest = namespaces.open_guest(at)?;
    // Unlike the reference, without duplicate address detection, which would cost a second or two of each ADD, or of
    // each container's first packet.
    let state = State::Down { has_carrier };
    let mut interface = ContainerInterface { guest, index, mac: None, detects_duplicates: false, state };
    let change = LinkChange { name: Some(at.ifname.as_str()), alias: Some(&alias), ..change };
    match interface.set(&change) {
        Err(error) if error.errno() == Some(libc::EEXIST) => {
            namespaces.refuse_existing_interface(at)?;
            Err(error)
        }
        outcome => outcome.map(|()| interface),
    }
}

/// Deletes the link in the container, unless it has the mark of an owner.
fn delete_unmarked(namespaces: &Namespaces, index: LinkIndex) -> Result<()> {
    namespaces.in_guest(|| {
        let mut guest = Netlink::open()?;
        match guest.link(index)?.filter(|link| link.alias.is_empty()) {
            Some(link) => Ok(guest.delete_link(link.index)?),
            None => Ok(()),
        }
    })
}

/// Deletes the link in the container.
fn delete(namespaces: &Namespaces, index: LinkIndex) -> Result<()> {
    namespaces.in_guest(|| Ok(Netlink::open()?.delete_link(index)?))
}
