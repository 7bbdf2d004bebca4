//! All plugins in one program. The name under which it is called selects one; copied under all names it serves as all.
#![no_main]

cni::main!(bridge::Bridge, host_local::HostLocal, loopback::Loopback);
