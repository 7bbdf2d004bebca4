//! Servers of DHCPv6 that a test controls, on a [`Wire`](crate::dhcp::Wire).

use std::io;
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};

use nix::net::if_::if_nametoindex;

use crate::dhcp::Question;

/// Kinds of messages.
pub const SOLICIT: u8 = 1;
/// A server offers an address.
pub const ADVERTISE: u8 = 2;
/// A client asks for it.
pub const REQUEST: u8 = 3;
/// A client asks whether it may keep its address.
pub const CONFIRM: u8 = 4;
/// A client asks its server for more time.
pub const RENEW: u8 = 5;
/// A client asks any server for more time.
pub const REBIND: u8 = 6;
/// A server answers.
pub const REPLY: u8 = 7;
/// A client gives its address back.
pub const RELEASE: u8 = 8;

/// A message of a client.
#[derive(Clone, Debug)]
pub struct Request {
    /// What it is.
    pub kind: u8,
    /// The number of the exchange.
    pub xid: [u8; 3],
    /// The options.
    pub options: Vec<(u16, Vec<u8>)>,
    /// Where the datagram came from.
    pub from: SocketAddr,
}

impl Request {
    /// Returns the value of an option.
    pub fn option(&self, number: u16) -> Option<&[u8]> {
        self.options.iter().find(|(other, _)| *other == number).map(|(_, value)| value.as_slice())
    }

    /// Returns the address that the client asks for.
    pub fn address(&self) -> Option<Ipv6Addr> {
        let octets = self.option(3)?.get(16..32)?;
        Some(Ipv6Addr::from(<[u8; 16]>::try_from(octets).unwrap()))
    }
}

/// A message of a server.
#[derive(Clone, Debug)]
pub struct Reply {
    /// What it is.
    pub kind: u8,
    /// The options, without the identifiers of client and server.
    pub options: Vec<(u16, Vec<u8>)>,
}

impl Reply {
    /// Returns what a server with one address answers, with these times of T1, T2 and the end in seconds. It confirms
    /// any address.
    pub fn grant(request: &Request, address: &str, times: [u32; 3]) -> Vec<Reply> {
        let kind = match request.kind {
            SOLICIT => ADVERTISE,
            REQUEST | RENEW | REBIND => REPLY,
            CONFIRM => return Reply::status(0),
            _ => return Vec::new(),
        };
        let [renew, rebind, end] = times.map(u32::to_be_bytes);
        let number = &request.option(3).unwrap()[..4];
        let address = address.parse::<Ipv6Addr>().unwrap().octets();
        let given = [number, &renew, &rebind, &[0, 5, 0, 24], &address, &end, &end].concat();
        vec![Reply { kind, options: vec![(3, given)] }]
    }

    /// Returns an answer with a state, such as 3: the lease is unknown, or 4: the address is not of this network.
    pub fn status(code: u8) -> Vec<Reply> {
        vec![Reply { kind: REPLY, options: vec![(13, vec![0, code])] }]
    }
}

impl Question for Request {
    type Reply = Reply;
    const HERE: &'static str = "[::1]:547";

    fn open() -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind("[::]:547")?;
        socket.join_multicast_v6(&"ff02::1:2".parse().unwrap(), if_nametoindex("w0")?)?;
        Ok(socket)
    }

    fn parse(bytes: &[u8], from: SocketAddr) -> Request {
        let mut options = Vec::new();
        let mut rest = &bytes[4..];
        while let [a, b, c, d, more @ ..] = rest {
            let (value, more) = more.split_at(usize::from(u16::from_be_bytes([*c, *d])));
            options.push((u16::from_be_bytes([*a, *b]), value.to_vec()));
            rest = more;
        }
        Request { kind: bytes[0], xid: bytes[1..4].try_into().unwrap(), options, from }
    }

    fn answer(&self, reply: &Reply) -> (Vec<u8>, SocketAddr) {
        let mut bytes = vec![reply.kind];
        bytes.extend(self.xid);
        let client = (1, self.option(1).unwrap().to_vec());
        let server = (2, vec![0, 3, 0, 1, 2, 0, 0, 0, 0, 1]);
        for (number, value) in [client, server].iter().chain(&reply.options) {
            bytes.extend(number.to_be_bytes());
            bytes.extend(u16::try_from(value.len()).unwrap().to_be_bytes());
            bytes.extend(value);
        }
        (bytes, self.from)
    }
}
