//! DHCP for IPv6 (RFC 8415): what a client says and hears. It asks for one address of one interface.

pub(crate) mod message;
mod terms;

use std::net::{IpAddr, Ipv6Addr};

use linux::sha2::sha512_of_bytes;

use crate::exchange::{Ask, Content, Exchange, Received};
use crate::terms::{Server, Terms};
use message::{Association, Kind, Message, Options, option};
use terms::Refusal;

/// The options that a client requests.
const REQUESTS: [u16; 3] = [option::NAME_SERVERS, option::SEARCH, option::MAX_SOLICIT_PAUSE];

/// Returns by what a server recognises the client: the MAC address (DUID-LL), of Ethernet.
fn client(exchange: &Exchange<'_>) -> Vec<u8> {
    [&[0, 3, 0, 1][..], &exchange.mac.0].concat()
}

/// Returns the number of the interface (IAID). Interfaces that share a MAC address differ in it, and one that is
/// created again with the same client identifier has the same.
fn number(exchange: &Exchange<'_>) -> u32 {
    let digits = sha512_of_bytes(8, &exchange.settings.identifier(exchange.mac));
    u32::from_str_radix(&digits, 16).unwrap_or_default()
}

/// Returns the number of an exchange, which has 24 bits.
fn xid(exchange: &Exchange<'_>) -> u32 {
    exchange.xid & 0xff_ffff
}

/// Returns the message that asks for something.
pub(crate) fn message(ask: Ask<'_>, exchange: &Exchange<'_>) -> Message {
    let (kind, address, server) = match ask {
        Ask::Search(former) => (Kind::Solicit, former, None),
        Ask::Request(terms) => (Kind::Request, Some(terms.address), Some(&terms.server)),
        Ask::Confirm(address) => (Kind::Confirm, Some(address), None),
        Ask::Renew(terms) => (Kind::Renew, Some(terms.address), Some(&terms.server)),
        Ask::Rebind(terms) => (Kind::Rebind, Some(terms.address), None),
        Ask::Release(terms) => (Kind::Release, Some(terms.address), Some(&terms.server)),
    };
    let address = address.and_then(|address| match address {
        IpAddr::V6(address) => Some(address),
        IpAddr::V4(_) => None,
    });
    let hundredths = u16::try_from(exchange.elapsed.as_millis() / 10).unwrap_or(u16::MAX);
    let mut options = vec![(option::CLIENT, client(exchange)), (option::ELAPSED, hundredths.to_be_bytes().to_vec())];
    if let Some(Server { id, .. }) = server {
        options.push((option::SERVER, id.clone()));
    }
    options.push((option::ASSOCIATION, Association::of(number(exchange), address).write()));
    if !matches!(kind, Kind::Confirm | Kind::Release) {
        options.push((option::REQUESTS, REQUESTS.map(u16::to_be_bytes).as_flattened().to_vec()));
    }
    Message { kind, xid: xid(exchange), options: Options(options) }
}

/// Reads the answer of a server, which came from this address; `None` if it is not for the client. `former` is the
/// lease that the client has.
pub(crate) fn read(
    message: &Message,
    from: Ipv6Addr,
    former: Option<&Terms>,
    exchange: &Exchange<'_>,
) -> Option<Received> {
    let options = &message.options;
    if message.xid != xid(exchange) || options.get(option::CLIENT) != Some(&client(exchange)) {
        return None;
    }
    let server = Server { address: from.into(), id: options.get(option::SERVER)?.to_vec() };
    let former = former.and_then(|terms| match terms.address {
        IpAddr::V6(address) => Some(address),
        IpAddr::V4(_) => None,
    });
    let is_about_address = options.get(option::ASSOCIATION).is_some();
    let found = terms::read(options, number(exchange), server.clone(), former, exchange.settings);
    let content = match (message.kind, found) {
        (Kind::Advertise, Ok(terms)) => Content::Offer(Ok(terms)),
        (Kind::Advertise, Err(Refusal::Nothing(why) | Refusal::Withdrawn(why))) => Content::Offer(Err(why)),
        (Kind::Reply, Err(Refusal::Withdrawn(why))) => Content::Refusal(why),
        (Kind::Reply, Err(_)) if !is_about_address && options.status().0 == message::status::SUCCESS => {
            Content::Confirmation
        }
        (Kind::Reply, Err(Refusal::Nothing(why))) => Content::Grant(Err(why)),
        (Kind::Reply, Ok(terms)) => Content::Grant(Ok(terms)),
        _ => return None,
    };
    Some(Received { server: Some(server), content })
}

#[cfg(test)]
mod tests;
