//! The keys that a configuration may have, and the search for others.

use std::collections::BTreeMap;

use cni::inspect::{Inspect, Shape, common_shape};
use cni0::PLUGINS;
use serde_json::{Map, Value};

use crate::conf::{self, NetworkList, Plugin};
use crate::node::{called_plugins, inspect, ipam_type};
use cni::nearest;

/// Keys for arguments of the runtime. Other programs define keys there too.
pub(crate) const OPEN: [&str; 2] = ["args", "runtimeConfig"];

/// Keys that the protocol defines for all plugins. A plugin that does not read one ignores it.
pub(crate) const GENERAL: [&str; 3] = ["dns", "ipam", "args"];

/// Something about a configuration that its author should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remark {
    /// The plugin with its place in the list, such as `plugins[0] (bridge)`; empty for the list itself.
    pub(crate) place: String,
    /// The path of the key in the object there.
    pub(crate) key: String,
    /// What is wrong with it.
    pub(crate) what: String,
}

impl Remark {
    /// Returns place and text in one line.
    pub(crate) fn line(&self) -> String {
        let place = if self.place.is_empty() { String::new() } else { format!("{}: ", self.place) };
        format!("{place}key {:?}: {}", self.key, self.what)
    }
}

/// The keys of each plugin with each IPAM plugin, as [`shape`] and [`Shape::keys`] return them. A list may have the
/// same plugin often.
type Shapes = BTreeMap<(String, Option<String>), (Shape, BTreeMap<String, &'static str>)>;

/// Returns the keys of a network that nothing reads, and those that occur twice in different letter case.
pub(crate) fn unknown_keys(list: &NetworkList) -> Vec<Remark> {
    let mut remarks = Vec::new();
    let mut shapes = Shapes::new();
    if list.is_list {
        let members: Map<String, Value> = serde_json::from_str(&list.text).unwrap_or_default();
        let known = Shape::Object(conf::LIST_KEYS.iter().map(|key| (*key, Shape::Anything)).collect());
        Search {
            place: "",
            reader: "the runtime",
            known: &known.keys(),
            ignored: &[],
            is_list: true,
            remarks: &mut remarks,
        }
        .object("", &members, &known);
    }
    for (index, plugin) in list.plugins.iter().enumerate() {
        let place = place(list, index, plugin);
        let request = Value::Object(list.config_of(plugin)).to_string();
        // A mistake that keeps the plugin from calling others is reported elsewhere.
        let called = called_plugins(&plugin.kind, request).unwrap_or_default();
        let delegates = called.iter().rev().skip(1).rev();
        for delegate in delegates {
            // An IPAM plugin gets the configuration of its caller, whose keys include its own.
            if ipam_type(&delegate.config).as_ref() != Some(&delegate.kind) {
                let place = format!("{place}, configuration of its delegate {}", delegate.kind);
                let members = serde_json::from_str(&delegate.config).unwrap_or_default();
                search(&place, &delegate.kind, &members, &mut shapes, &mut remarks);
            }
        }
        search(&place, &plugin.kind, &plugin.config, &mut shapes, &mut remarks);
    }
    remarks
}

/// Returns the plugin with its place in the list.
pub(crate) fn place(list: &NetworkList, index: usize, plugin: &Plugin) -> String {
    if list.is_list { format!("plugins[{index}] ({})", plugin.kind) } else { plugin.kind.clone() }
}

/// Searches for unknown keys in the configuration of a plugin.
fn search(place: &str, kind: &str, members: &Map<String, Value>, shapes: &mut Shapes, remarks: &mut Vec<Remark>) {
    let Some(plugin) = inspect(kind) else { return };
    let ipam = members.get("ipam").and_then(|ipam| ipam.get("type")?.as_str());
    let (shape, known) = shapes.entry((kind.to_owned(), ipam.map(str::to_owned))).or_insert_with(|| {
        let shape = shape(plugin, ipam);
        let known = shape.keys();
        (shape, known)
    });
    let ignored = plugin.ignored_keys();
    Search { place, reader: kind, known, ignored, is_list: false, remarks }.object("", members, shape);
}

/// Returns the keys in the configuration of a plugin: its own, those of its IPAM plugin, and those that all plugins may
/// have. The keys of an IPAM plugin of another project are unknown.
fn shape(plugin: &dyn Inspect, ipam: Option<&str>) -> Shape {
    let mut own = plugin.shape();
    if member(&own, "ipam").is_some_and(|ipam| matches!(ipam, Shape::Object(_))) {
        let kind = Shape::Object(vec![("type", Shape::Text)]);
        own = own.and(Shape::Object(vec![("ipam", kind)]));
    }
    let general = GENERAL.iter().chain(&OPEN).chain(&conf::PLUGIN_KEYS).map(|key| (*key, Shape::Anything));
    let general = common_shape().and(Shape::Object(general.collect()));
    let with_ipam = match (ipam, delegates_ipam(&own)) {
        (_, false) => own,
        (Some(ipam), true) => match inspect(ipam) {
            Some(ipam) => own.and(ipam.shape()),
            None => open_ipam(own),
        },
        // A mistake in `type` should not make all keys of the IPAM plugin unknown.
        (None, true) => ipam_plugins().fold(own, |shape, ipam| shape.and(ipam.shape())),
    };
    let capabilities = capabilities(&with_ipam);
    with_ipam.and(capabilities).and(general)
}

/// Returns the key `capabilities`, which names the keys of `runtimeConfig` that the runtime shall pass on.
fn capabilities(shape: &Shape) -> Shape {
    let Some(Shape::Object(arguments)) = member(shape, "runtimeConfig") else { return Shape::empty() };
    let names = arguments.iter().map(|(name, _)| (*name, Shape::Boolean)).collect();
    Shape::Object(vec![("capabilities", Shape::Object(names))])
}

/// Returns whether the plugin passes its configuration on to an IPAM plugin.
pub(crate) fn delegates_ipam(shape: &Shape) -> bool {
    matches!(member(shape, "ipam").and_then(|ipam| member(ipam, "type")), Some(Shape::Text))
}

/// Returns those of our plugins that manage addresses.
pub(crate) fn ipam_plugins() -> impl Iterator<Item = &'static dyn Inspect> {
    PLUGINS.iter().copied().filter(|plugin| plugin.ipam().is_some())
}

/// Returns the shape with any keys in `ipam`.
fn open_ipam(shape: Shape) -> Shape {
    let Shape::Object(mut keys) = shape else { return shape };
    keys.retain(|(key, _)| *key != "ipam");
    Shape::Object(keys)
}

/// Returns the shape of a key of an object.
pub(crate) fn member<'a>(shape: &'a Shape, key: &str) -> Option<&'a Shape> {
    let Shape::Object(keys) = shape else { return None };
    keys.iter().find(|(known, _)| *known == key).map(|(_, shape)| shape)
}

/// Returns whether a key is not for programs, but for readers and editors.
fn is_comment(key: &str) -> bool {
    key.starts_with(['$', '_', '#']) || key.starts_with("//")
}

/// Returns whether other programs define keys beside this one.
fn is_open(path: &str) -> bool {
    OPEN.iter().any(|open| path.split('.').next() == Some(open)) || path.starts_with("cni.dev/") || is_capability(path)
}

/// Returns whether the key is the name of a capability, which the runtime compares in the letter case of its own.
fn is_capability(path: &str) -> bool {
    path.starts_with("capabilities.")
}

/// The search for unknown keys in one configuration.
struct Search<'a> {
    place: &'a str,
    /// Who reads the keys.
    reader: &'a str,
    /// The paths of all keys that it reads.
    known: &'a BTreeMap<String, &'static str>,
    /// Paths of keys that the reader ignores on purpose.
    ignored: &'static [&'static str],
    /// Whether this is a list, whose keys are case-sensitive and may be those of any runtime.
    is_list: bool,
    remarks: &'a mut Vec<Remark>,
}

impl<'a> Search<'a> {
    fn value(&mut self, path: &str, value: &Value, known: &Shape) {
        match (value, known) {
            (Value::Object(members), Shape::Object(_)) => self.object(path, members, known),
            (Value::Array(items), Shape::List(shape)) => {
                for (index, item) in items.iter().enumerate() {
                    self.value(&format!("{path}[{index}]"), item, shape);
                }
            }
            _ => {}
        }
    }

    fn object(&mut self, path: &str, members: &Map<String, Value>, known: &Shape) {
        let Shape::Object(keys) = known else { return };
        let mut seen: Vec<(&str, &str)> = Vec::new();
        for (key, value) in members {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            let is_exact = self.is_list || is_capability(&path);
            let is_same = |known: &str| if is_exact { known == key } else { cni::json::same_key(known, key) };
            match keys.iter().find(|(known, _)| is_same(known)) {
                Some((known, shape)) => {
                    match seen.iter().find(|(other, _)| other == known) {
                        Some((_, first)) => {
                            let what = format!("the same key as {first:?}; the last one in the file counts");
                            self.remark(path.clone(), what);
                        }
                        None => seen.push((known, key)),
                    }
                    self.value(&path, value, shape);
                }
                None if is_comment(key) => {}
                None => self.unknown(path, key, keys),
            }
        }
    }

    fn unknown(&mut self, path: String, key: &str, siblings: &[(&'static str, Shape)]) {
        let reader = self.reader;
        if self.ignored.iter().any(|ignored| cni::json::same_key(ignored, &path)) {
            let what = format!("a key of the reference, which {reader} of cni0 ignores");
            return self.remark(path, what);
        }
        // Other programs may read it: podman and nerdctl have keys of their own in lists.
        let is_open = self.is_list || is_open(&path);
        let meant = nearest(key, siblings.iter().map(|(known, _)| *known));
        match meant.or_else(|| self.elsewhere(key).filter(|_| !is_open)) {
            Some(meant) => self.remark(path, format!("unknown key, did you mean {meant:?}?")),
            None if is_open => {}
            None => self.remark(path, format!("unknown key, which {reader} ignores")),
        }
    }

    /// Returns the shortest path of a known key of this name in another object.
    fn elsewhere(&self, key: &str) -> Option<&'a str> {
        let is_same = |path: &&str| path.rsplit('.').next().is_some_and(|name| cni::json::same_key(name, key));
        let known = self.known;
        known.keys().map(String::as_str).filter(is_same).min_by_key(|path| path.len())
    }

    fn remark(&mut self, key: String, what: String) {
        self.remarks.push(Remark { place: self.place.to_owned(), key, what });
    }
}
