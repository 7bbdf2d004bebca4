//! The `bridge` plugin as a program of its own.

cni::main!(bridge::Bridge);
