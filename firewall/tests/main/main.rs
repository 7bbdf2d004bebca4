//! Black-box tests of the firewall plugin: real programs, real kernel, real traffic.
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
mod bad;
mod check;
mod cost;
mod del;
mod faults;
mod firewalld;
mod gc;
mod legacy;
mod names;
mod parallel;
mod policy;
mod reference;
mod smoke;
mod status;
mod support;
mod traffic;
