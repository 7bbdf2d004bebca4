//! The `loopback` plugin as a program of its own.

cni::main!(loopback::Loopback);
