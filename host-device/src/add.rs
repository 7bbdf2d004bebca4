//! ADD, from top to bottom.

use cni::{AddResult, Code, Delegate, Error, Interface, Result};
use interface::attach::Add;
use interface::container::{ContainerInterface, State};
use interface::link_state::LinkState;
use interface::lock::HostLock;
use interface::plan::{AddressPlan, Wanted};
use linux::ip::MacAddr;
use linux::netlink::{Change, Link, LinkChange, LinkIndex, LinkRef};

use crate::config::Config;
use crate::device::{Device, name_on_host, pci_address_of};
use crate::give_back::{GiveBack, Namespace, other_names};
use crate::record::{Record, port_of};

/// Moves the device into the container, configures it, and returns the result.
pub(crate) fn attach<'a>(
    add: &mut Add<'a>,
    config: &'a Config,
    device: &'a Device,
    ipam: Option<&'a Delegate<'a>>,
) -> Result<AddResult> {
    let at = add.at;
    let has_hardware_id = add.call.version.has_mtu();
    if config.is_dpdk(device) {
        let plan = ipam
            .map_or_else(|| Ok(AddressPlan::default()), |ipam| plan(config, add.lease_addresses(ipam, |_| Ok(()))?))?;
        let pci_id = device.pci_address().filter(|_| has_hardware_id).unwrap_or_default().to_owned();
        let listed = Interface { pci_id, ..Interface::new(at.ifname.as_str(), None, at.sandbox()) };
        return Ok(result(config, listed, plan));
    }
    add.undo.context().refuse_existing_interface(at)?;
    let mac = config.mac.address(add.call, at)?;
    let (has_carrier, give_back, pci_id) = take(add, config, device, mac)?;
    let mut guest = add.undo.context().open_guest(at)?;
    let moved = guest.interface()?;
    let mut interface = ContainerInterface {
        guest,
        index: moved.index,
        mac: None,
        detects_duplicates: false,
        state: State::Down { has_carrier },
    };
    // The kernel announces the addresses when the link comes up. An IPAM plugin may set it up.
    interface.set(&LinkChange { mac, arp_notify: Some(true), ..LinkChange::default() })?;
    let plan = match ipam {
        Some(ipam) => plan(config, add.lease_addresses(ipam, move |namespaces| give_back.undo(namespaces))?)?,
        None => AddressPlan::default(),
    };
    interface.configure(add.undo.context(), &plan)?;
    let listed = Interface::new(at.ifname.as_str(), mac.or(moved.mac), at.sandbox());
    let listed = match has_hardware_id {
        true => Interface { mtu: moved.mtu, pci_id: pci_id.unwrap_or_default(), ..listed },
        false => listed,
    };
    Ok(result(config, listed, plan))
}

fn plan(config: &Config, leased: AddResult) -> Result<AddressPlan> {
    let ipam = config.ipam.as_deref().unwrap_or_default();
    let wanted = Wanted { ipam, interface: 0, gateway: false, default_gateway: false, mtu: None, has_layer2: true };
    AddressPlan::new(leased, &wanted)
}

fn result(config: &Config, listed: Interface, plan: AddressPlan) -> AddResult {
    AddResult {
        interfaces: vec![listed],
        ips: plan.ips,
        routes: plan.routes,
        dns: config.dns.clone().unwrap_or(plan.dns),
    }
}

/// Moves the device, with the marks by which it is given back. Returns whether it had a carrier, what gives it back,
/// and its PCI address. Unlike the reference, with one move, without another namespace in between.
fn take<'a>(
    add: &mut Add<'a>,
    config: &Config,
    device: &Device,
    mac: Option<MacAddr>,
) -> Result<(bool, GiveBack<'a>, Option<String>)> {
    let (at, key) = (add.at, add.key);
    let ifname = at.ifname.as_str();
    let mark = key.alternative_name();
    // Another ADD, or a GC, that finds the same device waits.
    let lock = HostLock::acquire()?;
    let host = &mut add.undo.context().host.netlink;
    if host.link(LinkRef::AlternativeName(&mark))?.is_some() {
        // An earlier device of the attachment came back by itself.
        GiveBack::new(key).on_host(host, Namespace::Gone, None)?;
    }
    let mut link = device.find(host, ifname)?;
    // So did this one, if another attachment had it.
    for former in Record::of(&link)? {
        let give_back = GiveBack { key: former.key(), record: Some(former.clone()), state: None };
        give_back.on_host(host, Namespace::Gone, None)?;
        link = host.link(link.index)?.unwrap_or(link);
    }
    let state = LinkState::read(host, &link)?;
    let has_ports = link.kind == "bridge" && !host.links(Some(link.index))?.is_empty();
    refuse(&link, has_ports, state.has_default_route && !config.allow_default_route)?;
    let name = name_on_host(&link, ifname).to_owned();
    let alias = if link.alias == name { String::new() } else { link.alias.clone() };
    let pci_id = device.pci_address().map_or_else(|| pci_address_of(&link), |id| Ok(Some(id.to_owned())))?;
    let record = Record {
        network: key.network.to_owned(),
        container: key.container.to_owned(),
        ifname: ifname.to_owned(),
        name: name.clone(),
        alias,
        alternative_names: Some(other_names(&link).map(str::to_owned).collect()),
        kind: link.kind.clone(),
        hardware: link.hardware.clone(),
        port: port_of(&link),
        identity: identity_of(&link)?,
        mac: link.mac.map(|mac| mac.to_string()).unwrap_or_default(),
        has_other_mac: mac.is_some(),
        restore: config.restore.then(|| state.clone()),
    };
    let give_back = GiveBack { key, record: Some(record.clone()), state: Some(state) };
    let undo = give_back.clone();
    add.undo.push(format!("give back {name:?}"), move |namespaces| undo.undo(namespaces));
    record.write()?;
    let namespaces = add.undo.context();
    let host = &mut namespaces.host.netlink;
    // Marks without a record.
    let is_mark = |name: &&String| cni::key::mark_in_alternative_name(name).is_some();
    let stale = link.alternative_names.iter().filter(is_mark).map(|name| Change::delete_alternative_name(name));
    let changes: Vec<_> = stale.chain([Change::add_alternative_name(link.index, &mark)]).collect();
    host.apply(&changes)?;
    let change = LinkChange { name: Some(ifname), alias: Some(&name), ..LinkChange::default() };
    let moved = host.apply(&[Change::move_link(link.index, &namespaces.guest, &change)]);
    moved.map_err(|error| explain(error.into(), &link))?;
    drop(lock);
    Ok((link.running, give_back, pci_id))
}

/// Returns what distinguishes a virtual device from those that a container can create.
fn identity_of(link: &Link) -> Result<Option<u64>> {
    match link.hardware.is_empty() {
        true => GiveBack::open_sysfs()?.map_or(Ok(None), |sysfs| Ok(sysfs.identity(link)?)),
        false => Ok(None),
    }
}

/// Returns an error for a device that the host cannot do without. The reference gives away any.
fn refuse(link: &Link, has_ports: bool, is_uplink: bool) -> Result<()> {
    let refuse = |why: &str, remedy: &str| {
        let what = format!("{:?} cannot be given to a container: {why}", link.name);
        Err(Error::new(Code::INTERNAL, what).details(remedy))
    };
    match () {
        () if link.index == LinkIndex::LOOPBACK => refuse("it is the loopback interface", "choose another device"),
        () if has_ports => refuse("it is a bridge with ports", "choose another device, or remove its ports"),
        () if is_uplink => refuse(
            "a default route of the host leads through it",
            "choose another device, or set \"allowDefaultRoute\": true if the host may lose the route",
        ),
        () => Ok(()),
    }
}

/// Adds the reason to the kernel's refusal to move a device.
fn explain(error: Error, link: &Link) -> Error {
    let name = &link.name;
    match error.errno() {
        Some(libc::EINVAL) => error.details(format!(
            "the kernel does not let {name:?} leave its namespace: it may be a bridge, a bond or a wireless device"
        )),
        Some(libc::EEXIST) => {
            error.details(format!("the container has a link with this name, or with that of {name:?}"))
        }
        Some(libc::ENODEV) => error.details(format!("{name:?} is gone: another container may have got it")),
        _ => error,
    }
}
