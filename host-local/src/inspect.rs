//! For tools: read-only access to the ranges of a network and to the leases in its lease directory.

use std::fs;
use std::path::PathBuf;

use cni::inspect::{Inspect, LeaseStore, Range, Settings, Shape, collect_leases};
use cni::lease::DATA_DIR;
use cni::{Call, Keep, Result};
use serde::Deserialize;

use crate::HostLocal;
use crate::config::{self, Config};
use crate::range;

impl Inspect for HostLocal {
    fn shape(&self) -> Shape {
        config::shape()
    }

    fn settings(&self, call: &Call<'_>) -> Result<Settings> {
        let sets = match Config::read(call) {
            Ok(config) => config.sets,
            Err(_) if gets_ranges_from_runtime(call) => Vec::new(),
            Err(error) => return Err(error),
        };
        let ranges = sets.iter().map(|set| set.ranges().iter().map(describe).collect()).collect();
        Ok(Settings { ranges, ..Settings::default() })
    }

    fn lease_store(&self) -> Option<&dyn LeaseStore> {
        Some(self)
    }

    fn collect(&self, call: &Call<'_>, keep: &Keep<'_>) -> Result<()> {
        collect_leases(&config::directory(call)?, keep)
    }
}

/// Returns whether the runtime passes the ranges with each call, so that the configuration may lack them.
fn gets_ranges_from_runtime(call: &Call<'_>) -> bool {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Network {
        capabilities: Capabilities,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Capabilities {
        ip_ranges: bool,
    }
    call.parse().is_ok_and(|network: Network| network.capabilities.ip_ranges)
}

fn describe(range: &range::Range) -> Range {
    let (first, last) = range.bounds();
    Range {
        subnet: range.subnet(),
        first,
        last,
        gateway: range.gateway(),
        size: range.size(),
        is_whole: range.is_whole(),
    }
}

impl LeaseStore for HostLocal {
    fn lease_dir(&self, call: &Call<'_>) -> Result<Option<PathBuf>> {
        config::directory(call).map(Some)
    }

    fn default_lease_dirs(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(DATA_DIR).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    }
}
