//! Reads the tables of keys in `docs/configuration.md`: the only source of their descriptions, defaults and examples.
//!
//! The crate `testing` contains this file too, to compare the page with the plugins.
#![allow(unreachable_pub, reason = "`testing` exports these functions")]

use serde_json::Value;

/// A key as the page describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// The path from the root of the configuration, such as `ipam.ranges[][].subnet`.
    pub path: String,
    /// The type of the value, in a word.
    pub kind: String,
    /// The default, if it is a value.
    pub default: Option<Value>,
    /// An example value.
    pub example: Value,
    /// What it does.
    pub text: String,
    /// The version of the reference that supports it; empty if the table lacks this column.
    pub reference: String,
}

/// Returns the section of a page under `heading`, up to the next heading of the same or a higher level.
pub fn section<'a>(page: &'a str, heading: &str) -> Option<&'a str> {
    let mut inside = None;
    let mut fenced = false;
    let mut at = 0;
    for line in page.split_inclusive('\n') {
        let (begin, level) = (at, line.len() - line.trim_start_matches('#').len());
        at += line.len();
        fenced ^= line.starts_with("```");
        match inside {
            _ if fenced || level == 0 => {}
            None if line.trim_matches(['#', ' ', '\n']) == heading => inside = Some((at, level)),
            Some((from, above)) if level <= above => return page.get(from..begin),
            _ => {}
        }
    }
    inside.and_then(|(from, _)| page.get(from..))
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

/// Returns the keys that the page describes under `heading`. A line "Keys of `a[]` and `b`:" means that the next table
/// describes keys in the elements of `a` and in `b`.
pub fn keys(page: &str, heading: &str) -> Result<Vec<Key>, String> {
    let mut keys = Vec::new();
    let mut places = vec![""];
    let section = section(page, heading).ok_or_else(|| format!("no heading {heading:?}"))?;
    for block in section.split("\n\n") {
        if let Some(line) = block.lines().rev().find(|line| line.starts_with("Keys of ")) {
            places = code(line);
        }
        let table = rows(block);
        for row in &table {
            for place in &places {
                keys.push(key(place, row)?);
            }
        }
        if !table.is_empty() {
            places = vec![""];
        }
    }
    Ok(keys)
}

fn key(place: &str, row: &[&str]) -> Result<Key, String> {
    let [key, kind, default, example, text, reference @ ..] = row else { return Err(format!("too short: {row:?}")) };
    let value = |cell: &str| {
        let text = code(cell).first().copied();
        let value = text.map(serde_json::from_str).transpose();
        value.map_err(|error| format!("{cell:?} in {row:?}: {error}"))
    };
    let dot = if place.is_empty() { "" } else { "." };
    Ok(Key {
        path: format!("{place}{dot}{}", code(key).concat()),
        kind: kind.split([',', ' ']).next().unwrap_or_default().to_owned(),
        default: value(default)?,
        example: value(example)?.ok_or_else(|| format!("no example: {row:?}"))?,
        text: (*text).to_owned(),
        reference: reference.concat(),
    })
}
