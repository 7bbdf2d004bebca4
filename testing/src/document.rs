//! Parses the documents in `docs/`, so that tests can compare them with the code.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::keys;

/// Returns a file of this project, such as `docs/configuration.md`.
pub fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("read {path:?}: {error}"))
}

/// Returns the section of a document under `heading`, up to the next heading of the same or a higher level.
pub fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    let mut inside = None;
    let mut fenced = false;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let (begin, level) = (at, line.len() - line.trim_start_matches('#').len());
        at += line.len();
        fenced ^= line.starts_with("```");
        match inside {
            _ if fenced || level == 0 => {}
            None if line.trim_matches(['#', ' ', '\n']) == heading => inside = Some((at, level)),
            Some((from, above)) if level <= above => return text.get(from..begin).unwrap(),
            _ => {}
        }
    }
    let (from, _) = inside.unwrap_or_else(|| panic!("no heading {heading:?}"));
    text.get(from..).unwrap()
}

/// Returns the rows of all tables in `text`, as lists of cells.
pub fn rows(text: &str) -> Vec<Vec<&str>> {
    let lines: Vec<&str> = text.lines().collect();
    let mut rows = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let is_rule = |line: &&str| line.starts_with("|--") || line.starts_with("|:-");
        let head = is_rule(line) || lines.get(at + 1).is_some_and(is_rule);
        if line.starts_with('|') && !head {
            rows.push(line.trim_matches('|').split('|').map(str::trim).collect());
        }
    }
    rows
}

/// Returns the texts between backticks.
pub fn code(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// A key as described in `docs/configuration.md`.
#[derive(Debug)]
pub struct Key {
    /// The path from the root, in the notation of [`keys::of`].
    pub path: String,
    /// The kind of the value, as in [`keys::of`].
    pub kind: String,
    /// The default, if it is a value.
    pub default: Option<Value>,
    /// An example value.
    pub example: Value,
    /// The version of the reference that supports it.
    pub reference: String,
}

/// Returns the keys that `docs/configuration.md` describes under `heading`. A line "Keys of `a[]` and `b`:" means that
/// the next table describes keys in the elements of `a` and in `b`.
pub fn keys_under(heading: &str) -> Vec<Key> {
    let text = read("docs/configuration.md");
    let mut keys = Vec::new();
    let mut places = vec![""];
    for block in section(&text, heading).split("\n\n") {
        if let Some(line) = block.lines().rev().find(|line| line.starts_with("Keys of ")) {
            places = code(line);
        }
        let table = rows(block);
        for row in &table {
            let [key, kind, default, example, _, reference] = row.as_slice() else { panic!("not six cells: {row:?}") };
            let value = |cell: &str| {
                let text = code(cell).first().copied()?;
                Some(serde_json::from_str(text).unwrap_or_else(|error| panic!("{text:?} in {row:?}: {error}")))
            };
            for place in &places {
                let dot = if place.is_empty() { "" } else { "." };
                keys.push(Key {
                    path: format!("{place}{dot}{}", code(key).concat()),
                    kind: kind.split([',', ' ']).next().unwrap_or_default().to_owned(),
                    default: value(default),
                    example: value(example).unwrap_or_else(|| panic!("no example: {row:?}")),
                    reference: (*reference).to_owned(),
                });
            }
        }
        if !table.is_empty() {
            places = vec![""];
        }
    }
    assert!(!keys.is_empty(), "no key under {heading:?}");
    keys
}

/// Fails unless `docs/configuration.md` describes exactly the keys of `code` under `heading`.
#[track_caller]
pub fn describes(heading: &str, code: &BTreeMap<String, &'static str>) {
    let described: BTreeMap<String, String> = keys_under(heading).into_iter().map(|key| (key.path, key.kind)).collect();
    for (path, kind) in code {
        match described.get(path) {
            None => panic!("docs/configuration.md lacks {path:?} under {heading:?}"),
            Some(documented) => {
                assert!(
                    documented == kind || *kind == "anything",
                    "{path:?} is a {kind}, documented as {documented:?}"
                );
            }
        }
    }
    let unknown: Vec<_> = described.keys().filter(|path| !code.contains_key(*path)).collect();
    assert!(unknown.is_empty(), "docs/configuration.md describes unknown keys: {unknown:?}");
}

/// Like [`describes`], for the keys of one type.
#[track_caller]
pub fn describes_type<'de, T: Deserialize<'de>>(heading: &str) {
    describes(heading, &keys::of::<T>());
}

/// Returns the value at `path`, for a test to change. Creates missing objects and lists; of a list, it uses the first
/// element.
pub fn value_at<'a>(config: &'a mut Value, path: &str) -> &'a mut Value {
    if let Some(list) = path.strip_suffix("[]") {
        let list = value_at(config, list);
        if list.as_array().is_none_or(Vec::is_empty) {
            *list = Value::Array(vec![Value::Null]);
        }
        return list.as_array_mut().and_then(|items| items.first_mut()).unwrap();
    }
    // A key with a slash, such as `cni.dev/attachments`, contains dots that do not separate keys.
    let (object, key) = path.rsplit_once('.').filter(|(_, key)| !key.contains('/')).unwrap_or(("", path));
    let object = if object.is_empty() { config } else { value_at(config, object) };
    if object.is_null() {
        *object = Value::Object(Map::new());
    }
    object.as_object_mut().unwrap().entry(key).or_insert(Value::Null)
}

/// Fails unless each default that `docs/configuration.md` lists under `heading` has the same effect as omitting the
/// key, as shown by `read`. `bare` is a valid configuration.
#[track_caller]
pub fn defaults<E: Display>(heading: &str, bare: &Value, read: impl Fn(&str) -> Result<String, E>) {
    let read = |key: &Key, value: Value| {
        let mut config = bare.clone();
        *value_at(&mut config, &key.path) = value;
        read(&config.to_string()).unwrap_or_else(|error| panic!("{config}: {error}"))
    };
    let mut compared = 0;
    for key in keys_under(heading) {
        let Some(default) = key.default.clone() else { continue };
        assert_eq!(read(&key, default), read(&key, Value::Null), "{key:?}");
        compared += 1;
    }
    assert!(compared > 3, "only {compared} defaults");
}
