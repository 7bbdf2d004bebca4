//! SCTP packets.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, recvfrom, sendto, setsockopt, socket,
    sockopt,
};
use testing::packets::{time, within};
use testing::timeout;

/// A raw socket for SCTP packets, which needs no SCTP in the kernel.
pub(crate) struct Sctp {
    socket: OwnedFd,
    is_ipv4: bool,
}

impl Sctp {
    /// Opens a socket in a namespace, or on the host, that gets all SCTP packets of the family of `ip`.
    pub(crate) fn open(netns: Option<&Path>, ip: IpAddr) -> Sctp {
        let family = if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let opened = within(netns, || {
            let opened = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Sctp)?;
            setsockopt(&opened, sockopt::ReceiveTimeout, &time(timeout()))?;
            Ok(opened)
        });
        Sctp { socket: opened.unwrap(), is_ipv4: ip.is_ipv4() }
    }

    /// Sends the first packet of an association: a common header and a chunk INIT.
    pub(crate) fn send(&self, ip: IpAddr, port: u16) {
        let mut packet = Vec::new();
        packet.extend(4000_u16.to_be_bytes());
        packet.extend(port.to_be_bytes());
        packet.extend([0; 8]); // verification tag, checksum
        packet.extend([1, 0, 0, 20]); // chunk type, flags, length
        packet.extend([0, 0, 0, 1]); // initiate tag
        packet.extend([0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1]); // window, streams, first number
        let checksum = crc32c(&packet).to_le_bytes();
        packet[8..12].copy_from_slice(&checksum);
        let to = SockaddrStorage::from(SocketAddr::new(ip, 0));
        sendto(self.socket.as_raw_fd(), &packet, &to, MsgFlags::empty()).unwrap();
    }

    /// Returns the source address and the destination port of the next packet.
    pub(crate) fn receive(&self) -> (IpAddr, u16) {
        let mut buffer = [0; 256];
        let (len, sender) = recvfrom::<SockaddrStorage>(self.socket.as_raw_fd(), &mut buffer).unwrap();
        // Only packets of IPv4 come with their IP header.
        let packet = &buffer[if self.is_ipv4 { 20 } else { 0 }..len];
        let sender = sender.unwrap();
        let source = match (sender.as_sockaddr_in(), sender.as_sockaddr_in6()) {
            (Some(ipv4), _) => IpAddr::from(ipv4.ip()),
            (_, Some(ipv6)) => IpAddr::from(ipv6.ip()),
            _ => panic!("no address"),
        };
        (source, u16::from_be_bytes([packet[2], packet[3]]))
    }
}

/// The checksum of SCTP packets, which connection tracking verifies.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    !crc
}
