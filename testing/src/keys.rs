//! Lists the keys that a type reads, by querying serde: so there is no second list to maintain.
//!
//! A derived `Deserialize` passes the names of all fields to its deserializer before it reads one. So a deserializer
//! without a document can follow one path after the other and record what is requested. Each walk intentionally ends
//! with an error.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::value::BorrowedStrDeserializer;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// Returns the keys that `T` reads, with the kinds of their values. `a.b[].c` is `c` in the elements of the list `b` in
/// the object `a`. Objects are not listed themselves, only their keys.
pub fn of<'de, T: Deserialize<'de>>() -> BTreeMap<String, &'static str> {
    let mut keys = BTreeMap::new();
    let mut paths: Vec<Vec<Step>> = vec![Vec::new()];
    while let Some(path) = paths.pop() {
        let requested = RefCell::new(Requested::Nothing);
        let end = T::deserialize(Walk { left: &path, requested: &requested });
        assert!(end.is_err(), "{path:?} did not end");
        let extended = |step| path.iter().copied().chain([step]).collect();
        match requested.into_inner() {
            Requested::Nothing => panic!("no value was requested at {path:?}"),
            Requested::Object(fields) => paths.extend(fields.iter().map(|field| extended(Step::Key(field)))),
            Requested::List => {
                paths.push(extended(Step::Item));
                note(&mut keys, &path, "list");
            }
            Requested::Value(kind) => note(&mut keys, &path, kind),
        }
    }
    keys
}

/// Records the kind at the end of a path; an item counts as its list.
fn note(keys: &mut BTreeMap<String, &'static str>, path: &[Step], kind: &'static str) {
    if let Some(Step::Key(_)) = path.last() {
        let text: String = path.iter().map(Step::to_string).collect();
        keys.insert(text.trim_start_matches('.').to_owned(), kind);
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Key(&'static str),
    Item,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Key(key) => write!(f, ".{key}"),
            Step::Item => f.write_str("[]"),
        }
    }
}

/// The type that is requested at the end of the path.
#[derive(Debug)]
enum Requested {
    Nothing,
    Object(&'static [&'static str]),
    List,
    Value(&'static str),
}

/// A deserializer without a document.
struct Walk<'a> {
    left: &'a [Step],
    requested: &'a RefCell<Requested>,
}

impl Walk<'_> {
    fn end(&self, requested: Requested) -> End {
        *self.requested.borrow_mut() = requested;
        End
    }
}

/// The error that ends a walk.
#[derive(Debug)]
struct End;

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the end of the walk")
    }
}

impl std::error::Error for End {}

impl de::Error for End {
    fn custom<T: fmt::Display>(_: T) -> End {
        End
    }
}

/// Value types at which a path ends, by deserializer method.
macro_rules! values {
    ($($kind:literal: $($method:ident)*;)*) => {
        $($(fn $method<V: Visitor<'de>>(self, _: V) -> Result<V::Value, End> {
            Err(self.end(Requested::Value($kind)))
        })*)*
    };
}

impl<'de> Deserializer<'de> for Walk<'_> {
    type Error = End;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, End> {
        match self.left {
            [Step::Key(key), left @ ..] => visitor.visit_map(One { key: Some(*key), walk: Walk { left, ..self } }),
            _ => Err(self.end(Requested::Object(fields))),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, End> {
        match self.left {
            [Step::Item, left @ ..] => visitor.visit_seq(One { key: None, walk: Walk { left, ..self } }),
            _ => Err(self.end(Requested::List)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, End> {
        visitor.visit_some(self)
    }

    values! {
        "boolean": deserialize_bool;
        "number": deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
            deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128;
        "text": deserialize_str deserialize_string deserialize_char;
        "anything": deserialize_any deserialize_map deserialize_ignored_any deserialize_identifier deserialize_f32
            deserialize_f64 deserialize_bytes deserialize_byte_buf deserialize_unit;
    }

    /// A value that is kept as text.
    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, _: V) -> Result<V::Value, End> {
        Err(self.end(Requested::Value("anything")))
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, _: V) -> Result<V::Value, End> {
        Err(self.end(Requested::Value("anything")))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, End> {
        Err(self.end(Requested::Value("anything")))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(self, _: &'static str, _: usize, _: V) -> Result<V::Value, End> {
        Err(self.end(Requested::Value("anything")))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, End> {
        Err(self.end(Requested::Value("text")))
    }
}

/// An object or a list with only the next step of the path.
struct One<'a> {
    key: Option<&'static str>,
    walk: Walk<'a>,
}

impl<'de> MapAccess<'de> for One<'_> {
    type Error = End;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, End> {
        let key = self.key.take().map(BorrowedStrDeserializer::new);
        key.map(|key| seed.deserialize(key)).transpose()
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, End> {
        seed.deserialize(Walk { ..self.walk })
    }
}

impl<'de> SeqAccess<'de> for One<'_> {
    type Error = End;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, End> {
        seed.deserialize(Walk { ..self.walk }).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_found_with_its_path() {
        #[derive(Debug, Deserialize)]
        #[serde(rename_all = "camelCase")]
        #[expect(dead_code, reason = "only its shape matters")]
        struct Outer<'a> {
            is_good: bool,
            inner: Option<Inner>,
            sets: Vec<Vec<Inner>>,
            names: Vec<String>,
            #[serde(borrow)]
            raw: Option<&'a serde_json::value::RawValue>,
        }
        #[derive(Debug, Deserialize)]
        #[expect(dead_code, reason = "only its shape matters")]
        struct Inner {
            #[serde(rename = "minID", deserialize_with = "linux::ip::optional")]
            min: Option<std::net::IpAddr>,
            mtu: u32,
        }
        let keys: Vec<String> = of::<Outer<'_>>().into_iter().map(|(key, kind)| format!("{key} {kind}")).collect();
        let wanted = [
            "inner.minID text",
            "inner.mtu number",
            "isGood boolean",
            "names list",
            "raw anything",
            "sets list",
            "sets[][].minID text",
            "sets[][].mtu number",
        ];
        assert_eq!(keys, wanted);
    }
}
