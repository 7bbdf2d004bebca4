//! Tests of the `ipvlan` plugin.

mod commands;
mod suite;
mod traffic;
