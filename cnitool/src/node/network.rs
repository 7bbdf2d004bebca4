//! The networks of a host: their configurations and their leases.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use bridge::inspect::Settings;
use cni::{Call, Error, Result};
use host_local::inspect::{Lease, LeaseHolder, Range};
use serde_json::Value;

use super::value_or_unseen;
use crate::conf::NetworkList;
use crate::table;

/// A network: its configuration and its leases. Its links are in [`super::Node`].
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) name: String,
    /// `None` if only traces are left.
    pub(crate) list: Option<NetworkList>,
    /// The settings of its bridge plugin, if it has one.
    pub(crate) bridge: Option<Settings>,
    /// Errors that its plugins would report.
    pub(crate) faults: Vec<Error>,
    /// The lease directory, if the network uses host-local.
    pub(crate) directory: Option<PathBuf>,
    /// The ranges of each range set. Empty if only the runtime knows them.
    pub(crate) ranges: Vec<Vec<Range>>,
    pub(crate) leases: Vec<Lease>,
    /// Addresses whose leases are from an earlier boot.
    pub(crate) earlier: BTreeSet<IpAddr>,
    /// Whether the lease directory could be listed. Otherwise leases may be missing here.
    pub(crate) leases_seen: bool,
}

impl Network {
    /// Returns a network of which only the name is known.
    pub(super) fn named(name: String) -> Network {
        Network {
            name,
            list: None,
            bridge: None,
            faults: Vec::new(),
            directory: None,
            ranges: Vec::new(),
            leases: Vec::new(),
            earlier: BTreeSet::new(),
            leases_seen: true,
        }
    }

    /// Reads the configuration as the plugins would.
    fn read(list: NetworkList) -> Network {
        let mut network = Network::named(list.name.to_string());
        for plugin in &list.plugins {
            let mut config = plugin.config.clone();
            config.insert("name".to_owned(), Value::from(network.name.as_str()));
            config.insert("cniVersion".to_owned(), Value::from(list.version.as_str()));
            let text = Value::Object(config).to_string();
            if let Err(error) = network.read_plugin(&plugin.kind, &text, &plugin.config) {
                network.faults.push(error);
            }
        }
        network.list = Some(list);
        network
    }

    fn read_plugin(&mut self, kind: &str, text: &str, config: &serde_json::Map<String, Value>) -> Result<()> {
        let call = Call::for_config(text)?;
        let is = |value: Option<&Value>, wanted: &str| value.and_then(Value::as_str) == Some(wanted);
        if is(config.get("ipam").and_then(|ipam| ipam.get("type")), "host-local") {
            self.directory = Some(host_local::inspect::lease_dir(&call)?);
            // If the runtime passes the ranges with each call, they are unknown here.
            let from_runtime = config.get("capabilities").and_then(|all| all.get("ipRanges"));
            match host_local::inspect::ranges(&call) {
                Ok(ranges) => self.ranges = ranges,
                Err(_) if from_runtime == Some(&Value::Bool(true)) => {}
                Err(error) => self.faults.push(error),
            }
        }
        if kind == "bridge" {
            self.bridge = Some(bridge::inspect::settings(&call)?);
        }
        Ok(())
    }

    pub(super) fn read_leases(&mut self, unseen: &mut Vec<String>) {
        let Some(directory) = &self.directory else { return };
        let listing = value_or_unseen(unseen, host_local::inspect::leases(directory));
        self.leases_seen = listing.is_some();
        let leases = listing.flatten().unwrap_or_default();
        let hidden = leases.iter().filter(|lease| lease.owner == LeaseHolder::Unknown).count();
        if hidden > 0 {
            let what = table::count(hidden, "lease");
            unseen.push(format!("the owners of {what} in {}: their files cannot be read", directory.display()));
        }
        self.leases = leases;
        // This must follow the reading of the leases, so that a lease created meanwhile is not included.
        if !self.leases.is_empty() {
            self.earlier = value_or_unseen(unseen, host_local::inspect::leases_of_earlier_boots(directory))
                .into_iter()
                .flatten()
                .collect();
        }
    }

    /// Returns the number of leases in a range.
    pub(crate) fn used(&self, range: &Range) -> usize {
        self.leases.iter().filter(|lease| lease.owner != LeaseHolder::Garbled && range.contains(lease.ip)).count()
    }
}

/// Returns the networks of all configurations, and the configurations that an earlier one of the same name shadows.
pub(super) fn configured(lists: Vec<NetworkList>, unseen: &mut Vec<String>) -> (Vec<Network>, Vec<NetworkList>) {
    let (mut networks, mut shadowed): (Vec<Network>, _) = (Vec::new(), Vec::new());
    for list in lists {
        if networks.iter().any(|network| network.name == list.name.as_str()) {
            shadowed.push(list);
            continue;
        }
        let mut network = Network::read(list);
        network.read_leases(unseen);
        networks.push(network);
    }
    (networks, shadowed)
}
