//! Encoding and decoding of netlink messages.
//!
//! neli defines the constants; its message types are not used. When reading, they keep the flag bits in an attribute's
//! type, remove the last byte of any text, and do not allow moving a payload out. When writing, they build nested
//! lists, each with its own allocation, and copy them once for each level: a fifth of the computation of an ADD. Here a
//! message is written sequentially. Every length that is read is validated; an inconsistent reply is an error.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use neli::consts::nl::NlmF;
use neli::consts::rtnl::RtAddrFamily;

use crate::error::{Error, Kind, Result};
use crate::ip::{Cidr, MacAddr};

// linux/if_link.h, linux/if_bridge.h, linux/veth.h, linux/rtnetlink.h: constants that neli and libc lack.
pub(super) const IFLA_BR_STP_STATE: u16 = 5;
pub(super) const IFLA_BR_VLAN_FILTERING: u16 = 7;
pub(super) const IFLA_BR_VLAN_PROTOCOL: u16 = 8;
pub(super) const IFLA_BRPORT_STATE: u16 = 1;
pub(super) const IFLA_BRPORT_MODE: u16 = 4;
pub(super) const IFLA_BRPORT_ISOLATED: u16 = 33;
pub(super) const IFLA_VRF_TABLE: u16 = 1;
pub(super) const IFLA_TARGET_NETNSID: u16 = 46;
pub(super) const IFLA_PROP_LIST: u16 = 52;
pub(super) const IFLA_ALT_IFNAME: u16 = 53;
pub(super) const IFLA_PHYS_PORT_NAME: u16 = 38;
pub(super) const IFLA_PERM_ADDRESS: u16 = 54;
pub(super) const IFLA_PARENT_DEV_NAME: u16 = 56;
pub(super) const RTM_NEWLINKPROP: u16 = 108;
pub(super) const RTM_DELLINKPROP: u16 = 109;
pub(super) const RTM_NEWNSID: u16 = 88;
pub(super) const RTM_GETNSID: u16 = 90;
pub(super) const NETNSA_NSID: u16 = 1;
pub(super) const NETNSA_FD: u16 = 3;
pub(super) const IFA_TARGET_NETNSID: u16 = 10;
pub(super) const IFA_PROTO: u16 = 11;
pub(super) const VETH_INFO_PEER: u16 = 1;
pub(super) const IFLA_INET_CONF: u16 = 1;
pub(super) const IPV4_DEVCONF_ARP_NOTIFY: u16 = 22;
pub(super) const AF_INET6: u16 = 10;
pub(super) const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
pub(super) const IN6_ADDR_GEN_MODE_EUI64: u8 = 0;
pub(super) const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3;
pub(super) const RTAX_MTU: u16 = 2;
pub(super) const RTAX_ADVMSS: u16 = 8;
pub(super) const IFLA_BRIDGE_VLAN_INFO: u16 = 2;
pub(super) const RTM_NEWVLAN: u16 = 112;
pub(super) const RTM_GETVLAN: u16 = 114;
pub(super) const BRIDGE_VLANDB_ENTRY: u16 = 1;
pub(super) const BRIDGE_VLANDB_ENTRY_INFO: u16 = 1;
pub(super) const BRIDGE_VLANDB_ENTRY_RANGE: u16 = 2;

const HEADER: usize = 16;

/// linux/netlink.h: flags an attribute that contains attributes. Netfilter wants it.
pub(super) const NESTED: u16 = 1 << 15;

/// The flags of a change that must create a new object.
pub(super) const CREATE: NlmF = NlmF::CREATE.union(NlmF::EXCL);

/// A message that is being written. Attributes can be nested; the length of an attribute is set when it is complete.
///
/// The length of an attribute is limited to 64 KiB. Lists stay below that, and the kernel accepts no text of that size.
#[derive(Debug)]
pub(super) struct Request {
    bytes: Vec<u8>,
}

impl Request {
    /// Initial capacity, sufficient for all messages except lists of VLANs.
    const ROOM: usize = 640;

    /// Starts a message of type `kind`; the socket sets the sequence number.
    pub(super) fn new(kind: impl Into<u16>, flags: NlmF) -> Request {
        let mut request = Request { bytes: Vec::with_capacity(Request::ROOM) };
        request.raw(&[0; 4]);
        request.raw(&kind.into().to_ne_bytes());
        request.raw(&(NlmF::REQUEST | flags).bits().to_ne_bytes());
        request.raw(&[0; 8]);
        request
    }

    /// Starts a list of attributes without a header, which becomes a part of another message.
    pub(super) fn part() -> Request {
        Request { bytes: Vec::with_capacity(Request::ROOM) }
    }

    /// Returns what has been written so far.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Appends bytes.
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends an attribute.
    pub(super) fn attr(&mut self, kind: impl Into<u16>, value: &[u8]) {
        self.nest(kind, |request| request.raw(value));
    }

    /// Appends an attribute with a 32-bit number.
    pub(super) fn number(&mut self, kind: impl Into<u16>, value: u32) {
        self.attr(kind, &value.to_ne_bytes());
    }

    /// Appends an attribute with a text and a final NUL, which most attributes need.
    pub(super) fn text(&mut self, kind: impl Into<u16>, value: &str) {
        self.nest(kind, |request| {
            request.raw(value.as_bytes());
            request.raw(&[0]);
        });
    }

    /// Appends an attribute with an IP address.
    pub(super) fn ip(&mut self, kind: impl Into<u16>, ip: IpAddr) {
        match ip {
            IpAddr::V4(ip) => self.attr(kind, &ip.octets()),
            IpAddr::V6(ip) => self.attr(kind, &ip.octets()),
        }
    }

    /// Appends an attribute that contains what `inside` writes.
    pub(super) fn nest(&mut self, kind: impl Into<u16>, inside: impl FnOnce(&mut Request)) {
        let start = self.bytes.len();
        self.raw(&[0; 2]);
        self.raw(&kind.into().to_ne_bytes());
        inside(self);
        let len = u16::try_from(self.bytes.len() - start).unwrap_or(u16::MAX);
        if let Some(place) = self.bytes.get_mut(start..start + 2) {
            place.copy_from_slice(&len.to_ne_bytes());
        }
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Returns the complete message.
    pub(super) fn finish(mut self) -> Vec<u8> {
        let len = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        if let Some(place) = self.bytes.get_mut(..4) {
            place.copy_from_slice(&len.to_ne_bytes());
        }
        self.bytes
    }
}

pub(super) fn family(ip: IpAddr) -> u8 {
    u8::from(if ip.is_ipv4() { RtAddrFamily::Inet } else { RtAddrFamily::Inet6 })
}

/// A received message.
#[derive(Debug)]
pub(super) struct Message<'a> {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) seq: u32,
    pub(super) payload: &'a [u8],
}

/// Creates an error for an invalid reply of the kernel.
#[cold]
pub(super) fn malformed(what: &str) -> Error {
    Error::new(Kind::Kernel, format!("malformed netlink reply: {what}"))
}

/// Removes the first message from `bytes` and returns it.
pub(super) fn next_message<'a>(bytes: &mut &'a [u8]) -> Result<Option<Message<'a>>> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let whole = *bytes;
    let (Some(len), Some(kind), Some(flags), Some(seq)) =
        (u32_at(whole, 0), u16_at(whole, 4), u16_at(whole, 6), u32_at(whole, 8))
    else {
        return Err(malformed("header cut off"));
    };
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    let payload = whole.get(HEADER..len).ok_or_else(|| malformed("message cut off"))?;
    *bytes = whole.get(len.next_multiple_of(4)..).unwrap_or_default();
    Ok(Some(Message { kind, flags, seq, payload }))
}

/// Returns the attributes after a header of `skip` bytes, each with its type (without flag bits) and its value.
pub(super) fn attributes(payload: &[u8], skip: usize) -> Attributes<'_> {
    Attributes { rest: payload.get(skip..), failed: false }
}

#[derive(Debug)]
pub(super) struct Attributes<'a> {
    rest: Option<&'a [u8]>,
    failed: bool,
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<(u16, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = match self.rest {
            _ if self.failed => return None,
            Some([]) => return None,
            Some(rest) => rest,
            None => &[],
        };
        let attribute = u16_at(rest, 0).zip(u16_at(rest, 2)).and_then(|(len, kind)| {
            let len = usize::from(len);
            self.rest = Some(rest.get(len.next_multiple_of(4)..).unwrap_or_default());
            // linux/netlink.h: NLA_TYPE_MASK
            Some((kind & 0x3fff, rest.get(4..len)?))
        });
        self.failed = attribute.is_none();
        Some(attribute.ok_or_else(|| malformed("attribute cut off")))
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Returns a byte of a fixed header.
pub(super) fn byte(payload: &[u8], at: usize) -> Result<u8> {
    payload.get(at).copied().ok_or_else(|| malformed("header cut off"))
}

/// Returns a 16-bit number of a fixed header or an attribute.
pub(super) fn number16(payload: &[u8], at: usize) -> Result<u16> {
    u16_at(payload, at).ok_or_else(|| malformed("number cut off"))
}

/// Returns a 32-bit number of a fixed header or an attribute.
pub(super) fn number(payload: &[u8], at: usize) -> Result<u32> {
    u32_at(payload, at).ok_or_else(|| malformed("number cut off"))
}

/// Returns a 64-bit number of an attribute.
pub(super) fn number64(payload: &[u8], at: usize) -> Result<u64> {
    let bytes = payload.get(at..).and_then(<[u8]>::first_chunk);
    bytes.copied().map(u64::from_ne_bytes).ok_or_else(|| malformed("number cut off"))
}

/// Returns a text up to its NUL. The kernel allows any bytes in names; invalid UTF-8 is replaced.
pub(super) fn text(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    let text = value.get(..end).unwrap_or_default();
    // The conversion that replaces takes ten times as many instructions.
    std::str::from_utf8(text).map_or_else(|_| String::from_utf8_lossy(text).into_owned(), str::to_owned)
}

/// Returns a MAC address; `None` for links with another kind of address or none.
pub(super) fn mac(value: &[u8]) -> Option<MacAddr> {
    value.try_into().ok().map(MacAddr)
}

/// Fails unless a reply is about the requested namespace. Kernels before 4.20 ignore the request and use their own.
pub(super) fn is_from(netns: u32, payload: &[u8], header: usize, kind: u16) -> Result<()> {
    for attribute in attributes(payload, header) {
        let (found, value) = attribute?;
        if found == kind && number(value, 0)? == netns {
            return Ok(());
        }
    }
    let error = Error::kernel(libc::EOPNOTSUPP, "");
    Err(error.details("this kernel cannot be asked about another namespace (Linux 4.20 can)"))
}

/// Returns an address; its length determines the family.
pub(super) fn ip(value: &[u8]) -> Result<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(value) {
        return Ok(Ipv4Addr::from(octets).into());
    }
    let octets = <[u8; 16]>::try_from(value).map_err(|_| malformed("address of a strange length"))?;
    Ok(Ipv6Addr::from(octets).into())
}

pub(super) fn cidr(ip: IpAddr, prefix: u8) -> Result<Cidr> {
    Cidr::new(ip, prefix).ok_or_else(|| malformed("prefix longer than its address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn attributes_are_walked_and_flag_bits_dropped() {
        let bytes = hex("05 00 01 00 61 00 00 00  08 00 02 80 01 02 03 04  04 00 03 00");
        let seen: Vec<_> = attributes(&bytes, 0).map(|a| a.unwrap()).collect();
        assert_eq!(seen, [(1, &b"a"[..]), (2, &[1, 2, 3, 4][..]), (3, &[][..])]);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn lying_lengths_are_errors_and_end_the_walk() {
        for bad in ["03 00 01 00", "00 00 01 00", "09 00 01 00 61 00 00 00", "ff ff 01 00", "04 00 01", "01"] {
            let bytes = hex(bad);
            let walk: Vec<_> = attributes(&bytes, 0).collect();
            assert!(walk.len() == 1 && walk[0].is_err(), "{bad}");
        }
        assert!(attributes(&[0; 4], 8).next().unwrap().is_err(), "shorter than its header");
        for bad in [
            "10 00 00 00",
            "0f 00 00 00 02 00 00 00 00 00 00 00 00 00 00 00",
            "11 00 00 00 02 00 00 00 00 00 00 00 00 00 00 00",
        ] {
            assert!(next_message(&mut hex(bad).as_slice()).is_err(), "{bad}");
        }
    }

    #[test]
    fn texts_end_at_their_nul() {
        assert_eq!(text(b"eth0\0"), "eth0");
        assert_eq!(text(b"veth"), "veth");
        assert_eq!(text(b""), "");
        assert_eq!(text(b"\xff\0"), "\u{fffd}");
    }
}
