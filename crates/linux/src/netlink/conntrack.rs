//! Connection tracking over netlink: deletes the entries of flows, so that their next packet is a new one for NAT.
//!
//! Linux 6.10 and later delete by a filter, in one message. On older kernels, for filters that the kernel gets wrong,
//! and for many filters, the entries are listed and deleted one by one.

use std::collections::BinaryHeap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use neli::consts::nl::NlmF;

use super::nft::Nftables;
use super::socket::Socket;
use super::wire::{self, NESTED, Request};
use crate::error::{Context, Result};
use crate::log::debug;

// linux/netfilter/nfnetlink.h, linux/netfilter/nfnetlink_conntrack.h
const SUBSYSTEM: u16 = 1 << 8;
pub(super) const NEW: u16 = SUBSYSTEM;
const GET: u16 = SUBSYSTEM | 1;
const DELETE: u16 = SUBSYSTEM | 2;
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const IPV4_SOURCE: u16 = 1;
const IPV4_DESTINATION: u16 = 2;
const IPV6_SOURCE: u16 = 3;
const IPV6_DESTINATION: u16 = 4;
const PROTOCOL_NUMBER: u16 = 1;
const DESTINATION_PORT: u16 = 3;
const ORIGINAL_FLAGS: u16 = 1;
const REPLY_FLAGS: u16 = 2;
const BY_SOURCE: u32 = 1;
const BY_DESTINATION: u32 = 1 << 1;
const BY_PROTOCOL: u32 = 1 << 3;
const BY_DESTINATION_PORT: u32 = 1 << 5;

/// struct nfgenmsg
const HEADER: usize = 4;

/// The largest number of filters for the kernel. It walks its whole table for each of them, and for a listing once.
const KERNEL_FILTERS: usize = 4;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Selects flows of one protocol and address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowFilter {
    /// The number of the protocol (`IPPROTO_*`).
    pub protocol: u8,
    /// Where the first packet was sent, before NAT changed it. The unspecified address stands for every address of its
    /// family, and port 0 for every port.
    pub destination: SocketAddr,
    /// Where replies come from, `None` for every address: the container's address if NAT redirects the flow to it.
    pub reply_source: Option<IpAddr>,
}

impl FlowFilter {
    /// Returns the destination address, `None` if every address matches.
    fn address(&self) -> Option<IpAddr> {
        Some(self.destination.ip()).filter(|ip| !ip.is_unspecified())
    }

    /// Returns the destination port, `None` if every port matches.
    fn port(&self) -> Option<u16> {
        Some(self.destination.port()).filter(|port| *port != 0)
    }

    fn matches(&self, flow: &Flow<'_>) -> bool {
        let (first, reply) = (&flow.original, &flow.reply);
        flow.family == wire::family(self.destination.ip())
            && first.protocol == self.protocol
            && self.address().is_none_or(|address| first.destination == Some(address))
            && self.port().is_none_or(|port| first.port == port)
            && self.reply_source.is_none_or(|source| reply.source == Some(source))
    }

    /// Returns whether a kernel that deletes by a filter gets this one right. It compares the ports of TCP and UDP
    /// only, and takes an IPv6 address for every address except that one.
    fn suits_kernel(&self) -> bool {
        let ports = self.port().is_none() || matches!(self.protocol, TCP | UDP);
        ports && self.address().into_iter().chain(self.reply_source).all(|ip| ip.is_ipv4())
    }
}

impl fmt::Display for FlowFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "flows of protocol {} to {}", self.protocol, self.destination)?;
        match self.reply_source {
            Some(source) => write!(f, " with replies from {source}"),
            None => Ok(()),
        }
    }
}

/// One direction of a flow.
#[derive(Debug, Default)]
struct Tuple {
    protocol: u8,
    source: Option<IpAddr>,
    destination: Option<IpAddr>,
    /// The destination port; 0 for protocols without ports.
    port: u16,
}

impl Tuple {
    fn read(tuple: &[u8]) -> Result<Tuple> {
        let mut read = Tuple::default();
        for part in wire::attributes(tuple, 0) {
            let (part, value) = part?;
            for attribute in wire::attributes(value, 0) {
                match (part, attribute?) {
                    (TUPLE_IP, (IPV4_SOURCE | IPV6_SOURCE, value)) => read.source = Some(wire::ip(value)?),
                    (TUPLE_IP, (IPV4_DESTINATION | IPV6_DESTINATION, value)) => {
                        read.destination = Some(wire::ip(value)?);
                    }
                    (TUPLE_PROTOCOL, (PROTOCOL_NUMBER, value)) => read.protocol = wire::byte(value, 0)?,
                    (TUPLE_PROTOCOL, (DESTINATION_PORT, value)) => read.port = u16::from_be(wire::number16(value, 0)?),
                    _ => {}
                }
            }
        }
        Ok(read)
    }
}

/// An entry of the connection tracking table.
#[derive(Debug)]
pub(super) struct Flow<'a> {
    family: u8,
    original: Tuple,
    reply: Tuple,
    /// The attributes that identify the entry, in the order of a deletion.
    key: Vec<(u16, &'a [u8])>,
}

impl<'a> Flow<'a> {
    pub(super) fn read(payload: &'a [u8]) -> Result<Flow<'a>> {
        let family = wire::byte(payload, 0)?;
        let mut flow = Flow { family, original: Tuple::default(), reply: Tuple::default(), key: Vec::new() };
        for attribute in wire::attributes(payload, HEADER) {
            match attribute? {
                (ORIGINAL, value) => {
                    flow.original = Tuple::read(value)?;
                    flow.key.push((NESTED | ORIGINAL, value));
                }
                (REPLY, value) => flow.reply = Tuple::read(value)?,
                // The kernel may have replaced the entry by one with another ID. Entries of a zone are found only
                // there.
                (kind @ (ID | ZONE), value) => flow.key.push((kind, value)),
                _ => {}
            }
        }
        Ok(flow)
    }

    /// Encodes the deletion of this entry; `None` if its first packet is unknown: the kernel would delete every entry.
    pub(super) fn deletion(&self) -> Option<Vec<u8>> {
        self.key.iter().find(|(kind, _)| *kind == NESTED | ORIGINAL)?;
        let mut request = about(DELETE, self.family);
        for (kind, value) in &self.key {
            request.attr(*kind, value);
        }
        Some(request.finish())
    }
}

/// A socket for connection tracking in one network namespace.
#[derive(Debug)]
pub struct Conntrack {
    /// `None` if the kernel has no netfilter netlink. Then there are no entries.
    socket: Option<Socket>,
}

impl Conntrack {
    /// Opens a socket in the namespace of the calling thread.
    pub fn open() -> Result<Conntrack> {
        match Socket::netfilter() {
            Err(error) if matches!(error.errno(), Some(libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT)) => {
                Ok(Conntrack { socket: None })
            }
            socket => Ok(Conntrack { socket: Some(socket.context(|| "open a netfilter socket")?) }),
        }
    }

    /// Continues with the socket of a transaction: closing each of two sockets after a deletion would wait.
    pub fn after(nft: Nftables) -> Conntrack {
        Conntrack { socket: nft.into_socket() }
    }

    /// Closes the socket without waiting, as [`Nftables::close_detached`] does.
    pub fn close_detached(self) {
        if let Some(socket) = self.socket {
            socket.close_detached(super::nft::settle);
        }
    }

    /// Returns the address to which replies to packets from `from` to `to` are sent: `from`, unless its source was
    /// translated. `None` if the kernel has no entry for such packets.
    pub fn reply_destination(&mut self, from: IpAddr, to: IpAddr) -> Result<Option<IpAddr>> {
        let Some(socket) = &mut self.socket else { return Ok(None) };
        let listed = socket.list(&list_flows(wire::family(from)), NEW, |payload| {
            let Flow { original, reply, .. } = Flow::read(payload)?;
            let is_wanted = (original.source, original.destination) == (Some(from), Some(to));
            Ok(reply.destination.filter(|_| is_wanted))
        });
        match listed {
            Err(error) if error.errno() == Some(libc::EINVAL) => Ok(None),
            listed => Ok(listed.context(|| "list connection tracking entries")?.first().copied()),
        }
    }

    /// Deletes the entries that match any of `filters`, and no others. Succeeds if the kernel has no connection
    /// tracking.
    pub fn delete(&mut self, filters: &[FlowFilter]) -> Result<()> {
        let Some(socket) = &mut self.socket else { return Ok(()) };
        for filter in filters {
            debug!("delete {filter}");
        }
        let (by_kernel, mut others) = divide(filters);
        let deleted = delete_filtered(socket, &by_kernel).and_then(|supported| {
            if !supported {
                others.extend(by_kernel);
            }
            delete_listed(socket, others)
        });
        deleted.context(|| "delete connection tracking entries")
    }
}

/// Divides filters into those for the kernel and those that are compared with a listing.
fn divide(filters: &[FlowFilter]) -> (Vec<&FlowFilter>, Vec<&FlowFilter>) {
    let (by_kernel, others): (Vec<_>, Vec<_>) = filters.iter().partition(|filter| filter.suits_kernel());
    if by_kernel.len() > KERNEL_FILTERS { (Vec::new(), filters.iter().collect()) } else { (by_kernel, others) }
}

/// Deletes what `filters` match, with one message for each, in one datagram. Returns `false` if the kernel cannot.
fn delete_filtered(socket: &mut Socket, filters: &[&FlowFilter]) -> Result<bool> {
    let messages: Vec<_> = filters.iter().map(|filter| filtered_deletion(filter)).collect();
    let messages: Vec<_> = messages.iter().map(Vec::as_slice).collect();
    match socket.change(&messages, |_| Ok(()))? {
        None => Ok(true),
        Some((_, error)) if error.errno() == Some(libc::EINVAL) => Ok(false),
        Some((_, error)) => Err(error),
    }
}

/// Lists the entries and deletes those that match.
fn delete_listed(socket: &mut Socket, filters: Vec<&FlowFilter>) -> Result<()> {
    let filters = ByPort::new(filters);
    for family in [libc::AF_INET, libc::AF_INET6].map(|family| u8::try_from(family).unwrap_or_default()) {
        if !filters.filters.iter().any(|filter| wire::family(filter.destination.ip()) == family) {
            continue;
        }
        let listed = socket.list(&list_flows(family), NEW, |payload| {
            let flow = Flow::read(payload)?;
            Ok(if filters.match_flow(&flow) { flow.deletion() } else { None })
        });
        let deletions = match listed {
            // The kernel has no connection tracking.
            Err(error) if error.errno() == Some(libc::EINVAL) => Vec::new(),
            listed => listed?,
        };
        for deletion in deletions {
            match socket.change(&[&deletion], |_| Ok(()))? {
                Some((_, error)) if error.errno() != Some(libc::ENOENT) => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Filters, found by their ports. There may be thousands of filters, and as many entries to compare with them.
#[derive(Debug)]
struct ByPort<'a> {
    filters: Vec<&'a FlowFilter>,
    /// The port and the place of each filter, as one number, in order.
    order: Vec<u64>,
}

impl<'a> ByPort<'a> {
    fn new(filters: Vec<&'a FlowFilter>) -> ByPort<'a> {
        let number = |(place, filter): (u64, &&FlowFilter)| ByPort::first(filter.destination.port()) | place;
        let order = BinaryHeap::from_iter((0..).zip(&filters).map(number)).into_sorted_vec();
        ByPort { filters, order }
    }

    /// Returns the least number of a filter for this port.
    fn first(port: u16) -> u64 {
        u64::from(port) << 48
    }

    /// Returns whether any of the filters matches the flow: one for its port, or for every port.
    fn match_flow(&self, flow: &Flow<'_>) -> bool {
        [0, flow.original.port].into_iter().any(|port| {
            let first = self.order.partition_point(|number| *number < ByPort::first(port));
            let mut same = self.order.iter().skip(first).take_while(|number| **number >> 48 == u64::from(port));
            same.any(|number| {
                self.filters.get((*number & 0xffff_ffff) as usize).is_some_and(|filter| filter.matches(flow))
            })
        })
    }
}

/// Encodes the deletion of everything that a filter matches.
///
/// Kernels that delete by a filter understand the attribute FILTER. All others take the original tuple for the key of
/// one entry and reject it with EINVAL, because it has no source. Without a tuple they would delete every entry.
pub(super) fn filtered_deletion(filter: &FlowFilter) -> Vec<u8> {
    let mut request = about(DELETE, wire::family(filter.destination.ip()));
    let (mut original, mut reply) = (BY_PROTOCOL, 0);
    request.nest(NESTED | ORIGINAL, |tuple| {
        if let Some(address) = filter.address() {
            original |= BY_DESTINATION;
            let kind = if address.is_ipv4() { IPV4_DESTINATION } else { IPV6_DESTINATION };
            tuple.nest(NESTED | TUPLE_IP, |ip| ip.ip(kind, address));
        }
        tuple.nest(NESTED | TUPLE_PROTOCOL, |protocol| {
            protocol.attr(PROTOCOL_NUMBER, &[filter.protocol]);
            if let Some(port) = filter.port() {
                original |= BY_DESTINATION_PORT;
                protocol.attr(DESTINATION_PORT, &port.to_be_bytes());
            }
        });
    });
    if let Some(source) = filter.reply_source {
        reply |= BY_SOURCE;
        let kind = if source.is_ipv4() { IPV4_SOURCE } else { IPV6_SOURCE };
        request.nest(NESTED | REPLY, |tuple| tuple.nest(NESTED | TUPLE_IP, |ip| ip.ip(kind, source)));
    }
    request.nest(NESTED | FILTER, |flags| {
        flags.number(ORIGINAL_FLAGS, original);
        flags.number(REPLY_FLAGS, reply);
    });
    request.finish()
}

pub(super) fn list_flows(family: u8) -> Vec<u8> {
    about(GET, family).finish()
}

/// Starts a message about entries of a family.
fn about(kind: u16, family: u8) -> Request {
    let mut request = Request::new(kind, NlmF::empty());
    // struct nfgenmsg: family, version, resource
    request.raw(&[family, 0, 0, 0]);
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent_to(protocol: u8, destination: &str) -> FlowFilter {
        FlowFilter { protocol, destination: destination.parse().unwrap(), reply_source: None }
    }

    #[test]
    fn filters_are_found_by_their_port() {
        let filters =
            ["10.1.0.1:53", "10.1.0.2:53", "10.1.0.1:80", "10.1.0.9:0", "0.0.0.0:99"].map(|to| sent_to(UDP, to));
        let filters = ByPort::new(filters.iter().collect());
        let matches = |protocol, to: &str| {
            let SocketAddr::V4(to) = to.parse().unwrap() else { panic!("{to}") };
            let original =
                Tuple { protocol, destination: Some((*to.ip()).into()), port: to.port(), ..Tuple::default() };
            let family = u8::try_from(libc::AF_INET).unwrap();
            filters.match_flow(&Flow { family, original, reply: Tuple::default(), key: vec![] })
        };
        for to in
            ["10.1.0.1:53", "10.1.0.2:53", "10.1.0.1:80", "10.1.0.9:1", "10.1.0.9:53", "10.1.0.9:0", "10.7.0.1:99"]
        {
            assert!(matches(UDP, to) && !matches(TCP, to), "{to}");
        }
        for to in ["10.1.0.3:53", "10.1.0.2:80", "10.1.0.1:0", "10.1.0.1:54", "10.7.0.1:98"] {
            assert!(!matches(UDP, to), "{to}");
        }
    }

    #[test]
    fn the_kernel_gets_a_few_filters_that_it_understands() {
        let filters = [
            sent_to(UDP, "10.1.0.1:53"),
            sent_to(UDP, "[::]:53"),
            sent_to(UDP, "[fd01::1]:53"),
            sent_to(132, "0.0.0.0:53"),
            sent_to(TCP, "0.0.0.0:53"),
            sent_to(132, "0.0.0.0:0"),
            sent_to(UDP, "0.0.0.0:54"),
        ];
        let expected = |places: [usize; 4]| places.map(|place| &filters[place]).to_vec();
        assert_eq!(divide(&filters[..6]), (expected([0, 1, 4, 5]), vec![&filters[2], &filters[3]]));
        assert_eq!(divide(&filters), (Vec::new(), filters.iter().collect()), "one more");
        assert_eq!(divide(&[]), (Vec::new(), Vec::new()));
    }
}
