//! Sets and maps, and their elements.

use std::fmt;

use neli::consts::nl::NlmF;

use super::edit::Edit;
use super::expression::{Attributes, Data, Verdict};
use super::message::{HEADER, TABLE};
use super::table::{Table, about};
use super::userdata::UserData;
use super::value::{DataType, Value, byte_order, concatenated};
use crate::error::Result;
use crate::netlink::wire::{self, NESTED, Request};

// linux/netfilter/nf_tables.h
pub(super) const NEWSET: u16 = 9;
pub(super) const GETSET: u16 = 10;
const DELSET: u16 = 11;
pub(super) const NEWSETELEM: u16 = 12;
pub(super) const GETSETELEM: u16 = 13;
const DELSETELEM: u16 = 14;
const SET_NAME: u16 = 2;
const SET_FLAGS: u16 = 3;
const SET_KEY_TYPE: u16 = 4;
const SET_KEY_LEN: u16 = 5;
const SET_DATA_TYPE: u16 = 6;
const SET_DATA_LEN: u16 = 7;
const SET_DESC: u16 = 9;
const SET_ID: u16 = 10;
const SET_USERDATA: u16 = 13;
const DESC_SIZE: u16 = 1;
const DESC_CONCAT: u16 = 2;
const FIELD_LEN: u16 = 1;
const LIST_ELEM: u16 = 1;
const ELEMENTS: u16 = 3;
const ELEM_KEY: u16 = 1;
const ELEM_DATA: u16 = 2;
const ELEM_FLAGS: u16 = 3;
const INTERVAL_END: u32 = 1;
const ELEM_USERDATA: u16 = 6;
const ELEM_KEY_END: u16 = 10;
const FLAG_ANONYMOUS: u32 = 1;
const FLAG_INTERVAL: u32 = 1 << 2;
const FLAG_MAP: u32 = 1 << 3;
const FLAG_DYNAMIC: u32 = 1 << 5;
const FLAG_CONCAT: u32 = 1 << 7;
const TYPE_VERDICT: u32 = 0xffff_ff00;

/// The largest element, with a key range, a chain name and user data, has less than 700 bytes. An attribute, such as
/// the list of elements, has less than 64 KiB.
const ELEMENTS_PER_MESSAGE: usize = 90;

/// A set or map of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set<'a> {
    /// The table.
    pub table: Table<'a>,
    /// The name.
    pub name: &'a str,
}

impl<'a> Table<'a> {
    /// Returns a set or map of this table.
    pub const fn set(self, name: &'a str) -> Set<'a> {
        Set { table: self, name }
    }
}

impl fmt::Display for Set<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.table, self.name)
    }
}

/// What the keys of a set map to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapsTo<'a> {
    /// Nothing: it is a set.
    Nothing,
    /// A concatenation of values.
    Values(&'a [DataType]),
    /// Verdicts.
    Verdicts,
}

/// A set or map to create.
#[derive(Clone, Copy, Debug)]
pub struct SetSpec<'a> {
    /// Its name.
    pub set: Set<'a>,
    /// The types whose concatenation is a key.
    pub key: &'a [DataType],
    /// What the keys map to.
    pub maps_to: MapsTo<'a>,
    /// What its elements are.
    pub elements: Elements,
}

/// What the elements of a set are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elements {
    /// Single keys.
    Keys,
    /// Ranges of keys. The key must be a concatenation; Linux 5.6 or newer.
    Ranges,
    /// Single keys that rules add while packets pass, at most this number.
    AddedByRules(u32),
}

impl SetSpec<'_> {
    fn write(&self, attributes: &mut Attributes<'_>) {
        let mut flags = if self.maps_to == MapsTo::Nothing { 0 } else { FLAG_MAP };
        match self.elements {
            Elements::Keys => {}
            Elements::Ranges => flags |= FLAG_INTERVAL | FLAG_CONCAT,
            Elements::AddedByRules(_) => flags |= FLAG_DYNAMIC,
        }
        attributes.number(SET_FLAGS, flags);
        let (kind, len) = concatenated(self.key);
        attributes.number(SET_KEY_TYPE, kind);
        attributes.number(SET_KEY_LEN, len);
        let value = match self.maps_to {
            MapsTo::Nothing => None,
            MapsTo::Values(types) => Some((concatenated(types), byte_order(types))),
            MapsTo::Verdicts => Some(((TYPE_VERDICT, 0), 0)),
        };
        if let Some(((kind, len), _)) = value {
            attributes.number(SET_DATA_TYPE, kind);
            attributes.number(SET_DATA_LEN, len);
        }
        // The kernel requires a number, by which other messages could refer to the set. Ours refer to it by its name.
        attributes.number(SET_ID, 1);
        match self.elements {
            Elements::Keys => {}
            Elements::Ranges => attributes.nest(SET_DESC, |description| {
                description.nest(DESC_CONCAT, |fields| {
                    for part in self.key {
                        fields.nest(LIST_ELEM, |field| field.number(FIELD_LEN, part.len()));
                    }
                });
            }),
            Elements::AddedByRules(max) => attributes.nest(SET_DESC, |description| description.number(DESC_SIZE, max)),
        }
        // Without the byte orders, `nft` does not show names.
        let orders = [Some(byte_order(self.key)), value.map(|(_, order)| order)];
        attributes.0.nest(SET_USERDATA, |data| {
            for (kind, order) in (0_u8..).zip(orders.into_iter().flatten()) {
                data.raw(&[kind, 4]);
                data.raw(&order.to_ne_bytes());
            }
        });
    }
}

/// An element of a set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// The key, or the first key of a range.
    pub key: Vec<u8>,
    /// The last key of a range.
    pub key_end: Option<Vec<u8>>,
    /// Whether the key is the first after a range, in a set whose ranges are not pairs of keys.
    pub ends_range: bool,
    /// What the key maps to; `None` in a set.
    pub data: Option<Data>,
    /// The comment, the mark and the note.
    pub userdata: UserData,
}

impl Element {
    /// Returns an element with the concatenation of `key` as its key.
    pub fn new(key: &[Value]) -> Element {
        let key = Value::concatenate(key);
        Element { key, key_end: None, ends_range: false, data: None, userdata: UserData::default() }
    }

    /// Returns an element for the keys whose parts are between those of `first` and `last`.
    pub fn range(first: &[Value], last: &[Value]) -> Element {
        Element { key_end: Some(Value::concatenate(last)), ..Element::new(first) }
    }

    /// Makes the key map to values.
    #[must_use]
    pub fn to(self, values: &[Value]) -> Element {
        Element { data: Some(Data::Value(Value::concatenate(values))), ..self }
    }

    /// Makes the key map to a verdict.
    #[must_use]
    pub fn verdict(self, verdict: Verdict) -> Element {
        Element { data: Some(Data::Verdict(verdict)), ..self }
    }

    /// Sets the comment.
    #[must_use]
    pub fn comment(mut self, comment: impl Into<String>) -> Element {
        self.userdata.comment = comment.into();
        self
    }

    /// Sets the mark, a text that the tools do not show, for the program that creates the element.
    #[must_use]
    pub fn mark(mut self, mark: impl Into<String>) -> Element {
        self.userdata.mark = mark.into();
        self
    }

    /// Sets the note, another text that the tools do not show.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Element {
        self.userdata.note = note.into();
        self
    }

    fn write_key(&self, element: &mut Attributes<'_>) {
        element.value(ELEM_KEY, &self.key);
        if let Some(end) = &self.key_end {
            element.value(ELEM_KEY_END, end);
        }
    }

    fn write(&self, element: &mut Attributes<'_>) {
        self.write_key(element);
        match &self.data {
            None => {}
            Some(Data::Value(value)) => element.value(ELEM_DATA, value),
            Some(Data::Verdict(verdict)) => element.verdict(ELEM_DATA, verdict),
        }
        self.userdata.write(element.0, ELEM_USERDATA);
    }

    /// Parses the elements in a message.
    pub(in crate::netlink) fn read_all(payload: &[u8]) -> Result<Vec<Element>> {
        let mut elements = Vec::new();
        for attribute in wire::attributes(payload, HEADER) {
            if let (ELEMENTS, list) = attribute? {
                for element in wire::attributes(list, 0) {
                    elements.push(Element::read(element?.1)?);
                }
            }
        }
        Ok(elements)
    }

    fn read(attributes: &[u8]) -> Result<Element> {
        let mut element = Element::new(&[]);
        for attribute in wire::attributes(attributes, 0) {
            match attribute? {
                (ELEM_KEY, data) => element.key = Data::read(data)?.and_then(Data::into_value).unwrap_or_default(),
                (ELEM_KEY_END, data) => element.key_end = Data::read(data)?.and_then(Data::into_value),
                (ELEM_FLAGS, flags) => element.ends_range = u32::from_be(wire::number(flags, 0)?) & INTERVAL_END != 0,
                (ELEM_DATA, data) => element.data = Data::read(data)?,
                (ELEM_USERDATA, data) => element.userdata = UserData::read(data),
                _ => {}
            }
        }
        Ok(element)
    }
}

/// Changes of sets and maps.
impl Edit {
    /// Creates a set or map unless it exists.
    pub fn add_set(spec: &SetSpec<'_>) -> Edit {
        let set = spec.set;
        let mut request = about_set(NEWSET, NlmF::CREATE, set);
        spec.write(&mut Attributes(&mut request));
        Edit::new(request, "add set", Some(SET_NAME))
    }

    /// Deletes a set or map and its elements. No rule may use it.
    pub fn delete_set(set: Set<'_>) -> Edit {
        Edit::new(about_set(DELSET, NlmF::empty(), set), "delete set", Some(SET_NAME))
    }

    /// Deletes all elements of a set or map.
    pub fn flush_set(set: Set<'_>) -> Edit {
        Edit::new(about_set(DELSETELEM, NlmF::empty(), set), "flush set", Some(SET_NAME))
    }

    /// Adds elements. EEXIST if a key exists and maps to something else.
    pub fn add_elements(set: Set<'_>, elements: &[Element]) -> Vec<Edit> {
        Edit::of_elements(set, elements, NEWSETELEM, NlmF::CREATE, "add elements to set", Element::write)
    }

    /// Adds elements; EEXIST if one of the keys exists.
    pub fn create_elements(set: Set<'_>, elements: &[Element]) -> Vec<Edit> {
        let flags = NlmF::CREATE | NlmF::EXCL;
        Edit::of_elements(set, elements, NEWSETELEM, flags, "create elements of set", Element::write)
    }

    /// Deletes the elements with the keys of `elements`, whatever they map to; ENOENT if one does not exist.
    pub fn delete_elements(set: Set<'_>, elements: &[Element]) -> Vec<Edit> {
        Edit::of_elements(set, elements, DELSETELEM, NlmF::empty(), "delete elements of set", Element::write_key)
    }

    /// Returns edits with as many elements as fit into each.
    fn of_elements(
        set: Set<'_>,
        elements: &[Element],
        kind: u16,
        flags: NlmF,
        verb: &'static str,
        write: fn(&Element, &mut Attributes<'_>),
    ) -> Vec<Edit> {
        let edit = |elements: &[Element]| {
            let request = about_elements(kind, flags, set, elements, write);
            Edit::new(request, verb, Some(SET_NAME))
        };
        elements.chunks(ELEMENTS_PER_MESSAGE).map(edit).collect()
    }
}

/// Parses the name of a set or map; `None` if it is anonymous or in another table.
pub(in crate::netlink) fn read_name(table: &str, payload: &[u8]) -> Result<Option<String>> {
    let (mut name, mut wanted) = (None, false);
    for attribute in wire::attributes(payload, HEADER) {
        match attribute? {
            (TABLE, value) => wanted = wire::text(value) == table,
            (SET_NAME, value) => name = Some(wire::text(value)),
            (SET_FLAGS, value) if u32::from_be(wire::number(value, 0)?) & FLAG_ANONYMOUS != 0 => return Ok(None),
            _ => {}
        }
    }
    Ok(name.filter(|_| wanted))
}

/// Starts a message about a set or its elements.
pub(super) fn about_set(kind: u16, flags: NlmF, set: Set<'_>) -> Request {
    let mut request = about(kind, flags, set.table);
    request.text(SET_NAME, set.name);
    request
}

fn about_elements(
    kind: u16,
    flags: NlmF,
    set: Set<'_>,
    elements: &[Element],
    write: fn(&Element, &mut Attributes<'_>),
) -> Request {
    let mut request = about_set(kind, flags, set);
    request.nest(NESTED | ELEMENTS, |list| {
        for element in elements {
            Attributes(list).nest(LIST_ELEM, |attributes| write(element, attributes));
        }
    });
    request
}

/// Asks for the element with a key.
pub(super) fn get_element(set: Set<'_>, key: &[u8]) -> Vec<u8> {
    let element = Element { key: key.to_vec(), ..Element::new(&[]) };
    about_elements(GETSETELEM, NlmF::empty(), set, &[element], Element::write_key).finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_elements_are_spread_over_messages() {
        let set = Set { table: Table { family: super::super::Family::Ipv6, name: "t" }, name: "s" };
        let largest = |port| {
            let part = [Value::Ip([0xfd00, 0, 0, 0, 0, 0, 0, 1].into()), Value::Port(port)];
            let key: Vec<_> = part.iter().cycle().take(6).cloned().collect();
            let verdict = Verdict::Jump("x".repeat(255));
            Element::range(&key, &key).verdict(verdict).comment("c".repeat(120)).mark("m".repeat(120))
        };
        let elements: Vec<_> = (0..200).map(largest).collect();
        let edits = Edit::create_elements(set, &elements);
        assert_eq!(edits.len(), 3);
        let read: Vec<_> = edits.iter().flat_map(|edit| Element::read_all(&edit.message[16..]).unwrap()).collect();
        assert_eq!(read, elements);
        assert!(Edit::delete_elements(set, &[]).is_empty());
    }
}
