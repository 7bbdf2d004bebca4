//! All plugins in one program. The name under which it is called selects one, so copies under all names serve as all
//! plugins.
#![no_main]

cni::main!(all cni0::PLUGINS);
