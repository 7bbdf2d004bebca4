//! Black-box tests of the bridge plugin: real programs, real kernel, real traffic.
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
mod cost;
mod del;
mod detached;
mod differential;
mod exclude;
mod faults;
mod gc;
mod host;
mod hostile;
mod iptables;
mod masquerade;
mod mtu;
mod neighbours;
mod parallel;
mod pod;
mod resubnet;
mod spoofcheck;
mod stale;
mod status;
mod suite;
mod traffic;
mod upgrade;
mod vlan;
