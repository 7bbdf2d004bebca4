//! `cnitool repair`: checks every attachment in the cache, and lets its plugins add what is missing.

use std::path::{Path, PathBuf};

use cni::{Code, Error, Result, Version};
use serde_json::{Value, json};

use crate::cache::{Cache, Entry};
use crate::chain::{Chain, Endpoint};
use crate::conf::{self, Found, NetworkList};
use crate::lock::Lock;
use crate::node::{Place, place};
use crate::out;
use crate::privilege::require_capabilities;
use crate::settings;
use crate::table::{self, Paint, Table, Tone};

/// The outcome of a repair.
#[derive(Debug)]
enum Outcome {
    Ok,
    /// These objects, such as masquerade rules, were missing and have been added.
    Repaired(String),
    /// Its namespace is gone, so there is nothing to repair.
    Gone,
    /// CHECK still fails, or what is missing could not be added.
    Wrong(Error),
}

impl Outcome {
    fn text(&self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Repaired(_) => "repaired",
            Outcome::Gone => "gone",
            Outcome::Wrong(_) => "wrong",
        }
    }

    fn tone(&self) -> Tone {
        match self {
            Outcome::Ok | Outcome::Repaired(_) => Tone::Good,
            Outcome::Gone => Tone::Warning,
            Outcome::Wrong(_) => Tone::Bad,
        }
    }

    /// Returns what is wrong and what to do about it.
    fn explanation(&self) -> (String, &str) {
        match self {
            Outcome::Ok => (String::new(), ""),
            Outcome::Repaired(what) => (format!("{what} were missing and have been added"), ""),
            Outcome::Gone => ("its namespace is gone".to_owned(), "cnitool prune"),
            Outcome::Wrong(error) => (error.to_string(), error.details_text()),
        }
    }
}

/// Repairs the attachments to a network, or all attachments. Returns false if one is still wrong.
pub(crate) fn run(network: Option<&str>, as_json: bool) -> Result<bool> {
    require_capabilities()?;
    let Found { lists, broken } = conf::all(&settings::configurations())?;
    conf::warn_of_broken(&broken);
    let (mut entries, unreadable) = Cache::of_host().all()?;
    entries.retain(|entry| network.is_none_or(|network| network == entry.network));
    if let (Some(name), true) = (network, entries.is_empty()) {
        // A misspelt name must fail instead of looking like a healthy network.
        conf::find(&settings::configurations(), name)?;
    }
    let mut results = Vec::new();
    for entry in entries {
        if let Some(outcome) = repair(&lists, &entry)? {
            results.push((entry, outcome));
        }
    }
    let is_wrong = |(_, outcome): &(Entry, Outcome)| matches!(outcome, Outcome::Wrong(_));
    let healthy = unreadable.is_empty() && !results.iter().any(is_wrong);
    match as_json {
        true => out::print_versioned(describe(&results, &unreadable))?,
        false => out::print(page(&results, Paint::of_stdout()))?,
    }
    if !as_json {
        unreadable.iter().for_each(|(_, error)| out::print_error(error));
    }
    Ok(healthy)
}

/// Repairs one attachment. Returns `None` if it has been deleted since the cache was listed.
fn repair(lists: &[NetworkList], entry: &Entry) -> Result<Option<Outcome>> {
    // The lock prevents that a concurrent del leaves rules behind that are added here.
    let _lock = Lock::exclusive()?;
    let cache = Cache::of_host();
    match cache.load(&entry.network, &entry.container, &entry.ifname) {
        Ok(None) => return Ok(None),
        Ok(Some(_)) => {}
        Err(error) => return Ok(Some(Outcome::Wrong(error))),
    }
    let path = cache.path(&entry.network, &entry.container, &entry.ifname);
    Ok(Some(attempt(lists, entry, &path).unwrap_or_else(Outcome::Wrong)))
}

fn attempt(lists: &[NetworkList], entry: &Entry, path: &Path) -> Result<Outcome> {
    match entry.netns.as_deref().map(place) {
        Some(Place::Exists) => {}
        Some(Place::Absent) => return Ok(Outcome::Gone),
        Some(Place::Hidden) => return Err(Error::new(Code::NETNS, "its namespace cannot be inspected")),
        None => {
            let error = Error::new(Code::NETNS, "its cache entry has no namespace");
            return Err(error.details("attach the container again"));
        }
    }
    let configured = lists.iter().find(|list| list.name.as_str() == entry.network).cloned();
    let list = configured.map_or_else(|| conf::from_cache(path, &entry.config), Ok)?;
    let chain = Chain::find(&list, &settings::plugins())?;
    let at = Endpoint::of_entry(entry)?;
    let restored = chain.repair(&at).map(|restored| enumerate(&restored));
    if list.version >= Version::V0_4_0 {
        chain.check(&at).map_err(|error| match &restored {
            Ok(what) if !what.is_empty() => error.details(format!("its {what} were missing and have been added")),
            _ => error,
        })?;
    }
    Ok(Some(restored?).filter(|what| !what.is_empty()).map_or(Outcome::Ok, Outcome::Repaired))
}

/// Returns the words with commas, and `and` before the last.
fn enumerate(words: &[&str]) -> String {
    match words.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        _ => words.concat(),
    }
}

fn count(results: &[(Entry, Outcome)], text: &str) -> usize {
    results.iter().filter(|(_, outcome)| outcome.text() == text).count()
}

/// Formats all attachments except those that are ok, and the number of attachments in each state.
fn page(results: &[(Entry, Outcome)], paint: Paint) -> String {
    let mut rows = Table::new(&["STATE", "NETWORK*", "CONTAINER**", "INTERFACE*"]);
    for (entry, outcome) in results.iter().filter(|(_, outcome)| !matches!(outcome, Outcome::Ok)) {
        rows.row(vec![
            (outcome.tone(), outcome.text().to_owned()),
            (Tone::Plain, entry.network.clone()),
            (Tone::Plain, entry.container.clone()),
            (Tone::Plain, entry.ifname.clone()),
        ]);
        match outcome.explanation() {
            (what, "") => rows.more(what),
            (what, remedy) => rows.more(format!("{what} ({remedy})")),
        }
    }
    let mut text = if rows.is_empty() { String::new() } else { rows.render(paint, 0) + "\n" };
    let counts = ["ok", "repaired", "gone", "wrong"].map(|state| format!("{} {state}", count(results, state)));
    text += &format!("{}: {}\n", table::count(results.len(), "attachment"), counts.join(", "));
    if results.is_empty() {
        text += &table::wrap("only attachments in the cache can be repaired; attach others again", 0);
    }
    text
}

/// Returns the output of `--json`.
fn describe(results: &[(Entry, Outcome)], unreadable: &[(PathBuf, Error)]) -> Value {
    let attachments: Vec<Value> = results
        .iter()
        .map(|(entry, outcome)| {
            let (what, remedy) = outcome.explanation();
            let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            json!({
                "network": entry.network, "container": entry.container, "interface": entry.ifname,
                "netns": entry.netns, "state": outcome.text(), "what": given(&what), "remedy": given(remedy),
            })
        })
        .collect();
    let not_seen: Vec<String> = unreadable.iter().map(|(_, error)| out::one_line(error)).collect();
    json!({
        "attachments": attachments, "notSeen": not_seen, "ok": count(results, "ok"),
        "repaired": count(results, "repaired"), "gone": count(results, "gone"), "wrong": count(results, "wrong"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_missing_is_enumerated() {
        for (words, text) in [(&[][..], ""), (&["a"], "a"), (&["a", "b"], "a and b"), (&["a", "b", "c"], "a, b and c")]
        {
            assert_eq!(enumerate(words), text);
        }
    }
}
