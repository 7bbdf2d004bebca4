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

use std::collections::BTreeMap;

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

/// Numbers of findings by network, identifier and level.
pub(crate) type Counts = BTreeMap<(Option<String>, &'static str, &'static str), usize>;

/// Counts the findings for which no plugin has to be called. Returns the node, too.
pub(crate) fn count(node: Node) -> (Node, Result<Counts>) {
    let scope = Selection { node, network: None };
    let mut report = Report::new(Output::Json, false);
    let counts = look(&scope, &mut report).map(|_| report.counts());
    (scope.node, counts)
}

/// Makes all checks that call no plugin. Returns the live containers.
fn look<'a>(scope: &'a Selection, report: &mut Report) -> Result<Vec<containers::Live<'a>>> {
    config::check(scope, report);
    plugins::find(scope, report);
    kernel::check(scope, report)?;
    firewall::check(scope, report)?;
    let live = containers::live(&scope.node)?;
    objects::check(scope, &live, report);
    link::check(scope, report)?;
    routes::check(scope, &live, report)?;
    neighbours::check(scope, &live, report)?;
    leases::check(scope, report);
    containers::check(scope, &live, report);
    duplicates::check(scope, &live, report);
    Ok(live)
}

/// Checks the host and its networks, or one network. Returns false if there is a failure.
pub(crate) fn run(network: Option<&str>, quiet: bool, as_json: bool) -> Result<bool> {
    let node = Node::inspect()?;
    node.chosen(network)?;
    let scope = Selection { node, network: network.map(str::to_owned) };
    let output = if as_json { Output::Json } else { Output::text() };
    let mut report = Report::new(output, quiet);
    let live = look(&scope, &mut report)?;
    // Plugins are called last: one that hangs must not delay other findings.
    let of_cni0 = plugins::identify(&scope, &mut report);
    calls::check(&scope, &of_cni0, &mut report);
    calls::status(&scope, &of_cni0, &mut report);
    drop(live);
    report.finish(scope.node)
}
