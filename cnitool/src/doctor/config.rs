//! Checks the configurations and whether the plugins can be found.

use cni::{Code, Program};

use super::{Level, Report};
use crate::chain::Chain;
use crate::conf::NetworkList;
use crate::privilege::require_capabilities;
use crate::settings;
use crate::table;

/// A plugin that every runtime needs, although no configuration names it.
const LOOPBACK: &str = "loopback";

pub(super) fn check(report: &mut Report) {
    files(report);
    plugins(report);
}

fn files(report: &mut Report) {
    let dir = settings::configurations();
    let broken: Vec<String> = report.node.broken.iter().map(ToString::to_string).collect();
    for broken in broken {
        report.add(Level::Fail, "config", None, broken, "correct the file, or move it out of the directory");
    }
    let lists: Vec<NetworkList> = report.node.networks.iter().filter_map(|network| network.list.clone()).collect();
    let shadowed = report.node.shadowed.clone();
    // kubelet, containerd and CRI-O use the first file of any kind; a search by name prefers lists to single plugins.
    let first = lists.iter().chain(&shadowed).min_by_key(|list| &list.path);
    for list in &shadowed {
        let winner = lists.iter().find(|other| other.name == list.name);
        let winner = winner.map(|winner| winner.path.display().to_string()).unwrap_or_default();
        let path = list.path.display();
        let what = match first.is_some_and(|first| first.path == list.path) {
            true => format!(
                "{winner} and {path} have the same name: cnitool uses the first; \
                 kubelet, containerd and CRI-O use the second, whose file name comes before"
            ),
            false => format!("{path} is never used: {winner} has the same name"),
        };
        let remedy = "remove one of the two, or give it another \"name\"";
        report.add(Level::Warn, "config", Some(list.name.as_str()), what, remedy);
    }
    let faults: Vec<(String, cni::Error)> = report
        .node
        .networks
        .iter()
        .flat_map(|network| network.faults.iter().map(|fault| (network.name.clone(), fault.clone())))
        .collect();
    for (name, fault) in faults {
        report.fail("config", Some(&name), &fault);
    }
    match first {
        // The broken files have been reported above.
        None if !report.node.broken.is_empty() => {}
        None => {
            let what = format!("there is no network configuration in {}", dir.display());
            let remedy = "create one there, such as 10-pods.conflist, or set NETCONFPATH";
            report.add(Level::Fail, "config", None, what, remedy);
        }
        Some(first) => {
            let file = first.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let what = format!(
                "{} in {}; kubelet, containerd and CRI-O take the first valid file, {file} (network {})",
                table::count(lists.len(), "network"),
                dir.display(),
                first.name
            );
            report.ok("config", None, what);
        }
    }
}

fn plugins(report: &mut Report) {
    let dirs = settings::plugins();
    let mut wanted: Vec<(String, String)> = Vec::new();
    for network in &report.node.networks {
        let listed = network.list.iter().flat_map(|list| &list.plugins).map(|plugin| &plugin.kind);
        for kind in listed.chain(&network.programs) {
            if !wanted.iter().any(|(_, other)| other == kind) {
                wanted.push((network.name.clone(), kind.to_owned()));
            }
        }
    }
    let mut found = Vec::new();
    for (network, kind) in wanted {
        match Program::find(&dirs, &kind) {
            Ok(_) => found.push(kind),
            Err(error) => report.fail("plugins", Some(&network), &error),
        }
    }
    match Program::find(&dirs, LOOPBACK) {
        Ok(_) if found.iter().any(|kind| kind == LOOPBACK) => {}
        Ok(_) => found.push(LOOPBACK.to_owned()),
        Err(error) => {
            let remedy = format!("{}; kubelet and containerd need it for \"lo\" of every pod", error.details_text());
            report.add(Level::Warn, "plugins", None, error.to_string(), remedy);
        }
    }
    if !found.is_empty() {
        report.ok("plugins", None, format!("{} can be executed", found.join(", ")));
    }
}

/// Calls STATUS of the plugins, except for networks with an earlier failure, which STATUS would only repeat.
pub(super) fn call_status(report: &mut Report) {
    if require_capabilities().is_err() {
        report.unseen.push("the plugins' own STATUS, which needs root".to_owned());
        return;
    }
    let lists: Vec<NetworkList> = report.node.networks.iter().filter_map(|network| network.list.clone()).collect();
    let dirs = settings::plugins();
    for list in lists {
        let name = list.name.as_str();
        if report.worst(name) == Level::Fail {
            continue;
        }
        let Ok(chain) = Chain::find(&list, &dirs) else { continue };
        match chain.status() {
            Ok(true) => report.ok("status", Some(name), "its plugins are ready for an add"),
            Ok(false) => report.unseen.push(format!(
                "whether the plugins of network {name} are ready: cniVersion {} has no STATUS",
                list.version
            )),
            Err(error) if error.code() == Code::TRY_LATER => {
                let remedy = format!("find out what the plugin waits for ({})", error.details_text());
                report.add(Level::Fail, "status", Some(name), error.to_string(), remedy);
            }
            Err(error) => report.fail("status", Some(name), &error),
        }
    }
}
