//! Calls the plugins: CHECK for each attachment in the cache, and STATUS for each network.
//!
//! Each call has a deadline. A plugin that does not answer is not called again for the network.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use cni::inspect::{Finding, Fix, Id, Level, Subject};
use cni::{Code, Error, Result, Version};

use super::{Report, Selection, leases, plugins};
use crate::cache::{Cache, Entry};
use crate::chain::{Chain, Endpoint};
use crate::conf::{self, NetworkList, Plugin};
use crate::node::{Network, Place, place};
use crate::privilege::require_capabilities;
use crate::settings;
use crate::table;

/// The checks.
const CHECK: &str = "check";
const STATUS: &str = "status";
/// The number of different errors that are reported for a network. The other containers are only counted.
const MOST: usize = 20;

/// Calls CHECK for the attachments in the cache. `of_cni0` are the plugins that are known to be of cni0.
pub(super) fn check(scope: &Selection, of_cni0: &[String], report: &mut Report) {
    let (entries, _) = match Cache::of_host().all() {
        Ok(found) => found,
        // Reported by the inspection of the node.
        Err(_) => return,
    };
    for network in scope.networks() {
        let is_live =
            |entry: &&Entry| entry.network == network.name && entry.netns.as_deref().map(place) == Some(Place::Exists);
        let live: Vec<&Entry> = entries.iter().filter(is_live).collect();
        let number = table::count(live.len(), "attachment");
        match live.as_slice() {
            [] => {}
            _ if !plugins::are_usable(network, report) => {}
            _ if require_capabilities().is_err() => report.unseen("CHECK of attachments, which needs root"),
            // The calls would wait for the lock, too.
            _ if leases::is_locked(network) => {
                report.unseen(format!("CHECK of {number} to network {}: its leases are locked", network.name));
            }
            [first, ..] => match list_for(network, first) {
                // The runtime defines the network itself, such as the loopback of containerd.
                Ok(list) if list.version < Version::V0_4_0 && network.list.is_none() => {}
                Ok(list) if list.version < Version::V0_4_0 => report.unseen(format!(
                    "CHECK of {number} to network {}: cniVersion {} does not have it",
                    network.name, list.version
                )),
                Ok(list) if list.disable_check => {
                    report.network(
                        &network.name,
                        Finding::ok(CHECK, Id("check-disabled"), "not called: \"disableCheck\" is set"),
                    );
                }
                Ok(list) => {
                    let mut flaws = network.flaws_of_reference_checks();
                    flaws.retain(|(kind, _)| !of_cni0.iter().any(|known| known == kind));
                    for (kind, flaw) in &flaws {
                        report.unseen(format!("CHECK of plugin {kind:?} for network {}: {flaw}", network.name));
                    }
                    let is_asked = |kind: &str| !flaws.iter().any(|(flawed, _)| *flawed == kind);
                    check_attachments(&list, &live, &is_asked, report);
                }
                Err(error) => report.unseen(format!("CHECK of {number} to network {}: {error}", network.name)),
            },
        }
    }
}

/// Returns the configuration of a network; that of an add if the network has none any more.
fn list_for(network: &Network, entry: &Entry) -> Result<NetworkList> {
    let path = Cache::of_host().path(&entry.network, &entry.container, &entry.ifname);
    network.list.clone().map_or_else(|| Ok(conf::from_cache(&path, &entry.config)?), Ok)
}

/// An error of CHECK.
struct Difference {
    error: Error,
    /// Whether `cnitool repair` restores what the plugin misses of the first attachment.
    is_repaired: bool,
    /// The attachments.
    subjects: Vec<Subject>,
}

/// Calls CHECK of the plugins that `is_asked` selects for these attachments. Leaves out containers that another finding
/// names already: CHECK stops at its first difference, which is most likely the same.
fn check_attachments(
    list: &NetworkList,
    live: &[&Entry],
    is_asked: &(dyn Fn(&str) -> bool + Sync),
    report: &mut Report,
) {
    let name = list.name.as_str();
    // A missing plugin has been reported.
    let Ok(chain) = Chain::find(list, &settings::plugins()) else { return };
    let mut differences: BTreeMap<String, Difference> = BTreeMap::new();
    let mut passed = 0;
    let outcomes = call_checks(&chain, live, is_asked);
    let left = live.len() - outcomes.len();
    // Several calls at the same time can wait for the same thing.
    let mut has_timed_out = false;
    for (entry, checked) in outcomes {
        let Err((plugin, error)) = checked else {
            passed += 1;
            continue;
        };
        if is_gone(entry) {
            continue;
        }
        if error.code() == Code::TRY_LATER {
            let finding = Finding::fail(CHECK, Id("check-no-answer"), error.to_string()).about([subject(entry)]);
            if !std::mem::replace(&mut has_timed_out, true) {
                report.network(name, finding.remedy(remedy_of_timeout(error.details_text(), left)));
            }
            continue;
        }
        let at = Endpoint::of_entry(entry);
        let subject = subject(entry);
        if !report.is_problem(name, &subject) {
            let found = differences.entry(error.to_string()).or_insert_with(|| {
                let needs_repair = |plugin| at.and_then(|at| chain.needs_repair(&at, plugin)).unwrap_or(false);
                Difference { error, is_repaired: plugin.is_some_and(needs_repair), subjects: Vec::new() }
            });
            found.subjects.push(subject);
        }
    }
    report_differences(name, differences, report);
    if passed > 0 {
        report.network(
            name,
            Finding::ok(CHECK, Id("check-passed"), format!("CHECK of {} succeeds", table::count(passed, "attachment"))),
        );
    }
}

/// The outcome of CHECK for an attachment: the plugin that failed, with its error.
type Checked<'a> = Result<(), (Option<&'a Plugin>, Error)>;

/// Calls CHECK for attachments, as many at a time as there are processors, and returns the outcomes in their order.
/// After a plugin that did not answer, it begins no other call.
fn call_checks<'a, 'e>(
    chain: &Chain<'a>,
    live: &[&'e Entry],
    is_asked: &(dyn Fn(&str) -> bool + Sync),
) -> Vec<(&'e Entry, Checked<'a>)> {
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let check = |entry: &Entry| {
        let at = Endpoint::of_entry(entry).map_err(|error| (None, error))?;
        chain.check_soon(&at, is_asked)
    };
    let work = || {
        while let Some((number, entry)) = {
            let number = next.fetch_add(1, Ordering::Relaxed);
            live.get(number).map(|entry| (number, *entry))
        } {
            let checked = check(entry);
            if checked.as_ref().is_err_and(|(_, error)| error.code() == Code::TRY_LATER) {
                next.store(live.len(), Ordering::Relaxed);
            }
            outcomes.lock().unwrap_or_else(PoisonError::into_inner).insert(number, (entry, checked));
        }
    };
    let processors = thread::available_parallelism().map_or(1, usize::from).min(live.len());
    thread::scope(|scope| {
        for _ in 1..processors {
            scope.spawn(work);
        }
        work();
    });
    outcomes.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
}

/// Returns the remedy for a plugin that did not answer. CHECK was not called for `left` other attachments.
fn remedy_of_timeout(details: &str, left: usize) -> String {
    let rest = match left {
        0 => String::new(),
        _ => format!("; CHECK of {} was left out", table::count(left, "attachment")),
    };
    format!("find out what the plugin waits for ({details}){rest}")
}

fn subject(entry: &Entry) -> Subject {
    Subject::container(&entry.container, Some(&entry.ifname))
}

/// Returns whether an attachment has been removed since the cache was read.
fn is_gone(entry: &Entry) -> bool {
    let is_cached = !matches!(Cache::of_host().load(&entry.network, &entry.container, &entry.ifname), Ok(None));
    !is_cached || entry.netns.as_deref().map(place) != Some(Place::Exists)
}

fn report_differences(network: &str, differences: BTreeMap<String, Difference>, report: &mut Report) {
    let mut others: Vec<Subject> = Vec::new();
    for (number, (what, Difference { error, is_repaired, subjects })) in differences.into_iter().enumerate() {
        if number >= MOST {
            others.extend(subjects);
            continue;
        }
        let finding = Finding::fail(CHECK, Id("check-failed"), what).about(subjects);
        let details = error.details_text();
        report.network(
            network,
            match is_repaired {
                true => finding.remedy(details).fix(Fix::Repair),
                false => finding.remedy(format!("correct it, or detach the container and attach it again ({details})")),
            },
        );
    }
    if !others.is_empty() {
        let what = format!("CHECK of {} fails with other errors", table::count(others.len(), "more container"));
        let remedy = "cnitool repair reports the errors of all containers";
        report.network(network, Finding::fail(CHECK, Id("check-failed"), what).about(others).remedy(remedy));
    }
}

/// Calls STATUS of the plugins, except for networks with an earlier failure, which STATUS would only repeat. `of_cni0`
/// are the plugins that are known to be of cni0.
pub(super) fn status(scope: &Selection, of_cni0: &[String], report: &mut Report) {
    if require_capabilities().is_err() {
        report.unseen("the plugins' own STATUS, which needs root");
        return;
    }
    let dirs = settings::plugins();
    for network in scope.networks() {
        let (Some(list), name) = (&network.list, network.name.as_str()) else { continue };
        if report.worst(name) == Level::Fail {
            continue;
        }
        let Ok(chain) = Chain::find(list, &dirs) else { continue };
        match chain.status() {
            Ok(true) => {
                report.network(name, Finding::ok(STATUS, Id("status-ready"), "its plugins are ready for an add"))
            }
            Ok(false) => status_of_older_version(&chain, network, of_cni0, report),
            Err(error) => report.network(name, not_ready(&error)),
        }
    }
}

/// Calls STATUS of the plugins of cni0 for a version of CNI that does not have the command. They answer it in a newer
/// version, whatever the version of the network. Their delegates must be of cni0, too.
fn status_of_older_version(chain: &Chain<'_>, network: &Network, of_cni0: &[String], report: &mut Report) {
    let Some(list) = &network.list else { return };
    let is_of_cni0 = |kind: &str| of_cni0.iter().any(|known| known == kind);
    let is_listed = |kind: &str| list.plugins.iter().any(|plugin| plugin.kind == kind);
    let mut delegates = network.programs.iter().filter(|kind| !is_listed(kind));
    let has_foreign_delegate = delegates.any(|kind| !is_of_cni0(kind));
    let is_asked = |kind: &str| is_of_cni0(kind) && !has_foreign_delegate;
    match chain.status_in_newer_version(is_asked) {
        Err(error) => report.network(&network.name, not_ready(&error)),
        Ok(()) if list.plugins.iter().all(|plugin| is_asked(&plugin.kind)) => {
            report.network(&network.name, Finding::ok(STATUS, Id("status-ready"), "its plugins are ready for an add"));
        }
        Ok(()) => report.unseen(format!(
            "whether the plugins of network {} are ready: cniVersion {} has no STATUS",
            network.name, list.version
        )),
    }
}

fn not_ready(error: &Error) -> Finding {
    match error.code() {
        Code::TRY_LATER => {
            let remedy = format!("find out what the plugin waits for ({})", error.details_text());
            Finding::fail(STATUS, Id("status-not-ready"), error.to_string()).remedy(remedy)
        }
        _ => Finding::error(STATUS, Id("status-not-ready"), error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attachments_that_were_left_out_are_counted() {
        assert_eq!(remedy_of_timeout("it was killed", 0), "find out what the plugin waits for (it was killed)");
        assert!(remedy_of_timeout("it was killed", 1).ends_with("; CHECK of 1 attachment was left out"));
    }
}
