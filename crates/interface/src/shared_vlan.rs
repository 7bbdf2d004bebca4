//! A VLAN link of the host that several containers share: each has a macvlan link on top of it. A link that the
//! administrator created is used as it is. Otherwise the first container creates one, and the last one removes it.
//!
//! The links of containers are in other namespaces, so that the host does not see them. The kernel knows whether there
//! are any: it creates a macvlan link in mode `passthru` only if there is no other one.

use cni::{Context, Error, ErrorCollector, Result};
use linux::log::debug;
use linux::netlink::{Change, Link, LinkChange, LinkIndex, LinkKind, MacvlanMode, Netlink, NewLink, Upper, VlanTag};
use linux::sha2::sha512;
use linux::sysctl::set_best_effort;

use crate::lock::HostLock;
use crate::name;

/// The alias of a link that ADD created. It names no network, because containers of several can be on the VLAN.
const ALIAS: &str = "cni-shared-vlan";
/// The name of the link that asks the kernel for others. Under the lock, only a killed call can have left one.
const PROBE: &str = "cni-probe";
/// The longest name of a link (IFNAMSIZ less the final NUL).
const NAME_LENGTH: usize = 15;

/// Returns the VLAN link on the master, which is created if there is none. It is not deleted while the lock is held.
/// Before, the caller must register [`remove_unused`] for the rollback.
pub fn join(host: &mut Netlink, master: &Link, tag: VlanTag) -> Result<(Link, HostLock)> {
    let lock = HostLock::acquire()?;
    let link = match find(host, master, tag)? {
        Some(link) if !is_ours(host, &link)? => link,
        Some(link) => {
            remove_probe(host, link.index)?;
            start(host, link, master)?
        }
        None => {
            let link = create(host, master, tag)?;
            start(host, link, master)?
        }
    };
    Ok((link, lock))
}

/// Returns the VLAN link on the master, if there is one in the host's namespace.
pub fn find(host: &mut Netlink, master: &Link, tag: VlanTag) -> Result<Option<Link>> {
    let is_it = |link: &Link| {
        link.lower == Some(master.index) && link.lower_netns.is_none() && link.upper == Some(Upper::Vlan(tag))
    };
    Ok(host.links_of_kind("vlan")?.into_iter().find(is_it))
}

/// Returns whether the link has the mark of those that ADD created.
pub fn is_marked(link: &Link) -> bool {
    link.alias == ALIAS
}

/// Deletes the links that ADD created and no container uses any more.
pub fn remove_unused(host: &mut Netlink) -> Result<()> {
    if ours(host)?.is_empty() {
        return Ok(());
    }
    let mut failures = ErrorCollector::default();
    let _lock = HostLock::acquire()?;
    for link in ours(host)? {
        failures.record(remove_if_unused(host, &link).context(|| format!("remove the VLAN link {:?}", link.name)));
    }
    failures.into_result()
}

/// Returns the VLAN links that ADD created.
fn ours(host: &mut Netlink) -> Result<Vec<Link>> {
    let mut found = Vec::new();
    for link in host.links_of_kind("vlan")? {
        if is_ours(host, &link)? {
            found.push(link);
        }
    }
    Ok(found)
}

/// Returns whether ADD created the link, also if it was killed before it could mark the link.
fn is_ours(host: &Netlink, link: &Link) -> Result<bool> {
    if is_marked(link) {
        return Ok(true);
    }
    let (Some(Upper::Vlan(tag)), Some(master), "") = (link.upper, link.lower, link.alias.as_str()) else {
        return Ok(false);
    };
    let master = host.link_name(master)?;
    Ok(link.lower_netns.is_none() && master.is_some_and(|master| link.index == index(&master, tag)))
}

/// Returns the index of the VLAN link that ADD creates.
fn index(master: &str, tag: VlanTag) -> LinkIndex {
    name::index_of(&["vlan", master, &tag.to_string()])
}

/// Creates the VLAN link: with the usual name, or, if that is too long or in use, with one that is derived from it.
fn create(host: &mut Netlink, master: &Link, tag: VlanTag) -> Result<Link> {
    let usual = format!("{}.{}", master.name, tag.id);
    let digest = format!("vlan{}", sha512(NAME_LENGTH - 4, &format!("{} {tag}", master.name)));
    let usable = usual.len() <= NAME_LENGTH && host.link_index(&usual)?.is_none();
    let names = usable.then_some(usual).into_iter().chain([digest]);
    let mut failure = None;
    for name in names {
        let new = NewLink {
            name: Some(&name),
            lower: Some(master.index),
            index: Some(index(&master.name, tag)),
            ..NewLink::of(LinkKind::Upper(Upper::Vlan(tag)))
        };
        match host.create(&[Change::create_link(&new)]) {
            Ok(link) => return Ok(link),
            // Another link got the name meanwhile, or has the tag.
            Err(error) if error.errno() == Some(libc::EEXIST) => failure = Some(error.into()),
            Err(error) => return Err(error.into()),
        }
    }
    Err(failure.unwrap_or_else(|| Error::bug("no attempt was made")))
}

/// Marks the link, and sets it up. The host itself takes no part in the VLAN.
fn start(host: &mut Netlink, link: Link, master: &Link) -> Result<Link> {
    if !is_marked(&link) {
        let mark = LinkChange { alias: Some(ALIAS), ..LinkChange::default() };
        host.apply(&[Change::set_link(link.index, &mark)])?;
    }
    if link.up {
        return Ok(link);
    }
    set_best_effort(&["net", "ipv6", "conf", &link.name, "disable_ipv6"], "1");
    let up = LinkChange { up: Some(true), ..LinkChange::default() };
    match host.apply(&[Change::set_link(link.index, &up)]) {
        Err(error) if error.errno() == Some(libc::ENETDOWN) => {
            Err(Error::from(error).details(format!("run `ip link set {} up`", master.name)))
        }
        // It has a carrier as soon as it is up, if the master has one.
        outcome => outcome.map(|()| Link { up: true, running: master.running, ..link }).map_err(Error::from),
    }
}

/// For tools: returns the VLAN link on the master if ADD created it and nothing uses it. The interface of a container
/// that is down counts as none: only [`remove_unused`], which asks the kernel for it by creating a link, knows better.
pub fn find_unused(host: &mut Netlink, master: &Link, tag: VlanTag) -> Result<Option<Link>> {
    let Some(link) = find(host, master, tag)? else { return Ok(None) };
    let is_unused =
        is_ours(host, &link)? && !is_used_by_host(host, &link)? && host.received_addresses(link.index)?.is_empty();
    Ok(is_unused.then_some(link))
}

/// Returns whether a link of the host is on top of the link, or the administrator uses it for the host.
fn is_used_by_host(host: &mut Netlink, link: &Link) -> Result<bool> {
    let is_above = |other: &Link| other.lower == Some(link.index) && other.lower_netns.is_none();
    Ok(link.master.is_some()
        || host.links(None)?.iter().any(is_above)
        || host.addresses(link.index)?.iter().any(|address| address.global))
}

/// Deletes a link unless something uses it.
fn remove_if_unused(host: &mut Netlink, link: &Link) -> Result<()> {
    remove_probe(host, link.index)?;
    if is_used_by_host(host, link)? {
        return Ok(());
    }
    let kind = LinkKind::Upper(Upper::Macvlan { mode: MacvlanMode::Passthru, broadcast_queue: 0 });
    let probe = NewLink { name: Some(PROBE), lower: Some(link.index), ..NewLink::of(kind) };
    match host.apply(&[Change::create_link(&probe)]) {
        Ok(()) => {
            debug!("no container uses {:?}", link.name);
            // The kernel deletes the probe with the link on which it is.
            let deleted = host.delete_link(link.index);
            if deleted.is_err() {
                remove_probe(host, link.index)?;
            }
            Ok(deleted?)
        }
        // EINVAL: a macvlan link is on top of it. EBUSY: another kind of link. ENODEV: it is gone.
        Err(error) if matches!(error.errno(), Some(libc::EINVAL | libc::EBUSY | libc::ENODEV)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Deletes the probe that a killed call left on a link. No container could join while it exists.
fn remove_probe(host: &mut Netlink, lower: LinkIndex) -> Result<()> {
    let left = host.link(PROBE)?.filter(|link| {
        let is_probe = matches!(link.upper, Some(Upper::Macvlan { mode: MacvlanMode::Passthru, .. }));
        is_probe && link.lower == Some(lower) && link.lower_netns.is_none()
    });
    left.map_or(Ok(()), |link| Ok(host.delete_link(link.index)?))
}
