//! The keys and values in sets and maps, and their types.

use std::net::IpAddr;

use crate::ip::{MacAddr, octets};
use crate::netlink::wire;

/// The type of a value. The kernel only needs its length; `nft` needs the type to show the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataType {
    /// An IPv4 address.
    Ipv4,
    /// An IPv6 address.
    Ipv6,
    /// A MAC address.
    Mac,
    /// The number of a transport protocol.
    Protocol,
    /// A port.
    Port,
    /// A number that the kernel attaches to a packet, in the byte order of the host.
    PacketMark,
    /// The name of a link.
    LinkName,
}

impl DataType {
    /// Returns the number that `nft` gives to the type.
    pub(super) fn number(self) -> u32 {
        match self {
            DataType::Ipv4 => 7,
            DataType::Ipv6 => 8,
            DataType::Mac => 9,
            DataType::Protocol => 12,
            DataType::Port => 13,
            DataType::PacketMark => 19,
            DataType::LinkName => 41,
        }
    }

    pub(super) fn len(self) -> u32 {
        match self {
            DataType::Ipv4 | DataType::PacketMark => 4,
            DataType::Ipv6 | DataType::LinkName => 16,
            DataType::Mac => 6,
            DataType::Protocol => 1,
            DataType::Port => 2,
        }
    }
}

/// Returns the number that `nft` gives to the byte order of a key or value: names and packet marks are in the order of
/// the host, other numbers are in network order, and the parts of a concatenation have their own.
pub(super) fn byte_order(types: &[DataType]) -> u32 {
    match types {
        [DataType::LinkName | DataType::PacketMark] => 1,
        [_] => 2,
        _ => 0,
    }
}

/// Returns the type number and the length of a concatenation. Each part of it is padded to four bytes.
pub(super) fn concatenated(types: &[DataType]) -> (u32, u32) {
    match types {
        [single] => (single.number(), single.len()),
        types => types
            .iter()
            .fold((0, 0), |(number, len), part| (number << 6 | part.number(), len + part.len().next_multiple_of(4))),
    }
}

/// A value in a key, or one to which a key maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// An address.
    Ip(IpAddr),
    /// A MAC address.
    Mac(MacAddr),
    /// The number of a transport protocol.
    Protocol(u8),
    /// A port.
    Port(u16),
    /// A number that the kernel attaches to a packet.
    PacketMark(u32),
    /// The name of a link.
    LinkName(String),
}

impl Value {
    fn octets(&self) -> Vec<u8> {
        match self {
            Value::Ip(ip) => octets(*ip),
            Value::Mac(mac) => mac.0.to_vec(),
            Value::Protocol(number) => vec![*number],
            Value::Port(port) => port.to_be_bytes().to_vec(),
            Value::PacketMark(number) => number.to_ne_bytes().to_vec(),
            Value::LinkName(name) => {
                let mut padded = name.as_bytes().to_vec();
                padded.resize(libc::IFNAMSIZ, 0);
                padded
            }
        }
    }

    fn read(kind: DataType, bytes: &[u8]) -> Option<Value> {
        Some(match (kind, bytes) {
            (DataType::Ipv4 | DataType::Ipv6, bytes) => Value::Ip(wire::ip(bytes).ok()?),
            (DataType::Mac, bytes) => Value::Mac(wire::mac(bytes)?),
            (DataType::Protocol, [number]) => Value::Protocol(*number),
            (DataType::Port, [high, low]) => Value::Port(u16::from_be_bytes([*high, *low])),
            (DataType::PacketMark, bytes) => Value::PacketMark(u32::from_ne_bytes(bytes.try_into().ok()?)),
            (DataType::LinkName, bytes) => Value::LinkName(wire::text(bytes)),
            _ => return None,
        })
    }

    /// Returns the concatenation of values, as the kernel compares it.
    pub fn concatenate(values: &[Value]) -> Vec<u8> {
        match values {
            [single] => single.octets(),
            values => {
                let mut bytes = Vec::new();
                for value in values {
                    bytes.extend(value.octets());
                    bytes.resize(bytes.len().next_multiple_of(4), 0);
                }
                bytes
            }
        }
    }

    /// Splits a concatenation of these types; `None` if it has another length.
    pub fn split(types: &[DataType], mut bytes: &[u8]) -> Option<Vec<Value>> {
        if bytes.len() != concatenated(types).1 as usize {
            return None;
        }
        let mut values = Vec::new();
        for kind in types {
            let len = kind.len() as usize;
            values.push(Value::read(*kind, bytes.get(..len)?)?);
            bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
        Some(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_concatenation_is_split_into_its_values() {
        let values = [
            Value::Ip("10.1.2.3".parse().unwrap()),
            Value::Protocol(6),
            Value::Port(80),
            Value::Mac(MacAddr([1, 2, 3, 4, 5, 6])),
            Value::LinkName("cni0".into()),
            Value::Ip("fd00::1".parse().unwrap()),
        ];
        let types =
            [DataType::Ipv4, DataType::Protocol, DataType::Port, DataType::Mac, DataType::LinkName, DataType::Ipv6];
        let bytes = Value::concatenate(&values);
        assert_eq!(bytes.len(), concatenated(&types).1 as usize);
        assert_eq!(Value::split(&types, &bytes).unwrap(), values);
        assert_eq!(Value::split(&types, &bytes[1..]), None);
        for (value, kind) in values.iter().zip(types) {
            let single = std::slice::from_ref(value);
            let bytes = Value::concatenate(single);
            assert_eq!(bytes.len(), kind.len() as usize, "a single value is not padded");
            assert_eq!(Value::split(&[kind], &bytes).unwrap(), single);
        }
    }
}
