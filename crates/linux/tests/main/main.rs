//! Black-box tests of this crate: real kernel, private namespaces.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "these are tests")]

mod conntrack;
mod kernel;
mod nft;
mod system;
mod tc;
