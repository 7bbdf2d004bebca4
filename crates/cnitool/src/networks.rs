//! `cnitool networks`: the networks of the configuration directory, with their plugins and addresses.

use std::path::PathBuf;

use cni::{Program, Result};
use serde_json::{Value, json};

use crate::conf::NetworkList;
use crate::leases::{describe_ranges, ranges};
use crate::node::{Network, Node, State};
use crate::table::{self, Paint, Table, Tone};
use crate::{out, settings};

/// Prints all networks that have a configuration, and the files that are not used.
pub(crate) fn run(as_json: bool) -> Result<()> {
    let node = Node::inspect()?;
    let dirs = settings::plugins();
    let configured = node.networks.iter().filter_map(|network| Some((network, network.list.as_ref()?)));
    if as_json {
        let networks: Vec<Value> = configured.map(|(network, list)| describe(&node, network, list, &dirs)).collect();
        return out::print_versioned(describe_all(&node, networks));
    }
    let paint = Paint::of_stdout();
    let mut pages: Vec<String> = configured.map(|(network, list)| page(&node, network, list, &dirs, paint)).collect();
    if pages.is_empty() {
        pages.push(table::wrap(&format!("there is no network in {}", settings::configurations().display()), 0));
    }
    pages.extend(unused(&node, paint));
    out::print(pages.join("\n") + &node.not_seen())
}

fn page(node: &Node, network: &Network, list: &NetworkList, dirs: &[PathBuf], paint: Paint) -> String {
    let title = table::shorten(&format!("network {}", network.name), table::width());
    let mut text = paint.paint(Tone::Bold, &title) + "\n";
    text += &table::wrap(&list.path.display().to_string(), 2);
    let bridge = network.bridge.as_ref().map(|bridge| format!(", bridge {}", bridge.name)).unwrap_or_default();
    let link = network.link.as_ref().map(|link| format!(", {link}")).unwrap_or_default();
    text += &table::wrap(&format!("cniVersion {}{bridge}{link}", list.version), 2);
    let counts: Vec<String> = states(node, network)
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(state, count)| format!("{count} {}", state.text()))
        .collect();
    let attachments = if counts.is_empty() { "none".to_owned() } else { counts.join(", ") };
    text += &table::wrap(&format!("attachments: {attachments}"), 2);
    text += &ranges(network, paint);
    let mut plugins = Table::new(&["PLUGIN", "FILE*"]);
    for (name, path) in plugin_paths(network, dirs) {
        let (tone, file) = match path {
            Some(path) => (Tone::Plain, path.display().to_string()),
            None => (Tone::Bad, "not found in CNI_PATH".to_owned()),
        };
        plugins.row(vec![(Tone::Plain, name.to_owned()), (tone, file)]);
    }
    text + &plugins.render(paint, 2)
}

/// Formats the files that define no network, or one that another file has defined before.
fn unused(node: &Node, paint: Paint) -> Option<String> {
    let shadowed = node.shadowed.iter().map(|list| {
        let what = format!("{}: an earlier file defines network {:?}", list.path.display(), list.name.as_str());
        (Tone::Warning, "not used:", what)
    });
    let broken = node.broken.iter().map(|broken| (Tone::Bad, "broken:", broken.to_string()));
    let lines: String = shadowed
        .chain(broken)
        .map(|(tone, title, what)| paint.paint(tone, title) + "\n" + &table::wrap(&what, 2))
        .collect();
    (!lines.is_empty()).then_some(lines)
}

/// Returns the plugins of a network and their delegates, each with its file if it exists.
fn plugin_paths<'a>(network: &'a Network, dirs: &[PathBuf]) -> Vec<(&'a str, Option<PathBuf>)> {
    let path = |name: &String| Program::find(dirs, name).ok().map(|program| program.path().to_owned());
    network.programs.iter().map(|name| (name.as_str(), path(name))).collect()
}

/// Returns the number of attachments in each state.
pub(crate) fn states(node: &Node, network: &Network) -> [(State, usize); 4] {
    let attachments = node.attachments(network);
    let count = |state| attachments.iter().filter(|at| at.state == state).count();
    State::ALL.map(|state| (state, count(state)))
}

fn describe(node: &Node, network: &Network, list: &NetworkList, dirs: &[PathBuf]) -> Value {
    let plugins: Vec<Value> =
        plugin_paths(network, dirs).into_iter().map(|(name, path)| json!({ "type": name, "path": path })).collect();
    let attachments: serde_json::Map<String, Value> =
        states(node, network).into_iter().map(|(state, count)| (state.json().to_owned(), count.into())).collect();
    json!({
        "name": network.name, "file": list.path, "cniVersion": list.version.as_str(), "plugins": plugins,
        "bridge": network.bridge.as_ref().map(|bridge| &bridge.name), "link": describe_link(network),
        "ranges": describe_ranges(network), "attachments": attachments,
    })
}

/// Returns what a network gives to containers, if the host has no other end of it, for `--json`.
pub(crate) fn describe_link(network: &Network) -> Option<Value> {
    let link = network.link.as_ref()?;
    let master = link.master.as_ref().map(|master| json!({ "name": master.name, "inContainer": master.in_container }));
    Some(json!({ "what": link.what, "master": master }))
}

fn describe_all(node: &Node, networks: Vec<Value>) -> Value {
    let shadowed: Vec<Value> =
        node.shadowed.iter().map(|list| json!({ "name": list.name.as_str(), "file": list.path })).collect();
    let broken: Vec<Value> = node
        .broken
        .iter()
        .map(|broken| {
            let (line, column) = broken.place.unzip();
            json!({ "file": broken.path, "line": line, "column": column, "why": broken.why })
        })
        .collect();
    json!({ "networks": networks, "shadowed": shadowed, "broken": broken, "notSeen": node.unseen })
}
