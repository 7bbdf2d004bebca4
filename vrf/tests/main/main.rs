//! Black-box tests of the vrf plugin: real programs, real kernel. Most need a kernel with VRFs: `ci/test` runs them in
//! a guest.
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
mod anywhere;
mod chain;
mod cost;
mod del;
mod faults;
mod reference;
mod support;
