//! Black-box tests of the program as it is installed, copied under all names, and what every plugin owes to callers.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "these are tests")]

mod bad_input;
mod cost;
mod documents;
mod log;
mod names;
mod streams;
