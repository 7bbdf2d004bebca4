//! Black-box tests of the shared code: real kernel, real processes, private namespaces.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "these are tests")]

mod delegate;
mod guest;
