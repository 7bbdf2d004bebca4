//! Tests of the `macvlan` plugin.

mod commands;
mod suite;
mod traffic;
