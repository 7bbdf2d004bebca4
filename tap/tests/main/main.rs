//! Tests of the `tap` plugin.

mod commands;
mod suite;
