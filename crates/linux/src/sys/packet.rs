//! Packet sockets: packet(7), and filters of linux/filter.h.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// AF_PACKET, and ETH_P_IP of linux/if_ether.h: libc defines them with wider types.
const FAMILY: u16 = 17;
const IPV4: u16 = 0x0800;

/// Returns the size of a value that the kernel reads.
fn length<T>(value: &T) -> libc::socklen_t {
    libc::socklen_t::try_from(size_of_val(value)).unwrap_or_default()
}

/// Attaches a filter: instructions with their jumps and their operand.
pub(crate) fn packet_filter(socket: BorrowedFd<'_>, program: &[(u16, u8, u8, u32)]) -> io::Result<()> {
    let mut code: Vec<libc::sock_filter> =
        program.iter().map(|&(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k }).collect();
    let count = u16::try_from(code.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let filter = libc::sock_fprog { len: count, filter: code.as_mut_ptr() };
    let size = length(&filter);
    let option = libc::SO_ATTACH_FILTER;
    // SAFETY: the kernel reads a `sock_fprog`, and as many instructions as it says. Both outlive the call.
    let status = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, std::ptr::from_ref(&filter).cast(), size)
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Receives the IPv4 packets of a link from now on.
pub(crate) fn packet_bind(socket: BorrowedFd<'_>, link: u32) -> io::Result<()> {
    let address = address(link, None);
    let size = length(&address);
    // SAFETY: the kernel reads an address of the given size, which outlives the call.
    let status = unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&address).cast(), size) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends a packet by a link to a MAC address.
pub(crate) fn packet_send(socket: BorrowedFd<'_>, link: u32, to: [u8; 6], packet: &[u8]) -> io::Result<()> {
    let address = address(link, Some(to));
    let size = length(&address);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the kernel reads the packet and an address, both of the given size, which outlive the call.
    let sent = unsafe {
        let address = std::ptr::from_ref(&address).cast();
        libc::sendto(socket.as_raw_fd(), packet.as_ptr().cast(), packet.len(), flags, address, size)
    };
    if sent >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Receives a packet without waiting. Returns its real length, and the MAC address that it comes from.
pub(crate) fn packet_receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, [u8; 6])> {
    let mut sender = address(0, None);
    let mut size = length(&sender);
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    // SAFETY: the kernel writes at most as many bytes as the buffer has, and an address of at most `size` bytes.
    let len = unsafe {
        let sender = (&raw mut sender).cast();
        libc::recvfrom(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), flags, sender, &raw mut size)
    };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    let [a, b, c, d, e, f, ..] = sender.sll_addr;
    Ok((len, [a, b, c, d, e, f]))
}

fn address(link: u32, mac: Option<[u8; 6]>) -> libc::sockaddr_ll {
    let [a, b, c, d, e, f] = mac.unwrap_or_default();
    libc::sockaddr_ll {
        sll_family: FAMILY,
        sll_protocol: IPV4.to_be(),
        sll_ifindex: link.cast_signed(),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: if mac.is_some() { 6 } else { 0 },
        sll_addr: [a, b, c, d, e, f, 0, 0],
    }
}
