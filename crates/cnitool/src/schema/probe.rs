//! Finds out which words and numbers a plugin accepts for a key. `docs/configuration.md` proposes them; the validation of
//! the plugin decides.

use cni::inspect::{Generated, Inspect};
use cni::{Call, Version};
use serde_json::{Value, json};

use super::page::{Key, code, value_at};
use crate::node::ipam_type;

/// A word that no key accepts.
const NO_WORD: &str = "no-such-word";

/// The name of a plugin that does not exist.
const SOME_PLUGIN: &str = "some-plugin";

/// A plugin whose validation answers questions.
pub(super) struct Probe<'a> {
    plugin: &'a dyn Inspect,
    described: &'a [Key],
    /// A configuration that the plugin accepts.
    base: Value,
}

/// The words that a key may have.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Words {
    pub(super) words: Vec<String>,
    /// Whether letter case does not matter.
    pub(super) any_case: bool,
}

/// What a key configures in place of the plugin itself, with the plugin that is the default.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Delegated {
    Plugin(String),
    Ipam(String),
}

impl<'a> Probe<'a> {
    pub(super) fn new(plugin: &'a dyn Inspect, described: &'a [Key]) -> Probe<'a> {
        let base = json!({ "cniVersion": Version::NEWEST.as_str(), "name": "network", "type": plugin.name() });
        let mut probe = Probe { plugin, described, base };
        // Adds examples until nothing that the plugin requires is missing.
        for key in described {
            if probe.is_valid(&probe.base) {
                break;
            }
            let mut base = probe.base.clone();
            if let Some(value) = value_at(&mut base, &key.path) {
                *value = key.example.clone();
                probe.base = base;
            }
        }
        probe
    }

    /// Returns the words for a text, if the plugin accepts only those.
    pub(super) fn words(&self, path: &str) -> Option<Words> {
        let context = self.context(path)?;
        let accepts = |word: &str| self.accepts(&context, path, Some(&json!(word)));
        if accepts(NO_WORD) {
            return None;
        }
        let proposed = code(&context.key.text).into_iter().filter(|word| accepts(word));
        let mut words: Vec<String> = Vec::new();
        for word in proposed {
            if !words.iter().any(|known| known == word) {
                words.push(word.to_owned());
            }
        }
        // Otherwise the words are only examples.
        if !words.iter().any(|word| context.key.example == json!(word)) {
            return None;
        }
        let any_case = words.iter().all(|word| accepts(&word.to_ascii_uppercase()));
        words.extend(accepts("").then(String::new));
        Some(Words { words, any_case })
    }

    /// Returns the range of a number, which is at most from `min` to `max`.
    pub(super) fn range(&self, path: &str, min: i128, max: i128) -> (i128, i128) {
        let unlimited = (min, max);
        let Some(context) = self.context(path) else { return unlimited };
        let Some((first, last)) = proposed_range(&context.key.text) else { return unlimited };
        let accepts = |number: i64| self.accepts(&context, path, Some(&json!(number)));
        let is_last = accepts(last) && last.checked_add(1).is_none_or(|next| !accepts(next));
        // Some keys have a meaning for 0, or even for negative numbers, that is not in the range.
        let least = [-1, 0, first].into_iter().find(|number| accepts(*number));
        let min = match least {
            Some(least) if least >= 0 => min.max(least.into()),
            _ => min,
        };
        (min, if is_last { max.min(last.into()) } else { max })
    }

    /// Returns whether the plugin requires the key in each element of a list.
    pub(super) fn requires(&self, path: &str) -> bool {
        let is_proposed = self.described.iter().any(|key| key.path == path && key.is_required);
        let is_element = path.rsplit_once('.').is_some_and(|(place, _)| place.ends_with("[]"));
        is_proposed && is_element && self.context(path).is_some_and(|context| !self.accepts(&context, path, None))
    }

    /// Returns what the key at `path` configures, if the plugin generates the configuration of another one from it.
    pub(super) fn delegate(&self, path: &str) -> Option<Delegated> {
        let selects = |kind: &str| {
            let mut config = self.base.clone();
            *value_at(&mut config, path)? = json!({ "type": kind });
            self.generated(&config)
        };
        let default = self.generated(&self.base)?;
        let selected = selects(SOME_PLUGIN)?;
        if selected.kind == SOME_PLUGIN {
            return Some(Delegated::Plugin(default.kind));
        }
        let is_ipam = ipam_type(&selected.config).is_some_and(|kind| kind == SOME_PLUGIN);
        is_ipam.then(|| ipam_type(&default.config)).flatten().map(Delegated::Ipam)
    }

    fn generated(&self, config: &Value) -> Option<Generated> {
        let text = config.to_string();
        Call::for_config(&text).and_then(|call| self.plugin.delegate(&call)).ok().flatten()
    }

    /// Returns a configuration in which the plugin accepts the example of the key; `None` if there is none.
    fn context(&self, path: &str) -> Option<Context<'a>> {
        let key = self.described.iter().find(|key| key.path == path)?;
        let mut config = self.base.clone();
        // The lists around the key, from the outermost.
        for list in self.described.iter().filter(|list| path.starts_with(&format!("{}[]", list.path))) {
            *value_at(&mut config, &list.path)? = list.example.clone();
        }
        let mut context = Context { key, config };
        if self.accepts(&context, path, Some(&key.example)) {
            return Some(context);
        }
        // The keys beside it may be needed too.
        let place = |path: &'_ str| path.rsplit_once('.').map_or("", |(place, _)| place).to_owned();
        for beside in self.described.iter().filter(|beside| place(&beside.path) == place(path)) {
            *value_at(&mut context.config, &beside.path)? = beside.example.clone();
        }
        self.accepts(&context, path, Some(&key.example)).then_some(context)
    }

    /// Returns whether the plugin accepts this value of the key, or its absence.
    fn accepts(&self, context: &Context<'_>, path: &str, value: Option<&Value>) -> bool {
        let mut config = context.config.clone();
        let Some(place) = value_at(&mut config, path) else { return false };
        // A null counts as missing.
        *place = value.cloned().unwrap_or(Value::Null);
        self.is_valid(&config)
    }

    fn is_valid(&self, config: &Value) -> bool {
        let text = config.to_string();
        Call::for_config(&text).and_then(|call| self.plugin.settings(&call)).is_ok()
    }
}

/// A configuration in which a key can be tried.
struct Context<'a> {
    key: &'a Key,
    config: Value,
}

/// Returns the numbers in "68 to 65535".
fn proposed_range(text: &str) -> Option<(i64, i64)> {
    let words: Vec<&str> = text.split([' ', ',', ';', '.']).filter(|word| !word.is_empty()).collect();
    words.windows(3).find_map(|words| match words {
        [first, "to", last] => Some((first.parse().ok()?, last.parse().ok()?)),
        _ => None,
    })
}
