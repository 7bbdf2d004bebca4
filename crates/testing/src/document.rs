//! Parses the documents in `docs/`, so that tests can compare them with the code.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::path::Path;

use serde_json::{Map, Value};

#[path = "../../cnitool/src/schema/page.rs"]
mod page;

pub use page::{Key, code, rows};

/// Returns a file of this project, such as `docs/configuration.md`.
pub fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("read {path:?}: {error}"))
}

/// Returns the section of a document under `heading`.
pub fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    page::section(text, heading).unwrap_or_else(|| panic!("no heading {heading:?}"))
}

/// Returns the code blocks of a document in a language.
pub fn blocks(text: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    text.split(&fence).skip(1).filter_map(|rest| rest.split("```").next()).map(str::to_owned).collect()
}

/// Returns the keys that `docs/configuration.md` describes under `heading`.
pub fn keys_under(heading: &str) -> Vec<Key> {
    let keys = page::keys(&read("docs/configuration.md"), heading).unwrap_or_else(|error| panic!("{error}"));
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

/// Returns the value at `path`, for a test to change. Creates missing objects and lists. Of a list, it uses the first
/// element that has the next key, or else the first.
pub fn value_at<'a>(config: &'a mut Value, path: &str) -> &'a mut Value {
    place(config, path).unwrap_or_else(|| panic!("no place for {path}"))
}

fn place<'a>(config: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    if let Some(list) = path.strip_suffix("[]") {
        return element(place(config, list)?, "");
    }
    // A key with a slash, such as `cni.dev/attachments`, contains dots that do not separate keys.
    let (object, key) = path.rsplit_once('.').filter(|(_, key)| !key.contains('/')).unwrap_or(("", path));
    let object = match object.strip_suffix("[]") {
        None if object.is_empty() => config,
        None => place(config, object)?,
        Some(list) => element(place(config, list)?, key)?,
    };
    if object.is_null() {
        *object = Value::Object(Map::new());
    }
    Some(object.as_object_mut()?.entry(key).or_insert(Value::Null))
}

fn element<'a>(list: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    if list.as_array().is_none_or(Vec::is_empty) {
        *list = Value::Array(vec![Value::Null]);
    }
    let items = list.as_array_mut()?;
    let at = items.iter().position(|item| item.get(key).is_some()).unwrap_or_default();
    items.get_mut(at)
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
