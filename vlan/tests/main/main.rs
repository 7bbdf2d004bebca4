//! Tests of the `vlan` plugin.

mod commands;
mod shared;
mod suite;
mod traffic;
