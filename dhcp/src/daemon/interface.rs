//! The interface of a lease, in a container's namespace. Its sockets are open only for an exchange: they keep the namespace alive.

use std::io;
use std::path::Path;

use cni::{Code, Context, Error, Result};
use linux::ip::MacAddr;
use linux::log::debug;
use linux::netlink::{Change, DuplicateDetection, Event, Link, LinkChange, LinkIndex, Netlink, Watch};
use linux::packet::UdpPackets;
use linux::{Kind, Netns};

use crate::lease::Place;
use crate::message::CLIENT_PORT;
use crate::terms::Terms;

/// What the kernel answers if a change has been made already, by the kernel itself or by another program.
const DONE: [i32; 5] = [libc::EEXIST, libc::ESRCH, libc::ENOENT, libc::EADDRNOTAVAIL, libc::ENODEV];

/// An interface, with sockets in its namespace.
#[derive(Debug)]
pub(super) struct Interface {
    netlink: Netlink,
    /// Receives a notification when a link changes.
    pub(super) watch: Watch,
    pub(super) packets: UdpPackets,
    index: LinkIndex,
}

/// The namespace of an interface, as long as it is open.
struct Inside {
    netlink: Netlink,
    watch: Watch,
    namespace: u64,
}

/// Opens sockets in the namespace at `path`. `None` if it is gone.
fn enter(home: &Netns, path: &Path) -> Result<Option<(Netns, Inside)>> {
    let Some(netns) = Netns::open_if_exists(path)? else { return Ok(None) };
    let inode = netns.inode()?;
    let inside = netns.run(home, || {
        let (netlink, watch) = (Netlink::open()?, Watch::open(Event::Link)?);
        let namespace = netlink.netns_cookie()?.unwrap_or(inode);
        Ok::<_, linux::Error>(Inside { netlink, watch, namespace })
    })?;
    Ok(Some((netns, inside)))
}

impl Interface {
    /// Finds an interface by its name, and sets it up. Returns where it is, too.
    pub(super) fn find(home: &Netns, path: &Path, ifname: &str) -> Result<(Place, Interface)> {
        let missing = || Error::new(Code::NETNS, format!("there is no network namespace at {path:?}"));
        let (netns, mut inside) = enter(home, path)?.ok_or_else(|| {
            missing().details("the daemon must see the mounts of the host, or have its root as -hostprefix")
        })?;
        let link = inside.netlink.link(ifname)?.ok_or_else(|| {
            Error::new(Code::INTERNAL, format!("there is no link {ifname:?} in {path:?}"))
                .details("a plugin that creates the interface must call dhcp")
        })?;
        let mac = link.mac.ok_or_else(|| {
            Error::new(Code::INTERNAL, format!("link {ifname:?} in {path:?} has no MAC address"))
                .details("DHCP needs an Ethernet interface")
        })?;
        let place = Place {
            netns: path.to_owned(),
            namespace: inside.namespace,
            link: link.index.number(),
            mac: mac.0,
            // Links that share a MAC address get no unicast before they have their IP address.
            broadcast: link.kind == "ipvlan",
        };
        if !link.up {
            let up = LinkChange { up: Some(true), ..LinkChange::default() };
            inside.netlink.apply(&[Change::set_link(link.index, &up)])?;
        }
        Ok((place, Interface::open_in(home, &netns, inside, link.index)?))
    }

    /// Opens the interface at a place. `None` if it is gone: the path or the index leads to another one.
    pub(super) fn open(home: &Netns, path: &Path, place: &Place, ifname: &str) -> Result<Option<Interface>> {
        let Some((netns, mut inside)) = enter(home, path)? else { return Ok(None) };
        if inside.namespace != place.namespace {
            return Ok(None);
        }
        let Some(index) = LinkIndex::optional(place.link) else { return Ok(None) };
        let same = |link: &Link| link.name == ifname && link.mac == Some(MacAddr(place.mac));
        match inside.netlink.link(index)?.filter(same) {
            Some(_) => Interface::open_in(home, &netns, inside, index).map(Some),
            None => Ok(None),
        }
    }

    fn open_in(home: &Netns, netns: &Netns, inside: Inside, index: LinkIndex) -> Result<Interface> {
        let packets = netns.run(home, || UdpPackets::open(index, CLIENT_PORT))?;
        Ok(Interface { netlink: inside.netlink, watch: inside.watch, packets, index })
    }

    /// Returns whether the interface can send; an error if it is gone.
    pub(super) fn has_carrier(&mut self) -> Result<bool> {
        let gone = || Error::new(Code::INTERNAL, "the interface was deleted while the server was asked");
        Ok(self.netlink.link(self.index)?.ok_or_else(gone)?.running)
    }

    /// Returns whether the interface has the address.
    pub(super) fn has(&mut self, terms: &Terms) -> Result<bool> {
        let found = self.netlink.addresses(self.index)?;
        Ok(found.iter().any(|address| address.cidr.ip() == terms.address))
    }

    /// Sends a packet. A link without a carrier loses it, as the wire can: the client repeats its messages.
    pub(super) fn send(&self, packet: &[u8], to: MacAddr) {
        if let Err(error) = self.packets.send(packet, to) {
            debug!("send a DHCP message: {error}");
        }
    }

    /// Receives a packet, and the MAC address that it comes from; `None` if there is none.
    pub(super) fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<(&'a [u8], MacAddr)>> {
        let Some((length, from)) = self.packets.receive(buffer)? else { return Ok(None) };
        // A packet that did not fit is none of a server.
        Ok(Some((buffer.get(..length).unwrap_or_default(), from)))
    }

    /// Sets the MTU that the server says, if it is less than that of the link.
    pub(super) fn set_mtu(&mut self, terms: &Terms) -> Result<()> {
        let Some(mtu) = terms.mtu else { return Ok(()) };
        match self.netlink.link(self.index)? {
            Some(link) if link.mtu > mtu => {
                let change = LinkChange { mtu: Some(mtu), ..LinkChange::default() };
                Ok(self.netlink.apply(&[Change::set_link(self.index, &change)])?)
            }
            _ => Ok(()),
        }
    }

    /// Changes the address and the routes from those of one lease to those of another, either of which may be missing.
    pub(super) fn follow(&mut self, old: Option<&Terms>, new: Option<&Terms>) -> Result<()> {
        let index = self.index;
        let moved = old.map(Terms::cidr) != new.map(Terms::cidr);
        let routes = |terms: Option<&Terms>| terms.map(|terms| terms.routes.clone()).unwrap_or_default();
        let (before, after) = (routes(old), routes(new));
        let mut changes = Vec::new();
        for route in before.iter().filter(|route| moved || !after.contains(route)) {
            changes.push(Change::delete_route(index, &route.into()));
        }
        if moved {
            // In this order: the kernel deletes a second address of a network together with the first.
            changes.extend(old.map(|old| Change::delete_address(index, old.cidr())));
            changes.extend(new.map(|new| Change::add_address(index, new.cidr(), DuplicateDetection::Default)));
        }
        for route in after.iter().filter(|route| moved || !before.contains(route)) {
            changes.push(Change::add_route(index, &route.into()));
        }
        if !changes.is_empty() {
            self.netlink.apply_ignoring(&changes, &DONE).context(|| "change the interface")?;
        }
        if let Some(new) = new {
            self.set_mtu(new)?;
        }
        if moved && new.is_some() {
            self.announce();
        }
        Ok(())
    }

    /// Makes the kernel announce the new address to the neighbours, if the link has a MAC address of its own: setting it again does.
    fn announce(&mut self) {
        let link = self.netlink.link(self.index).ok().flatten();
        let change = |link: &Link| LinkChange { mac: link.mac, arp_notify: Some(true), ..LinkChange::default() };
        let outcome = link.map(|link| self.netlink.apply(&[Change::set_link(self.index, &change(&link))]));
        if let Some(Err(error)) = outcome {
            debug!("announce the address: {error}");
        }
    }
}

/// Returns whether an error means that the namespace cannot be entered now, but may exist.
pub(super) fn is_transient(error: &Error) -> bool {
    let resources = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS, libc::EINTR];
    error.errno().is_some_and(|errno| resources.contains(&errno)) || error.as_ref().kind() == Kind::Transient
}
