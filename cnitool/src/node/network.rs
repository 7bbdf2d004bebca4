//! The networks of a host: what their configurations say, and their leases.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use bridge::inspect::Settings;
use cni::{Call, Error, Result};
use host_local::inspect::{Lease, Owner, Range};
use serde_json::Value;

use super::note;
use crate::conf::NetworkList;
use crate::table;

/// A network, and what of it is not on links.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) name: String,
    /// `None` if only traces are left.
    pub(crate) list: Option<NetworkList>,
    /// What its bridge should be, if it has one.
    pub(crate) bridge: Option<Settings>,
    /// What its plugins would refuse.
    pub(crate) faults: Vec<Error>,
    /// Where host-local keeps its leases, if that gives its addresses.
    pub(crate) directory: Option<PathBuf>,
    /// A list for each address that a container gets; none if only the runtime knows.
    pub(crate) ranges: Vec<Vec<Range>>,
    pub(crate) leases: Vec<Lease>,
    /// Addresses whose leases are from an earlier boot.
    pub(crate) earlier: BTreeSet<IpAddr>,
    /// Could the directory be listed? Otherwise there may be leases of which nothing is known.
    pub(crate) leases_seen: bool,
}

impl Network {
    /// One of which only the name is known.
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

    /// Reads what the plugins would read.
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
        let call = Call::about(text)?;
        let is = |value: Option<&Value>, wanted: &str| value.and_then(Value::as_str) == Some(wanted);
        if is(config.get("ipam").and_then(|ipam| ipam.get("type")), "host-local") {
            self.directory = Some(host_local::inspect::directory(&call)?);
            // Ranges may come with each call; then only the runtime knows them.
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
        let listing = note(unseen, host_local::inspect::leases(directory));
        self.leases_seen = listing.is_some();
        let leases = listing.flatten().unwrap_or_default();
        let hidden = leases.iter().filter(|lease| lease.owner == Owner::Unknown).count();
        if hidden > 0 {
            let what = table::count(hidden, "lease");
            unseen.push(format!("the owners of {what} in {}: their files cannot be read", directory.display()));
        }
        self.leases = leases;
        // After the leases were read: one that was made meanwhile is not from an earlier boot.
        if !self.leases.is_empty() {
            self.earlier = note(unseen, host_local::inspect::earlier(directory)).into_iter().flatten().collect();
        }
    }

    /// How many leases are in a range.
    pub(crate) fn used(&self, range: &Range) -> usize {
        self.leases.iter().filter(|lease| lease.owner != Owner::Nobody && range.contains(lease.ip)).count()
    }
}

/// The networks of all configurations, and those configurations that another one of the same name hides.
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
