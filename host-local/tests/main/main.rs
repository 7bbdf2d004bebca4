//! Black-box tests of `host-local`: real programs in namespaces of their own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on should stop and say where"
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
