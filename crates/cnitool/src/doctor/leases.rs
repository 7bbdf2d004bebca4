//! Checks lease directories: free addresses, leases without a container, containers without a lease, and the lock.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use cni::inspect::{Finding, Fix, Id, LeaseHolder, LeaseStore, LockHolder, Range, Subject};

use super::report::first_few;
use super::{Report, Selection};
use crate::node::{Attachment, Network, State};
use crate::privilege::require_capabilities;
use crate::prune::list_of;
use crate::{out, table};

/// The check of most findings.
const CHECK: &str = "leases";
const CACHE: &str = "cache";
/// The age of a process that should have released the lock by now: a call needs it for milliseconds.
const LONG: Duration = Duration::from_secs(5);

/// Checks the lease directory of each network: whether it is writable, its lock, and its leases. Reports cache entries
/// that are unreadable or left over.
pub(super) fn check(scope: &Selection, report: &mut Report) {
    for network in scope.networks() {
        if let Some(finding) = left_results(network, &scope.node.attachments(network)) {
            report.network(&network.name, finding);
        }
        let Some((store, directory)) = &network.store else { continue };
        if network.list.is_some() {
            check_writable(*store, network, directory, report);
        }
        if let Some(finding) = held_lock(*store, directory) {
            report.network(&network.name, finding);
        }
        if !network.leases_unseen {
            check_leases(scope, network, directory, report);
        }
    }
    for (path, error) in &scope.node.corrupt {
        let finding = Finding::warn(CACHE, Id("cache-unreadable"), error.to_string()).about([Subject::file(path)]);
        report.host(finding.remedy(error.details_text()));
    }
}

/// Reports how many addresses are free, and leases of containers that are gone or whose interface is missing.
fn check_leases(scope: &Selection, network: &Network, directory: &Path, report: &mut Report) {
    let attachments = scope.node.attachments(network);
    let of = |state| attachments.iter().filter(move |at| at.state == state).flat_map(|at| &at.leases);
    let gone: Vec<IpAddr> = of(State::Gone).map(|lease| lease.ip).collect();
    for set in &network.ranges {
        report.network(&network.name, free_addresses(network, set, &gone));
    }
    let removable = |finding: Finding| match &network.list {
        Some(_) if network.can_be_pruned() => finding.fix(Fix::Prune),
        Some(_) => finding.remedy(format!("\"disableGC\" is set: remove the files in {}", directory.display())),
        None => finding.remedy(format!("the network has no configuration: remove {}", directory.display())),
    };
    if !gone.is_empty() {
        let what = format!("{} of containers that are gone", table::count(gone.len(), "lease"));
        let subjects = gone.iter().map(|ip| Subject::address(*ip));
        report.network(&network.name, removable(Finding::warn(CHECK, Id("lease-left"), what).about(subjects)));
    }
    let garbled = network.leases.iter().filter(|lease| lease.owner == LeaseHolder::Garbled);
    let garbled: Vec<Subject> = garbled.map(|lease| Subject::address(lease.ip)).collect();
    if !garbled.is_empty() {
        let number = table::count(garbled.len(), "lease");
        let what = format!("{number} without an owner, as after a crash: other plugins treat them as leased");
        report.network(&network.name, removable(Finding::warn(CHECK, Id("lease-without-owner"), what).about(garbled)));
    }
    if let Some(finding) = without_port(&attachments) {
        report.network(&network.name, finding);
    }
    let all = table::count(network.leases.len(), "lease");
    let hidden_owners = network.leases.iter().filter(|lease| lease.owner == LeaseHolder::Unknown).count();
    let unknown = of(State::Unknown).count() + hidden_owners;
    if unknown > 0 {
        let which = if unknown == network.leases.len() { all } else { format!("{unknown} of {all}") };
        report.unseen(format!("network {}: whether {which} belong to live containers", network.name));
    } else if of(State::Alive).count() == network.leases.len() {
        report.network(&network.name, Finding::ok(CHECK, Id("leases-live"), format!("{all}, all of live containers")));
    }
}

/// Reports results in the cache of attachments that are gone, unless they have a lease, which is reported instead. A
/// runtime that lost its state never calls their DEL.
fn left_results(network: &Network, attachments: &[Attachment]) -> Option<Finding> {
    let mut left: Vec<&Attachment> = attachments.iter().filter(|at| at.cached && at.state == State::Gone).collect();
    left.retain(|at| network.list.is_none() || at.leases.is_empty());
    let what = format!("{} of containers that are gone", table::count(left.len(), "result"));
    let finding = Finding::warn(CACHE, Id("result-left"), what).about(left.iter().map(|at| at.subject()));
    Some(match &network.list {
        _ if left.is_empty() => return None,
        Some(_) if network.can_be_pruned() => finding.fix(Fix::Prune),
        Some(_) => finding.remedy("\"disableGC\" is set: remove the files by hand"),
        None => match left.iter().map(|at| list_of(&network.name, at)).find_map(Result::err) {
            None => finding.fix(Fix::Prune),
            Some(error) => finding.remedy(format!("{}, so remove the files by hand", out::one_line(&error))),
        },
    })
}

/// Reports a lease directory that cannot be written.
fn check_writable(store: &dyn LeaseStore, network: &Network, directory: &Path, report: &mut Report) {
    match store.check_writable(directory) {
        Ok(()) => {}
        // A plugin runs as root, so this error of an unprivileged user means nothing.
        Err(error) if error.errno() == Some(libc::EACCES) && require_capabilities().is_err() => {
            report.unseen(format!("whether leases can be written: {error}"));
        }
        Err(error) => {
            let remedy = format!("free disk space, or allow writing in {}", directory.display());
            let finding =
                Finding::fail(CHECK, Id("leases-not-writable"), error.to_string()).about([Subject::file(directory)]);
            report.network(&network.name, finding.remedy(remedy));
        }
    }
}

/// Reports a process that holds the lock and has been running for long. Calls of plugins hold it only for a moment, and
/// end soon after.
fn held_lock(store: &dyn LeaseStore, directory: &Path) -> Option<Finding> {
    let LockHolder { file, pid, program } = store.lock_holder(directory)?;
    let age = age(pid).filter(|age| *age >= LONG)?;
    let what = format!(
        "process {pid} ({program}), which runs for {} s, holds the lock {}: every add waits for it and fails",
        age.as_secs(),
        file.display()
    );
    let subjects = [Subject::new("process", format!("{pid} {program}")), Subject::file(&file)];
    let remedy = "find out what the process waits for, and end it if it hangs";
    Some(Finding::fail(CHECK, Id("leases-locked"), what).about(subjects).remedy(remedy))
}

/// Returns whether a process holds the lock of a network for long.
pub(super) fn is_locked(network: &Network) -> bool {
    network.store.as_ref().is_some_and(|(store, directory)| held_lock(*store, directory).is_some())
}

/// Returns how long a process has been running; `None` if it has ended.
fn age(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    age_from(&stat, &uptime)
}

/// Computes the age of a process from its `stat` and the `uptime` of the system, both in the format of proc(5).
fn age_from(stat: &str, uptime: &str) -> Option<Duration> {
    /// The kernel reports times in ticks of 10 ms on every architecture (USER_HZ).
    const TICKS_PER_SECOND: u64 = 100;
    // The name of the program, in parentheses, can contain anything. The time of the start is field 22, the 20th after
    // it.
    let start: u64 = stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()?;
    let uptime: f64 = uptime.split(' ').next()?.parse().ok()?;
    Duration::try_from_secs_f64(uptime).ok()?.checked_sub(Duration::from_secs(start / TICKS_PER_SECOND))
}

/// Reports containers that exist without their interface.
fn without_port(attachments: &[Attachment]) -> Option<Finding> {
    let affected: Vec<&Attachment> = attachments.iter().filter(|at| at.state == State::NoPort).collect();
    let names: Vec<String> = affected.iter().map(|at| table::shorten(&at.container, 24)).collect();
    let (what, remedy) = match names.as_slice() {
        [] => return None,
        [only] => {
            (format!("container {only} exists, but its interface does not"), "detach the container and attach it again")
        }
        _ => {
            let number = table::count(names.len(), "container");
            let what = format!("{number} exist, but their interfaces do not: {}", first_few(&names));
            (what, "detach the containers and attach them again")
        }
    };
    Some(
        Finding::warn(CHECK, Id("container-without-interface"), what)
            .about(affected.iter().map(|at| at.subject()))
            .remedy(remedy),
    )
}

/// Checks a range set for free addresses. A single full set makes an add fail, because each set must provide an
/// address. `gone` are the leased addresses of containers that are gone.
fn free_addresses(network: &Network, set: &[Range], gone: &[IpAddr]) -> Finding {
    const RANGES: &str = "ranges";
    let size = set.iter().map(|range| range.size).fold(0, u128::saturating_add);
    let used: usize = set.iter().map(|range| network.used(range)).sum();
    let names: Vec<String> = set.iter().map(ToString::to_string).collect();
    let joined = names.join(", ");
    let is_scarce = |free: u128| free == 0 || free < size / 10;
    let free = size.saturating_sub(used as u128);
    let finding = match free {
        0 => Finding::fail(RANGES, Id("range-full"), format!("no address is left of {joined}")),
        _ if is_scarce(free) => {
            Finding::warn(RANGES, Id("range-nearly-full"), format!("{free} of {size} addresses are left of {joined}"))
        }
        _ => return Finding::ok(RANGES, Id("range-free"), format!("{used} used of {joined}")),
    };
    let finding = finding.about(names.into_iter().map(|name| Subject::new("range", name)));
    let gone = gone.iter().filter(|ip| set.iter().any(|range| range.contains(**ip))).count();
    match is_scarce(free.saturating_add(gone as u128)) || !network.can_be_pruned() {
        true => finding.remedy("remove containers, or add a range to the network"),
        false => {
            let leases = table::count(gone, "lease");
            finding.remedy(format!("remove {leases} of containers that are gone")).fix(Fix::Prune)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_of_a_process_does_not_depend_on_its_name() {
        let stat = "7 (a) b 1) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 1 18446744073709551615";
        assert_eq!(age_from(stat, "223.45 1.00\n"), Some(Duration::from_millis(100_450)));
        assert_eq!(age_from(stat, "1.00 1.00\n"), None, "the clock cannot run backwards");
        assert_eq!(age_from("", "1 1"), None);
        assert_eq!(age_from("7 (a) S", "x"), None);
    }
}
