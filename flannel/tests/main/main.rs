//! Black-box tests of the flannel plugin: real programs, real kernel, real traffic.
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
mod change;
mod check;
mod cost;
mod del;
mod delegate;
mod faults;
mod gc;
mod node;
mod nodes;
mod parallel;
mod reference;
mod state;
mod status;
mod subnet;
mod upgrade;
