//! The list of all plugins. Everything else that needs it derives it from here: the program, `cnitool`, the tests
//! (`testing::plugins`), the commands in `ci/` and the packages.

use cni::Plugin;
use cni::inspect::Inspect;

/// Defines the tables of all plugins from one list.
macro_rules! tables {
    ($($plugin:path),+ $(,)?) => {
        /// All plugins, for the program.
        pub const PLUGINS: &[&dyn Plugin] = &[$(&$plugin),+];

        /// All plugins, for tools that inspect a host. A table of its own, so that the program contains no code for tools.
        pub const INSPECT: &[&dyn Inspect] = &[$(&$plugin),+];
    };
}

// One line for each plugin: `ci/lib.sh` and `testing` read the names of the crates here, which are those of the plugins.
tables! {
    bandwidth::Bandwidth,
    bridge::Bridge,
    firewall::Firewall,
    flannel::Flannel,
    host_local::HostLocal,
    loopback::Loopback,
    portmap::Portmap,
    tuning::Tuning,
}
