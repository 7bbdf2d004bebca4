//! Black-box tests of `dhcp`: real programs and real servers in separate namespaces.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failed test should stop and report the line"
)]

mod add;
mod calls;
mod daemon;
mod follow;
mod hostile;
mod ipv6;
mod killed;
mod on_demand;
mod reference;
mod restart;
mod servers;
mod slaac;
mod support;
