//! The program `dhcp`: the plugin, and with the argument `daemon` the daemon.
#![no_main]

cni::main!(dhcp::Dhcp, "daemon" => dhcp::daemon::run);
