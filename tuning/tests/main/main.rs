//! Black-box tests of the tuning plugin: real programs, real kernel.
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
mod allowlist;
mod bad;
mod check;
mod cost;
mod del;
mod faults;
mod gc;
mod mtu;
mod reference;
mod status;
mod support;
