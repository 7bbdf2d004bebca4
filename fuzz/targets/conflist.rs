//! Lists of plugins, as in configuration files and in the cache that runtimes share.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, reason = "functions that read directories")]
#[path = "../../cnitool/src/conf.rs"]
mod conf;
#[allow(dead_code, reason = "functions that write, and one that reads stdin")]
#[path = "../../cnitool/src/file.rs"]
mod file;
#[path = "../../cnitool/src/hint.rs"]
mod hint;
#[allow(dead_code, reason = "functions that print")]
#[path = "../../cnitool/src/out.rs"]
mod out;
#[path = "../../cnitool/src/suggest.rs"]
mod suggest;
#[allow(dead_code, reason = "functions that print")]
#[path = "../../cnitool/src/table.rs"]
mod table;

fuzz_target!(|input: &[u8]| {
    let path = Path::new("list");
    // As `cnitool validate` reads a file without an extension, which may have a list or a single plugin.
    if let Ok(network) = conf::parse(path, input) {
        assert!(!network.plugins.is_empty() && (network.is_list || network.plugins.len() == 1));
    }
    match conf::from_cache(path, input) {
        Ok(list) => {
            assert!(!list.plugins.is_empty() && list.plugins.iter().all(|plugin| !plugin.kind.is_empty()));
            let again = conf::from_cache(path, list.text.as_bytes()).expect("what was read can be read again");
            assert_eq!((again.name, again.version, again.plugins.len()), (list.name, list.version, list.plugins.len()));
        }
        Err(broken) => {
            let (line, column) = broken.place.expect("a place in the text");
            assert!(line >= 1 && column >= 1 && line <= input.split(|byte| *byte == b'\n').count().max(1), "{broken}");
        }
    }
});
