//! The plugin `preset` of `delegation`.
#![no_main]

mod delegation;

use delegation::{Preset, Relay, Stock};

cni::main!(Preset, Relay, Stock);
