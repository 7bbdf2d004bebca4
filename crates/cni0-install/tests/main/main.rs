//! Black-box tests of cni0-install: real files, real file systems, a process that is killed at every step.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "a failed test should stop and report the line"
)]

mod bad;
mod install;
mod kill;
mod network;
mod rollback;
mod support;
