//! What whoever calls us may do.

use std::fs;

use cni::{Code, Context, Error, Result};

/// What plugins need to change networks, and to enter namespaces: names, and numbers in linux/capability.h.
const NEEDED: [(&str, u32); 2] = [("CAP_NET_ADMIN", 12), ("CAP_SYS_ADMIN", 21)];

/// Without these a plugin would fail half way.
pub(crate) fn require_capabilities() -> Result<()> {
    let status = fs::read_to_string("/proc/self/status").trying(|| "read /proc/self/status")?;
    let held = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    let held = held.ok_or_else(|| Error::new(Code::INTERNAL, "/proc/self/status does not tell capabilities"))?;
    let missing: Vec<_> = NEEDED.iter().filter(|(_, number)| held >> number & 1 == 0).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::new(Code::INTERNAL, format!("permission missing: {}", missing.join(" and "))).details("run it as root"))
}
