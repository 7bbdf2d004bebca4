//! IP forwarding on the host.

use std::net::IpAddr;

use cni::{Code, Error, Result};
use linux::sysctl::{self, Setting};

use crate::container::no_ipv6;

/// The sysctls that enable IP forwarding, and whether they are for IPv4.
const FORWARDING: [(&[&str], bool); 2] =
    [(&["net", "ipv4", "ip_forward"], true), (&["net", "ipv6", "conf", "all", "forwarding"], false)];

/// Enables IP forwarding for the families of these addresses.
pub fn enable(families: impl Iterator<Item = IpAddr> + Clone) -> Result<()> {
    for (key, v4) in FORWARDING {
        if !families.clone().any(|ip| ip.is_ipv4() == v4) {
            continue;
        }
        match sysctl::set(key, "1")? {
            Setting::Kept | Setting::Changed => {}
            Setting::Missing if !v4 => return Err(no_ipv6()),
            Setting::Missing | Setting::ReadOnly => return Err(cannot_forward(key)),
        }
    }
    Ok(())
}

/// STATUS: returns an error if IP forwarding is off and cannot be enabled. The kernel may lack IPv6.
pub fn status() -> Result<()> {
    for (key, v4) in FORWARDING {
        match sysctl::read(key) {
            Ok(Some(value)) if value == "1" => {}
            Ok(None) | Err(_) if !v4 => {}
            _ => sysctl::check_writable(key).map_err(|error| cannot_forward(key).details(error.to_string()))?,
        }
    }
    Ok(())
}

/// Returns the error for a sysctl that cannot be set.
fn cannot_forward(key: &[&str]) -> Error {
    let key = key.join(".");
    Error::new(Code::INTERNAL, format!("{key} is not 1, and cannot be set"))
        .details(format!("run `sysctl -w {key}=1` on the host, or give the plugin a writable /proc/sys"))
}
