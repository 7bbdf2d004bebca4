//! The interface of a lease, in a container's namespace. Its sockets are open only for an exchange: they keep the
//! namespace alive.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use cni::{Code, Context, Error, Result};
use linux::ip::MacAddr;
use linux::log::debug;
use linux::netlink::{Change, DuplicateDetection, Event, Link, LinkChange, LinkIndex, Netlink, Watch};
use linux::packet::UdpPackets;
use linux::{Kind, Netns};

use crate::exchange::{Incoming, Outgoing};
use crate::lease::{Family, Key, Place};
use crate::terms::Terms;
use crate::{v4, v6};

/// What the kernel answers if a change has been made already, by the kernel itself or by another program.
const DONE: [i32; 5] = [libc::EEXIST, libc::ESRCH, libc::ENOENT, libc::EADDRNOTAVAIL, libc::ENODEV];

/// An interface, with sockets in its namespace.
#[derive(Debug)]
pub(super) struct Interface {
    netlink: Netlink,
    /// Receives a notification when a link changes.
    pub(super) watch: Watch,
    pub(super) messages: Messages,
    index: LinkIndex,
}

/// The socket for the messages of a family.
#[derive(Debug)]
pub(super) enum Messages {
    /// Past the addresses of the kernel: the interface has none.
    V4(UdpPackets),
    /// Bound to the link-local address, from which RFC 8415 wants messages to come.
    V6(UdpSocket),
}

impl AsFd for Messages {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Messages::V4(packets) => packets.as_fd(),
            Messages::V6(socket) => socket.as_fd(),
        }
    }
}

/// What has arrived.
#[derive(Debug)]
pub(super) enum Received {
    Message(Incoming),
    /// Something that is not a message.
    Other,
    Nothing,
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
    pub(super) fn find(home: &Netns, path: &Path, key: &Key) -> Result<(Place, Interface)> {
        let ifname = key.ifname.as_str();
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
        Ok((place, Interface::open_in(home, &netns, inside, link.index, key.family)?))
    }

    /// Opens the interface at a place. `None` if it is gone: the path or the index leads to another one.
    pub(super) fn open(home: &Netns, path: &Path, place: &Place, key: &Key) -> Result<Option<Interface>> {
        let Some((netns, mut inside)) = enter(home, path)? else { return Ok(None) };
        if inside.namespace != place.namespace {
            return Ok(None);
        }
        let Some(index) = LinkIndex::optional(place.link) else { return Ok(None) };
        let same = |link: &Link| link.name == key.ifname && link.mac == Some(MacAddr(place.mac));
        match inside.netlink.link(index)?.filter(same) {
            Some(_) => Interface::open_in(home, &netns, inside, index, key.family).map(Some),
            None => Ok(None),
        }
    }

    fn open_in(home: &Netns, netns: &Netns, inside: Inside, index: LinkIndex, family: Family) -> Result<Interface> {
        let Inside { mut netlink, watch, .. } = inside;
        let messages = match family {
            Family::V4 => Messages::V4(netns.run(home, || UdpPackets::open(index, v4::message::CLIENT_PORT))?),
            Family::V6 => {
                let from = link_local(&mut netlink, index)?;
                Messages::V6(netns.run(home, || bind(from, index))?)
            }
        };
        Ok(Interface { netlink, watch, messages, index })
    }

    /// Returns whether the interface can send; `None` if it is gone.
    pub(super) fn has_carrier(&mut self) -> Result<Option<bool>> {
        Ok(self.netlink.link(self.index)?.map(|link| link.running))
    }

    /// Returns whether the interface has the address.
    pub(super) fn has(&mut self, terms: &Terms) -> Result<bool> {
        let found = self.netlink.addresses(self.index)?;
        Ok(found.iter().any(|address| address.cidr.ip() == terms.address))
    }

    /// Sends a message. A link without a carrier loses it, as the wire can: the client repeats its messages.
    pub(super) fn send(&self, outgoing: &Outgoing) {
        let sent = match (&self.messages, outgoing) {
            (Messages::V4(packets), Outgoing::V4(v4::Outgoing { message, from, to, mac })) => {
                packets.send(&v4::message::wrap(&message.write(), *from, *to), *mac)
            }
            (Messages::V6(socket), Outgoing::V6(message)) => {
                let to = (v6::message::SERVERS, v6::message::SERVER_PORT);
                socket.send_to(&message.write(), SocketAddrV6::new(to.0, to.1, 0, self.index.number())).map(drop)
            }
            _ => Ok(()),
        };
        if let Err(error) = sent {
            debug!("send a DHCP message: {error}");
        }
    }

    /// Receives a message without waiting.
    pub(super) fn receive(&self) -> io::Result<Received> {
        let mut buffer = [0; 2048];
        // A message that does not fit is none of a server.
        let message = match &self.messages {
            Messages::V4(packets) => {
                let Some((length, from)) = packets.receive(&mut buffer)? else { return Ok(Received::Nothing) };
                let message = v4::message::unwrap(buffer.get(..length).unwrap_or_default());
                message.and_then(v4::message::Message::parse).map(|message| Incoming::V4(message, from))
            }
            Messages::V6(socket) => match socket.recv_from(&mut buffer) {
                Ok((length, SocketAddr::V6(from))) => {
                    let message = v6::message::Message::parse(buffer.get(..length).unwrap_or_default());
                    message.map(|message| Incoming::V6(message, *from.ip()))
                }
                Ok(_) => None,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Received::Nothing),
                Err(error) => return Err(error),
            },
        };
        Ok(message.map_or(Received::Other, Received::Message))
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

    /// Makes the kernel announce the new address to the neighbours, if the link has a MAC address of its own: setting
    /// it again does.
    fn announce(&mut self) {
        let link = self.netlink.link(self.index).ok().flatten();
        let change = |link: &Link| LinkChange { mac: link.mac, arp_notify: Some(true), ..LinkChange::default() };
        let outcome = link.map(|link| self.netlink.apply(&[Change::set_link(self.index, &change(&link))]));
        if let Some(Err(error)) = outcome {
            debug!("announce the address: {error}");
        }
    }
}

/// Returns the link-local address of a link, which the kernel has made when the link came up.
fn link_local(netlink: &mut Netlink, index: LinkIndex) -> Result<Ipv6Addr> {
    let found = netlink.ipv6_addresses(index)?;
    let mut ready = found.iter().filter(|address| !(address.global || address.tentative || address.duplicate));
    let address = ready.find_map(|address| match address.cidr.ip() {
        IpAddr::V6(ip) => Some(ip),
        IpAddr::V4(_) => None,
    });
    address.ok_or_else(|| {
        let what = format!("link {index} has no link-local address that is ready");
        Error::from(linux::Error::new(Kind::Transient, what)).details("DHCPv6 needs one: enable IPv6 on the interface")
    })
}

/// Opens the socket of a DHCPv6 client, in the namespace of this thread.
fn bind(from: Ipv6Addr, index: LinkIndex) -> Result<UdpSocket> {
    let open = || {
        let port = v6::message::CLIENT_PORT;
        let socket = UdpSocket::bind(SocketAddrV6::new(from, port, 0, index.number()))?;
        socket.set_nonblocking(true)?;
        Ok::<_, io::Error>(socket)
    };
    open().context(|| format!("open the port of DHCPv6 clients at {from}")).map_err(|error| {
        let is_used = |error: &Error| error.errno() == Some(libc::EADDRINUSE);
        error.details_if(is_used, "another DHCPv6 client runs in the container: stop it")
    })
}

/// Returns whether an error means that the namespace cannot be entered now, but may exist.
pub(super) fn is_transient(error: &Error) -> bool {
    let resources = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS, libc::EINTR];
    error.errno().is_some_and(|errno| resources.contains(&errno)) || error.as_ref().kind() == Kind::Transient
}
