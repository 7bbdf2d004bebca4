//! The plugin `stock` of `delegation`.
#![no_main]

mod delegation;

use delegation::Stock;

cni::main!(Stock);
