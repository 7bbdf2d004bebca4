//! The reader: presents a syntactically valid text to serde, member by member.

use std::borrow::Cow;
use std::fmt;
use std::iter;

use serde::de::value::{CowStrDeserializer, StrDeserializer};
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};

use super::{Fault, RAW};

/// One value of the document: its text without surrounding white space.
#[derive(Clone, Copy)]
pub(super) struct Node<'de>(pub(super) &'de str);

type Pair<'de> = (Cow<'de, str>, Node<'de>);

impl<'de> Node<'de> {
    fn is_null(self) -> bool {
        self.0 == "null"
    }

    /// Returns whether the object has this key.
    pub(super) fn has_key(self, wanted: &str) -> Result<bool, Fault> {
        let mut members = Members::of(self);
        while let Some((key, _)) = members.next_pair()? {
            if same_key(wanted, &key) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the keys of this object; none if it is no object.
    pub(super) fn keys(self) -> impl Iterator<Item = Cow<'de, str>> {
        let mut members = self.0.starts_with('{').then(|| Members::of(self));
        iter::from_fn(move || members.as_mut()?.next_pair().ok().flatten().map(|(key, _)| key))
    }

    /// Returns the text of a string, borrowed from the document unless it has escapes.
    fn text(self) -> Result<Cow<'de, str>, Fault> {
        if let Some(inside) = self.0.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'))
            && !inside.as_bytes().contains(&b'\\')
        {
            return Ok(Cow::Borrowed(inside));
        }
        let Text(text) = serde_json::from_str(self.0).map_err(|error| Fault::syntax(self.0, &error))?;
        Ok(text)
    }

    /// Returns the value. Not generic, because serde instantiates its own code for each type, which should stay small.
    fn value(self) -> Result<Value<'de>, Fault> {
        Ok(match self.0.as_bytes().first() {
            Some(b'n') => Value::Null,
            Some(b't') => Value::Bool(true),
            Some(b'f') => Value::Bool(false),
            Some(b'"') => Value::Text(self.text()?),
            Some(b'[') => Value::List,
            Some(b'{') => Value::Object,
            // The reference rejects "1500.0" as an integer, so the text decides, not the value.
            _ if self.0.contains(['.', 'e', 'E']) => Value::Fraction,
            _ => match (self.0.parse(), self.0.parse()) {
                (Ok(n), _) => Value::Unsigned(n),
                (_, Ok(n)) => Value::Signed(n),
                _ => return Err(Fault::value(format!("{} is out of range", self.0))),
            },
        })
    }

    /// Returns all members of an object.
    fn pairs(self) -> Result<Fields<'de>, Fault> {
        let mut pairs = Vec::new();
        let mut members = Members::of(self);
        while let Some(pair) = members.next_pair()? {
            pairs.push(pair);
        }
        Ok(Fields::new(pairs))
    }

    /// Returns the members of an object that are in `fields`: the last one of each, without nulls. Unknown members are
    /// not stored, so that an object of any size needs no more memory than its fields.
    fn known(self, fields: &'static [&'static str]) -> Result<Fields<'de>, Fault> {
        let mut known: Vec<Pair<'de>> = Vec::with_capacity(fields.len());
        let mut members = Members::of(self);
        while let Some((key, value)) = members.next_pair()? {
            let Some(field) = fields.iter().find(|field| same_key(field, &key)) else { continue };
            if value.is_null() {
                continue;
            }
            match known.iter_mut().find(|(name, _)| name == field) {
                Some(earlier) => earlier.1 = value,
                None => known.push((Cow::Borrowed(field), value)),
            }
        }
        Ok(Fields::new(known))
    }

    /// Creates the fault for a value that the visitor did not expect.
    #[cold]
    fn unexpected(self, value: &Value<'_>, wanted: &dyn de::Expected) -> Fault {
        let got = match value {
            Value::Null => de::Unexpected::Unit,
            Value::Bool(value) => de::Unexpected::Bool(*value),
            Value::Unsigned(n) => de::Unexpected::Unsigned(*n),
            Value::Signed(n) => de::Unexpected::Signed(*n),
            Value::Fraction => de::Unexpected::Other(self.0),
            Value::Text(text) => de::Unexpected::Str(text),
            Value::List => de::Unexpected::Seq,
            Value::Object => de::Unexpected::Map,
        };
        de::Error::invalid_type(got, wanted)
    }
}

/// The type of a value, and its content if it is not a collection. Members are read on demand.
enum Value<'de> {
    Null,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    /// No type read here accepts a fraction, so its text is not parsed.
    Fraction,
    Text(Cow<'de, str>),
    List,
    Object,
}

/// Defines a method for each integer type.
macro_rules! integers {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
            match self.value()? {
                Value::Unsigned(n) => visitor.visit_u64(n),
                Value::Signed(n) => visitor.visit_i64(n),
                other => Err(self.unexpected(&other, &visitor)),
            }
        })*
    };
}

impl<'de> Deserializer<'de> for Node<'de> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.value()? {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(value),
            Value::Unsigned(n) => visitor.visit_u64(n),
            Value::Signed(n) => visitor.visit_i64(n),
            Value::Text(Cow::Borrowed(text)) => visitor.visit_borrowed_str(text),
            Value::Text(Cow::Owned(text)) => visitor.visit_string(text),
            Value::List => visitor.visit_seq(Items { members: Members::of(self), index: 0 }),
            Value::Object => visitor.visit_map(self.pairs()?),
            other @ Value::Fraction => Err(self.unexpected(&other, &visitor)),
        }
    }

    // `deserialize_any` could handle these types as well, but the generated code would be ten times as large.

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.value()? {
            Value::Bool(value) => visitor.visit_bool(value),
            other => Err(self.unexpected(&other, &visitor)),
        }
    }

    integers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.value()? {
            Value::Text(Cow::Borrowed(text)) => visitor.visit_borrowed_str(text),
            Value::Text(Cow::Owned(text)) => visitor.visit_string(text),
            other => Err(self.unexpected(&other, &visitor)),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_str(visitor)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.value()? {
            Value::List => visitor.visit_seq(Items { members: Members::of(self), index: 0 }),
            other => Err(self.unexpected(&other, &visitor)),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        match self.value()? {
            Value::Object => visitor.visit_map(self.known(fields)?),
            // Rejects a list too, which serde's visitor would accept as fields in declaration order.
            other => Err(self.unexpected(&other, &visitor)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        if self.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, Fault> {
        if name == RAW { visitor.visit_borrowed_str(self.0) } else { visitor.visit_newtype_struct(self) }
    }

    /// Reads a string that names a variant.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        if self.0.starts_with('"') {
            return visitor.visit_enum(CowStrDeserializer::new(self.text()?));
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        i128 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct map identifier
    }
}

/// Compares keys in any letter case. Like the reference's decoder, it folds the two non-ASCII letters whose simple fold
/// is an ASCII letter: the long s and the Kelvin sign.
pub fn same_key(field: &str, key: &str) -> bool {
    if key.is_ascii() {
        return field.eq_ignore_ascii_case(key);
    }
    let fold = |c: char| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    field.chars().map(fold).eq(key.chars().map(fold))
}

/// The remaining text of an object or a list.
struct Members<'de>(&'de str);

impl<'de> Members<'de> {
    fn of(node: Node<'de>) -> Members<'de> {
        Members(node.0.get(1..).unwrap_or_default())
    }

    /// Returns the next value or key; `None` at the closing bracket. The syntax has been validated, so separators can
    /// be skipped.
    fn next(&mut self) -> Option<Node<'de>> {
        let start = self.0.bytes().position(|byte| !is_separator(byte))?;
        let rest = self.0.get(start..)?;
        if rest.starts_with([']', '}']) {
            return None;
        }
        let (value, rest) = rest.split_at_checked(length(rest.as_bytes()))?;
        self.0 = rest;
        Some(Node(value))
    }

    fn next_pair(&mut self) -> Result<Option<Pair<'de>>, Fault> {
        let Some(key) = self.next() else { return Ok(None) };
        let value = self.next().ok_or_else(|| Fault::shape("a key without a value"))?;
        Ok(Some((key.text()?, value)))
    }
}

/// Returns whether the byte can occur between members.
fn is_separator(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | b',' | b':')
}

/// Returns the length of the value at the beginning of a syntactically valid text.
fn length(text: &[u8]) -> usize {
    let ends_word = |byte: &u8| is_separator(*byte) || matches!(byte, b'}' | b']');
    match text.first() {
        Some(b'"') => string_length(text),
        Some(b'{' | b'[') => collection_length(text),
        _ => text.iter().position(ends_word).unwrap_or(text.len()),
    }
}

/// Returns the length of a string with its quotes.
fn string_length(text: &[u8]) -> usize {
    let mut escaped = false;
    let ends = |byte: &u8| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    };
    text.iter().skip(1).position(ends).map_or(text.len(), |inside| inside + 2)
}

/// Returns the length of an object or a list with its brackets. Most of its bytes are in strings, which are skipped
/// fast.
fn collection_length(text: &[u8]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => at += string_length(text.get(at..).unwrap_or_default()) - 1,
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth <= 1 => return at + 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
    }
    text.len()
}

struct Fields<'de> {
    pairs: std::vec::IntoIter<Pair<'de>>,
    pair: Option<Pair<'de>>,
}

impl<'de> Fields<'de> {
    fn new(pairs: Vec<Pair<'de>>) -> Fields<'de> {
        Fields { pairs: pairs.into_iter(), pair: None }
    }

    // These are not inlined, because serde instantiates its own code for each type.

    /// Returns the next key.
    #[inline(never)]
    fn next_key(&mut self) -> Option<&str> {
        self.pair = self.pairs.next();
        self.pair.as_ref().map(|(key, _)| &**key)
    }

    /// Returns the value of the key.
    #[inline(never)]
    fn value(&self) -> Result<Node<'de>, Fault> {
        self.pair.as_ref().map(|(_, value)| *value).ok_or_else(|| Fault::shape("a value before its key"))
    }

    /// Adds the key to the path of a fault.
    #[cold]
    #[inline(never)]
    fn locate(&mut self, fault: Fault) -> Fault {
        match self.pair.take() {
            Some((key, _)) => fault.under(key),
            None => fault,
        }
    }
}

impl<'de> MapAccess<'de> for Fields<'de> {
    type Error = Fault;

    #[inline(never)]
    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Fault> {
        let Some(key) = self.next_key() else { return Ok(None) };
        seed.deserialize(StrDeserializer::new(key)).map(Some)
    }

    // Not inlined, so that fields of the same type share one instance.
    #[inline(never)]
    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Fault> {
        seed.deserialize(self.value()?).map_err(|fault| self.locate(fault))
    }
}

struct Items<'de> {
    members: Members<'de>,
    index: usize,
}

impl Items<'_> {
    /// Adds the index of the last item to the path of a fault.
    #[cold]
    #[inline(never)]
    fn locate(&self, fault: Fault) -> Fault {
        fault.under(format_args!("[{}]", self.index - 1))
    }
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Fault;

    #[inline(never)]
    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Fault> {
        let Some(item) = self.members.next() else { return Ok(None) };
        self.index += 1;
        seed.deserialize(item).map(Some).map_err(|fault| self.locate(fault))
    }
}

struct Text<'de>(Cow<'de, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text<'de>, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Either)
    }
}
