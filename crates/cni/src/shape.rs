//! The keys that a plugin reads, with the types of their values. They come from the types that the plugin deserializes,
//! so there is no second list to maintain.
//!
//! A derived `Deserialize` passes the names of all fields to its deserializer before it reads one. So a deserializer
//! without a document can follow one path after the other, and record what is requested at its end. Each walk ends with
//! an error.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::value::BorrowedStrDeserializer;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// The type of a value in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `true` or `false`.
    Boolean,
    /// An integer of this range.
    Integer(i128, i128),
    /// A text.
    Text,
    /// A list of such elements.
    List(Box<Shape>),
    /// An object with these keys, in the order of their declaration. The reader matches them in any letter case.
    Object(Vec<(&'static str, Shape)>),
    /// An object with any keys, and such values.
    Map(Box<Shape>),
    /// A value that the plugin keeps as text, and parses or passes on later.
    Anything,
}

impl Shape {
    /// Returns the shape of what `T` reads.
    pub fn of<'de, T: Deserialize<'de>>() -> Shape {
        at::<T>(&mut Vec::new())
    }

    /// Returns the shape of an object without keys.
    pub fn empty() -> Shape {
        Shape::Object(Vec::new())
    }

    /// Combines the keys of two types that read the same value. If both know the type of a key, the first one decides.
    #[must_use]
    pub fn and(self, other: Shape) -> Shape {
        match (self, other) {
            (Shape::Object(mut keys), Shape::Object(others)) => {
                for (key, shape) in others {
                    match keys.iter_mut().find(|(known, _)| *known == key) {
                        Some((_, known)) => *known = std::mem::replace(known, Shape::Anything).and(shape),
                        None => keys.push((key, shape)),
                    }
                }
                Shape::Object(keys)
            }
            (Shape::List(item), Shape::List(other)) => Shape::List(Box::new(item.and(*other))),
            (Shape::Anything, other) => other,
            (shape, _) => shape,
        }
    }

    /// Returns the word for the type in the documents.
    pub fn kind(&self) -> &'static str {
        match self {
            Shape::Boolean => "boolean",
            Shape::Integer(..) => "number",
            Shape::Text => "text",
            Shape::List(_) => "list",
            Shape::Object(_) | Shape::Map(_) => "object",
            Shape::Anything => "anything",
        }
    }

    /// Returns all keys with the words for their types. `a.b[].c` is `c` in the elements of the list `b` in the object
    /// `a`. An object with known keys is not listed itself, only its keys.
    pub fn keys(&self) -> BTreeMap<String, &'static str> {
        let mut keys = BTreeMap::new();
        self.collect("", &mut keys);
        keys
    }

    fn collect(&self, path: &str, into: &mut BTreeMap<String, &'static str>) {
        match self {
            Shape::Object(keys) => {
                let dot = if path.is_empty() { "" } else { "." };
                keys.iter().for_each(|(key, shape)| shape.collect(&format!("{path}{dot}{key}"), into));
                return;
            }
            Shape::List(item) => item.collect(&format!("{path}[]"), into),
            _ => {}
        }
        // An element counts as its list.
        if !path.ends_with("[]") {
            into.insert(path.to_owned(), self.kind());
        }
    }
}

/// Returns the shape of the value at `path` in `T`.
fn at<'de, T: Deserialize<'de>>(path: &mut Vec<Step>) -> Shape {
    let below = |path: &mut Vec<Step>, step| {
        path.push(step);
        let shape = at::<T>(path);
        path.pop();
        shape
    };
    match walk::<T>(path) {
        Requested::Object(fields) => {
            Shape::Object(fields.iter().map(|field| (*field, below(path, Step::Key(field)))).collect())
        }
        Requested::List => Shape::List(Box::new(below(path, Step::Item))),
        Requested::Map => Shape::Map(Box::new(below(path, Step::Key("any")))),
        Requested::Text => Shape::Text,
        Requested::Integer(min, max) => Shape::Integer(min, max),
        Requested::Boolean => Shape::Boolean,
        Requested::Anything => Shape::Anything,
    }
}

/// Returns what `T` requests at the end of `path`.
fn walk<'de, T: Deserialize<'de>>(path: &[Step]) -> Requested {
    let requested = Cell::new(Requested::Anything);
    // Only the side effects matter.
    let _ = T::deserialize(Walk { left: path, requested: &requested });
    requested.get()
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Key(&'static str),
    Item,
}

/// The type that is requested at the end of a path.
#[derive(Clone, Copy, Debug)]
enum Requested {
    Boolean,
    Integer(i128, i128),
    Text,
    List,
    Object(&'static [&'static str]),
    Map,
    Anything,
}

/// A deserializer without a document.
#[derive(Clone, Copy)]
struct Walk<'a> {
    left: &'a [Step],
    requested: &'a Cell<Requested>,
}

impl Walk<'_> {
    fn end<T>(self, requested: Requested) -> Result<T, End> {
        self.requested.set(requested);
        Err(End)
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

/// Defines the methods for types at which a path ends.
macro_rules! ends {
    ($($method:ident($($argument:ty),*) => $requested:expr;)*) => {
        $(fn $method<V: Visitor<'de>>(self, $(_: $argument,)* _: V) -> Result<V::Value, End> {
            self.end($requested)
        })*
    };
}

/// Defines the methods for integers.
macro_rules! integers {
    ($($method:ident: $type:ty;)*) => {
        ends! { $($method() => Requested::Integer(<$type>::MIN.into(), <$type>::MAX.into());)* }
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
            _ => self.end(Requested::Object(fields)),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, End> {
        match self.left {
            [Step::Key(key), left @ ..] => visitor.visit_map(One { key: Some(*key), walk: Walk { left, ..self } }),
            _ => self.end(Requested::Map),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, End> {
        match self.left {
            [Step::Item, left @ ..] => visitor.visit_seq(One { key: None, walk: Walk { left, ..self } }),
            _ => self.end(Requested::List),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, End> {
        visitor.visit_some(self)
    }

    integers! {
        deserialize_i8: i8; deserialize_i16: i16; deserialize_i32: i32; deserialize_i64: i64;
        deserialize_u8: u8; deserialize_u16: u16; deserialize_u32: u32; deserialize_u64: u64;
    }

    ends! {
        deserialize_bool() => Requested::Boolean;
        deserialize_char() => Requested::Text;
        deserialize_str() => Requested::Text;
        deserialize_string() => Requested::Text;
        deserialize_enum(&'static str, &'static [&'static str]) => Requested::Text;
        deserialize_any() => Requested::Anything;
        deserialize_ignored_any() => Requested::Anything;
        deserialize_identifier() => Requested::Anything;
        deserialize_f32() => Requested::Anything;
        deserialize_f64() => Requested::Anything;
        deserialize_bytes() => Requested::Anything;
        deserialize_byte_buf() => Requested::Anything;
        deserialize_unit() => Requested::Anything;
        deserialize_unit_struct(&'static str) => Requested::Anything;
        deserialize_tuple(usize) => Requested::Anything;
        deserialize_tuple_struct(&'static str, usize) => Requested::Anything;
        // A value that is kept as text.
        deserialize_newtype_struct(&'static str) => Requested::Anything;
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
        seed.deserialize(self.walk)
    }
}

impl<'de> SeqAccess<'de> for One<'_> {
    type Error = End;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, End> {
        seed.deserialize(self.walk).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use linux::ip::Cidr;

    use super::*;
    use crate::json::Raw;

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "camelCase")]
    #[expect(dead_code, reason = "only its shape matters")]
    struct Outer<'a> {
        is_good: bool,
        inner: Option<Inner>,
        sets: Vec<Vec<Inner>>,
        names: Vec<String>,
        networks: Vec<Option<Cidr>>,
        settings: BTreeMap<String, u8>,
        #[serde(borrow)]
        raw: Option<Raw<'a>>,
        word: Word,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only its shape matters")]
    struct Inner {
        #[serde(rename = "minID", deserialize_with = "linux::ip::optional")]
        min: Option<IpAddr>,
        mtu: u32,
    }

    #[derive(Debug, Deserialize)]
    enum Word {}

    #[test]
    fn every_field_is_found_with_its_path() {
        let keys: Vec<String> =
            Shape::of::<Outer<'_>>().keys().into_iter().map(|(key, kind)| format!("{key} {kind}")).collect();
        let wanted = [
            "inner.minID text",
            "inner.mtu number",
            "isGood boolean",
            "names list",
            "networks list",
            "raw anything",
            "sets list",
            "sets[][].minID text",
            "sets[][].mtu number",
            "settings object",
            "word text",
        ];
        assert_eq!(keys, wanted);
    }

    #[test]
    fn types_limit_what_a_value_may_be() {
        let Shape::Object(keys) = Shape::of::<Outer<'_>>() else { panic!() };
        let shape = |name: &str| keys.iter().find(|(key, _)| *key == name).unwrap().1.clone();
        let inner = vec![("minID", Shape::Text), ("mtu", Shape::Integer(0, u32::MAX.into()))];
        assert_eq!(shape("inner"), Shape::Object(inner.clone()));
        assert_eq!(shape("sets"), Shape::List(Box::new(Shape::List(Box::new(Shape::Object(inner))))));
        assert_eq!(shape("names"), Shape::List(Box::new(Shape::Text)));
        assert_eq!(shape("networks"), Shape::List(Box::new(Shape::Text)));
        assert_eq!(shape("settings"), Shape::Map(Box::new(Shape::Integer(0, 255))));
        assert_eq!(Shape::of::<Vec<Cidr>>(), Shape::List(Box::new(Shape::Text)));
    }

    #[test]
    fn two_types_can_read_the_same_object() {
        let first = Shape::Object(vec![("ipam", Shape::Object(vec![("type", Shape::Text)])), ("raw", Shape::Anything)]);
        let list = |key| Shape::List(Box::new(Shape::Object(vec![(key, Shape::Boolean)])));
        let second = Shape::Object(vec![("ipam", Shape::Object(vec![("sets", list("a"))])), ("raw", Shape::Text)]);
        let third = Shape::Object(vec![("ipam", Shape::Object(vec![("sets", list("b")), ("type", Shape::Boolean)]))]);
        let keys = first.and(second).and(third).keys();
        let wanted =
            [("ipam.sets", "list"), ("ipam.sets[].a", "boolean"), ("ipam.sets[].b", "boolean"), ("ipam.type", "text")];
        assert_eq!(
            keys,
            wanted.into_iter().chain([("raw", "text")]).map(|(key, kind)| (key.to_owned(), kind)).collect()
        );
        assert_eq!(Shape::empty().and(Shape::empty()), Shape::empty());
    }
}
