//! Checks the configurations.

use cni::inspect::{Finding, Id, Subject};

use super::{Report, Selection};
use crate::conf::NetworkList;
use crate::known;
use crate::settings;
use crate::table;

/// The check of all findings about configurations.
const CHECK: &str = "config";

/// Reports broken and shadowed files, mistakes in networks, and which file runtimes use.
pub(super) fn check(scope: &Selection, report: &mut Report) {
    for broken in &scope.node.broken {
        let remedy = "correct the file, or move it out of the directory";
        report.host(
            Finding::fail(CHECK, Id("config-broken"), broken.to_string())
                .about([Subject::file(&broken.path)])
                .remedy(remedy),
        );
    }
    let lists: Vec<&NetworkList> = scope.node.networks.iter().filter_map(|network| network.list.as_ref()).collect();
    // kubelet, containerd and CRI-O use the first file of any kind; a search by name prefers lists to single plugins.
    let first = lists.iter().copied().chain(&scope.node.shadowed).min_by_key(|list| &list.path);
    for list in scope.node.shadowed.iter().filter(|list| scope.includes(list.name.as_str())) {
        if let Some(winner) = lists.iter().find(|other| other.name == list.name) {
            let is_first = first.is_some_and(|first| first.path == list.path);
            report.network(list.name.as_str(), shadowed(list, winner, is_first));
        }
    }
    for network in scope.networks() {
        let file = network.list.iter().map(|list| Subject::file(&list.path));
        for fault in &network.faults {
            report.network(&network.name, Finding::error(CHECK, Id("config-invalid"), fault).about(file.clone()));
        }
        for remark in network.list.iter().flat_map(known::unknown_keys) {
            let remedy = "correct or remove the key; `cnitool validate` checks a file";
            report.network(
                &network.name,
                Finding::warn(CHECK, Id("config-unknown-key"), remark.line()).about(file.clone()).remedy(remedy),
            );
        }
    }
    let dir = settings::configurations();
    match first {
        // The broken files have been reported above.
        None if !scope.node.broken.is_empty() => {}
        None => {
            let what = format!("there is no network configuration in {}", dir.display());
            let remedy = "create one there, such as 10-pods.conflist, or set NETCONFPATH";
            report.host(Finding::fail(CHECK, Id("config-none"), what).about([Subject::file(&dir)]).remedy(remedy));
        }
        Some(first) => {
            let file = first.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let what = format!(
                "{} in {}; kubelet, containerd and CRI-O take the first valid file, {file} (network {})",
                table::count(lists.len(), "network"),
                dir.display(),
                first.name
            );
            report.host(Finding::ok(CHECK, Id("config-first"), what));
        }
    }
}

/// Reports a file whose network has the name of another one. `is_first` means that its file name is the first of all.
fn shadowed(list: &NetworkList, winner: &NetworkList, is_first: bool) -> Finding {
    let (path, used) = (list.path.display(), winner.path.display());
    let what = match is_first {
        true => format!(
            "{used} and {path} have the same name: cnitool uses the first; \
             kubelet, containerd and CRI-O use the second, whose file name comes before"
        ),
        false => format!("{path} is never used: {used} has the same name"),
    };
    let remedy = "remove one of the two, or give it another \"name\"";
    Finding::warn(CHECK, Id("config-shadowed"), what)
        .about([&list.path, &winner.path].map(|path| Subject::file(path)))
        .remedy(remedy)
}
