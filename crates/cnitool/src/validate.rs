//! `cnitool validate`: reports the mistakes in configurations, as the plugins themselves would report them, and keys
//! that nothing reads. Needs neither root nor installed plugins, and changes nothing.

mod mistakes;
mod report;

use std::path::{Path, PathBuf};

use cni::{Code, Context, Error, Program, Result, Version};
use cni0::PLUGINS;

use crate::conf::{self, Broken, NetworkList, Plugin};
use crate::known::{self, Remark};
use crate::node::{called_plugins, inspect, misplaced};
use crate::{DONE, FAILED, UNHEALTHY, file, out, settings};
use cni::nearest;

use report::{Checked, Finding, Level};

/// The argument that means stdin, and the name of stdin in findings.
const STDIN: &str = "-";
const STDIN_NAME: &str = "<stdin>";

/// Checks the files, the files in directories, or stdin. Returns the exit code.
pub(crate) fn run(arguments: &[PathBuf], strict: bool, as_json: bool) -> Result<u8> {
    let mut files = Files { checked: Vec::new(), is_complete: true };
    if arguments.is_empty() {
        let outcome = files.check_directory(&settings::configurations());
        files.note_failure(outcome);
    }
    for argument in arguments {
        let outcome = files.check_argument(argument);
        files.note_failure(outcome);
    }
    let Files { checked, is_complete } = files;
    report::print(&checked, as_json)?;
    let is_bad = |finding: &Finding| strict || finding.level == Level::Error;
    let is_valid = !checked.iter().flat_map(|file| &file.findings).any(is_bad);
    Ok(match (is_complete, is_valid) {
        (false, _) => FAILED,
        (true, false) => UNHEALTHY,
        (true, true) => DONE,
    })
}

/// The files that were checked.
struct Files {
    checked: Vec<Checked>,
    /// Whether all files could be read.
    is_complete: bool,
}

impl Files {
    /// Checks one file, all files in a directory, or stdin.
    fn check_argument(&mut self, argument: &Path) -> Result<()> {
        if argument == Path::new(STDIN) {
            let bytes = file::read_stdin().context(|| "read stdin")?;
            self.checked.push(check(Path::new(STDIN_NAME), &bytes));
            return Ok(());
        }
        if argument.is_dir() { self.check_directory(argument) } else { self.check_file(argument, usize::MAX) }
    }

    /// Checks all files in a directory.
    fn check_directory(&mut self, dir: &Path) -> Result<()> {
        let paths = conf::files(dir)?;
        if paths.is_empty() {
            let what = format!("there is no network configuration in {}", dir.display());
            return Err(Error::new(Code::CONFIG, what).details(conf::why_empty(dir)));
        }
        let first = self.checked.len();
        for path in paths {
            let outcome = self.check_file(&path, first);
            self.note_failure(outcome);
        }
        Ok(())
    }

    /// Checks a file. Those from the index `first` on are in the same directory and precede it.
    fn check_file(&mut self, path: &Path, first: usize) -> Result<()> {
        let mut file = check(path, &file::read(path).context(|| format!("read {}", path.display()))?);
        let mut earlier = self.checked.iter().skip(first).filter(|_| file.network.is_some());
        if let Some(earlier) = earlier.find(|earlier| earlier.network == file.network) {
            let what = format!("{} defines a network of the same name, and precedes this file", earlier.file);
            let remedy = "remove one of the two, or give it another \"name\"";
            file.findings.push(Finding::new(Level::Warning, "", "name", what, remedy));
        }
        self.checked.push(file);
        Ok(())
    }

    /// Reports a file that cannot be read. The others are checked all the same.
    fn note_failure(&mut self, outcome: Result<()>) {
        if let Err(error) = outcome {
            out::print_error(&error);
            self.is_complete = false;
        }
    }
}

/// Checks the content of a file.
fn check(path: &Path, bytes: &[u8]) -> Checked {
    let file = path.display().to_string();
    let list = match conf::parse(path, bytes) {
        Ok(list) => list,
        Err(Broken { path, place, why }) => {
            let finding = Finding::new(Level::Error, "", "", why, "");
            return Checked { file: path.display().to_string(), position: place, ..Checked::broken(finding) };
        }
    };
    let mut findings = version(&list);
    for (index, plugin) in list.plugins.iter().enumerate() {
        let place = known::place(&list, index, plugin);
        findings.extend(programs(&place, &list, plugin));
        let misplaced = misplaced(&list).filter(|_| index == 0).map(|(_, error)| error);
        let errors = misplaced.into_iter().chain(mistakes::find(&list, plugin));
        findings.extend(errors.map(|error| Finding::of_error(Level::Error, &place, &error)));
    }
    let remarks = known::unknown_keys(&list).into_iter();
    findings.extend(remarks.map(|Remark { place, key, what }| Finding::new(Level::Warning, &place, &key, what, "")));
    Checked {
        file,
        position: None,
        network: Some(list.name.to_string()),
        version: Some(list.version),
        plugins: list.plugins.iter().map(|plugin| plugin.kind.clone()).collect(),
        findings,
    }
}

/// Reports a missing version, and keys that need a newer one.
fn version(list: &NetworkList) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut warn = |key, what, remedy: &str| findings.push(Finding::new(Level::Warning, "", key, what, remedy));
    if !list.has_version {
        let what = format!("it is missing, so {} applies: without CHECK, GC and STATUS", list.version);
        warn("cniVersion", what, &format!("write \"cniVersion\": \"{}\"", Version::NEWEST));
    }
    for (key, is_set, command) in [("disableCheck", list.disable_check, "CHECK"), ("disableGC", list.disable_gc, "GC")]
    {
        let since = Version::since(command);
        if is_set && list.version < since {
            let what = format!("it has no effect: cniVersion {} has no {command}", list.version);
            warn(key, what, &format!("remove it, or set \"cniVersion\" to {since} or later"));
        }
    }
    findings
}

/// Reports plugins that cni0 does not have and this host has not installed: a plugin of the list, and those it calls.
fn programs(place: &str, list: &NetworkList, plugin: &Plugin) -> Vec<Finding> {
    let dirs = settings::plugins();
    let config = serde_json::Value::Object(list.config_of(plugin)).to_string();
    let mut kinds = vec![plugin.kind.clone()];
    kinds.extend(called_plugins(&plugin.kind, config).unwrap_or_default().into_iter().map(|called| called.kind));
    kinds.sort();
    kinds.dedup();
    let missing = kinds.iter().filter(|kind| inspect(kind).is_none());
    let missing = missing.filter_map(|kind| Some((kind, Program::find(&dirs, kind).err()?)));
    missing
        .map(|(kind, error)| {
            if error.code() == Code::CONFIG {
                return Finding::of_error(Level::Error, place, &error);
            }
            let names = installed(&dirs);
            let known = PLUGINS.iter().map(|plugin| plugin.name()).chain(names.iter().map(String::as_str));
            let what = match nearest(kind, known) {
                Some(meant) => format!("unknown plugin {kind:?}, did you mean {meant:?}?"),
                None => format!("unknown plugin {kind:?}: cni0 does not have it"),
            };
            let dirs: Vec<_> = dirs.iter().map(|dir| dir.display().to_string()).collect();
            let remedy = format!("correct \"type\", or install the plugin in {}", dirs.join(" or "));
            Finding::new(Level::Warning, place, "", what, remedy)
        })
        .collect()
}

/// Returns the names of the files in the directories of plugins.
fn installed(dirs: &[PathBuf]) -> Vec<String> {
    let entries = dirs.iter().filter_map(|dir| dir.read_dir().ok()).flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Validates the content of a file, and asserts that it is either a network or has a place that cannot be read.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(content: &[u8]) {
    let Checked { position, network, version, plugins, findings, .. } = check(Path::new("list"), content);
    let is_network = network.is_some() && version.is_some() && !plugins.is_empty();
    assert!(is_network != (position.is_some() && findings.len() == 1), "{network:?} {position:?} {findings:?}");
    for (place, finding) in findings.iter().enumerate() {
        assert!(!findings.iter().skip(place + 1).any(|other| other == finding), "{finding:?} twice");
    }
}
