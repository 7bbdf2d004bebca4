//! ADD: creates the VRF unless it exists, and makes the interface a member with its addresses and routes. If that
//! fails, everything is as before.

use std::collections::HashSet;
use std::rc::Rc;

use cni::{Attachment, AttachmentKey, Call, Code, Context, Error, Namespaces, Result, Undo};
use interface::link_plugin::no_such_kind;
use interface::lock::lock_namespace;
use linux::netlink::{
    Address, Change, DuplicateDetection, Link, LinkChange, LinkIndex, LinkKind, ListedRoute, Netlink, NewLink,
};
use linux::sysctl::Sysctl;

use crate::config::{Config, RESERVED};
use crate::{ALIAS, VRF, named, removal};

/// The main routing table.
const MAIN: u32 = libc::RT_TABLE_MAIN as u32;
const LOCAL: u32 = libc::RT_TABLE_LOCAL as u32;
/// What the kernel answers if an object that is restored exists already, or one that is deleted does not.
const DONE: [i32; 4] = [libc::EEXIST, libc::ESRCH, libc::ENODEV, libc::ENXIO];
// linux/rtnetlink.h: routes that the kernel adds again itself, with an address or by router advertisements.
const KERNEL: u8 = 2;
const ADVERTISED: u8 = 9;

/// The membership that an ADD has created.
#[derive(Debug)]
pub(crate) struct Done(Option<Rc<Membership>>);

/// The interface as it was.
#[derive(Debug)]
struct Membership {
    link: LinkIndex,
    has_alias: bool,
    /// The routes that it loses when it is set down.
    routes: Vec<ListedRoute>,
    /// The IPv6 addresses that it loses.
    addresses: Vec<Address>,
}

/// Makes the interface a member. Succeeds without a change if it is one.
pub(crate) fn run(call: &Call<'_>, at: &Attachment, config: &Config) -> Result<Done> {
    let namespaces = Namespaces::open(call, at)?;
    lock_namespace(&namespaces.guest)?;
    let mut guest = namespaces.open_guest(at)?.netlink;
    let links = guest.links(None)?;
    let what = || format!("add {:?} in {:?} to VRF {:?}", at.ifname.as_str(), at.sandbox(), config.name.as_str());
    let vrf = find_vrf(&links, config).context(what)?;
    let Some(link) = named(&links, at.ifname.as_str()) else {
        let error = Error::new(Code::INTERNAL, format!("could not get link by name {:?}", at.ifname.as_str()));
        return Err(error.details("list vrf after the plugin that creates the interface").context(what()));
    };
    match (link.master, vrf) {
        (None, _) => {}
        (Some(master), Some(vrf)) if master == vrf.index => return Ok(Done(None)),
        (Some(master), _) => {
            let master = links.iter().find(|link| link.index == master).map_or("unknown", |link| link.name.as_str());
            // The text of the reference, by which users recognise the mistake.
            let text = format!("interface {:?} has already a master set: {master}", link.name);
            return Err(Error::new(Code::INTERNAL, text)
                .details("list vrf only once for an interface")
                .context(what()));
        }
    }
    let mut undo = Undo::new(guest);
    match join(&mut undo, &namespaces, &links, link, vrf, config, AttachmentKey::new(call, at)) {
        Ok(membership) => {
            undo.commit();
            Ok(Done(Some(membership)))
        }
        Err(error) => Err(undo.roll_back(error.context(what()))),
    }
}

/// Returns the VRF with the name of the configuration, if there is one.
pub(crate) fn find_vrf<'a>(links: &'a [Link], config: &Config) -> Result<Option<&'a Link>> {
    let name = config.name.as_str();
    let Some(found) = named(links, name) else { return Ok(None) };
    // The texts of the reference, by which users recognise the mistakes.
    let Some(table) = found.vrf_table.filter(|_| found.kind == VRF) else {
        let error = Error::new(Code::INTERNAL, format!("Netlink {name} is not a VRF"));
        return Err(error.details("a link of the container has the name: use another \"vrfname\""));
    };
    match config.table {
        Some(wanted) if wanted != table => {
            let what = format!("VRF {name} already exist with different routing table {table}");
            Err(Error::new(Code::INTERNAL, what)
                .details("use the same \"table\" in all networks of the VRF, or in one"))
        }
        _ => Ok(Some(found)),
    }
}

/// Creates the VRF if necessary, and makes the link a member. Registers the rollback step of each change in `undo`.
fn join(
    undo: &mut Undo<'_, Netlink>,
    namespaces: &Namespaces,
    links: &[Link],
    link: &Link,
    vrf: Option<&Link>,
    config: &Config,
    key: AttachmentKey<'_>,
) -> Result<Rc<Membership>> {
    let routes = undo.context().listed_routes()?;
    let is_new = vrf.is_none();
    let (vrf, table) = match vrf {
        Some(vrf) => (vrf.index, vrf.vrf_table.unwrap_or_default()),
        None => {
            let table = match config.table {
                Some(table) => table,
                None => free_table(links, &routes, undo.context())?,
            };
            (create(undo, config.name.as_str(), table)?, table)
        }
    };
    let is_lost = |listed: &&ListedRoute| {
        let is_by = listed.unicast.as_ref().is_some_and(|route| route.link == Some(link.index));
        is_by && listed.table != LOCAL && ![KERNEL, ADVERTISED].contains(&listed.protocol)
    };
    let mut lost: Vec<ListedRoute> = routes.iter().filter(is_lost).cloned().collect();
    // A route by a next hop needs the route to that next hop.
    lost.sort_by_key(|listed| listed.unicast.as_ref().is_some_and(|route| route.route.gw.is_some()));
    let addresses = keep_addresses(undo, namespaces, link)?;
    let has_alias = !link.alias.is_empty();
    let membership = Rc::new(Membership { link: link.index, has_alias, routes: lost, addresses });
    let former = Rc::clone(&membership);
    undo.push("restore the interface", move |netlink| former.revert(netlink));
    undo.context()
        .apply(&membership.changes(vrf, table, is_new, &key.alias()))
        .map_err(|error| explain(error.into()))?;
    Ok(membership)
}

/// Makes the kernel keep the IPv6 addresses of a link when it is set down. Returns those that it does not keep.
fn keep_addresses(undo: &mut Undo<'_, Netlink>, namespaces: &Namespaces, link: &Link) -> Result<Vec<Address>> {
    let mut addresses = undo.context().ipv6_addresses(link.index)?;
    addresses.retain(|address| address.global);
    if addresses.is_empty() {
        return Ok(addresses);
    }
    let key = ["net", "ipv6", "conf", link.name.as_str(), "keep_addr_on_down"];
    match namespaces.in_guest(|| Ok(Sysctl::open(&key)))? {
        Ok(setting) if setting.value() == Some("0") => {
            let written = setting.write("1").is_ok();
            undo.push("restore keep_addr_on_down", move |_| Ok(setting.restore()?));
            Ok(if written { Vec::new() } else { addresses })
        }
        Ok(_) => Ok(Vec::new()),
        // /proc/sys is read-only.
        Err(_) => Ok(addresses),
    }
}

/// Creates the VRF.
fn create(undo: &mut Undo<'_, Netlink>, name: &str, table: u32) -> Result<LinkIndex> {
    let owned = name.to_owned();
    undo.push(format!("delete VRF {name:?}"), move |netlink| {
        // The lock excludes other calls, and no other program was asked for this VRF.
        match netlink.link(owned.as_str())?.filter(|link| link.kind == VRF) {
            Some(vrf) => Ok(netlink.delete_link(vrf.index)?),
            None => Ok(()),
        }
    });
    let kind = LinkKind::Vrf { table };
    let new = NewLink { name: Some(name), ..NewLink::of(kind) };
    match undo.context().create(&[Change::create_link(&new)]) {
        Ok(link) => Ok(link.index),
        Err(error) if error.errno() == Some(libc::EEXIST) => {
            undo.pop();
            Err(error.into())
        }
        Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => Err(no_such_kind(kind)),
        Err(error) => Err(Error::from(error).context(format!("could not add VRF {name}"))),
    }
}

/// Returns the first table, from 1 as in the reference, that nothing uses. Unlike the reference, which looks only at
/// other VRFs.
fn free_table(links: &[Link], routes: &[ListedRoute], netlink: &mut Netlink) -> Result<u32> {
    let mut used: HashSet<u32> = links.iter().filter_map(|link| link.vrf_table).collect();
    used.extend(routes.iter().map(|listed| listed.table));
    used.extend(netlink.rules()?.iter().map(|rule| rule.table));
    let free = (1..=u32::MAX).find(|table| !used.contains(table) && !RESERVED.contains(table));
    free.ok_or_else(|| Error::bug("all routing tables are in use"))
}

/// Adds the reason to the kernel's refusal.
fn explain(error: Error) -> Error {
    match error.errno() {
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => {
            error.details("a route of the interface has a next hop that is not in its networks")
        }
        _ => error,
    }
}

impl Membership {
    /// Returns the changes that make the interface a member.
    fn changes<'a>(&'a self, vrf: LinkIndex, table: u32, is_new: bool, alias: &'a str) -> Vec<Change<'a>> {
        let up = LinkChange { up: Some(true), alias: is_new.then_some(ALIAS), ..LinkChange::default() };
        let mut changes = vec![Change::set_link(vrf, &up), Change::set_master(self.link, Some(vrf))];
        if !self.has_alias {
            // By which DEL recognises the interface. The reference does not read it.
            let marked = LinkChange { alias: Some(alias), ..LinkChange::default() };
            changes.push(Change::set_link(self.link, &marked));
        }
        changes.extend(self.address_changes());
        changes.extend(self.routes.iter().map(|listed| match listed.table {
            MAIN => Change::copy_route(listed, table, listed.protocol),
            // Those that rules select, such as those of sbr.
            _ => Change::restore_route_without_source(listed),
        }));
        changes
    }

    /// Returns the changes that add the addresses again.
    fn address_changes(&self) -> Vec<Change<'static>> {
        let add = |address: &Address| Change::add_address(self.link, address.cidr, DuplicateDetection::Default);
        self.addresses.iter().map(add).collect()
    }

    /// Takes the interface out of the VRF, and restores its addresses and routes.
    fn revert(&self, netlink: &mut Netlink) -> Result<()> {
        let mut changes = vec![Change::set_master(self.link, None)];
        if !self.has_alias {
            changes.push(Change::set_link(self.link, &LinkChange { alias: Some(""), ..LinkChange::default() }));
        }
        changes.extend(self.address_changes());
        changes.extend(self.routes.iter().map(Change::restore_route));
        Ok(netlink.apply_ignoring(&changes, &DONE)?)
    }
}

impl Done {
    /// Restores what was before the ADD.
    pub(crate) fn revert(self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let Done(Some(membership)) = self else { return Ok(()) };
        let namespaces = Namespaces::open(call, at)?;
        lock_namespace(&namespaces.guest)?;
        let mut netlink = namespaces.open_guest(at)?.netlink;
        membership.revert(&mut netlink)?;
        let links = netlink.links(None)?;
        let unused = removal::unused_vrfs(&links, None);
        Ok(netlink.apply_ignoring(&unused.iter().map(|vrf| Change::delete_link(*vrf)).collect::<Vec<_>>(), &DONE)?)
    }
}
