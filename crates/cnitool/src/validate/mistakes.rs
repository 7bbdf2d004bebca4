//! Finds the mistakes in the configuration of a plugin with the plugin's own validation.

use cni::{Call, Code, Error};
use serde_json::{Map, Value};

use crate::conf::{NetworkList, Plugin};
use crate::node::{called_plugins, inspect};

/// How often the plugins validate variants of one configuration. Bounds the time for a large one.
const MOST_VARIANTS: usize = 256;

type Config = Map<String, Value>;

/// Returns the errors of the plugin and of those that it calls.
///
/// A plugin reports its first mistake only. All plugins read the types of all values first, so values of the wrong type
/// are found one after the other: each is removed, then the rest is validated again. An invalid value is reported only
/// if all types are right, because what has been removed may be what the rest lacks.
pub(super) fn find(list: &NetworkList, plugin: &Plugin) -> Vec<Error> {
    let mut search = Search { kind: &plugin.kind, variants: MOST_VARIANTS };
    let mut config = list.config_of(plugin);
    let mut outcome = search.validate(&config);
    let mut found = outcome.errors.clone();
    while let Some(error) = outcome.errors.iter().find(|error| is_type(error)) {
        let cause = Cause { error, kinds: &outcome.kinds };
        let Some(Value::Object(rest)) = search.without(&Value::Object(config), &[], cause) else { break };
        outcome = search.validate(&rest);
        for error in outcome.errors.iter().filter(|error| is_type(error)) {
            if !found.iter().any(|known| is_same(known, error)) {
                found.push(error.clone());
            }
        }
        config = rest;
    }
    found
}

fn is_type(error: &Error) -> bool {
    error.code() == Code::DECODE
}

/// Returns whether two plugins report the same mistake.
fn is_same(one: &Error, other: &Error) -> bool {
    one.code() == other.code() && one.to_string() == other.to_string()
}

/// What plugins say about a configuration.
struct Outcome {
    /// The plugins that are called with it; none if one of them cannot read it at all.
    kinds: Vec<String>,
    /// The first error of each, each once.
    errors: Vec<Error>,
}

/// An error whose cause is searched for, and the plugins that were called.
#[derive(Clone, Copy)]
struct Cause<'a> {
    error: &'a Error,
    kinds: &'a [String],
}

struct Search<'a> {
    kind: &'a str,
    /// How many variants may still be validated.
    variants: usize,
}

impl Search<'_> {
    fn validate(&mut self, config: &Config) -> Outcome {
        self.variants = self.variants.saturating_sub(1);
        let called = match called_plugins(self.kind, Value::Object(config.clone()).to_string()) {
            Ok(called) => called,
            Err(error) => return Outcome { kinds: Vec::new(), errors: vec![error] },
        };
        let mut errors: Vec<Error> = Vec::new();
        for called in called.iter().rev() {
            let Some(plugin) = inspect(&called.kind) else { continue };
            let outcome = Call::for_config(&called.config).and_then(|call| plugin.settings(&call));
            // What an incomplete configuration lacks is not a mistake.
            let mistake = outcome.err().filter(|error| called.is_complete || is_type(error));
            errors.extend(mistake.filter(|error| !errors.iter().any(|known| is_same(known, error))));
        }
        Outcome { kinds: called.into_iter().map(|called| called.kind).collect(), errors }
    }

    /// Returns the configuration without the innermost key that causes the error; `None` if it is not found. `path`
    /// leads from the configuration to the value in which the key is searched for.
    fn without(&mut self, config: &Value, path: &[Step], cause: Cause<'_>) -> Option<Value> {
        let steps: Vec<Step> = match at(config, path)? {
            Value::Object(members) => members.keys().map(|key| Step::Key(key.clone())).collect(),
            Value::Array(items) => (0..items.len()).map(Step::Item).collect(),
            _ => return None,
        };
        for step in steps {
            let below: Vec<Step> = path.iter().cloned().chain([step.clone()]).collect();
            let rest = match step {
                Step::Key(key) => {
                    let mut rest = config.clone();
                    at_mut(&mut rest, path)?.as_object_mut()?.remove(&key);
                    match self.effect(cause, &rest) {
                        Effect::None => continue,
                        Effect::Removed => Some(rest),
                        Effect::NotCalled => None,
                    }
                }
                // Without an element, others would have another index.
                Step::Item(_) => None,
            };
            if let Some(rest) = self.without(config, &below, cause).or(rest) {
                return Some(rest);
            }
        }
        None
    }

    /// Returns what became of the error in this variant of the configuration.
    fn effect(&mut self, cause: Cause<'_>, config: &Value) -> Effect {
        let Some(config) = config.as_object().filter(|_| self.variants > 0) else { return Effect::None };
        let Outcome { kinds, errors } = self.validate(config);
        if errors.iter().any(|other| is_same(other, cause.error)) {
            return Effect::None;
        }
        // Without a name, for example, no plugin can be called, and without an `ipam`, no IPAM plugin.
        let is_called = !kinds.is_empty() || errors.iter().all(is_type);
        let is_called = is_called && cause.kinds.iter().all(|kind| kinds.contains(kind));
        if is_called { Effect::Removed } else { Effect::NotCalled }
    }
}

/// What the removal of a key does to an error.
enum Effect {
    None,
    Removed,
    /// The plugin that reports it is not called any more.
    NotCalled,
}

/// A step from a value to one of its members.
#[derive(Clone, Debug)]
enum Step {
    Key(String),
    Item(usize),
}

fn at<'a>(config: &'a Value, path: &[Step]) -> Option<&'a Value> {
    path.iter().try_fold(config, |value, step| match step {
        Step::Key(key) => value.get(key),
        Step::Item(index) => value.get(index),
    })
}

fn at_mut<'a>(config: &'a mut Value, path: &[Step]) -> Option<&'a mut Value> {
    path.iter().try_fold(config, |value, step| match step {
        Step::Key(key) => value.get_mut(key),
        Step::Item(index) => value.get_mut(index),
    })
}
