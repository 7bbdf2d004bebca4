//! Black-box tests of `host-local`: real programs in separate namespaces.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failed test should stop and report the line"
)]

mod allocate;
mod bad;
mod concurrency;
mod fault;
mod format;
mod hostile;
mod index;
mod lock;
mod network;
mod reboot;
mod support;
