//! The reader: serde's view of a text that has been checked, member by member.

use std::borrow::Cow;
use std::fmt;

use serde::de::value::CowStrDeserializer;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};
use serde_json::value::RawValue;

use super::{Fault, RAW, mismatch};

/// One value of the document, as its text without white space around it.
#[derive(Clone, Copy)]
pub(super) struct Node<'de>(pub(super) &'de str);

type Pair<'de> = (Cow<'de, str>, Node<'de>);

impl<'de> Node<'de> {
    fn is_null(self) -> bool {
        self.0 == "null"
    }

    /// The text of a string, borrowed from the document unless it has escapes.
    fn text(self) -> Result<Cow<'de, str>, Fault> {
        let Text(text) = serde_json::from_str(self.0).map_err(Fault::syntax)?;
        Ok(text)
    }

    fn number<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        // "1500.0" is no integer to the reference, so the text decides, not the value.
        if self.0.contains(['.', 'e', 'E']) {
            return visitor.visit_f64(self.0.parse().map_err(Fault::value)?);
        }
        if let Ok(n) = self.0.parse::<u64>() {
            return visitor.visit_u64(n);
        }
        match self.0.parse::<i64>() {
            Ok(n) => visitor.visit_i64(n),
            Err(_) => Err(Fault::value(format!("{} is out of range", self.0))),
        }
    }
}

impl<'de> Deserializer<'de> for Node<'de> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.0.as_bytes().first() {
            Some(b'n') => visitor.visit_unit(),
            Some(b't') => visitor.visit_bool(true),
            Some(b'f') => visitor.visit_bool(false),
            Some(b'"') => match self.text()? {
                Cow::Borrowed(text) => visitor.visit_borrowed_str(text),
                Cow::Owned(text) => visitor.visit_string(text),
            },
            Some(b'[') => visitor.visit_seq(Items { members: Members::of(self), index: 0 }),
            Some(b'{') => {
                let mut pairs = Vec::new();
                let mut members = Members::of(self);
                while let Some(pair) = members.next_pair()? {
                    pairs.push(pair);
                }
                visitor.visit_map(Fields::new(pairs))
            }
            _ => self.number(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        // serde's visitor would take a list for the fields in their order.
        if self.0.starts_with('[') {
            return Err(Fault::shape(mismatch(de::Unexpected::Seq, &"an object")));
        }
        if !self.0.starts_with('{') {
            return self.deserialize_any(visitor);
        }
        // Only what is known is kept, so that an object of any size costs no more than its fields.
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
        visitor.visit_map(Fields::new(known))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        if self.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        if name == RAW {
            visitor.visit_borrowed_str(self.0)
        } else {
            visitor.visit_newtype_struct(self)
        }
    }

    /// One word out of several.
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
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier
    }
}

/// Equal in any letter case. Like the reference's decoder this folds the two letters outside ASCII that have an ASCII
/// letter as their simple fold: the long s and the Kelvin sign.
pub(super) fn same_key(field: &str, key: &str) -> bool {
    let fold = |c: char| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    field == key || field.chars().map(fold).eq(key.chars().map(fold))
}

/// What is left of an object or a list.
struct Members<'de>(&'de str);

impl<'de> Members<'de> {
    fn of(node: Node<'de>) -> Members<'de> {
        Members(node.0.get(1..).unwrap_or_default())
    }

    /// The next value, or key; `None` at the closing bracket. The text is known to be good, so what separates members
    /// can be passed over.
    fn next(&mut self) -> Result<Option<Node<'de>>, Fault> {
        let rest = self.0.trim_start_matches([' ', '\t', '\n', '\r', ',', ':']);
        if rest.is_empty() || rest.starts_with([']', '}']) {
            return Ok(None);
        }
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<&'de RawValue>();
        let value = values.next().transpose().map_err(Fault::syntax)?;
        self.0 = rest.get(values.byte_offset()..).unwrap_or_default();
        Ok(value.map(|value| Node(value.get())))
    }

    fn next_pair(&mut self) -> Result<Option<Pair<'de>>, Fault> {
        let Some(key) = self.next()? else { return Ok(None) };
        let value = self.next()?.ok_or_else(|| Fault::shape("a key without a value"))?;
        Ok(Some((key.text()?, value)))
    }
}

struct Fields<'de> {
    pairs: std::vec::IntoIter<Pair<'de>>,
    value: Option<Pair<'de>>,
}

impl<'de> Fields<'de> {
    fn new(pairs: Vec<Pair<'de>>) -> Fields<'de> {
        Fields { pairs: pairs.into_iter(), value: None }
    }
}

impl<'de> MapAccess<'de> for Fields<'de> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Fault> {
        self.value = self.pairs.next();
        let Some((key, _)) = &self.value else { return Ok(None) };
        seed.deserialize(CowStrDeserializer::new(key.clone())).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Fault> {
        let (key, value) =
            self.value.take().ok_or_else(|| Fault::shape("a value before its key"))?;
        seed.deserialize(value).map_err(|fault| fault.under(key))
    }
}

struct Items<'de> {
    members: Members<'de>,
    index: usize,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Fault> {
        let Some(item) = self.members.next()? else { return Ok(None) };
        let index = self.index;
        self.index += 1;
        seed.deserialize(item).map(Some).map_err(|fault| fault.under(format_args!("[{index}]")))
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
