//! The plugin `relay` of `delegation`.
#![no_main]

mod delegation;

use delegation::{Relay, Stock};

cni::main!(Relay, Stock);
