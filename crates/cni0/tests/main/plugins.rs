//! One list of plugins: everything that has a list of them derives it from `Cargo.toml` of this crate, or has an entry
//! for each.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use testing::{Process, document, plugins};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folders of the project that are not plugins.
const OTHERS: [&str; 5] = ["ci", "crates", "deploy", "docs", "testdata"];
/// What builds create.
const CREATED: [&str; 2] = ["target", "dist"];

/// Returns the folders of plugins. All others have a known name.
fn folders() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for path in fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()) {
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with('.') || OTHERS.iter().chain(&CREATED).any(|other| *other == name) {
            continue;
        }
        let program = fs::read_to_string(path.join("src/main.rs")).unwrap_or_default();
        assert!(program.contains("cni::main!("), "folder {name} is not a plugin: move it into one of {OTHERS:?}");
        found.insert(name.to_owned());
    }
    found
}

#[test]
fn every_plugin_is_in_the_list() {
    let table: BTreeSet<String> = cni0::PLUGINS.iter().map(|plugin| plugin.name().to_owned()).collect();
    let missing: Vec<_> = folders().difference(&table).cloned().collect();
    assert!(missing.is_empty(), "add a line to the list in crates/cni0/Cargo.toml for {missing:?}");
    assert_eq!(folders(), table, "the folder, the crate and `Plugin::name` must be the same");
}

/// Verifies that the readers of the list's text find the same names as the compiler.
#[test]
fn tests_and_scripts_read_the_list() {
    let table: Vec<&str> = cni0::PLUGINS.iter().map(|plugin| plugin.name()).collect();
    assert_eq!(plugins(), table, "testing::plugins()");
    let shell = Process::new("bash").arg("-c").arg(". \"$0/ci/lib.sh\"; printf '%s\\n' \"${plugins[@]}\"").arg(root());
    let python = Process::new("python3").arg("-B").arg("-").env("PYTHONPATH", root().join("ci"));
    let python = python.stdin("import lab; print(*lab.PLUGINS, sep='\\n')");
    for (name, reader) in [("ci/lib.sh", shell), ("ci/lab.py", python)] {
        let outcome = reader.run();
        assert_eq!(outcome.status, Some(0), "{outcome:?}");
        assert_eq!(outcome.stdout.lines().collect::<Vec<_>>(), table, "{name}");
    }
}

/// Verifies that each plugin has what cannot be derived: text for readers, tests, a parser for the fuzzer.
#[test]
fn every_plugin_is_described_and_tested() {
    let mut forgotten = Vec::new();
    let mut need = |exists: bool, what: String| forgotten.extend((!exists).then_some(what));
    for plugin in plugins() {
        for (file, text) in [
            ("README.md", format!("`{plugin}`")),
            ("CHANGELOG.md", format!("\n### {plugin}\n")),
            ("docs/configuration.md", format!("\n## {plugin}\n")),
            ("docs/operating.md", format!("`{plugin}`")),
            ("docs/runtimes.md", format!("`{plugin}`")),
            ("crates/fuzz/targets/plugin.rs", format!("\n        \"{plugin}\" => ")),
        ] {
            need(document::read(file).contains(&text), format!("{file}: no {:?}", text.trim()));
        }
        for file in [format!("{plugin}/tests/main/main.rs"), format!("{plugin}/src/main.rs")] {
            need(root().join(&file).exists(), format!("{file}: no such file"));
        }
    }
    assert!(forgotten.is_empty(), "add what each plugin needs: {forgotten:#?}");
}
