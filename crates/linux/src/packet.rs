//! IPv4 packets on one link, without addresses of the kernel and past its packet filter.
//!
//! A socket stays in the namespace in which it was opened, and keeps that namespace alive. So a program that follows
//! many namespaces opens one only for an exchange.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, socket};

use crate::error::{Context, Result};
use crate::ip::MacAddr;
use crate::netlink::LinkIndex;
use crate::sys;

/// A socket for the UDP datagrams that arrive at one port of a link, with their IPv4 headers.
#[derive(Debug)]
pub struct UdpPackets {
    socket: OwnedFd,
    link: LinkIndex,
}

impl UdpPackets {
    /// Opens a socket in the namespace of the calling thread. It receives what arrives for `port`, whatever the
    /// address.
    pub fn open(link: LinkIndex, port: u16) -> Result<UdpPackets> {
        let what = || format!("open a packet socket on link {link}");
        // Without a protocol, the socket receives nothing before it has its filter.
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Packet, SockType::Datagram, flags, None).context(what)?;
        sys::packet_filter(socket.as_fd(), &filter(port)).context(what)?;
        sys::packet_bind(socket.as_fd(), link.number()).context(what)?;
        Ok(UdpPackets { socket, link })
    }

    /// Sends a packet to a MAC address.
    pub fn send(&self, packet: &[u8], to: MacAddr) -> io::Result<()> {
        sys::packet_send(self.socket.as_fd(), self.link.number(), to.0, packet)
    }

    /// Receives a packet without waiting. Returns its length, which is more than that of the buffer if the packet did
    /// not fit, and the MAC address that it comes from; `None` if there is none.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<(usize, MacAddr)>> {
        match sys::packet_receive(self.socket.as_fd(), buffer) {
            Ok((len, from)) => Ok(Some((len, MacAddr(from)))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Discards what has arrived, at most this number of packets.
    pub fn discard(&self, count: usize) {
        for _ in 0..count {
            if recv(self.socket.as_raw_fd(), &mut [0], MsgFlags::MSG_DONTWAIT).is_err() {
                return;
            }
        }
    }
}

impl AsFd for UdpPackets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns the program by which the kernel keeps only unfragmented UDP datagrams for `port`: pairs of an instruction
/// with its two jumps, and its operand (linux/filter.h).
fn filter(port: u16) -> [(u16, u8, u8, u32); 9] {
    const LOAD_BYTE: u16 = 0x30;
    const LOAD_HALF: u16 = 0x28;
    const LOAD_HALF_INDIRECT: u16 = 0x48;
    const LOAD_HEADER_LENGTH: u16 = 0xb1;
    const JUMP_EQUAL: u16 = 0x15;
    const JUMP_SET: u16 = 0x45;
    const RETURN: u16 = 0x06;
    let protocol = libc::IPPROTO_UDP.unsigned_abs();
    [
        (LOAD_BYTE, 0, 0, 9),
        (JUMP_EQUAL, 0, 6, protocol),
        (LOAD_HALF, 0, 0, 6),
        (JUMP_SET, 4, 0, 0x3fff), // more fragments, or an offset
        (LOAD_HEADER_LENGTH, 0, 0, 0),
        (LOAD_HALF_INDIRECT, 0, 0, 2),
        (JUMP_EQUAL, 0, 1, u32::from(port)),
        (RETURN, 0, 0, 0xffff),
        (RETURN, 0, 0, 0),
    ]
}
