//! `cnitool doctor`: reports what on this host would make an add fail or block traffic, with remedies.
//!
//! Each submodule checks one concern and reports findings, good or bad. Read-only.

mod calls;
mod config;
mod containers;
mod duplicates;
mod firewall;
mod kernel;
mod leases;
mod link;
mod neighbours;
mod objects;
mod plugins;
mod report;
mod routes;

use cni::Result;

use crate::node::{Network, Node};
use report::{Output, Report};

#[cfg(feature = "fuzzing")]
pub(crate) use firewall::fuzz;

/// What is checked: this host with all its networks, or with one of them.
#[derive(Debug)]
struct Selection {
    /// Everything, because the other networks matter for conflicts with the chosen one.
    node: Node,
    network: Option<String>,
}

impl Selection {
    /// Returns the networks to check.
    fn networks(&self) -> impl Iterator<Item = &Network> {
        self.node.networks.iter().filter(|network| self.includes(&network.name))
    }

    /// Returns whether this network is checked.
    fn includes(&self, network: &str) -> bool {
        self.network.as_deref().is_none_or(|chosen| chosen == network)
    }
}

/// Checks the host and its networks, or one network. Returns false if there is a failure.
pub(crate) fn run(network: Option<&str>, quiet: bool, as_json: bool) -> Result<bool> {
    let node = Node::inspect()?;
    node.chosen(network)?;
    let scope = Selection { node, network: network.map(str::to_owned) };
    let output = if as_json { Output::Json } else { Output::text() };
    let mut report = Report::new(output, quiet);
    config::check(&scope, &mut report);
    plugins::find(&scope, &mut report);
    kernel::check(&scope, &mut report)?;
    firewall::check(&scope, &mut report)?;
    let live = containers::live(&scope.node)?;
    objects::check(&scope, &live, &mut report);
    link::check(&scope, &mut report)?;
    routes::check(&scope, &live, &mut report)?;
    neighbours::check(&scope, &live, &mut report)?;
    leases::check(&scope, &mut report);
    containers::check(&scope, &live, &mut report);
    duplicates::check(&scope, &live, &mut report);
    // Plugins are called last: one that hangs must not delay other findings.
    let of_cni0 = plugins::identify(&scope, &mut report);
    calls::check(&scope, &of_cni0, &mut report);
    calls::status(&scope, &of_cni0, &mut report);
    drop(live);
    report.finish(scope.node)
}
