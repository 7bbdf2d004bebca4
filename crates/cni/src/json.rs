//! Reads JSON as leniently as the reference does, and prints it as the reference does.
//!
//! Reading follows the reference's decoder: keys match in any letter case, a later duplicate wins, `null` keeps the
//! default, unknown keys are ignored, and data after the document is an error. serde's derive does the rest. A
//! [`Fault`] names the key and its value.
//!
//! serde_json validates the whole text first, so the reader in `read` only finds where values begin and end. No tree is
//! built: a value stays a slice of the text until it is read, so that a large document needs no extra memory.

mod layout;
mod read;

use std::borrow::Cow;
use std::fmt::{self, Display};

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::{Code, Error};

use layout::Layout;
use read::Node;
pub use read::same_key;

/// Parses one document.
pub fn parse<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T, Fault> {
    let raw: &RawValue = serde_json::from_str(text).map_err(|error| Fault::syntax(text, &error))?;
    T::deserialize(Node(raw.get()))
}

/// Parses a document that [`parse`] has accepted already, as another type. Does not validate the syntax again.
pub(crate) fn parse_again<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T, Fault> {
    T::deserialize(Node(text.trim_ascii()))
}

/// Returns whether the object has this key, even with the value `null`.
pub fn has_key(text: &str, key: &str) -> Result<bool, Fault> {
    let raw: &RawValue = serde_json::from_str(text).map_err(|error| Fault::syntax(text, &error))?;
    Node(raw.get()).has_key(key)
}

/// Returns the keys of an object that [`parse`] has accepted already; none if it is no object.
pub(crate) fn keys(text: &str) -> impl Iterator<Item = Cow<'_, str>> {
    Node(text.trim_ascii()).keys()
}

/// Prints `value` as the reference does: indented by four spaces, without a newline at the end.
pub fn print<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    print_indented(value, b"    ")
}

/// Prints `value` with another indentation, as the reference does in some files.
pub fn print_indented<T: Serialize>(value: &T, indentation: &'static [u8]) -> Result<Vec<u8>, Error> {
    let mut out = Vec::with_capacity(512);
    let layout = Layout::indented(indentation);
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, layout)).map_err(Error::bug)?;
    Ok(out)
}

/// Prints `value` on one line, as the reference writes JSON for programs.
pub fn compact<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    let mut out = Vec::with_capacity(512);
    let layout = Layout::compact();
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, layout)).map_err(Error::bug)?;
    Ok(out)
}

/// The position and the reason of an error in a document. Boxed because every result of the reader reserves space for
/// one.
#[derive(Debug)]
pub struct Fault(Box<Parts>);

#[derive(Debug)]
struct Parts {
    kind: FaultKind,
    path: String,
    why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultKind {
    /// The text is not JSON.
    Syntax,
    /// A value has the wrong type.
    Shape,
    /// A value has the right type but is invalid.
    Value,
}

/// Returns the error for an invalid value of `key`.
pub fn invalid(key: &str, what: fmt::Arguments<'_>, remedy: impl AsRef<str>) -> Error {
    Error::from(Fault::value(what).under(key)).details(remedy)
}

impl Fault {
    /// Creates a fault for an invalid value of the right type. Callers add the key with [`Fault::under`].
    pub fn value(why: impl Display) -> Fault {
        Fault::new(FaultKind::Value, why)
    }

    #[cold]
    fn new(kind: FaultKind, why: impl Display) -> Fault {
        Fault(Box::new(Parts { kind, path: String::new(), why: why.to_string() }))
    }

    fn shape(why: impl Display) -> Fault {
        Fault::new(FaultKind::Shape, why)
    }

    #[cold]
    fn syntax(text: &str, error: &serde_json::Error) -> Fault {
        let why = syntax_mistake(text, error);
        Fault::new(FaultKind::Syntax, format_args!("{why} at line {} column {}", error.line(), error.column()))
    }

    /// Prepends `key` to the position of the fault.
    #[must_use]
    pub fn under(mut self, key: impl Display) -> Fault {
        let path = &mut self.0.path;
        let dot = if path.is_empty() || path.starts_with('[') { "" } else { "." };
        *path = format!("{key}{dot}{path}");
        self
    }
}

/// Describes why `text` is not JSON, without the position. Frequent mistakes are named.
pub fn syntax_mistake(text: &str, error: &serde_json::Error) -> String {
    let lines = text.split_inclusive('\n').take(error.line().saturating_sub(1));
    let offset = lines.map(str::len).sum::<usize>() + error.column().saturating_sub(1);
    let (before, after) = text.as_bytes().split_at(offset.min(text.len()));
    match after {
        [b'/', b'/' | b'*', ..] | [b'#', ..] => "JSON has no comments".to_owned(),
        [b'\'', ..] => "a string needs double quotes, not single quotes".to_owned(),
        // U+2018 to U+201F.
        [0xe2, 0x80, 0x98..=0x9f, ..] => "a string needs plain double quotes, not typographic quotes".to_owned(),
        [0xef, 0xbb, 0xbf, ..] => "the text starts with a byte order mark; save it as UTF-8 without one".to_owned(),
        [b']' | b'}', ..] if before.trim_ascii_end().ends_with(b",") => "trailing comma".to_owned(),
        _ => {
            let why = error.to_string();
            why.split_once(" at line ").map_or(why.as_str(), |(why, _)| why).to_owned()
        }
    }
}

impl Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { kind, path, why } = &*self.0;
        match (kind, path.is_empty()) {
            (FaultKind::Syntax, true) => write!(f, "invalid JSON: {why}"),
            (_, true) => f.write_str(why),
            (_, false) => write!(f, "key {path:?}: {why}"),
        }
    }
}

impl std::error::Error for Fault {}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        let code = if fault.0.kind == FaultKind::Value { Code::CONFIG } else { Code::DECODE };
        Error::new(code, fault.to_string())
    }
}

impl de::Error for Fault {
    fn custom<T: Display>(why: T) -> Fault {
        Fault::value(why)
    }

    fn invalid_type(got: de::Unexpected<'_>, want: &dyn de::Expected) -> Fault {
        Fault::shape(mismatch(got, want))
    }

    fn invalid_value(got: de::Unexpected<'_>, want: &dyn de::Expected) -> Fault {
        if let de::Unexpected::Unsigned(n) = got {
            return Fault::value(format!("{n} is out of range"));
        }
        Fault::value(mismatch(got, want))
    }

    fn unknown_variant(got: &str, want: &'static [&'static str]) -> Fault {
        Fault::value(format!("{got:?} is not one of {want:?}"))
    }

    fn missing_field(field: &'static str) -> Fault {
        Fault::value("the key is missing").under(field)
    }
}

/// Describes a type mismatch with JSON terms instead of serde's.
fn mismatch(got: de::Unexpected<'_>, want: &dyn de::Expected) -> String {
    let want = match want.to_string() {
        text if text.starts_with("struct ") || text == "a map" => "an object".to_owned(),
        text if text.starts_with("enum ") => "a string".to_owned(),
        text if text == "a sequence" => "a list".to_owned(),
        text if text == "a boolean" => "true or false".to_owned(),
        text if matches!(text.as_str(), "u8" | "u16" | "u32" | "u64") => "an integer that is not negative".to_owned(),
        text if matches!(text.as_str(), "i8" | "i16" | "i32" | "i64") => "an integer".to_owned(),
        text => text,
    };
    let got = match got {
        de::Unexpected::Str(text) => format!("{text:?}"),
        de::Unexpected::Bool(value) => value.to_string(),
        de::Unexpected::Unsigned(n) => n.to_string(),
        de::Unexpected::Signed(n) => n.to_string(),
        de::Unexpected::Unit => "null".to_owned(),
        de::Unexpected::Seq => "a list".to_owned(),
        de::Unexpected::Map if want == "a list" => "an object (enclose it in brackets: [{…}])".to_owned(),
        de::Unexpected::Map => "an object".to_owned(),
        other => other.to_string(),
    };
    format!("expected {want}, got {got}")
}

/// A value kept as text, to be parsed later or passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raw<'de>(&'de str);

/// The newtype name by which the reader recognises [`Raw`].
const RAW: &str = "cni::json::Raw";

impl<'de> Raw<'de> {
    /// Returns the value's text.
    pub fn text(self) -> &'de str {
        self.0
    }

    /// Parses the value.
    pub fn parse<T: Deserialize<'de>>(self) -> Result<T, Fault> {
        T::deserialize(Node(self.0))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Raw<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Raw<'a>, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Raw<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }
            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Raw<'de>, E> {
                Ok(Raw(text))
            }
        }
        deserializer.deserialize_newtype_struct(RAW, Text)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Conf {
        is_gateway: bool,
        mtu: u32,
        bridge: Option<String>,
        ranges: Vec<Vec<Range>>,
        #[serde(rename = "cni.dev/valid-attachments")]
        valid: Option<Vec<String>>,
        caps: BTreeMap<String, bool>,
        backend: Backend,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Backend {
        #[default]
        Iptables,
        Nftables,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Range {
        subnet: linux::ip::Cidr,
    }

    fn fault(text: &str) -> (u32, String) {
        let error = Error::from(parse::<Conf>(text).unwrap_err());
        (error.code().0, error.to_string())
    }

    #[test]
    fn keys_match_in_any_letter_case() {
        let conf: Conf = parse(r#"{"ISGATEWAY": true, "Mtu": 1400, "bridGe": "b", "\u017fomething": 1}"#).unwrap();
        assert_eq!(conf, Conf { is_gateway: true, mtu: 1400, bridge: Some("b".into()), ..Conf::default() });
        assert!(same_key("search", "\u{17f}earch") && same_key("link", "lin\u{212a}") && !same_key("a", "ä"));
        let conf: Conf = parse(r#"{"caps": {"a": true, "A": false}}"#).unwrap();
        assert_eq!(conf.caps.len(), 2, "keys of a map are data");
        let conf: Conf = parse(r#"{"backend": "nftables"}"#).unwrap();
        assert_eq!(conf.backend, Backend::Nftables);
    }

    #[test]
    fn a_later_duplicate_wins_and_null_leaves_the_default() {
        let conf: Conf = parse(r#"{"mtu": 1, "MTU": 2, "bridge": null, "mtu": null, "caps": null}"#).unwrap();
        assert_eq!(conf, Conf { mtu: 2, ..Conf::default() });
    }

    #[test]
    fn brackets_in_a_string_do_not_end_a_value() {
        let conf: Conf = parse(r#"{"x":["]}\"",{"y":"\\"}],"bridge":"a,b: [{é\"\\","mtu":7,"z":null}"#).unwrap();
        assert_eq!(conf, Conf { mtu: 7, bridge: Some("a,b: [{é\"\\".into()), ..Conf::default() });
        let conf: Conf = parse(" {\n\t\"ranges\" :\r[ [ ] , [ ] ] , \"\\u006dtu\":5} ").unwrap();
        assert_eq!(conf, Conf { mtu: 5, ranges: vec![Vec::new(), Vec::new()], ..Conf::default() });
        let surrogate = fault(r#"{"bridge": "\ud800"}"#);
        assert_eq!(surrogate.0, 6, "{surrogate:?}");
    }

    /// Generates a value from random `choices`, with at most `depth` levels.
    fn document(choices: &mut dyn FnMut(usize) -> usize, depth: usize) -> serde_json::Value {
        const TEXTS: [&str; 6] = ["", "a", "]},{[:", "q\"\\\"", "é\u{2028}\n", "\\"];
        let members = |choices: &mut dyn FnMut(usize) -> usize| choices(4);
        match choices(if depth == 0 { 5 } else { 7 }) {
            0 => serde_json::Value::Null,
            1 => true.into(),
            2 => 17.into(),
            3 => (-2.5).into(),
            4 => TEXTS[choices(TEXTS.len())].into(),
            5 => (0..members(choices)).map(|_| document(choices, depth - 1)).collect(),
            _ => {
                let member = |n| (format!("{n}{}", TEXTS[choices(TEXTS.len())]), document(choices, depth - 1));
                serde_json::Value::Object((0..3).map(member).collect())
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "too many steps")]
    fn members_are_found_where_serde_json_finds_them() {
        let mut state = 1_u64;
        let mut choices = |of: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap() % of
        };
        for round in 0..2000 {
            let whole: BTreeMap<String, serde_json::Value> =
                (0..3).map(|n| (n.to_string(), document(&mut choices, 4))).collect();
            let text = if round % 2 == 0 { print(&whole) } else { compact(&whole) };
            let text = String::from_utf8(text.unwrap()).unwrap();
            let found: BTreeMap<String, Raw<'_>> = parse(&text).unwrap();
            let found = found.into_iter().map(|(key, raw)| (key, serde_json::from_str(raw.text()).unwrap()));
            assert_eq!(found.collect::<BTreeMap<_, _>>(), whole, "{text}");
            let lists: BTreeMap<String, serde_json::Value> =
                whole.into_iter().filter(|(_, value)| value.is_array()).collect();
            let text = String::from_utf8(print(&lists).unwrap()).unwrap();
            let found: BTreeMap<String, Vec<Raw<'_>>> = parse(&text).unwrap();
            for (key, items) in found {
                let items: Vec<serde_json::Value> =
                    items.iter().map(|raw| serde_json::from_str(raw.text()).unwrap()).collect();
                assert_eq!(Some(&items), lists[&key].as_array(), "{text}");
            }
        }
    }

    #[test]
    fn faults_name_the_key_and_the_value() {
        for (text, code, want) in [
            (r#"{"mtu": "1500"}"#, 6, r#"key "mtu": expected an integer that is not negative, got "1500""#),
            (r#"{"mtu": 1500.0}"#, 6, r#"key "mtu": expected an integer that is not negative, got 1500.0"#),
            (r#"{"mtu": 1e3}"#, 6, r#"key "mtu": expected an integer that is not negative, got 1e3"#),
            (r#"{"mtu": -1}"#, 7, r#"key "mtu": expected an integer that is not negative, got -1"#),
            (r#"{"mtu": 4294967296}"#, 7, r#"key "mtu": 4294967296 is out of range"#),
            (r#"{"mtu": 99999999999999999999}"#, 7, r#"key "mtu": 99999999999999999999 is out of range"#),
            (r#"{"isGateway": 1}"#, 6, r#"key "isGateway": expected true or false, got 1"#),
            (r#"{"isGateway": "yes"}"#, 6, r#"key "isGateway": expected true or false, got "yes""#),
            (
                r#"{"ranges": [[], [{"subnet": "10.0.0.0/8"}, {"subnet": "x"}]]}"#,
                7,
                r#"key "ranges[1][1].subnet": invalid CIDR address: "x""#,
            ),
            (r#"{"ranges": [null]}"#, 6, r#"key "ranges[0]": expected a list, got null"#),
            (r#"{"ranges": [[{}]]}"#, 7, r#"key "ranges[0][0].subnet": the key is missing"#),
            (
                r#"{"ranges": [{"subnet": "10.0.0.0/8"}]}"#,
                6,
                r#"key "ranges[0]": expected a list, got an object (enclose it in brackets: [{…}])"#,
            ),
            (r#"{"caps": []}"#, 6, r#"key "caps": expected an object, got a list"#),
            ("[]", 6, "expected an object, got a list"),
            (r#"{"backend": 5}"#, 6, r#"key "backend": expected a string, got 5"#),
            (r#"{"backend": "ebtables"}"#, 7, r#"key "backend": "ebtables" is not one of ["iptables", "nftables"]"#),
        ] {
            assert_eq!(fault(text), (code, want.to_owned()), "{text}");
        }
    }

    #[test]
    fn invalid_json_is_rejected() {
        for text in [
            "",
            " ",
            "{",
            "{}x",
            "{} {}",
            "{\"a\":1,}",
            "{'a':1}",
            "{\"a\":01}",
            "{\"a\":\"\n\"}",
            "nul",
            "{\"a\" 1}",
            "\u{feff}{}",
        ] {
            let (code, why) = fault(text);
            assert!(code == 6 && why.starts_with("invalid JSON: "), "{text:?}: {code} {why}");
        }
    }

    #[test]
    fn frequent_mistakes_of_syntax_are_named() {
        for (text, want) in [
            ("{\n\"a\": 1, // x\n\"b\": 2}", "JSON has no comments at line 2 column 9"),
            ("{\"a\": /* x */ 1}", "JSON has no comments at line 1 column 7"),
            ("# x\n{}", "JSON has no comments at line 1 column 1"),
            ("{'a': 1}", "a string needs double quotes, not single quotes at line 1 column 2"),
            ("{\"a\": ”b”}", "a string needs plain double quotes, not typographic quotes at line 1 column 7"),
            ("\u{feff}{}", "the text starts with a byte order mark; save it as UTF-8 without one at line 1 column 1"),
            ("{\"a\": [1,\n2,\n]}", "trailing comma at line 3 column 1"),
            ("{\"a\": 1,\n }", "trailing comma at line 2 column 2"),
            ("{\"a\": [,]}", "expected value at line 1 column 8"),
            ("{\"é\": x}", "expected value at line 1 column 8"),
            ("", "EOF while parsing a value at line 1 column 0"),
        ] {
            assert_eq!(fault(text), (6, format!("invalid JSON: {want}")), "{text}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "too many steps")]
    fn deep_documents_need_no_stack() {
        let deep = format!("{{\"x\": {}{}}}", "[".repeat(200_000), "]".repeat(200_000));
        assert_eq!(parse::<Conf>(&deep).unwrap(), Conf::default());
        let deep = format!("{{\"ranges\": {}{}}}", "[".repeat(200_000), "]".repeat(200_000));
        assert!(parse::<Conf>(&deep).is_err());
    }

    #[test]
    fn output_matches_the_reference() {
        let value = serde_json::json!({"a": [], "b": {}, "c": ["x<y>&\u{2028}<>z", 1], "d": "é\n\""});
        let text = print(&value).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "{\n    \"a\": [],\n    \"b\": {},\n    \"c\": [\n        \"x\\u003cy\\u003e\\u0026\\u2028\\u003c\\u003ez\",\n        1\n    ],\n    \"d\": \"é\\n\\\"\"\n}"
        );
        assert_eq!(
            String::from_utf8(compact(&value).unwrap()).unwrap(),
            r#"{"a":[],"b":{},"c":["x\u003cy\u003e\u0026\u2028\u003c\u003ez",1],"d":"é\n\""}"#
        );
    }
}
