//! All plugins, for programs that need every one of them: `cnitool`, and the tests of what all plugins have in common,
//! which are in this crate, too. `Cargo.toml` has the list, from which `testing`, the commands in `ci/` and the
//! packages derive theirs.

include!(concat!(env!("OUT_DIR"), "/plugins.rs"));
