//! Black-box tests of the shared code: real kernel, real processes, private namespaces.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "these are tests")]

mod chained;
mod delegate;
mod guest;
mod nested;

use std::path::PathBuf;

/// Returns the program of an example.
fn example(name: &str) -> PathBuf {
    // Tests are in target/PROFILE/deps.
    std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("examples").join(name)
}
