//! The list of all plugins. Everything else that needs it derives it from here: the program, `cnitool`, the tests
//! (`testing::PLUGINS`), the commands in `ci/` and the packages.

use cni::Plugin;

/// All plugins. One line for each, the path of its type: `ci/lib.sh` and `testing` read the names of the crates here,
/// which are the names of the plugins.
#[rustfmt::skip]
pub const PLUGINS: &[&dyn Plugin] = &[
    &bridge::Bridge,
    &host_local::HostLocal,
    &loopback::Loopback,
];
