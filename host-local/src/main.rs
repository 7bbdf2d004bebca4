//! The `host-local` plugin as a separate program.

cni::main!(host_local::HostLocal);
