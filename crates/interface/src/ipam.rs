//! The order of the interface and its addresses.
//!
//! An address must not be leased again while an interface has it, so the interface is removed first. There is one
//! exception: `dhcp`, ours or that of the reference, asks the server over the container's interface, and gives the
//! address back from there.

use cni::{Delegate, ErrorCollector, Result};

/// The IPAM plugin that needs the interface. Afterwards, the daemon or the kernel follows what a server or a router
/// says.
pub(crate) const DHCP: &str = "dhcp";

/// Returns whether the IPAM plugin works over the container's interface, which must forward packets before ADD, and
/// exist at DEL.
pub fn works_over_interface(ipam: &Delegate<'_>) -> bool {
    ipam.name() == DHCP
}

/// DEL and GC: removes interfaces and releases their addresses, in the order that the IPAM plugin needs. `release`
/// calls it, and `remove` returns whether the interfaces are gone.
pub fn remove_and_release(
    failures: &mut ErrorCollector,
    ipam: Option<&Delegate<'_>>,
    release: impl FnOnce(&Delegate<'_>) -> Result<()>,
    remove: impl FnOnce(&mut ErrorCollector) -> bool,
) {
    if let Some(ipam) = ipam.filter(|ipam| works_over_interface(ipam)) {
        failures.record(release(ipam));
        remove(failures);
        return;
    }
    let removed = remove(failures);
    // An address must not be leased again while the interface that has it may still exist.
    if let Some(ipam) = ipam.filter(|_| removed) {
        failures.record(release(ipam));
    }
}
