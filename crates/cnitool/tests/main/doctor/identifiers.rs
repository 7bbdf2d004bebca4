//! The identifiers of findings, by which programs recognise them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::json;
use testing::document::{code, rows, section};

use crate::node::{attach, host, json};

/// Collects the identifiers in the sources below a directory, without those of tests.
fn collect(dir: &Path, into: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !["tests", "fuzz", "target"].iter().any(|name| path.ends_with(name)) {
            collect(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let shipped = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            into.extend(shipped.split("Id(\"").skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()));
        }
    }
}

#[test]
fn all_identifiers_are_documented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut used = BTreeSet::new();
    for package in testing::plugins().iter().map(String::as_str).chain(["crates/cnitool", "crates/interface"]) {
        collect(&root.join(package).join("src"), &mut used);
    }
    assert!(used.len() > 80, "only {} were found", used.len());
    let is_kebab = |id: &String| id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    assert!(used.iter().all(is_kebab), "{used:?}");
    let text = testing::document::read("docs/cnitool.md");
    let rows = rows(section(&text, "Identifiers"));
    let documented: BTreeSet<String> = rows.iter().flat_map(|row| code(row[1])).map(str::to_owned).collect();
    assert_eq!(documented, used);
}

#[test]
fn objects_have_a_version_and_findings_an_identifier() {
    let host = host("10.22.15.0/24");
    attach(&host, "blue");
    for words in ["doctor", "networks", "leases", "show", "validate", "repair", "prune --dry-run"] {
        let answer = json(&host, &format!("{words} --json"));
        assert_eq!(answer["version"], json!(1), "{words}: {answer:#}");
    }
    let answer = json(&host, "doctor --json");
    for finding in answer["findings"].as_array().unwrap() {
        assert!(finding["id"].as_str().is_some_and(|id| !id.is_empty()), "{finding:#}");
    }
}
