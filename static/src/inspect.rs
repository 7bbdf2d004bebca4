//! For tools: read-only access to the leases of a network that keeps them.

use std::path::PathBuf;

use cni::inspect::{Inspect, LeaseStore, Settings, Shape, collect_leases};
use cni::{Call, Keep, Result};

use crate::Static;
use crate::config::{self, Config, Directory};

impl Inspect for Static {
    fn shape(&self) -> Shape {
        config::shape()
    }

    /// A configuration without addresses is valid: the runtime may pass them.
    fn settings(&self, call: &Call<'_>) -> Result<Settings> {
        Config::read(call).map(|_| Settings::default())
    }

    fn lease_store(&self) -> Option<&dyn LeaseStore> {
        Some(self)
    }

    fn collect(&self, call: &Call<'_>, keep: &Keep<'_>) -> Result<()> {
        let dir = Directory::of(call)?;
        dir.filter(collect_leases(&dir.path, keep))
    }
}

impl LeaseStore for Static {
    fn lease_dir(&self, call: &Call<'_>) -> Result<Option<PathBuf>> {
        Directory::of(call).map(Directory::used)
    }
}
