//! Black-box tests of the portmap plugin: real programs, real kernel, real traffic.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    missing_docs,
    reason = "a test that fails should stop and say where"
)]

mod add;
mod bad;
mod check;
mod clash;
mod conditions;
mod cost;
mod del;
mod differential;
mod faults;
mod flows;
mod gc;
mod iptables;
mod legacy;
mod loopback;
mod parallel;
mod reference_nftables;
mod sctp;
mod siblings;
mod status;
mod support;
mod traffic;
mod upgrade;
