//! Entry points for the fuzzer: they read arbitrary files and listings, and assert the properties that must hold.
#![allow(clippy::expect_used, reason = "the fuzzer detects a failure by a panic")]

use std::path::Path;

use crate::cache::Entry;
use crate::{conf, doctor, validate};

/// Parses a list of plugins, as in a configuration file and in the cache that runtimes share.
pub fn list(content: &[u8]) {
    let path = Path::new("list");
    // As `cnitool validate` reads a file without an extension, which may have a list or a single plugin.
    if let Ok(network) = conf::parse(path, content) {
        assert!(!network.plugins.is_empty() && (network.is_list || network.plugins.len() == 1));
    }
    match conf::from_cache(path, content) {
        Ok(list) => {
            assert!(!list.plugins.is_empty() && list.plugins.iter().all(|plugin| !plugin.kind.is_empty()));
            let again = conf::from_cache(path, list.text.as_bytes()).expect("what was read can be read again");
            assert_eq!((again.name, again.version, again.plugins.len()), (list.name, list.version, list.plugins.len()));
        }
        Err(broken) => {
            let (line, column) = broken.place.expect("a place in the text");
            assert!(
                line >= 1 && column >= 1 && line <= content.split(|byte| *byte == b'\n').count().max(1),
                "{broken}"
            );
        }
    }
}

/// Validates a configuration with the plugins themselves.
pub fn validate(content: &[u8]) {
    validate::fuzz(content);
}

/// Parses an entry of the cache. An entry that names its attachment is written so that it is read again.
pub fn entry(content: &[u8]) {
    let Ok(entry) = Entry::parse(&String::from_utf8_lossy(content)) else { return };
    if entry.network.is_empty() {
        assert!(entry.result.is_some(), "{entry:?}");
        return;
    }
    let printed = String::from_utf8(entry.print().expect("an entry can be printed")).expect("JSON is UTF-8");
    let again = Entry::parse(&printed).expect("what was written can be read");
    // Fractions, which neither results nor arguments have, may lose their last digit.
    let [again, entry] = [again, entry].map(|entry| Entry { result: None, capabilities: Default::default(), ..entry });
    assert_eq!(again, entry, "{printed}");
}

/// Reads the listing of a legacy table.
pub fn legacy_table(lines: &[String]) {
    doctor::fuzz(lines);
}
