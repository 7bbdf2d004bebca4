//! An entry point for the fuzzer: it reads arbitrary configurations, and asserts the properties that must hold.
#![allow(clippy::panic, clippy::expect_used, reason = "the fuzzer detects a failure by a panic")]

use std::ffi::OsStr;

use cni::{Call, Version};

use crate::config::{Config, Directory};

/// Reads a configuration of this plugin.
pub fn config(call: &Call<'_>) {
    let dir = Directory::of(call);
    let Ok(config) = Config::read(call) else { return };
    let dir = dir.expect("DEL accepts what ADD accepts");
    assert_eq!(dir.path.file_name(), Some(OsStr::new(call.network.as_str())));
    assert_eq!(dir.used(), config.lease_dir, "DEL uses the directory of ADD");
    for (i, ip) in config.ips.iter().enumerate() {
        let address = ip.address.ip();
        assert!(!address.is_multicast() && !address.is_unspecified(), "{address}");
        assert_eq!(address.to_canonical(), address);
        assert!(ip.gateway.is_none_or(|gateway| gateway.is_ipv4() == address.is_ipv4()), "{ip:?}");
        let others = config.ips.iter().skip(i + 1);
        assert_eq!(others.filter(|other| other.address.ip() == address).count(), 0, "{address} twice");
    }
    if call.version < Version::V0_3_0 {
        assert!(config.ips.len() <= 2, "one address of each family");
    }
}
