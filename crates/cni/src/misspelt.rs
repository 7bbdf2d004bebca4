//! Warns of misspelt keys: keys of the configuration that no plugin in this process has read, and that look like one
//! that it reads. Other keys may be for other programs.

use std::cell::{Cell, RefCell};
use std::fmt::{self, Display};

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::forward_to_deserialize_any;

use crate::error::{Code, Error};
use crate::json::{self, same_key};
use crate::logging::report;
use crate::suggest::most_similar;

/// The keys that the protocol and runtimes define for all plugins.
const GENERAL: [&str; 14] = [
    "cniVersion",
    "cniVersions",
    "name",
    "type",
    "ipam",
    "dns",
    "args",
    "capabilities",
    "runtimeConfig",
    "prevResult",
    "logLevel",
    "logFile",
    "disableCheck",
    "disableGC",
];

/// How many keys are compared at most: a configuration can have any number.
const MOST: usize = 200;

/// The keys that a call has read.
#[derive(Debug, Default)]
pub(crate) struct ReadKeys(RefCell<Vec<&'static [&'static str]>>);

impl ReadKeys {
    /// Records the keys of `T`.
    pub(crate) fn record<'de, T: Deserialize<'de>>(&self) {
        let fields = Cell::new(&[][..]);
        // Only the side effect matters.
        let _ = T::deserialize(Fields(&fields));
        self.0.borrow_mut().push(fields.get());
    }

    /// Warns of the keys in `config` that look like one of these.
    pub(crate) fn warn_of_others(&self, config: &str) {
        let read = self.0.borrow();
        let known = || read.iter().copied().flatten().copied().chain(GENERAL);
        for key in json::keys(config).take(MOST) {
            if read.iter().any(|keys| is_among(keys, &key)) || is_among(&GENERAL, &key) {
                continue;
            }
            if let Some(meant) = most_similar(&key, known()) {
                let mistake = Error::new(Code::CONFIG, format!("no plugin reads the key {key:?}"));
                report(&mistake.details(format!("did you mean {meant:?}?")));
            }
        }
    }
}

fn is_among(keys: &[&str], key: &str) -> bool {
    keys.iter().any(|known| known.len() == key.len() && same_key(known, key))
}

/// A deserializer without a document, which only records the fields of a struct.
struct Fields<'a>(&'a Cell<&'static [&'static str]>);

impl<'de> Deserializer<'de> for Fields<'_> {
    type Error = NoDocument;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, NoDocument> {
        self.0.set(fields);
        Err(NoDocument)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, NoDocument> {
        Err(NoDocument)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The outcome of every walk. It has no text, which would cost more than the walk.
#[derive(Debug)]
struct NoDocument;

impl Display for NoDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("there is no document")
    }
}

impl std::error::Error for NoDocument {}

impl de::Error for NoDocument {
    fn custom<T: Display>(_: T) -> NoDocument {
        NoDocument
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Keys {
        is_gateway: bool,
        mtu: i64,
    }

    #[test]
    fn the_names_of_fields_are_recorded() {
        let read = ReadKeys::default();
        read.record::<Keys>();
        read.record::<Option<u8>>();
        assert_eq!(read.0.borrow().concat(), ["isGateway", "mtu"]);
    }
}
