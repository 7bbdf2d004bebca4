//! The capabilities of this process.

use std::fs;

use cni::{Code, Context, Error, Result};

/// The capabilities that plugins need to configure networks and to enter namespaces, with their numbers in
/// linux/capability.h.
const NEEDED: [(&str, u32); 2] = [("CAP_NET_ADMIN", 12), ("CAP_SYS_ADMIN", 21)];

/// Fails if this process lacks a capability, because a plugin would fail half-way.
pub(crate) fn require_capabilities() -> Result<()> {
    let status = fs::read_to_string("/proc/self/status").context(|| "read /proc/self/status")?;
    let held = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    let held = held.ok_or_else(|| Error::new(Code::INTERNAL, "/proc/self/status does not contain capabilities"))?;
    let missing: Vec<_> = NEEDED.iter().filter(|(_, number)| held >> number & 1 == 0).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::new(Code::INTERNAL, format!("permission missing: {}", missing.join(" and "))).details("run as root"))
}
