//! The first network of a machine without one: that of `install --conf`, and that of a cluster.
//!
//! The network of a cluster has a record of its own beside it, because it comes and goes without the plugins: the
//! checksums of what this program wrote. A file with another content is not touched. Runtimes such as containerd do not
//! notice a file that is moved there from another directory, so temporary files are in the same one.

use std::fs;
use std::path::Path;

use linux::ip::Cidr;
use linux::sha2::sha256;
use linux::{Context, Error, Kind, Result};
use serde_json::{Value, json};

use crate::cli::Source;
use crate::record::Record;
use crate::target::{self, Target};
use crate::{disk, say};

const NAME: &str = "10-cni0.conflist";
/// A temporary file, whose extension runtimes ignore.
const NEW: &str = ".10-cni0.new";
/// The checksums of the network of a cluster.
const SUMS: &str = ".10-cni0.sums";
/// What stands for the ranges of the node in the network of a cluster.
const RANGES: &str = "\"$RANGES\"";
const CONTENT: &str = include_str!("../../../docs/example.conflist");

/// The extensions of files that runtimes read.
const EXTENSIONS: [&str; 3] = ["conf", "conflist", "json"];

/// Writes the network to the directory, unless it has another one or the file was modified.
pub(crate) fn install(record: &mut Record, dir: &Path) -> Result<()> {
    record.add_made(disk::create_dirs(dir)?)?;
    let path = dir.join(NAME);
    if let Some(other) = other_network(dir)? {
        say(&format!("{dir:?} is unchanged: it contains {other}"));
    } else if disk::exists(&path)? && !record.is_ours(&path)? {
        say(&format!("{path:?} is unchanged: it was modified after the installation"));
    } else {
        record.add_files([(sha256(CONTENT.as_bytes()), path.clone())])?;
        disk::replace(&path, &dir.join(NEW), CONTENT.as_bytes(), 0o644)?;
        say(&format!("network \"pods\" is configured in {path:?}"));
    }
    Ok(())
}

/// Writes the network of a cluster to the directory, unless it has another one or the file was modified.
pub(crate) fn configure(source: &Source, dir: &Path) -> Result<()> {
    let content = content(source)?;
    target::require_mount(dir)?;
    let (target, _) = Target::create(dir)?;
    let path = target.path().join(NAME);
    let (sum, found) = (sha256(content.as_bytes()), disk::sum(&path)?);
    let mut sums = sums(dir)?;
    let is_ours = found.as_ref().is_some_and(|found| sums.contains(found));
    if let Some(other) = other_network(dir)? {
        say(&format!("{dir:?} is unchanged: it contains {other}"));
    } else if is_ours && found.as_ref() == Some(&sum) {
        say(&format!("{path:?} is unchanged: it has this network already"));
    } else if disk::exists(&path)? && !is_ours {
        say(&format!("{path:?} is unchanged: it was modified, or something else has written it"));
    } else {
        // A process that is killed in between leaves a file with one of both checksums.
        sums.push(sum.clone());
        save_sums(dir, &sums)?;
        disk::replace(&path, &dir.join(NEW), content.as_bytes(), 0o644)?;
        save_sums(dir, &[sum])?;
        say(&format!("the network is configured in {path:?}"));
    }
    Ok(())
}

/// Removes the network of a cluster, unless the file was modified.
pub(crate) fn remove(dir: &Path) -> Result<()> {
    target::require_mount(dir)?;
    let path = dir.join(NAME);
    let target = Target::open(dir)?;
    let sums = sums(dir)?;
    match disk::sum(&path)? {
        _ if target.is_none() || sums.is_empty() => say(&format!("no network of this program is in {dir:?}")),
        Some(found) if !sums.contains(&found) => say(&format!("{path:?} is unchanged: it was modified")),
        Some(_) => {
            disk::remove(&path)?;
            disk::sync_dir(dir)?;
            say(&format!("{path:?} is removed"));
        }
        None => say(&format!("{path:?} was removed already")),
    }
    disk::remove(&dir.join(NEW))?;
    disk::remove(&dir.join(SUMS))
}

fn sums(dir: &Path) -> Result<Vec<String>> {
    let text = disk::read(&dir.join(SUMS))?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&text).lines().map(str::to_owned).collect())
}

fn save_sums(dir: &Path, sums: &[String]) -> Result<()> {
    let text: String = sums.iter().map(|sum| format!("{sum}\n")).collect();
    disk::replace(&dir.join(SUMS), &dir.join(NEW), text.as_bytes(), 0o644)
}

/// Returns the network of a node, with its ranges.
fn content(Source { file, ranges, node }: &Source) -> Result<String> {
    // The files of a ConfigMap are symbolic links.
    let text = fs::read_to_string(file).context(|| format!("read {file:?}"))?;
    let text = match text.contains(RANGES) {
        true => text.replace(RANGES, &of_node(ranges.as_deref(), node.as_deref())?.to_string()),
        false => text,
    };
    let invalid = |why: &str| Error::new(Kind::Other, format!("{file:?} is not a network: {why}"));
    let list: Value = serde_json::from_str(&text).map_err(|error| invalid(&error.to_string()))?;
    let is_text = |object: &Value, key: &str| object.get(key).is_some_and(Value::is_string);
    let plugins = list.get("plugins").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let has_types = !plugins.is_empty() && plugins.iter().all(|plugin| is_text(plugin, "type"));
    match is_text(&list, "name") && has_types {
        true => Ok(text),
        false => {
            Err(invalid("\"name\" or \"plugins\" is missing").details("write a list, as in docs/example.conflist"))
        }
    }
}

/// Returns the range sets of a node from the file with its name: ranges, separated by commas, of different families.
fn of_node(ranges: Option<&Path>, node: Option<&str>) -> Result<Value> {
    let (Some(dir), Some(node)) = (ranges, node) else {
        let error = Error::new(Kind::Other, format!("the network has {RANGES}, but no ranges are given"));
        return Err(error.details("add --ranges and --node"));
    };
    let hint = "write the ranges of each node into the ConfigMap cni0-ranges, as docs/operating.md shows";
    let path = dir.join(node);
    let text = fs::read_to_string(&path).map_err(|error| {
        Error::new(Kind::Other, format!("node {node:?} has no ranges in {dir:?}: {error}")).details(hint)
    })?;
    let parse =
        |range: &str| range.trim().parse::<Cidr>().map(|cidr| json!([{ "subnet": cidr.network().to_string() }]));
    let sets = text.trim().split(',').map(parse).collect::<Result<Vec<Value>, _>>();
    sets.map(Value::from)
        .map_err(|error| Error::new(Kind::Other, format!("the ranges of node {node:?}: {error}")).details(hint))
}

/// Returns the first network in the directory that is not ours.
fn other_network(dir: &Path) -> Result<Option<String>> {
    let what = || format!("list {dir:?}");
    let mut others = Vec::new();
    for entry in fs::read_dir(dir).context(what)? {
        let path = entry.context(what)?.path();
        let is_network = path.extension().is_some_and(|found| EXTENSIONS.iter().any(|wanted| found == *wanted));
        if is_network && !path.ends_with(NAME) {
            others.extend(path.file_name().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    Ok(others.into_iter().min())
}
