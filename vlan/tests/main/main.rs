//! Tests of the `vlan` plugin.

mod commands;
mod suite;
mod traffic;
