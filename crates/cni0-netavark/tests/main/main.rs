//! Tests of the plugin of netavark as a program: it gets the JSON that netavark passes on from podman.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test whose setup fails should stop")]

mod attach;
mod bad;
mod create;
mod faults;
mod shared;
mod support;
