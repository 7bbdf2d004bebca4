//! `cnitool metrics`: numbers about this node in the text format of Prometheus, as the textfile collector of
//! node_exporter reads it.
//!
//! What can be counted now, and the calls that plugins have counted if an operator wants that.

use std::fmt::Write;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use cni::calls::{self, BOUNDS, CODES, COMMANDS, Calls, Counted};
use cni::inspect::{Lease, LeaseHolder, ObjectKind, Range};
use cni::{Code, Context, Error, Result};

use crate::doctor::Counts;
use crate::node::{Network, Node, State, kinds_of};
use crate::{doctor, file, leases, networks, out};

/// The mode of the file: everyone may read it, because the collector does not run as root.
const MODE: u32 = 0o644;

/// Prints the metrics, or replaces a file by them.
pub(crate) fn run(output: Option<&Path>) -> Result<()> {
    let (node, findings) = doctor::count(Node::inspect()?);
    let text = text(&node, findings);
    match output {
        None => out::print(text),
        Some(path) => write(path, &text).context(|| format!("write {}", path.display())),
    }
}

/// Lets plugins count their calls, or stops that and deletes what they counted.
pub(crate) fn count_calls(enable: bool) -> Result<()> {
    if enable {
        let created = DirBuilder::new().recursive(true).mode(0o700).create(calls::DIR);
        created.context(|| format!("create {}", calls::DIR))?;
        return out::print(format!("plugins count calls in {} until the next boot\n", calls::DIR));
    }
    match fs::remove_dir_all(calls::DIR) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error).context(|| format!("remove {}", calls::DIR)),
        _ => out::print("plugins do not count calls\n"),
    }
}

/// Replaces the file atomically. Refuses a path that exists and is not a regular file.
fn write(path: &Path, text: &str) -> Result<()> {
    let Some(name) = path.file_name() else {
        return Err(Error::new(Code::INTERNAL, "it is not the path of a file"));
    };
    match fs::symlink_metadata(path) {
        // For example /dev/stdout, which must not be replaced.
        Ok(inode) if !inode.is_file() => {
            return Err(Error::new(Code::INTERNAL, "it exists and is not a regular file"));
        }
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    // The collector reads only names that end in .prom.
    let draft = path.with_file_name(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    Ok(file::replace(path, &draft, text.as_bytes(), MODE)?)
}

/// Returns all metrics in the text format of Prometheus.
fn text(node: &Node, findings: Result<Counts>) -> String {
    let mut text = String::new();
    let mut metric = |name: &str, help: &str, samples: Vec<Sample>| {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
        samples.iter().for_each(|sample| sample.write(name, &mut text));
    };
    let version = env!("CARGO_PKG_VERSION");
    metric("cnitool_build_info", "Version of cnitool, with the value 1.", vec![Sample::new([("version", version)], 1)]);
    // Without permission to list leases, their number is unknown.
    let seen = || node.networks.iter().filter(|network| !network.leases_unseen);
    let of_ranges = |value: &dyn Fn(&Network, &Range) -> u128| {
        let samples = seen().flat_map(|network| {
            network.ranges.iter().flatten().map(move |range| {
                let labels = [("network", network.name.as_str()), ("range", &range.to_string())];
                Sample::new(labels, value(network, range))
            })
        });
        samples.collect()
    };
    let size = of_ranges(&|_, range| range.size);
    metric("cni_range_addresses", "Addresses of a range that can be leased.", size);
    let used = of_ranges(&|network, range| network.used(range) as u128);
    metric("cni_range_addresses_used", "Addresses of a range that are leased.", used);
    let free = of_ranges(&|network, range| leases::free(range, network.used(range)));
    metric("cni_range_addresses_free", "Addresses of a range that are free.", free);
    let of_networks = |samples: &dyn Fn(&Network) -> Vec<Sample>| seen().flat_map(samples).collect::<Vec<_>>();
    let help = "Attachments by state. The namespace of those that are gone does not exist any more.";
    metric("cni_attachments", help, of_networks(&|network| attachments(node, network)));
    let help = "Leases of a network, also those without a range.";
    metric("cni_leases", help, of_networks(&|network| leases_of(network, |_| true)));
    let help = "Leases of a server whose time is over, and that no daemon has renewed.";
    metric(
        "cni_ended_leases",
        help,
        of_networks(&|network| leases_of(network, |lease| lease.grant.is_some_and(|grant| grant.has_ended()))),
    );
    let help = "Leases of attachments that are gone, and leases without an owner. cnitool prune removes both.";
    metric("cni_stale_leases", help, of_networks(&|network| vec![stale_leases(node, network)]));
    let help = "Objects that plugins have created for attachments, such as published ports, by kind.";
    metric("cni_objects", help, of_networks(&|network| objects(node, network)));
    let of_node = |count: usize| vec![Sample::new([], count as u128)];
    metric(
        "cni_broken_configurations",
        "Files that are not a valid network configuration.",
        of_node(node.broken.len()),
    );
    metric("cni_unreadable_results", "Entries of the result cache that cannot be read.", of_node(node.corrupt.len()));
    let help = "Things that could not be inspected, for example without root. The other numbers may be too small.";
    let counted = calls::counted();
    let unreadable = counted.as_ref().map_or(1, |counted| counted.iter().flat_map(|found| &found.unreadable).count());
    let unseen = node.unseen.len() + unreadable + usize::from(findings.is_err());
    metric("cni_not_inspected", help, of_node(unseen));
    let sample = |((network, id, level), count): ((Option<String>, &str, &str), usize)| {
        let labels = [("id", id), ("level", level), ("network", network.as_deref().unwrap_or_default())];
        Sample::new(labels, count as u128)
    };
    let help =
        "Findings of cnitool doctor that need no call of a plugin. The network is empty if one is about the host.";
    metric("cni_findings", help, findings.into_iter().flatten().map(sample).collect());
    if let Ok(Some(counted)) = counted {
        write_calls(&counted, &mut text);
    }
    text
}

/// Writes the calls that plugins have counted.
fn write_calls(counted: &Counted, text: &mut String) {
    let all = counted.plugins.iter().flat_map(|(plugin, calls)| {
        COMMANDS
            .iter()
            .zip(calls)
            .map(move |(command, calls)| ([("plugin", plugin.as_str()), ("command", *command)], calls))
    });
    let called: Vec<_> = all.filter(|(_, calls)| **calls != Calls::default()).collect();
    let name = "cni_call_duration_seconds";
    let _ = writeln!(text, "# HELP {name} Durations of calls of plugins, without delegates in the same process.");
    let _ = writeln!(text, "# TYPE {name} histogram");
    for (labels, calls) in &called {
        let mut total = 0_u64;
        let bounds = BOUNDS.iter().map(|micros| seconds(*micros)).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(calls.durations) {
            total = total.wrapping_add(count);
            let labels = [labels[0], labels[1], ("le", bound.as_str())];
            Sample::new(labels, total.into()).write(&format!("{name}_bucket"), text);
        }
        let _ = writeln!(text, "{name}_sum{} {}", braces(&Sample::new(*labels, 0).labels), seconds(calls.micros));
        Sample::new(*labels, total.into()).write(&format!("{name}_count"), text);
    }
    let name = "cni_call_failures_total";
    let _ = writeln!(text, "# HELP {name} Calls of plugins that failed, by error code.\n# TYPE {name} counter");
    for (labels, calls) in &called {
        let codes = CODES.iter().map(u32::to_string).chain(["other".to_owned()]);
        for (code, count) in codes.zip(calls.failures).filter(|(_, count)| *count > 0) {
            Sample::new([labels[0], labels[1], ("code", code.as_str())], count.into()).write(name, text);
        }
    }
}

/// Returns a number of microseconds in seconds, as a decimal fraction without needless zeroes.
fn seconds(micros: u64) -> String {
    let text = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns labels in the text format.
fn braces(labels: &[(&str, String)]) -> String {
    let labels: Vec<String> = labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escape(value))).collect();
    if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) }
}

/// A value, and the labels that distinguish it.
struct Sample {
    labels: Vec<(&'static str, String)>,
    value: u128,
}

impl Sample {
    fn new<const N: usize>(labels: [(&'static str, &str); N], value: u128) -> Sample {
        Sample { labels: labels.map(|(label, value)| (label, value.to_owned())).into(), value }
    }

    fn write(&self, name: &str, text: &mut String) {
        let _ = writeln!(text, "{name}{} {}", braces(&self.labels), self.value);
    }
}

fn attachments(node: &Node, network: &Network) -> Vec<Sample> {
    let sample = |(state, count): (State, usize)| {
        Sample::new([("network", network.name.as_str()), ("state", &state.text().replace(' ', "_"))], count as u128)
    };
    networks::states(node, network).into_iter().map(sample).collect()
}

/// Counts the leases of a network that has any, or whose plugin keeps them.
fn leases_of(network: &Network, is_counted: impl Fn(&Lease) -> bool) -> Vec<Sample> {
    let count = network.leases.iter().filter(|lease| is_counted(lease)).count();
    let sample = network.store.is_some().then(|| Sample::new([("network", network.name.as_str())], count as u128));
    sample.into_iter().collect()
}

fn stale_leases(node: &Node, network: &Network) -> Sample {
    let gone = node.attachments(network).into_iter().filter(|at| at.state == State::Gone);
    let of_gone: usize = gone.map(|at| at.leases.len()).sum();
    let without_owner = network.leases.iter().filter(|lease| lease.owner == LeaseHolder::Garbled).count();
    Sample::new([("network", &network.name)], (of_gone + without_owner) as u128)
}

/// Counts the objects of each kind that exists or that the network creates. Kinds that could not be listed are missing.
fn objects(node: &Node, network: &Network) -> Vec<Sample> {
    let objects = node.objects_of(&network.name);
    let kinds = kinds_of(|plugin| !node.unlisted.contains(&plugin)).into_iter().filter(|kind| kind.is_listed);
    let sample = |kind: &'static ObjectKind| {
        let count = objects.iter().filter(|object| object.kind == kind).count();
        let sample = Sample::new([("network", network.name.as_str()), ("kind", kind.name)], count as u128);
        (count > 0 || network.creates(kind)).then_some(sample)
    };
    kinds.filter_map(sample).collect()
}

/// Escapes the value of a label.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escape("a\"b\\c\nd"), r#"a\"b\\c\nd"#);
    }

    #[test]
    fn seconds_have_no_needless_zeroes() {
        for (micros, want) in [(0, "0"), (500, "0.0005"), (1_000_000, "1"), (10_200_000, "10.2"), (1, "0.000001")] {
            assert_eq!(seconds(micros), want);
        }
    }
}
