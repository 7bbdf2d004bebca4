//! Black-box tests of the behaviour that all plugins have in common.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "these are tests")]

mod bad_input;
mod cost;
mod documents;
mod file_size;
mod log;
mod log_daemons;
mod names;
mod plugins;
mod routing;
mod several;
mod streams;
