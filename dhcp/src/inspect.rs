//! For tools: the leases of a network.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cni::inspect::{Finding, Inspect, Lease, LeaseHolder, LeaseStore, NetworkView, Settings, Shape, Subject};
use cni::{Call, Keep, Plugin, Result};

use crate::config::{self, Config};
use crate::lease::Summary;
use crate::{Dhcp, lease, release};

impl Inspect for Dhcp {
    fn shape(&self) -> Shape {
        config::shape()
    }

    fn settings(&self, call: &Call<'_>) -> Result<Settings> {
        Config::read(call, None).map(|_| Settings::default())
    }

    /// Reports a daemon that does not answer.
    fn findings(&self, network: &NetworkView<'_>) -> Result<Vec<Finding>> {
        const CHECK: &str = "dhcp";
        if !Config::read(network.call, None)?.needs_daemon() {
            return Ok(Vec::new());
        }
        let daemon = config::endpoint(network.call);
        let socket = daemon.socket;
        Ok(vec![match self.status(network.call) {
            Ok(()) if daemon.starts_from.is_some() => {
                Finding::ok(CHECK, "the plugin starts the daemon if none listens")
            }
            Ok(()) => Finding::ok(CHECK, format!("the daemon listens at {}", socket.display())),
            Err(error) => Finding::error(CHECK, &error).about([Subject::file(&socket)]),
        }])
    }

    fn lease_store(&self) -> Option<&dyn LeaseStore> {
        Some(self)
    }

    fn collect(&self, call: &Call<'_>, keep: &Keep<'_>) -> Result<()> {
        for (record, since) in lease::list::<Summary>(&lease::directory(keep.network))?.unwrap_or_default() {
            let may_be_stale = record.address().is_none_or(|ip| keep.may_be_stale(ip, since));
            if may_be_stale && keep.is_stale(record.key.attachment()) {
                release(config::endpoint(call), record.key)?;
            }
        }
        Ok(())
    }
}

impl LeaseStore for Dhcp {
    fn lease_dir(&self, call: &Call<'_>) -> Result<Option<PathBuf>> {
        Ok(Some(lease::directory(call.network.as_str())))
    }

    fn default_lease_dirs(&self) -> Vec<PathBuf> {
        lease::directories().unwrap_or_default()
    }

    fn leases(&self, directory: &Path) -> Result<Option<Vec<Lease>>> {
        let Some(found) = lease::list::<Summary>(directory)? else { return Ok(None) };
        let lease = |(record, since): (Summary, _)| {
            let ip = record.address()?;
            let owner = LeaseHolder::Container(record.key.container, Some(record.key.ifname));
            Some(Lease { ip, owner, since })
        };
        let mut leases: Vec<Lease> = found.into_iter().filter_map(lease).collect();
        leases.sort_by_key(|lease| lease.ip);
        Ok(Some(leases))
    }

    /// Returns none: a boot removes all leases.
    fn leases_of_earlier_boots(&self, _: &Path) -> Result<Vec<IpAddr>> {
        Ok(Vec::new())
    }
}
