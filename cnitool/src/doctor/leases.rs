//! Checks for free addresses and for leases without a container.

use std::path::Path;

use cni::inspect::{LeaseHolder, LeaseStore, Level, Range};

use super::{Report, first_few};
use crate::node::{Network, State};
use crate::privilege::require_capabilities;
use crate::table;

pub(super) fn check(report: &mut Report) {
    let mut findings: Vec<(Level, &'static str, Option<String>, String, String)> = Vec::new();
    let mut hidden = Vec::new();
    for network in &report.node.networks {
        let Some((store, directory)) = &network.store else { continue };
        let mut note = |level, check, what: String, remedy: String| {
            findings.push((level, check, Some(network.name.clone()), what, remedy));
        };
        if network.list.is_some() {
            check_writable(*store, directory, &mut note, &mut hidden);
        }
        if network.leases_unseen {
            continue;
        }
        let attachments = report.node.attachments(network);
        let of = |state| -> usize { attachments.iter().filter(|at| at.state == state).map(|at| at.leases.len()).sum() };
        let gone = of(State::Gone);
        for set in &network.ranges {
            check_free(network, set, gone, &mut note);
        }
        let remedy = match network.list {
            Some(_) => format!("cnitool prune {}", network.name),
            None => format!("the network has no configuration: remove {}", directory.display()),
        };
        if gone > 0 {
            let what = format!("{} of containers that are gone", table::count(gone, "lease"));
            note(Level::Warn, "leases", what, remedy.clone());
        }
        let empty = network.leases.iter().filter(|lease| lease.owner == LeaseHolder::Garbled).count();
        if empty > 0 {
            let what = format!(
                "{} without an owner, as after a crash: other plugins treat them as leased",
                table::count(empty, "lease")
            );
            note(Level::Warn, "leases", what, remedy);
        }
        let without_port = attachments.iter().filter(|at| at.state == State::NoPort);
        let without_port: Vec<String> = without_port.map(|at| table::shorten(&at.container, 24)).collect();
        if let [only] = without_port.as_slice() {
            let what = format!("container {only} exists, but its interface does not");
            note(Level::Warn, "leases", what, "detach the container and attach it again".to_owned());
        } else if !without_port.is_empty() {
            let number = table::count(without_port.len(), "container");
            let what = format!("{number} exist, but their interfaces do not: {}", first_few(&without_port));
            note(Level::Warn, "leases", what, "detach the containers and attach them again".to_owned());
        }
        let all = table::count(network.leases.len(), "lease");
        let alive = of(State::Alive);
        let hidden_owners = network.leases.iter().filter(|lease| lease.owner == LeaseHolder::Unknown).count();
        let unknown = of(State::Unknown) + hidden_owners;
        if unknown > 0 {
            let which = if unknown == network.leases.len() { all } else { format!("{unknown} of {all}") };
            hidden.push(format!("network {}: whether {which} belong to live containers", network.name));
        } else if alive == network.leases.len() {
            note(Level::Ok, "leases", format!("{all}, all of live containers"), String::new());
        }
    }
    for error in report.node.corrupt.clone() {
        findings.push((Level::Warn, "cache", None, error.to_string(), error.details_text().to_owned()));
    }
    for (level, check, network, what, remedy) in findings {
        report.add(level, check, network.as_deref(), what, remedy);
    }
    report.unseen.append(&mut hidden);
}

fn check_writable(
    store: &dyn LeaseStore,
    directory: &Path,
    note: &mut impl FnMut(Level, &'static str, String, String),
    hidden: &mut Vec<String>,
) {
    match store.check_writable(directory) {
        Ok(()) => {}
        // A plugin runs as root, so this error of an unprivileged user means nothing.
        Err(error) if error.errno() == Some(libc::EACCES) && require_capabilities().is_err() => {
            hidden.push(format!("whether leases can be written: {error}"));
        }
        Err(error) => {
            let remedy = format!("free disk space, or allow writing in {}", directory.display());
            note(Level::Fail, "leases", error.to_string(), remedy);
        }
    }
}

/// Checks a range set for free addresses. A single full set makes an add fail, because each set must provide an address.
fn check_free(
    network: &Network,
    set: &[Range],
    gone: usize,
    note: &mut impl FnMut(Level, &'static str, String, String),
) {
    let size = set.iter().map(|range| range.size).fold(0, u128::saturating_add);
    let used: usize = set.iter().map(|range| network.used(range)).sum();
    let names: Vec<String> = set.iter().map(ToString::to_string).collect();
    let names = names.join(", ");
    let free = size.saturating_sub(used as u128);
    let remedy = match gone {
        0 => "remove containers, or add a range to the network".to_owned(),
        _ => {
            let leases = table::count(gone, "lease");
            format!("cnitool prune {}, which frees {leases} of containers that are gone", network.name)
        }
    };
    if free == 0 {
        note(Level::Fail, "ranges", format!("no address is left of {names}"), remedy);
    } else if free < size / 10 {
        note(Level::Warn, "ranges", format!("{free} of {size} addresses are left of {names}"), remedy);
    } else {
        note(Level::Ok, "ranges", format!("{used} used of {names}"), String::new());
    }
}
