//! For tools: the leases of a network.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cni::inspect::{
    Finding, Grant, Id, Inspect, Lease, LeaseHolder, LeaseStore, NetworkView, Settings, Shape, Subject,
};
use cni::{Call, Keep, Plugin, Result};
use linux::event::now;

use crate::config::{self, Config};
use crate::lease::{Record, Summary};
use crate::{Dhcp, lease, release};

impl Inspect for Dhcp {
    fn shape(&self) -> Shape {
        config::shape()
    }

    fn settings(&self, call: &Call<'_>) -> Result<Settings> {
        Config::read(call, None).map(|_| Settings::default())
    }

    /// Reports a daemon that does not answer, and leases that nothing has renewed.
    fn findings(&self, network: &NetworkView<'_>) -> Result<Vec<Finding>> {
        const CHECK: &str = "dhcp";
        if !Config::read(network.call, None)?.needs_daemon() {
            return Ok(Vec::new());
        }
        let daemon = config::endpoint(network.call);
        let socket = daemon.socket;
        let mut findings = vec![match self.status(network.call) {
            Ok(()) if daemon.starts_from.is_some() => {
                Finding::ok(CHECK, Id("dhcp-daemon-on-demand"), "the plugin starts the daemon if none listens")
            }
            Ok(()) => {
                Finding::ok(CHECK, Id("dhcp-daemon-listens"), format!("the daemon listens at {}", socket.display()))
            }
            Err(error) => Finding::error(CHECK, Id("dhcp-daemon-missing"), &error).about([Subject::file(&socket)]),
        }];
        let now = now()?;
        let recorded = lease::list::<Record>(&lease::directory(network.call.network.as_str()))?.unwrap_or_default();
        let ended = recorded.iter().map(|(record, _)| record).filter(|record| record.has_ended(now));
        let subjects: Vec<Subject> =
            ended.map(|record| Subject::container(&record.key.container, Some(&record.key.ifname))).collect();
        if !subjects.is_empty() {
            let count = subjects.len();
            let danger = "the containers still have their addresses, which the server can give to others";
            let finding =
                Finding::warn(CHECK, Id("dhcp-lease-ended"), format!("leases that have ended: {count}; {danger}"))
                    .about(subjects);
            let remedy = "start the daemon, which asks the server for these addresses, or for others";
            findings.push(finding.remedy(remedy));
        }
        Ok(findings)
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
        let Some(found) = lease::list::<Record>(directory)? else { return Ok(None) };
        let now = now()?;
        let lease = |(record, since): (Record, _)| {
            let granted = record.grant?;
            let left = granted.end().map(|end| end.saturating_sub(now));
            let grant = Some(Grant { server: granted.terms.server.address, left });
            let owner = LeaseHolder::Container(record.key.container, Some(record.key.ifname));
            Some(Lease { ip: granted.terms.address, owner, since, grant })
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
