//! Lookups of a field of a packet in a set or a map of verdicts.

use std::net::IpAddr;

use super::condition::{Property, Side};
use super::{FieldComparison, padded};
use crate::error::Result;
use crate::netlink::nft::expression::{Data, Field, Origin, Register, Verdict};
use crate::netlink::nft::set::Element;
use crate::netlink::wire;

/// A lookup of a field in a set or map of the rule's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The name of the set or map.
    pub set: String,
    /// Whether the set must not have the field.
    pub is_negated: bool,
    /// The register into which the value of a map is loaded.
    into: Option<Register>,
    field: FieldComparison,
}

impl Lookup {
    pub(super) fn read(field: FieldComparison, data: &[u8]) -> Result<Lookup> {
        let mut lookup = Lookup { set: String::new(), is_negated: false, into: None, field };
        for attribute in wire::attributes(data, 0) {
            match attribute? {
                (1, name) => lookup.set = wire::text(name),
                (3, register) => lookup.into = Some(Register::read(register)?),
                (5, flags) => lookup.is_negated = u32::from_be(wire::number(flags, 0)?) & 1 != 0,
                _ => {}
            }
        }
        Ok(lookup)
    }

    /// Returns whether the map decides about the packet.
    pub fn is_verdict_map(&self) -> bool {
        self.into == Some(Register::VERDICT)
    }

    /// Returns the property of the packets whose field the set has; `Other` if it is not understood, as that of several
    /// fields.
    pub fn property(&self, elements: &[Element]) -> Property {
        match self.entries(elements) {
            Some(entries) if self.into.is_none() => {
                Property::AnyOf(entries.into_iter().map(|(property, _)| property).collect())
            }
            _ => Property::Other,
        }
    }

    /// Returns the entries of a map of verdicts: the property of the packets, and the verdict; `None` if it is not
    /// understood.
    pub fn verdicts(&self, elements: &[Element]) -> Option<Vec<(Property, Verdict)>> {
        let entries = self.entries(elements)?.into_iter();
        entries.map(|(property, element)| Some((property, verdict_of(element)?))).collect()
    }

    fn entries<'a>(&self, elements: &'a [Element]) -> Option<Vec<(Property, &'a Element)>> {
        let mut sorted: Vec<&Element> = elements.iter().collect();
        // The end of a range can be the beginning of the next one.
        sorted.sort_by(|a, b| (&a.key, !a.ends_range).cmp(&(&b.key, !b.ends_range)));
        let has_ranges = sorted.iter().any(|element| element.ends_range);
        let mut entries = Vec::new();
        for (at, element) in sorted.iter().enumerate().filter(|(_, element)| !element.ends_range) {
            let end = match (&element.key_end, has_ranges) {
                (Some(last), _) => Some(last.clone()),
                (None, false) => None,
                (None, true) => {
                    Some(sorted.get(at + 1).map_or_else(|| vec![0xff; element.key.len()], |next| before(&next.key)))
                }
            };
            let property = match end.filter(|last| *last != element.key) {
                None => self.single(&element.key)?,
                Some(last) => self.range(&element.key, &last)?,
            };
            entries.push((property, *element));
        }
        Some(entries)
    }

    fn single(&self, key: &[u8]) -> Option<Property> {
        let origin = self.field.origin.filter(|_| self.field.mask.is_empty())?;
        let is_name = [Field::INPUT_LINK, Field::OUTPUT_LINK].iter().any(|field| field.origin == origin);
        let property = FieldComparison { value: key.to_vec(), ..self.field.clone() }.property();
        // The key of several fields is longer.
        let is_whole = match property {
            Property::Link(..) | Property::Bridge(..) if is_name => key.len() == 16,
            Property::Link(..) | Property::State(_) => key.len() == 4,
            Property::Bridge(..) => key.len() == 16,
            Property::Address(..) | Property::DestinationPort(..) => true,
            _ => false,
        };
        is_whole.then_some(property)
    }

    fn range(&self, first: &[u8], last: &[u8]) -> Option<Property> {
        let origin = self.field.origin.filter(|_| self.field.mask.is_empty())?;
        let ip = |key: &[u8], v4: Origin, v6: Origin| match (key.len(), origin) {
            (4, own) if own == v4 => padded::<4>(key).map(IpAddr::from),
            (16, own) if own == v6 => padded::<16>(key).map(IpAddr::from),
            _ => None,
        };
        for (side, v4, v6) in
            [(Side::From, Field::SOURCE_V4, Field::SOURCE_V6), (Side::To, Field::DESTINATION_V4, Field::DESTINATION_V6)]
        {
            let ip = |key| ip(key, v4.origin, v6.origin);
            if let (Some(first), Some(last)) = (ip(first), ip(last)) {
                return Some(Property::AddressRange(side, first, last));
            }
        }
        let port = |key: &[u8]| <[u8; 2]>::try_from(key).ok().map(u16::from_be_bytes);
        let is_port = origin == Field::DESTINATION_PORT.origin;
        let ports = port(first).zip(port(last)).filter(|_| is_port);
        ports.map(|(first, last)| Property::DestinationPort(first, last))
    }
}

fn verdict_of(element: &Element) -> Option<Verdict> {
    match &element.data {
        Some(Data::Verdict(verdict)) => Some(verdict.clone()),
        _ => None,
    }
}

/// Returns the key before this one, as a number of the same length.
fn before(key: &[u8]) -> Vec<u8> {
    let mut key = key.to_vec();
    for byte in key.iter_mut().rev() {
        let (less, has_borrowed) = byte.overflowing_sub(1);
        *byte = less;
        if !has_borrowed {
            break;
        }
    }
    key
}
