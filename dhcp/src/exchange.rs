//! What a client and a server say to each other, whatever the family.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use linux::ip::MacAddr;

use crate::settings::Settings;
use crate::terms::{Server, Terms};
use crate::{v4, v6};

/// A message to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outgoing {
    V4(v4::Outgoing),
    V6(v6::message::Message),
}

/// A message that has arrived, and where it came from.
#[derive(Clone, Debug)]
pub(crate) enum Incoming {
    V4(v4::message::Message, MacAddr),
    V6(v6::message::Message, Ipv6Addr),
}

/// What a client asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ask<'a> {
    /// An address of any server, if possible the one that the client had.
    Search(Option<IpAddr>),
    /// The address that a server has offered.
    Request(&'a Terms),
    /// Whether the client may keep an address.
    Confirm(IpAddr),
    /// More time, of its server.
    Renew(&'a Terms),
    /// More time, of any server.
    Rebind(&'a Terms),
    /// Nothing: it gives the address back.
    Release(&'a Terms),
}

/// What the messages of an exchange have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchange<'a> {
    pub(crate) xid: u32,
    /// How long the client has been trying.
    pub(crate) elapsed: Duration,
    pub(crate) mac: MacAddr,
    pub(crate) settings: &'a Settings,
}

/// What a server says.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    /// The server, if it names itself.
    pub(crate) server: Option<Server>,
    pub(crate) content: Content,
}

#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// It offers an address, or one that cannot be used.
    Offer(Result<Terms, String>),
    /// It grants one.
    Grant(Result<Terms, String>),
    /// The client may keep its address for the time that it was granted.
    Confirmation,
    /// It refuses the address, with a text that may be empty.
    Refusal(String),
}
