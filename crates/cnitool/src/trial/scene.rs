//! The host and the containers between which packets travel.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use cni::inspect::Bridge;
use cni::{Context, Result};
use linux::Netns;
use linux::ip::Cidr;
use linux::netlink::{Link, Netlink};

use super::flow::{PORT, any};
use super::session::Member;

/// Where packets start, pass or end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spot {
    Host,
    /// A container, by its position.
    Member(usize),
    /// Another machine.
    Outside,
}

#[derive(Debug)]
pub(super) struct Scene {
    /// The namespace of the host.
    pub(super) home: Netns,
    pub(super) host: Netlink,
    pub(super) members: Vec<Member>,
    /// The bridge of the network, if it has one.
    pub(super) bridge: Option<Bridge>,
    /// The networks to which the network does not masquerade; `None` if it masquerades nothing.
    pub(super) excluded: Option<Vec<Cidr>>,
    /// The name of a table for trace events, which no other program uses.
    pub(super) table: String,
}

impl Scene {
    /// Returns whether the network masquerades packets to this address, according to its configuration.
    pub(super) fn masquerades(&self, to: IpAddr) -> bool {
        self.excluded.as_ref().is_some_and(|excluded| !excluded.iter().any(|network| network.contains(to)))
    }

    /// Returns the namespace of a spot; `None` for other machines.
    pub(super) fn netns(&self, spot: Spot) -> Option<&Netns> {
        match spot {
            Spot::Host => Some(&self.home),
            Spot::Member(number) => self.members.get(number).map(|member| &member.netns),
            Spot::Outside => None,
        }
    }

    /// Returns a socket in the namespace of a spot; `None` for other machines.
    pub(super) fn netlink(&mut self, spot: Spot) -> Option<&mut Netlink> {
        match spot {
            Spot::Host => Some(&mut self.host),
            Spot::Member(number) => self.members.get_mut(number).map(|member| &mut member.inside),
            Spot::Outside => None,
        }
    }

    /// Returns the name of a spot for a reader.
    pub(super) fn title(&self, spot: Spot) -> String {
        match spot {
            Spot::Host => "this host".to_owned(),
            Spot::Member(number) => self.members.get(number).map(|member| member.title.clone()).unwrap_or_default(),
            Spot::Outside => "another machine".to_owned(),
        }
    }

    /// Runs `work` with this thread in the namespace of a spot.
    pub(super) fn within<T>(&self, spot: Spot, work: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.netns(spot) {
            Some(netns) if spot != Spot::Host => netns.run(&self.home, work),
            _ => work(),
        }
    }

    /// Returns the end of the interface of a container on the host; `None` if it has none.
    pub(super) fn host_side(&mut self, number: usize) -> Result<Option<Link>> {
        let Some(member) = self.members.get_mut(number) else { return Ok(None) };
        member.host_side(&mut self.host)
    }

    /// Returns the link of the host by which its packets to a container leave: the bridge, or the end of the veth.
    pub(super) fn gateway_link(&mut self, number: usize) -> Result<Option<Link>> {
        let name = self.bridge.as_ref().map(|bridge| bridge.gateway.clone().unwrap_or_else(|| bridge.name.clone()));
        match name {
            Some(name) => Ok(self.host.link(name.as_str())?),
            None => self.host_side(number),
        }
    }

    /// Returns the address from which a spot sends to `target`; `None` if it has no route.
    pub(super) fn source(&self, spot: Spot, target: SocketAddr) -> Result<Option<IpAddr>> {
        self.within(spot, || {
            let socket = UdpSocket::bind((any(target.ip()), 0)).context(|| "open a socket of UDP")?;
            let port = if target.port() == 0 { PORT } else { target.port() };
            let found = socket.connect((target.ip(), port)).and_then(|()| socket.local_addr());
            Ok(found.ok().map(|address| address.ip()))
        })
    }
}
