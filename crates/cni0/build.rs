//! Writes the table of all plugins, from the list of them in `Cargo.toml`.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::expect_used,
    reason = "this is how build scripts work"
)]

use std::path::Path;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=Cargo.toml");
    let list = fs::read_to_string("Cargo.toml").expect("read Cargo.toml");
    let plugins: Vec<String> =
        list.lines().filter_map(|line| line.split_once(".path = ")).map(|(name, _)| value(name)).collect();
    let table =
        format!("/// All plugins.\npub const PLUGINS: &[&dyn cni::inspect::Inspect] = &[{}];\n", plugins.join(", "));
    let dir = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    fs::write(Path::new(&dir).join("plugins.rs"), table).expect("write plugins.rs");
}

/// Returns the path of a plugin in Rust: `&host_local::HostLocal` for `host-local`. The name of a library must not be a
/// keyword.
fn value(plugin: &str) -> String {
    let words = plugin.split('-').filter_map(|word| word.split_at_checked(1));
    let name: String = words.map(|(first, rest)| first.to_uppercase() + rest).collect();
    let library = if plugin == "static" { "static_ipam".to_owned() } else { plugin.replace('-', "_") };
    format!("&{library}::{name}")
}
