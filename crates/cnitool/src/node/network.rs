//! The networks of a host: their configurations and their leases.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use cni::inspect::{
    Bridge, ContainerLink, ForwardChain, Generated, Inspect, Lease, LeaseHolder, LeaseStore, ObjectKind, Range,
    Settings, Usage,
};
use cni::{Call, Code, Error, Result};
use cni0::PLUGINS;
use linux::ip::Cidr;
use linux::netlink::Address;
use serde_json::{Map, Value};

use super::value_or_unseen;
use crate::conf::{self, NetworkList};
use crate::table;

/// A network: its configuration and its leases. Its links are in [`super::Node`].
#[derive(Debug, Default)]
pub(crate) struct Network {
    pub(crate) name: String,
    /// `None` if only traces are left.
    pub(crate) list: Option<NetworkList>,
    /// The names of its plugins and of their delegates.
    pub(crate) programs: Vec<String>,
    /// Those of its plugins that can be inspected, in the order of the list. A delegate precedes its caller.
    pub(crate) parts: Vec<Part>,
    /// Its bridge, if it has one.
    pub(crate) bridge: Option<Bridge>,
    /// What it gives to containers, if the host has no other end of it.
    pub(crate) link: Option<ContainerLink>,
    /// Whether its plugins use nf_tables.
    pub(crate) nftables: Usage,
    /// Errors that its plugins would report.
    pub(crate) faults: Vec<Error>,
    /// The leases of its IPAM plugin, and their directory.
    pub(crate) store: Option<(&'static dyn LeaseStore, PathBuf)>,
    /// The ranges of each range set. Empty if only the runtime knows them.
    pub(crate) ranges: Vec<Vec<Range>>,
    pub(crate) leases: Vec<Lease>,
    /// Addresses whose leases are from an earlier boot.
    pub(crate) earlier: BTreeSet<IpAddr>,
    /// Whether the lease directory could not be listed, so that leases may be missing here.
    pub(crate) leases_unseen: bool,
}

/// A plugin of a network, with a valid configuration.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) plugin: &'static dyn Inspect,
    /// The plugin in the list: this one, or the one that delegates to it.
    listed: conf::Plugin,
    config: String,
}

impl Part {
    /// Calls `function` with the configuration of the plugin.
    pub(crate) fn with_call<T>(&self, function: impl FnOnce(&Call<'_>) -> Result<T>) -> Result<T> {
        function(&Call::for_config(&self.config)?)
    }

    /// Returns the configuration for CHECK of an attachment with these arguments and this result; `None` if the result
    /// is invalid.
    pub(super) fn check_config(
        &self,
        list: &NetworkList,
        arguments: &Map<String, Value>,
        result: &Value,
    ) -> Option<String> {
        let previous = list.prev_result(result).ok()?;
        let config = Value::Object(list.request(&self.listed, arguments, &[previous])).to_string();
        let called = called_plugins(&self.listed.kind, config).ok()?;
        called.into_iter().find(|called| called.kind == self.plugin.name()).map(|called| called.config)
    }
}

impl Network {
    /// Returns a network of which only the name is known.
    pub(super) fn named(name: String) -> Network {
        Network { name, ..Network::default() }
    }

    /// Reads the configuration as the plugins would.
    pub(crate) fn read(list: NetworkList) -> Network {
        let mut network = Network::named(list.name.to_string());
        for plugin in &list.plugins {
            if let Err(error) = network.read_plugin(&list, plugin) {
                network.faults.push(of_plugin(&plugin.kind, error));
            }
        }
        network.faults.extend(misplaced(&list).map(|(first, error)| of_plugin(&first.kind, error)));
        network.list = Some(list);
        network
    }

    /// Reads the configurations of a plugin and of its delegates.
    fn read_plugin(&mut self, list: &NetworkList, listed: &conf::Plugin) -> Result<()> {
        let config = Value::Object(list.config_of(listed)).to_string();
        for Generated { kind, config, is_complete } in called_plugins(&listed.kind, config)? {
            if let Some(plugin) = inspect(&kind) {
                self.read_part(Part { plugin, listed: listed.clone(), config }, is_complete)?;
            }
            self.programs.push(kind);
        }
        Ok(())
    }

    fn read_part(&mut self, part: Part, is_complete: bool) -> Result<()> {
        if let Some(store) = part.plugin.lease_store()
            && let Some(directory) = part.with_call(|call| store.lease_dir(call))?
        {
            self.store = Some((store, directory));
        }
        match part.with_call(|call| part.plugin.settings(call)) {
            Ok(Settings { bridge, link, ranges, nftables }) => {
                self.bridge = bridge.or_else(|| self.bridge.take());
                self.link = link.or_else(|| self.link.take());
                if !ranges.is_empty() {
                    self.ranges = ranges;
                }
                self.nftables = self.nftables.max(nftables);
                self.parts.push(part);
            }
            // The plugin that generated the configuration reports what it lacks.
            Err(_) if !is_complete => {}
            Err(error) => self.faults.push(of_plugin(&part.listed.kind, error)),
        }
        Ok(())
    }

    /// Returns whether `cnitool prune` removes what containers that are gone have left.
    pub(crate) fn can_be_pruned(&self) -> bool {
        self.list.as_ref().is_some_and(|list| !list.disable_gc)
    }

    /// Returns whether a plugin of the network creates objects of this kind.
    pub(crate) fn creates(&self, kind: &ObjectKind) -> bool {
        self.parts.iter().any(|part| part.plugin.kinds().contains(kind))
    }

    /// Returns whether a plugin of the network makes a chain accept the packets of containers.
    pub(crate) fn accepts_in(&self, chain: ForwardChain<'_>) -> Result<bool> {
        for part in &self.parts {
            if part.with_call(|call| part.plugin.accepts_in(call, chain))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the plugins whose CHECK fails whatever it finds, if they are those of the reference, with the reason.
    pub(crate) fn flaws_of_reference_checks(&self) -> Vec<(&str, &'static str)> {
        let flaw = |part: &Part| part.with_call(|call| part.plugin.flaw_of_reference_check(call)).ok().flatten();
        self.parts.iter().filter_map(|part| Some((part.listed.kind.as_str(), flaw(part)?))).collect()
    }

    /// Returns the error of an ADD if the addresses of the gateway's link conflict with those of the gateways.
    pub(crate) fn check_gateway_conflict(&self, have: &[Address], gateways: &[Cidr]) -> Result<()> {
        let check = |part: &Part| part.with_call(|call| part.plugin.check_gateway_conflict(call, have, gateways));
        self.parts.iter().try_for_each(check)
    }

    pub(super) fn read_leases(&mut self, unseen: &mut Vec<String>) {
        let Some((store, directory)) = &self.store else { return };
        let listing = value_or_unseen(unseen, store.leases(directory));
        self.leases_unseen = listing.is_none();
        let leases = listing.flatten().unwrap_or_default();
        let hidden = leases.iter().filter(|lease| lease.owner == LeaseHolder::Unknown).count();
        if hidden > 0 {
            let what = table::count(hidden, "lease");
            unseen.push(format!("the owners of {what} in {}: their files cannot be read", directory.display()));
        }
        self.leases = leases;
        // This must follow the reading of the leases, so that a lease created meanwhile is not included.
        if !self.leases.is_empty() {
            let earlier = value_or_unseen(unseen, store.leases_of_earlier_boots(directory));
            self.earlier = earlier.into_iter().flatten().collect();
        }
    }

    /// Returns the number of leases in a range.
    pub(crate) fn used(&self, range: &Range) -> usize {
        self.leases.iter().filter(|lease| lease.owner != LeaseHolder::Garbled && range.contains(lease.ip)).count()
    }
}

/// Adds to an error in which configuration it is: several plugins have keys of the same name.
fn of_plugin(kind: &str, error: Error) -> Error {
    error.context(format!("plugin {kind:?}"))
}

/// Returns the leases of the IPAM plugin of a list, and their directory.
pub(crate) fn lease_store(list: &NetworkList) -> Option<(&'static dyn LeaseStore, PathBuf)> {
    Network::read(list.clone()).store
}

/// Returns the first plugin with the error of every ADD, if it needs the result of an earlier plugin. It learns of its
/// place in the list only by an ADD.
pub(crate) fn misplaced(list: &NetworkList) -> Option<(&conf::Plugin, Error)> {
    let first = list.plugins.first()?;
    inspect(&first.kind).filter(|plugin| plugin.is_chained())?;
    let error = Error::new(Code::CONFIG, "it needs the result of an earlier plugin, and is the first");
    Some((first, error.details("list it after a plugin that creates an interface, such as bridge")))
}

/// Returns the plugins that take part in a call of the plugin `kind`, each with its configuration: its delegates, then
/// itself.
pub(crate) fn called_plugins(kind: &str, config: String) -> Result<Vec<Generated>> {
    let listed = Generated { kind: kind.to_owned(), config, is_complete: true };
    let call = Call::for_config(&listed.config)?;
    let generated = inspect(kind).map(|plugin| plugin.delegate(&call)).transpose()?.flatten();
    let mut called = match generated {
        Some(Generated { kind, config, is_complete }) => {
            let inner = called_plugins(&kind, config)?;
            inner
                .into_iter()
                .map(|called| Generated { is_complete: called.is_complete && is_complete, ..called })
                .collect()
        }
        // An IPAM plugin gets the configuration of its caller.
        None => {
            ipam_type(&listed.config).map(|kind| Generated { kind, ..listed.clone() }).into_iter().collect::<Vec<_>>()
        }
    };
    called.push(listed);
    Ok(called)
}

/// Returns the name of the IPAM plugin in a configuration.
pub(crate) fn ipam_type(config: &str) -> Option<String> {
    let config: Value = serde_json::from_str(config).ok()?;
    config.get("ipam")?.get("type")?.as_str().filter(|kind| !kind.is_empty()).map(str::to_owned)
}

/// Returns the plugin of this name, if it is one of ours.
pub(crate) fn inspect(name: &str) -> Option<&'static dyn Inspect> {
    PLUGINS.iter().copied().find(|plugin| plugin.name() == name)
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
