//! DHCP for IPv4 (RFC 2131): what a client says and hears.

pub(crate) mod message;
pub(crate) mod terms;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use linux::ip::MacAddr;

use crate::exchange::{Ask, Content, Exchange, Received};
use crate::terms::Server;
use message::{Kind, Message, option};
use terms::is_host;

/// The largest message that the client accepts.
const MAX_SIZE: u16 = 1500;

/// A message to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outgoing {
    pub(crate) message: Message,
    pub(crate) from: Ipv4Addr,
    pub(crate) to: Ipv4Addr,
    pub(crate) mac: MacAddr,
}

/// Returns the message that asks for something; `None` if that is not about IPv4. With `broadcast`, the client can
/// receive only broadcasts before it has an address.
pub(crate) fn outgoing(ask: Ask<'_>, exchange: &Exchange<'_>, broadcast: bool) -> Option<Outgoing> {
    let asking = |address: Ipv4Addr| (option::REQUESTED_ADDRESS, address.octets().to_vec());
    let message = |kind, own: Option<Ipv4Addr>| Message {
        client: own.unwrap_or(Ipv4Addr::UNSPECIFIED),
        broadcast: broadcast && own.is_none(),
        ..message(kind, exchange)
    };
    let everybody =
        |message: Message| Outgoing { from: message.client, message, to: Ipv4Addr::BROADCAST, mac: MacAddr([255; 6]) };
    let lease = match ask {
        Ask::Search(_) | Ask::Confirm(_) => None,
        Ask::Request(terms) | Ask::Renew(terms) | Ask::Rebind(terms) | Ask::Release(terms) => {
            let mac = MacAddr(*terms.server.id.first_chunk()?);
            Some((v4(terms.address)?, v4(terms.server.address)?, mac))
        }
    };
    Some(match (ask, lease) {
        (Ask::Search(former), _) => {
            let mut message = message(Kind::Discover, None);
            message.options.extend(former.and_then(v4).map(asking));
            everybody(message)
        }
        (Ask::Confirm(address), _) => {
            let mut message = message(Kind::Request, None);
            message.options.extend([asking(v4(address)?)]);
            everybody(message)
        }
        (Ask::Request(_), Some((address, server, _))) => {
            let mut message = message(Kind::Request, None);
            message.options.extend([asking(address), (option::SERVER, server.octets().to_vec())]);
            everybody(message)
        }
        (Ask::Renew(_), Some((address, to, mac))) => {
            Outgoing { message: message(Kind::Request, Some(address)), from: address, to, mac }
        }
        (Ask::Rebind(_), Some((address, ..))) => everybody(message(Kind::Request, Some(address))),
        (_, Some((address, to, mac))) => {
            let mut message = message(Kind::Release, Some(address));
            message.options = BTreeMap::from([
                (option::SERVER, to.octets().to_vec()),
                (option::CLIENT, exchange.settings.identifier(exchange.mac)),
            ]);
            Outgoing { message, from: address, to, mac }
        }
        (_, None) => return None,
    })
}

/// Returns a message with the options that the configuration requests and provides.
fn message(kind: Kind, exchange: &Exchange<'_>) -> Message {
    let Exchange { xid, elapsed, mac, settings } = *exchange;
    let mut options = BTreeMap::from([
        (option::CLIENT, settings.identifier(mac)),
        (option::MAX_SIZE, MAX_SIZE.to_be_bytes().to_vec()),
    ]);
    if !settings.requests.is_empty() {
        options.insert(option::REQUESTS, settings.requests.clone());
    }
    options.extend(settings.options.iter().cloned());
    Message {
        is_reply: false,
        kind,
        xid,
        seconds: u16::try_from(elapsed.as_secs()).unwrap_or(u16::MAX),
        broadcast: false,
        client: Ipv4Addr::UNSPECIFIED,
        yours: Ipv4Addr::UNSPECIFIED,
        mac,
        options,
    }
}

/// Reads the answer of a server, which came from this MAC address; `None` if it is not for the client. A server that
/// the client has asked alone, `known`, may leave out what the client knows.
pub(crate) fn read(
    message: &Message,
    from: MacAddr,
    known: Option<&Server>,
    exchange: &Exchange<'_>,
) -> Option<Received> {
    if !message.is_reply || message.xid != exchange.xid || message.mac != exchange.mac {
        return None;
    }
    let named = message.address(option::SERVER).filter(|server| is_host(*server));
    let server = |address| Server { address, id: from.0.to_vec() };
    let again = known.map(|known| server(known.address));
    let server = named.map(|address| server(address.into()));
    let terms = || terms::read(message, server.clone().or(again), exchange.settings);
    let content = match message.kind {
        Kind::Offer => Content::Offer(terms()),
        Kind::Ack => Content::Grant(terms()),
        Kind::Nak => Content::Refusal(message.text(option::TEXT)),
        _ => return None,
    };
    Some(Received { server, content })
}

fn v4(ip: IpAddr) -> Option<Ipv4Addr> {
    match ip {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    }
}
