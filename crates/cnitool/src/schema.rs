//! `cnitool schema`: JSON Schemas of configurations, for editors and validators.
//!
//! The keys and their types are those that the plugins read ([`Inspect::shape`]). Descriptions, defaults and examples
//! are read from `docs/configuration.md`. So a schema follows the plugins without a change here.
//!
//! The schemas are of draft 7, because Visual Studio Code and others support it completely. Unlike the plugins, which
//! accept keys in any letter case, a schema has only the documented spelling, and no unknown keys.

pub(crate) mod page;

use std::collections::BTreeMap;

use cni::inspect::{Inspect, Shape, common_shape};
use cni::{Code, Error, Result, Version};
use cni0::PLUGINS;
use serde_json::{Map, Value, json};

use crate::known::{self, member};
use crate::node::inspect;
use crate::{conf, out};
use cni::nearest;

use page::Key;

const PAGE: &str = include_str!("../../../docs/configuration.md");
/// The headings of keys that all plugins read, and of keys for the runtime.
const COMMON: &str = "Every network";
const RUNTIME: &str = "Keys for the runtime";

/// Keys for readers and editors, which no program reads.
const COMMENTS: &str = "^([$_#]|//)";

/// Prints the schema of lists, of single plugins of any type, or of one plugin.
pub(crate) fn run(plugin: Option<&str>, single: bool) -> Result<()> {
    let schemas = Schemas::new()?;
    let schema = match plugin {
        None if single => schemas.single(),
        None => schemas.list(),
        Some(name) => schemas.of_plugin(inspect(name).ok_or_else(|| unknown(name))?),
    };
    out::print_json(&schema?)
}

fn unknown(name: &str) -> Error {
    let names = || PLUGINS.iter().map(|plugin| plugin.name());
    let error = Error::new(Code::CONFIG, format!("there is no schema of plugin {name:?}"));
    match nearest(name, names()) {
        Some(meant) => error.details(format!("did you mean {meant:?}?")),
        None => error.details(format!("use one of {}", names().collect::<Vec<_>>().join(", "))),
    }
}

/// The keys that all networks have, as the page describes them.
struct Schemas {
    /// Those that all plugins read.
    common: Vec<Key>,
    /// Those that the runtime reads.
    runtime: Vec<Key>,
}

impl Schemas {
    fn new() -> Result<Schemas> {
        let common = keys(COMMON)?;
        let runtime = keys(RUNTIME)?.into_iter().chain(common.iter().cloned()).collect();
        Ok(Schemas { common, runtime })
    }

    /// Returns the schema of a network list.
    fn list(&self) -> Result<Value> {
        let properties = conf::LIST_KEYS.iter().map(|key| ((*key).to_owned(), self.runtime_key("", key)));
        let mut schema = object(properties.collect());
        set(&mut schema, &["required"], json!(["name", "plugins"]));
        // Runtimes have keys of their own there.
        set(&mut schema, &["additionalProperties"], json!(true));
        set(&mut schema, &["properties", "plugins", "items"], self.any_plugin());
        set(&mut schema, &["properties", "plugins", "minItems"], json!(1));
        self.document("A CNI network list", schema, PLUGINS)
    }

    /// Returns the schema of a file with a single plugin.
    fn single(&self) -> Result<Value> {
        let mut schema = self.any_plugin();
        set(&mut schema, &["required"], json!(["name", "type"]));
        self.document("A CNI network of one plugin", schema, PLUGINS)
    }

    /// Returns the schema of a file with this plugin.
    fn of_plugin(&self, plugin: &dyn Inspect) -> Result<Value> {
        let mut schema = self.plugin(plugin)?;
        set(&mut schema, &["required"], json!(["name", "type"]));
        set(&mut schema, &["properties", "type"], json!({ "const": plugin.name() }));
        self.document(&format!("A CNI network of the plugin {}", plugin.name()), schema, &[])
    }

    /// Adds what a document needs: its head, and the definitions of these plugins and of all IPAM plugins.
    fn document(&self, title: &str, schema: Value, plugins: &[&dyn Inspect]) -> Result<Value> {
        let mut definitions = Map::new();
        for plugin in plugins {
            definitions.insert(plugin.name().to_owned(), self.plugin(*plugin)?);
        }
        for plugin in known::ipam_plugins() {
            definitions.insert(ipam_definition(plugin.name()), self.ipam(plugin)?);
        }
        let mut document = json!({
            "$schema": "http://json-schema.org/draft-07/schema#", "title": title, "definitions": definitions,
        });
        if let (Some(document), Value::Object(schema)) = (document.as_object_mut(), schema) {
            document.extend(schema);
        }
        Ok(document)
    }

    /// Returns the schema of a plugin in a list. That of our plugins depends on its `type`; others may have any keys.
    fn any_plugin(&self) -> Value {
        let rule = |plugin: &&dyn Inspect| when_type_is(plugin.name(), plugin.name());
        json!({
            "type": "object",
            "required": ["type"],
            "properties": { "type": self.runtime_key("plugins[]", "type") },
            "allOf": PLUGINS.iter().map(rule).collect::<Vec<_>>(),
        })
    }

    /// Returns the schema of the configuration of one of our plugins.
    fn plugin(&self, plugin: &dyn Inspect) -> Result<Value> {
        let mut own = plugin.shape();
        let mut described = self.common.clone();
        described.extend(keys(plugin.name())?);
        let delegates_ipam = known::delegates_ipam(&own) && plugin.ipam().is_none();
        if delegates_ipam {
            for ipam in known::ipam_plugins() {
                own = own.and(without(&ipam.shape(), "ipam"));
                described.extend(keys(ipam.name())?);
            }
        }
        let shape = own.and(common_shape());
        let mut schema = Writer { described: &described }.object("", &shape);
        for key in conf::PLUGIN_KEYS {
            set(&mut schema, &["properties", key], self.runtime_key("plugins[]", key));
        }
        for key in known::GENERAL.iter().chain(&known::OPEN).filter(|key| member(&shape, key).is_none()) {
            set(&mut schema, &["properties", key], json!({ "type": "object" }));
        }
        for key in plugin.ignored_keys().iter().filter(|key| !key.contains('.')) {
            let description = "a key of the reference, which cni0 ignores";
            set(&mut schema, &["properties", key], json!({ "description": description }));
        }
        set(&mut schema, &["properties", "cniVersion", "enum"], versions());
        if delegates_ipam || plugin.ipam().is_some() {
            set(&mut schema, &["properties", "ipam"], self.any_ipam(&described));
        }
        Ok(schema)
    }

    /// Returns the schema of `ipam`, which depends on its `type`.
    fn any_ipam(&self, described: &[Key]) -> Value {
        let names: Vec<&str> = known::ipam_plugins().map(|plugin| plugin.name()).collect();
        let mut kind = json!({ "anyOf": [{ "enum": names }, { "type": "string" }] });
        describe(&mut kind, described, "ipam.type");
        let rule = |plugin: &'static dyn Inspect| when_type_is(plugin.name(), &ipam_definition(plugin.name()));
        json!({
            "type": "object",
            "properties": { "type": kind },
            "allOf": known::ipam_plugins().map(rule).collect::<Vec<_>>(),
        })
    }

    /// Returns the schema of `ipam` for one of our IPAM plugins.
    fn ipam(&self, plugin: &dyn Inspect) -> Result<Value> {
        let described = keys(plugin.name())?;
        let shape = plugin.shape();
        let ipam = member(&shape, "ipam").cloned().unwrap_or_else(Shape::empty);
        let mut schema = Writer { described: &described }.object("ipam", &ipam);
        set(&mut schema, &["properties", "type"], json!({ "const": plugin.name() }));
        Ok(schema)
    }

    /// Returns the schema of a key that the runtime reads.
    fn runtime_key(&self, place: &str, name: &str) -> Value {
        let path = if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") };
        let key = self.runtime.iter().find(|key| key.path == path);
        let mut schema = key.map_or_else(|| json!({}), |key| json!({ "type": json_type(&key.kind) }));
        describe(&mut schema, &self.runtime, &path);
        match name {
            "cniVersion" => set(&mut schema, &["enum"], versions()),
            "cniVersions" => set(&mut schema, &["items"], json!({ "type": "string" })),
            "capabilities" => set(&mut schema, &["additionalProperties"], json!({ "type": "boolean" })),
            "type" => {
                let names: Vec<&str> = PLUGINS.iter().map(|plugin| plugin.name()).collect();
                set(&mut schema, &["anyOf"], json!([{ "enum": names }, { "minLength": 1 }]));
            }
            _ => {}
        }
        schema
    }
}

/// Returns the keys under a heading of the page.
fn keys(heading: &str) -> Result<Vec<Key>> {
    page::keys(PAGE, heading).map_err(Error::bug)
}

fn versions() -> Value {
    json!(Version::ALL.map(Version::as_str))
}

fn ipam_definition(name: &str) -> String {
    format!("ipam-{name}")
}

fn when_type_is(kind: &str, definition: &str) -> Value {
    json!({
        "if": { "properties": { "type": { "const": kind } }, "required": ["type"] },
        "then": { "$ref": format!("#/definitions/{definition}") },
    })
}

fn without(shape: &Shape, name: &str) -> Shape {
    let Shape::Object(keys) = shape else { return Shape::empty() };
    Shape::Object(keys.iter().filter(|(key, _)| *key != name).cloned().collect())
}

fn object(properties: BTreeMap<String, Value>) -> Value {
    json!({
        "type": "object",
        "properties": properties,
        "patternProperties": { COMMENTS: {} },
        "additionalProperties": false,
    })
}

/// Sets the value at a path in a schema. Creates missing objects.
fn set(schema: &mut Value, path: &[&str], value: Value) {
    let place = path
        .iter()
        .try_fold(schema, |schema, key| Some(schema.as_object_mut()?.entry(*key).or_insert_with(|| json!({}))));
    if let Some(place) = place {
        *place = value;
    }
}

/// Returns the type in JSON Schema for a word of the page.
fn json_type(kind: &str) -> &str {
    match kind {
        "text" => "string",
        "number" => "integer",
        "list" => "array",
        other => other,
    }
}

/// Adds what the page says about a key.
fn describe(schema: &mut Value, described: &[Key], path: &str) {
    let Some(key) = described.iter().find(|key| key.path == path) else { return };
    set(schema, &["description"], plain(&key.text).into());
    set(schema, &["examples"], json!([key.example]));
    if let Some(default) = &key.default {
        set(schema, &["default"], default.clone());
    }
}

/// Returns a text without links.
fn plain(markdown: &str) -> String {
    let mut text = String::new();
    let mut rest = markdown;
    while let Some((before, link)) = rest.split_once('[') {
        text += before;
        match link.split_once("](").and_then(|(label, after)| Some((label, after.split_once(')')?.1))) {
            Some((label, after)) if !label.contains([']', '[']) => {
                text += label;
                rest = after;
            }
            _ => {
                text.push('[');
                rest = link;
            }
        }
    }
    text + rest
}

/// Writes the schema of a plugin's shape.
struct Writer<'a> {
    described: &'a [Key],
}

impl Writer<'_> {
    fn object(&self, path: &str, shape: &Shape) -> Value {
        let Shape::Object(keys) = shape else { return json!({}) };
        let dot = if path.is_empty() { "" } else { "." };
        let path_of = |key: &str| format!("{path}{dot}{key}");
        let mut schema =
            object(keys.iter().map(|(key, shape)| ((*key).to_owned(), self.value(&path_of(key), shape))).collect());
        // Other programs define keys there too.
        if known::OPEN.iter().any(|open| path.split('.').next() == Some(open)) && !path.contains("[]") {
            set(&mut schema, &["additionalProperties"], json!(true));
        }
        schema
    }

    fn value(&self, path: &str, shape: &Shape) -> Value {
        let mut schema = match shape {
            Shape::Object(_) => self.object(path, shape),
            Shape::List(item) => json!({ "type": "array", "items": self.value(&format!("{path}[]"), item) }),
            Shape::Map(item) => {
                json!({ "type": "object", "additionalProperties": self.value(&format!("{path}.*"), item) })
            }
            Shape::Boolean => json!({ "type": "boolean" }),
            Shape::Integer(min, max) => integer(*min, *max),
            Shape::Text => json!({ "type": "string" }),
            Shape::Anything => match self.described.iter().find(|key| key.path == path) {
                Some(key) => json!({ "type": json_type(&key.kind) }),
                None => json!({}),
            },
        };
        describe(&mut schema, self.described, path);
        schema
    }
}

fn integer(min: i128, max: i128) -> Value {
    let mut schema = json!({ "type": "integer" });
    // The limits of 64 bits are no help to the author of a file.
    if let (true, Ok(min)) = (min > i64::MIN.into(), i64::try_from(min)) {
        set(&mut schema, &["minimum"], min.into());
    }
    if let (true, Ok(max)) = (max < i64::MAX.into(), i64::try_from(max)) {
        set(&mut schema, &["maximum"], max.into());
    }
    schema
}

#[cfg(test)]
mod tests;
