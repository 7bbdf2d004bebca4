//! Tests of the `macvlan` plugin.

mod commands;
mod host_access;
mod suite;
mod traffic;
