//! Black-box tests of the sbr plugin: real programs, real kernel.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    missing_docs,
    reason = "a test that fails should stop and say where"
)]

mod add;
mod chain;
mod check;
mod cost;
mod del;
mod faults;
mod keys;
mod reference;
mod repeated;
mod support;
mod traffic;
