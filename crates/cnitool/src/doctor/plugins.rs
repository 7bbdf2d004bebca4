//! Checks whether the plugins can be found, which implementation they are, and which versions of CNI they support.

use std::collections::BTreeMap;

use cni::inspect::{Finding, Id, Level, Subject};
use cni::{Error, Program, Result, Version};

use super::{Report, Selection};
use crate::node::{Network, inspect};
use crate::settings;

/// The check of all findings about plugins.
const CHECK: &str = "plugins";
/// A plugin that every runtime needs, although no configuration names it.
const LOOPBACK: &str = "loopback";

/// Reports plugins that are missing or not executable.
pub(super) fn find(scope: &Selection, report: &mut Report) {
    let dirs = settings::plugins();
    for network in scope.networks() {
        for kind in kinds_of(network) {
            if let Err(error) = Program::find(&dirs, kind) {
                report
                    .network(&network.name, Finding::error(CHECK, Id("plugin-missing"), &error).about([subject(kind)]));
            }
        }
    }
    if let Err(error) = Program::find(&dirs, LOOPBACK) {
        let remedy = format!("{}; kubelet and containerd need it for \"lo\" of every pod", error.details_text());
        let finding = Finding::warn(CHECK, Id("loopback-missing"), error.to_string()).about([subject(LOOPBACK)]);
        report.host(finding.remedy(remedy));
    }
}

fn subject(kind: &str) -> Subject {
    Subject::new("plugin", kind)
}

/// Returns whether all plugins of a network exist and answer. If not, other calls would only repeat that.
pub(super) fn are_usable(network: &Network, report: &Report) -> bool {
    !kinds_of(network).iter().any(|kind| report.is_problem(&network.name, &subject(kind)))
}

/// Returns the names of the plugins of a network, and of their delegates, each once.
fn kinds_of(network: &Network) -> Vec<&str> {
    let listed = network.list.iter().flat_map(|list| &list.plugins).map(|plugin| plugin.kind.as_str());
    let mut kinds: Vec<&str> = Vec::new();
    for kind in listed.chain(network.programs.iter().map(String::as_str)) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

/// What a plugin reports about itself.
#[derive(Debug)]
struct Identity {
    program: Program,
    /// The build if the plugin is one of cni0, such as `v1.9.1+cni0.0.1.0`.
    build: Option<String>,
    /// The versions of CNI that it supports.
    versions: Vec<String>,
}

impl Identity {
    /// Calls the plugin twice. Each call has a deadline, and the second is left out if the first fails.
    fn ask(program: Program) -> Result<Identity> {
        let versions = program.versions()?;
        let build = build_of_cni0(&program.about()?);
        Ok(Identity { program, build, versions })
    }

    fn supports(&self, version: Version) -> bool {
        self.versions.iter().any(|supported| supported == version.as_str())
    }

    fn is_of_cni0(&self) -> bool {
        self.build.is_some()
    }

    fn subject(&self) -> Subject {
        Subject::new("plugin", self.program.path().display().to_string())
    }
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let directory = self.program.path().parent().unwrap_or_else(|| self.program.path()).display();
        match &self.build {
            Some(build) => write!(f, "{} {directory} {build}", self.program.name()),
            None => write!(f, "{} {directory} (another implementation)", self.program.name()),
        }
    }
}

/// Returns the build of a plugin of cni0 from what it prints without a command: `CNI bridge plugin v1.9.1+cni0.0.1.0`.
fn build_of_cni0(about: &str) -> Option<String> {
    let mut words = about.lines().next()?.split(' ').skip_while(|word| *word != "plugin").skip(1);
    words.next().filter(|build| build.starts_with('v') && build.contains("+cni0")).map(str::to_owned)
}

/// Asks the plugins of all networks which implementation they are and which versions they support. Returns the names of
/// those of cni0.
pub(super) fn identify(scope: &Selection, report: &mut Report) -> Vec<String> {
    let dirs = settings::plugins();
    let mut known: BTreeMap<String, Result<Identity>> = BTreeMap::new();
    for network in scope.networks() {
        for kind in kinds_of(network).into_iter().chain([LOOPBACK]) {
            let Ok(program) = Program::find(&dirs, kind) else { continue };
            known.entry(kind.to_owned()).or_insert_with(|| Identity::ask(program));
        }
    }
    for network in scope.networks() {
        for kind in kinds_of(network) {
            if let Some(Err(error)) = known.get(kind) {
                report.network(&network.name, no_identity(kind, error));
            }
        }
        let used: Vec<&Identity> =
            kinds_of(network).iter().filter_map(|kind| known.get(*kind)?.as_ref().ok()).collect();
        if let Some(finding) = unsupported_version(network, &used) {
            report.network(&network.name, finding);
        }
        if let Some(finding) = mixed(&used) {
            report.network(&network.name, finding);
        }
    }
    let all: Vec<String> = known.values().flatten().map(ToString::to_string).collect();
    if !all.is_empty() {
        report.host(Finding::ok(CHECK, Id("plugins-found"), all.join(", ")));
    }
    let of_cni0 = known.into_values().flatten().filter(Identity::is_of_cni0);
    of_cni0.map(|plugin| plugin.program.name().to_owned()).collect()
}

fn no_identity(kind: &str, error: &Error) -> Finding {
    let what = format!("plugin {kind:?} does not report the versions of CNI that it supports: {error}");
    let remedy = "runtimes call VERSION before they use a plugin: find out what it waits for, or install it again";
    Finding::fail(CHECK, Id("plugin-no-answer"), what).about([subject(kind)]).remedy(remedy)
}

/// Reports plugins that do not support the version of the list.
fn unsupported_version(network: &Network, used: &[&Identity]) -> Option<Finding> {
    let list = network.list.as_ref()?;
    let lacking: Vec<&&Identity> = used.iter().filter(|plugin| !plugin.supports(list.version)).collect();
    let first = lacking.first()?;
    let what = format!(
        "\"cniVersion\" is {}, and plugin {} supports {}: an add fails",
        list.version,
        first.program.path().display(),
        first.versions.join(", "),
    );
    let newest = Version::ALL.into_iter().rev().find(|version| used.iter().all(|plugin| plugin.supports(*version)));
    let remedy = match newest {
        Some(version) => {
            format!("set \"cniVersion\": \"{version}\" in {}, or install a newer plugin", list.path.display())
        }
        None => "install a newer plugin: there is no version that all plugins of the list support".to_owned(),
    };
    Some(
        Finding::fail(CHECK, Id("plugin-version-unsupported"), what)
            .about(lacking.iter().map(|plugin| plugin.subject()))
            .remedy(remedy),
    )
}

/// Reports a list with plugins of two implementations, or of two builds of cni0. A plugin that cni0 does not have
/// cannot be of the same implementation.
fn mixed(used: &[&Identity]) -> Option<Finding> {
    let ours: Vec<&&Identity> = used.iter().filter(|plugin| inspect(plugin.program.name()).is_some()).collect();
    let first = ours.iter().find(|plugin| plugin.is_of_cni0())?;
    let other = ours.iter().find(|plugin| plugin.build != first.build)?;
    let what = match &other.build {
        Some(_) => format!("it uses two versions of cni0: {first} and {other}"),
        None => format!("it uses plugins of two implementations: {first} and {other}"),
    };
    let remedy = "install all plugins of a list from one release; CNI_PATH decides which file is used";
    let finding = Finding::new(Level::Warn, CHECK, Id("plugins-mixed"), what).remedy(remedy);
    Some(finding.about(ours.iter().map(|plugin| plugin.subject())))
}

#[cfg(test)]
mod tests {
    use super::build_of_cni0;

    #[test]
    fn plugins_of_cni0_are_recognised_by_their_description() {
        let about = "CNI bridge plugin v1.9.1+cni0.0.1.0\nCNI protocol versions supported: 0.1.0, 1.1.0\n";
        assert_eq!(build_of_cni0(about).as_deref(), Some("v1.9.1+cni0.0.1.0"));
        for other in ["CNI bridge plugin v1.1.1\n", "CNI bridge plugin version unknown\n", "", "cni0", "plugin v"] {
            assert_eq!(build_of_cni0(other), None, "{other:?}");
        }
    }
}
