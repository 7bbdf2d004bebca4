//! All plugins in one program. The name under which it is called selects one, so copies under all names serve as all
//! plugins.

cni::main!(bridge::Bridge, host_local::HostLocal, loopback::Loopback);
