//! A single ICMP echo, so that the demonstration does not need the host's `ping`.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use cni::{Code, Context, Error, Result};
use linux::Deadline;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, recv, sendto, socket};

const TIMEOUT: Duration = Duration::from_secs(2);
const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;
/// The identifier and sequence number by which the reply is recognised.
const MARK: [u8; 4] = *b"cni0";

/// Sends one echo request from this thread's namespace and waits for the reply. Returns the round-trip time.
pub(super) fn ping(to: Ipv4Addr) -> Result<Duration> {
    let what = || format!("ping {to}");
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Inet, SockType::Raw, flags, SockProtocol::Icmp).context(what)?;
    let began = Instant::now();
    let address = SockaddrIn::from(SocketAddrV4::new(to, 0));
    sendto(socket.as_raw_fd(), &request(), &address, MsgFlags::empty()).context(what)?;
    let deadline = Deadline::after(TIMEOUT);
    let mut packet = [0; 128];
    while deadline.readable(socket.as_fd()).context(what)? {
        match recv(socket.as_raw_fd(), &mut packet, MsgFlags::empty()) {
            Ok(length) if is_reply(packet.get(..length).unwrap_or_default(), to) => return Ok(began.elapsed()),
            // A raw socket also receives the packets of other programs.
            Ok(_) | Err(nix::Error::EAGAIN | nix::Error::EINTR) => {}
            Err(errno) => return Err(errno).context(what),
        }
    }
    Err(Error::new(Code::TRY_LATER, format!("no answer after {TIMEOUT:?}"))).context(what)
}

/// Returns an echo request: type, code, checksum, identifier and sequence number.
fn request() -> [u8; 8] {
    let [a, b, c, d] = MARK;
    let [high, low] = checksum(&[ECHO_REQUEST, 0, 0, 0, a, b, c, d]).to_be_bytes();
    [ECHO_REQUEST, 0, high, low, a, b, c, d]
}

/// Returns whether the packet, which includes the IP header, is the reply to [`request`].
fn is_reply(packet: &[u8], from: Ipv4Addr) -> bool {
    let header = usize::from(packet.first().copied().unwrap_or_default() & 0xf) * 4;
    let icmp = packet.get(header..).unwrap_or_default();
    packet.get(12..16) == Some(&from.octets()) && icmp.first() == Some(&ECHO_REPLY) && icmp.get(4..8) == Some(&MARK)
}

/// Returns the checksum of RFC 1071: the complement of the sum of all pairs of bytes, with the carries added.
fn checksum(bytes: &[u8; 8]) -> u16 {
    let sum = bytes.as_chunks::<2>().0.iter().map(|pair| u32::from(u16::from_be_bytes(*pair))).sum::<u32>();
    let [_, carry, high, low] = ((sum & 0xffff) + (sum >> 16)).to_be_bytes();
    !(u16::from_be_bytes([high, low]) + u16::from(carry))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_a_request_is_valid() {
        assert_eq!(checksum(&request()), 0, "the receiver computes the same");
    }

    #[test]
    fn only_the_reply_to_the_request_is_accepted() {
        let from = Ipv4Addr::new(10, 22, 0, 3);
        let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 1, 0, 0, 10, 22, 0, 3, 10, 22, 0, 2];
        packet.extend([ECHO_REPLY, 0, 0, 0]);
        packet.extend(MARK);
        assert!(is_reply(&packet, from));
        assert!(!is_reply(&packet, Ipv4Addr::new(10, 22, 0, 4)));
        assert!(!is_reply(&packet[..27], from) && !is_reply(&[], from));
        packet[20] = ECHO_REQUEST;
        assert!(!is_reply(&packet, from));
    }
}
