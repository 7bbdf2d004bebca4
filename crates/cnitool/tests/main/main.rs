//! Black-box tests of cnitool: real programs, real plugins, real namespaces.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "a failed test should stop and report the line"
)]

mod bad;
mod bandwidth;
mod cache;
mod chain;
mod command_line;
mod configurations;
mod demo;
mod dhcp;
mod doctor;
mod firewall;
mod flannel;
mod gc;
mod host_device;
mod init;
mod leases;
mod manual;
mod master;
mod metrics;
mod namespaces;
mod networks;
mod node;
mod ports;
mod progress;
mod prune;
mod ptp;
mod repair;
mod sbr;
mod schema;
mod show;
mod static_ipam;
mod status;
mod support;
mod tap;
mod trial;
mod tuning;
mod validate;
mod vrf;
mod watch;
mod width;
