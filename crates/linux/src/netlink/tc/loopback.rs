//! Filters that drop what a link receives to or from loopback addresses.
//!
//! With `bridge-nf-call-iptables`, netfilter sees what a bridge receives before the filters of the bridge do, and has
//! translated the replies to connections from loopback addresses by then. So the filters let packets to loopback
//! addresses pass that have a packet mark: rules of nf_tables must set it for such replies.

use neli::consts::rtnl::Rtm;

use super::redirect::{EVERY_PROTOCOL, INGRESS_FILTERS, list_filters};
use super::{HANDLE, about, kind_and_options};
use crate::error::{Context, Result};
use crate::netlink::link::LinkIndex;
use crate::netlink::wire::{self, CREATE};
use crate::netlink::{Change, Netlink};

// linux/pkt_cls.h
const BPF_LENGTH: u16 = 4;
const BPF_PROGRAM: u16 = 5;
const BPF_FLAGS: u16 = 8;
/// What the program returns decides about the packet, without an action.
const DIRECT_ACTION: u32 = 1;
const DROP: u32 = 2;
const CONTINUE: u32 = u32::MAX;

// linux/filter.h
const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF: u16 = 0x28;
const LOAD_WORD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
/// The place of the protocol, such as IPv4, that the kernel has found.
const PROTOCOL: u32 = 0xffff_f000;
/// The place of the network header.
const NETWORK_HEADER: u32 = 0xfff0_0000;
/// The place of the packet mark.
const PACKET_MARK: u32 = PROTOCOL + 20;
const IPV4: u32 = 0x0800;
const LOOPBACK: u32 = 127;

/// The packet mark with which a packet to a loopback address passes. No other program sets exactly these bits.
pub const LOOPBACK_REPLY: u32 = 0x636e_6930;

/// The program: operation, instructions to skip if a comparison is true and if it is false, operand.
const PROGRAM: [(u16, u8, u8, u32); 10] = [
    (LOAD_HALF, 0, 0, PROTOCOL),
    (JUMP_IF_EQUAL, 0, 7, IPV4),
    (LOAD_BYTE, 0, 0, NETWORK_HEADER + 12),
    (JUMP_IF_EQUAL, 4, 0, LOOPBACK),
    (LOAD_BYTE, 0, 0, NETWORK_HEADER + 16),
    (JUMP_IF_EQUAL, 0, 3, LOOPBACK),
    (LOAD_WORD, 0, 0, PACKET_MARK),
    (JUMP_IF_EQUAL, 1, 0, LOOPBACK_REPLY),
    (RETURN, 0, 0, DROP),
    (RETURN, 0, 0, CONTINUE),
];

/// The priority of these filters: the first one, because a filter of another program may end the search.
const PRIORITY: u32 = 1 << 16;

/// Returns the program as struct sock_filter.
fn program() -> Vec<u8> {
    let bytes = |(operation, jump_true, jump_false, operand): &(u16, u8, u8, u32)| {
        [&operation.to_ne_bytes()[..], &[*jump_true, *jump_false], &operand.to_ne_bytes()].concat()
    };
    PROGRAM.iter().flat_map(bytes).collect()
}

impl Change<'_> {
    /// Drops IPv4 packets to and from loopback addresses that a link receives, by a filter with this handle. Packets to
    /// loopback addresses pass with the packet mark [`LOOPBACK_REPLY`]. Needs `ingress` or `clsact`. A kernel without
    /// the classifier `bpf` returns ENOENT.
    pub fn drop_loopback(link: LinkIndex, handle: u32) -> Self {
        let mut request = about(Rtm::Newtfilter, CREATE, link, handle, INGRESS_FILTERS, PRIORITY | EVERY_PROTOCOL);
        request.text(libc::TCA_KIND, "bpf");
        request.nest(libc::TCA_OPTIONS, |options| {
            options.attr(BPF_LENGTH, &u16::try_from(PROGRAM.len()).unwrap_or_default().to_ne_bytes());
            options.attr(BPF_PROGRAM, &program());
            options.number(BPF_FLAGS, DIRECT_ACTION);
        });
        Change::new(request, move || format!("drop what link {link} receives to and from loopback addresses"))
    }
}

impl Netlink {
    /// Returns the handles of the filters of a link that [`Change::drop_loopback`] adds.
    pub fn loopback_filters(&mut self, link: LinkIndex) -> Result<Vec<u32>> {
        self.socket
            .list(&list_filters(link), libc::RTM_NEWTFILTER, read_loopback_filter)
            .context(|| format!("list the filters of link {link}"))
    }
}

/// Returns the handle of a filter with the program; `None` if it is another one.
pub(in crate::netlink) fn read_loopback_filter(payload: &[u8]) -> Result<Option<u32>> {
    let (kind, options) = kind_and_options(payload)?;
    let (mut is_same, mut flags) = (false, 0);
    for attribute in wire::attributes(options, 0) {
        match attribute? {
            (BPF_PROGRAM, found) => is_same = found == program(),
            (BPF_FLAGS, value) => flags = wire::number(value, 0)?,
            _ => {}
        }
    }
    let is_drop = kind == "bpf" && is_same && flags & DIRECT_ACTION != 0;
    Ok(if is_drop { Some(wire::number(payload, HANDLE)?) } else { None })
}
