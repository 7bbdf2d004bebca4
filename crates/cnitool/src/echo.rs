//! ICMP echoes, so that no command needs the host's `ping`.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use cni::{Context, Result};
use linux::{Deadline, random};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, recvfrom, sendto, socket,
};

/// The header of an echo: type, code, checksum, identifier and sequence number.
pub(crate) const HEADER: usize = 8;
const REQUEST_V4: u8 = 8;
const REPLY_V4: u8 = 0;
const REQUEST_V6: u8 = 128;
const REPLY_V6: u8 = 129;

/// What is sent, and how long an answer may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ping {
    pub(crate) to: IpAddr,
    /// The link of a link-local address, or 0.
    pub(crate) scope: u32,
    /// The number of bytes after the header of the echo.
    pub(crate) payload: usize,
    pub(crate) timeout: Duration,
}

impl Ping {
    /// Returns an empty echo with the usual timeout.
    pub(crate) fn to(ip: IpAddr) -> Ping {
        Ping { to: ip, scope: 0, payload: 0, timeout: Duration::from_secs(2) }
    }
}

/// A socket for echoes in one network namespace.
#[derive(Debug)]
pub(crate) struct Echo {
    socket: OwnedFd,
    /// The identifier and the sequence number by which a reply is recognised.
    mark: [u8; 4],
}

impl Echo {
    /// Opens a socket in the namespace of the calling thread, for addresses of the family of `like`.
    pub(crate) fn open(like: IpAddr) -> Result<Echo> {
        let (family, protocol) = match like {
            IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp),
            IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6),
        };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(family, SockType::Raw, flags, protocol).context(|| "open a socket for ICMP")?;
        Ok(Echo { socket, mark: random().context(|| "choose the identifier of an echo")? })
    }

    /// Sends one request and waits for the reply. Returns the round-trip time; `None` if there is no reply, or the
    /// kernel refuses to send.
    ///
    /// The kernel does not let routers fragment a request that fits into the MTU of the first link.
    pub(crate) fn ping(&self, ping: &Ping) -> Result<Option<Duration>> {
        let what = || format!("ping {}", ping.to);
        let to: SockaddrStorage = match ping.to {
            IpAddr::V4(_) => SocketAddr::new(ping.to, 0).into(),
            IpAddr::V6(ip) => SocketAddr::from(SocketAddrV6::new(ip, 0, 0, ping.scope)).into(),
        };
        let began = Instant::now();
        match sendto(self.socket.as_raw_fd(), &self.request(ping), &to, MsgFlags::empty()) {
            Ok(_) => {}
            // No route, one that prohibits, a firewall of the sender, no neighbour, or a small MTU.
            Err(
                nix::Error::ENETUNREACH
                | nix::Error::EHOSTUNREACH
                | nix::Error::EACCES
                | nix::Error::EINVAL
                | nix::Error::EPERM
                | nix::Error::EADDRNOTAVAIL
                | nix::Error::ENETDOWN
                | nix::Error::ENODEV
                | nix::Error::EMSGSIZE
                | nix::Error::ENOBUFS,
            ) => return Ok(None),
            Err(errno) => return Err(errno).context(what),
        }
        let deadline = Deadline::after(ping.timeout);
        let mut packet = [0; 128];
        while deadline.readable(self.socket.as_fd()).context(what)? {
            match recvfrom::<SockaddrStorage>(self.socket.as_raw_fd(), &mut packet) {
                Ok((length, from)) => {
                    let packet = packet.get(..length).unwrap_or_default();
                    if from.and_then(source) == Some(ping.to) && self.is_reply(packet, ping.to) {
                        return Ok(Some(began.elapsed()));
                    }
                }
                // A raw socket also receives the packets of other programs.
                Err(nix::Error::EAGAIN | nix::Error::EINTR) => {}
                Err(errno) => return Err(errno).context(what),
            }
        }
        Ok(None)
    }

    fn request(&self, ping: &Ping) -> Vec<u8> {
        let kind = if ping.to.is_ipv4() { REQUEST_V4 } else { REQUEST_V6 };
        let mut request = vec![0; HEADER + ping.payload];
        request.splice(..HEADER, [&[kind, 0, 0, 0][..], &self.mark].concat());
        // The kernel computes the checksum of ICMPv6.
        let sum = checksum(&request).to_be_bytes();
        request.splice(2..4, sum);
        request
    }

    /// Returns whether a packet is the reply to a request of this socket. A packet of IPv4 includes its header.
    fn is_reply(&self, packet: &[u8], from: IpAddr) -> bool {
        let (header, kind) = match from {
            IpAddr::V4(_) => (usize::from(packet.first().copied().unwrap_or_default() & 0xf) * 4, REPLY_V4),
            IpAddr::V6(_) => (0, REPLY_V6),
        };
        let icmp = packet.get(header..).unwrap_or_default();
        icmp.first() == Some(&kind) && icmp.get(4..HEADER) == Some(&self.mark)
    }
}

fn source(address: SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::from(address.ip())))
}

/// Returns the checksum of RFC 1071: the complement of the sum of all pairs of bytes, with the carries added.
fn checksum(bytes: &[u8]) -> u16 {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let last = rest.first().map_or(0, |byte| u32::from(*byte) << 8);
    let mut sum = pairs.iter().fold(last, |sum, pair| sum + u32::from(u16::from_be_bytes(*pair)));
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let [_, _, high, low] = (!sum).to_be_bytes();
    u16::from_be_bytes([high, low])
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn echo() -> Echo {
        // Any descriptor will do: nothing is sent.
        Echo { socket: std::fs::File::open("/dev/null").unwrap().into(), mark: *b"cni0" }
    }

    #[test]
    fn the_checksum_of_a_request_is_valid() {
        for payload in [0, 1, 56, 1472] {
            let request = echo().request(&Ping { payload, ..Ping::to(Ipv4Addr::LOCALHOST.into()) });
            assert_eq!(checksum(&request), 0, "the receiver computes the same");
            assert_eq!(request.len(), HEADER + payload);
        }
    }

    #[test]
    fn only_the_reply_to_the_request_is_accepted() {
        let from = Ipv4Addr::new(10, 22, 0, 3).into();
        let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 1, 0, 0, 10, 22, 0, 3, 10, 22, 0, 2];
        packet.extend([REPLY_V4, 0, 0, 0]);
        packet.extend(b"cni0");
        assert!(echo().is_reply(&packet, from));
        assert!(!echo().is_reply(&packet[..27], from) && !echo().is_reply(&[], from));
        packet[20] = REQUEST_V4;
        assert!(!echo().is_reply(&packet, from));
        let from = Ipv6Addr::LOCALHOST.into();
        assert!(echo().is_reply(&[&[REPLY_V6, 0, 0, 0][..], b"cni0"].concat(), from));
        assert!(!echo().is_reply(&[&[REQUEST_V6, 0, 0, 0][..], b"cni0"].concat(), from));
    }
}
