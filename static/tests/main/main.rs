//! Black-box tests of `static`: real programs in separate namespaces.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failed test should stop and report the line"
)]

mod bad;
mod check;
mod delegated;
mod leases;
mod reference;
mod sources;
mod support;
