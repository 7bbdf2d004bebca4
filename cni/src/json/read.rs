//! The reader: serde's view of a text, object by object.

use std::borrow::Cow;
use std::fmt;

use serde::de::value::{BorrowedStrDeserializer, StrDeserializer};
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};
use serde_json::value::RawValue;

use super::{Fault, RAW, mismatch};

/// One value of the document, as its text without white space around it.
#[derive(Clone, Copy)]
pub(super) struct Node<'de>(pub(super) &'de str);

impl<'de> Node<'de> {
    fn is_null(self) -> bool {
        self.0 == "null"
    }

    fn pairs(self) -> Result<Vec<(Cow<'de, str>, Node<'de>)>, Fault> {
        let Pairs(pairs) = serde_json::from_str(self.0).map_err(Fault::syntax)?;
        Ok(pairs)
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
            Some(b'"') => {
                let Text(text) = serde_json::from_str(self.0).map_err(Fault::syntax)?;
                match text {
                    Cow::Borrowed(text) => visitor.visit_borrowed_str(text),
                    Cow::Owned(text) => visitor.visit_string(text),
                }
            }
            Some(b'[') => {
                let items: Vec<&RawValue> = serde_json::from_str(self.0).map_err(Fault::syntax)?;
                visitor.visit_seq(Items { items: items.into_iter(), index: 0 })
            }
            Some(b'{') => visitor.visit_map(Fields::new(self.pairs()?)),
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
        let mut known: Vec<(Cow<'de, str>, Node<'de>)> = Vec::with_capacity(fields.len());
        for (key, value) in self.pairs()? {
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

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map enum identifier
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

struct Fields<'de> {
    pairs: std::vec::IntoIter<(Cow<'de, str>, Node<'de>)>,
    value: Option<(Cow<'de, str>, Node<'de>)>,
}

impl<'de> Fields<'de> {
    fn new(pairs: Vec<(Cow<'de, str>, Node<'de>)>) -> Fields<'de> {
        Fields { pairs: pairs.into_iter(), value: None }
    }
}

impl<'de> MapAccess<'de> for Fields<'de> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Fault> {
        let Some((key, value)) = self.pairs.next() else { return Ok(None) };
        let name = match &key {
            Cow::Borrowed(key) => seed.deserialize(BorrowedStrDeserializer::new(key)),
            Cow::Owned(key) => seed.deserialize(StrDeserializer::new(key)),
        };
        self.value = Some((key, value));
        name.map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Fault> {
        let (key, value) =
            self.value.take().ok_or_else(|| Fault::shape("a value before its key"))?;
        seed.deserialize(value).map_err(|fault| fault.under(key))
    }
}

struct Items<'de> {
    items: std::vec::IntoIter<&'de RawValue>,
    index: usize,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Fault> {
        let Some(item) = self.items.next() else { return Ok(None) };
        let index = self.index;
        self.index += 1;
        seed.deserialize(Node(item.get()))
            .map(Some)
            .map_err(|fault| fault.under(format_args!("[{index}]")))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

/// A text, borrowed from the document unless it has escapes.
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

/// The keys and values of an object, in the document's order.
struct Pairs<'de>(Vec<(Cow<'de, str>, Node<'de>)>);

impl<'de> Deserialize<'de> for Pairs<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Pairs<'de>, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Pairs<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<'de>, A::Error> {
                let mut pairs = Vec::new();
                while let Some((Text(key), value)) = map.next_entry::<Text<'de>, &'de RawValue>()? {
                    pairs.push((key, Node(value.get())));
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Object)
    }
}
