//! `cnitool leases`: the addresses that plugins have leased, with their containers and the containers' states.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cni::Result;
use cni::inspect::{Grant, Lease, LeaseHolder, Range};
use serde_json::{Value, json};

use crate::conf;
use crate::node::{Attachment, Network, Node, State};
use crate::out;
use crate::table::{self, Paint, Table, Tone, bar};

const BAR: usize = 20;

/// Prints the leases of a network, or of all networks.
pub(crate) fn run(network: Option<&str>, as_json: bool) -> Result<()> {
    let node = Node::inspect()?;
    let networks = node.chosen(network)?;
    conf::warn_of_broken(&node.broken);
    // Networks that do not use host-local are shown only if named on the command line.
    let shown = networks.into_iter().filter(|one| network.is_some() || one.store.is_some());
    if as_json {
        let networks: Vec<Value> = shown.map(|network| describe(&node, network)).collect();
        return out::print_versioned(json!({ "networks": networks, "notSeen": node.unseen }));
    }
    let paint = Paint::of_stdout();
    let texts: Vec<String> = shown.map(|network| page(&node, network, paint)).collect();
    let mut text = texts.join("\n");
    if texts.is_empty() {
        text = "no network uses host-local, and there are no leases\n".to_owned();
    }
    out::print(text + &node.not_seen())
}

fn page(node: &Node, network: &Network, paint: Paint) -> String {
    let place = network
        .store
        .as_ref()
        .map_or_else(|| "does not use host-local".to_owned(), |(_, directory)| directory.display().to_string());
    let title = table::shorten(&format!("network {}", network.name), table::width());
    let mut text = format!("{}\n{}", paint.paint(Tone::Bold, &title), table::wrap(&place, 2));
    text += &ranges(network, paint);
    let has_server = network.leases.iter().any(|lease| lease.grant.is_some());
    let mut head = vec!["ADDRESS", "CONTAINER**", "INTERFACE*", "AGE"];
    head.extend(["SERVER", "LEFT"].iter().filter(|_| has_server));
    head.push("STATE");
    let mut rows = Table::new(&head);
    for (lease, at) in owners(node, network) {
        let (container, ifname) = names(lease);
        let (state, _) = state(lease, at.as_ref());
        let mut row = vec![
            (Tone::Plain, lease.ip.to_string()),
            (Tone::Plain, container.unwrap_or("-").to_owned()),
            (Tone::Plain, ifname.unwrap_or("-").to_owned()),
            (Tone::Plain, age(lease)),
        ];
        if has_server {
            let server = lease.grant.map_or_else(|| "-".to_owned(), |grant| grant.server.to_string());
            row.extend([(Tone::Plain, server), left(lease.grant.as_ref())]);
        }
        row.push((tone(at.as_ref()), state.to_owned()));
        rows.row(row);
    }
    match rows.is_empty() {
        true => text + "  no leases\n",
        false => text + "\n" + &rows.render(paint, 2),
    }
}

/// Formats the usage of the ranges.
pub(crate) fn ranges(network: &Network, paint: Paint) -> String {
    let mut bars = Table::new(&["RANGE*", "", "USED", "FREE"]);
    for range in network.ranges.iter().flatten() {
        let used = network.used(range);
        let tone = fullness(range, used);
        bars.row(vec![
            (Tone::Plain, if range.is_whole { range.subnet.to_string() } else { range.to_string() }),
            (tone, bar(used as u128, range.size, BAR)),
            (tone, used.to_string()),
            (tone, approximate(free(range, used))),
        ]);
    }
    if bars.is_empty() {
        return if network.store.is_some() { "  its ranges are unknown\n".to_owned() } else { String::new() };
    }
    let text = bars.render(paint, 2);
    match outside(network).count() {
        0 => text,
        outside => text + &format!("  {} outside of its ranges\n", table::count(outside, "lease")),
    }
}

/// Returns each lease with the attachment that it belongs to.
fn owners<'a>(node: &Node, network: &'a Network) -> Vec<(&'a Lease, Option<Attachment>)> {
    let attachments = node.attachments(network);
    let by_ip: BTreeMap<IpAddr, &Attachment> =
        attachments.iter().flat_map(|at| at.leases.iter().map(move |lease| (lease.ip, at))).collect();
    let owner = |lease: &Lease| by_ip.get(&lease.ip).map(|at| (*at).clone());
    network.leases.iter().map(|lease| (lease, owner(lease))).collect()
}

fn names(lease: &Lease) -> (Option<&str>, Option<&str>) {
    match &lease.owner {
        LeaseHolder::Container(container, ifname) => (Some(container), ifname.as_deref()),
        LeaseHolder::Garbled | LeaseHolder::Unknown => (None, None),
    }
}

fn state(lease: &Lease, at: Option<&Attachment>) -> (&'static str, &'static str) {
    match (at, &lease.owner) {
        (Some(at), _) => (at.state.text(), at.why),
        (None, LeaseHolder::Garbled) => ("free", "its file is empty or garbled: the next add may take the address"),
        (None, _) => (State::Unknown.text(), "its file cannot be read"),
    }
}

fn tone(at: Option<&Attachment>) -> Tone {
    at.map_or(Tone::Warning, |at| at.state.tone())
}

impl State {
    pub(crate) fn tone(self) -> Tone {
        match self {
            State::Alive => Tone::Good,
            State::Gone => Tone::Bad,
            State::NoPort | State::Unknown => Tone::Warning,
        }
    }
}

pub(crate) fn free(range: &Range, used: usize) -> u128 {
    range.size.saturating_sub(used as u128)
}

/// Returns the tone for the usage of a range. A range is nearly full if less than a tenth is left.
pub(crate) fn fullness(range: &Range, used: usize) -> Tone {
    match free(range, used) {
        0 => Tone::Bad,
        left if left < range.size / 10 => Tone::Warning,
        _ => Tone::Good,
    }
}

fn outside(network: &Network) -> impl Iterator<Item = &Lease> {
    let inside = |lease: &&Lease| network.ranges.iter().flatten().any(|range| range.contains(lease.ip));
    network.leases.iter().filter(move |lease| !inside(lease))
}

/// Formats a number, approximately if it is large.
fn approximate(number: u128) -> String {
    if number < 1_000_000 { number.to_string() } else { format!("{:.1e}", number as f64) }
}

/// Returns the age of a lease.
pub(crate) fn elapsed(lease: &Lease) -> Duration {
    SystemTime::now().duration_since(lease.since).unwrap_or_default()
}

/// Formats the time that a server has granted and that is left.
fn left(grant: Option<&Grant>) -> (Tone, String) {
    match grant {
        None => (Tone::Plain, "-".to_owned()),
        Some(grant) if grant.has_ended() => (Tone::Bad, "ended".to_owned()),
        Some(Grant { left, .. }) => (Tone::Plain, left.map_or_else(|| "no end".to_owned(), duration)),
    }
}

/// Formats the age of a lease in one unit.
fn age(lease: &Lease) -> String {
    match lease.owner {
        LeaseHolder::Unknown => "-".to_owned(),
        _ => duration(elapsed(lease)),
    }
}

/// Formats a lease with its age, for a list.
pub(crate) fn line(lease: &Lease) -> String {
    let left = match &lease.grant {
        Some(grant) => format!(", {} left of {}", left(Some(grant)).1, grant.server),
        None => String::new(),
    };
    format!("{} ({} old{left})", lease.ip, age(lease))
}

/// Returns the seconds that are left, rounded up: zero only after the end.
fn seconds_left(left: Duration) -> u64 {
    left.as_secs() + u64::from(left.subsec_nanos() > 0)
}

fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86400),
    }
}

/// Returns the usage of the ranges as JSON.
pub(crate) fn describe_ranges(network: &Network) -> Vec<Value> {
    network
        .ranges
        .iter()
        .flatten()
        .map(|range| {
            let used = network.used(range);
            // JSON readers support at most 64 bits, so larger numbers are clamped.
            let countable = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
            json!({
                "range": range.to_string(), "subnet": range.subnet, "gateway": range.gateway,
                "size": countable(range.size), "used": used, "free": countable(free(range, used)),
            })
        })
        .collect()
}

fn describe(node: &Node, network: &Network) -> Value {
    let leases: Vec<Value> = owners(node, network)
        .into_iter()
        .map(|(lease, at)| {
            let (container, ifname) = names(lease);
            let (state, why) = state(lease, at.as_ref());
            let port = at.as_ref().and_then(|at| at.port);
            let port = port.and_then(|port| node.links.iter().find(|link| link.index == port));
            let since = lease.since.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let beyond = port.and_then(|port| node.guest(port.index)?.netns.clone());
            json!({
                "address": lease.ip, "container": container, "interface": ifname, "since": since,
                "age": elapsed(lease).as_secs(), "state": state, "why": why, "port": port.map(|port| &port.name),
                "netns": at.and_then(|at| at.netns).or(beyond),
                "server": lease.grant.map(|grant| grant.server),
                "left": lease.grant.and_then(|grant| grant.left).map(seconds_left),
            })
        })
        .collect();
    json!({
        "name": network.name, "file": network.list.as_ref().map(|list| &list.path),
        "directory": network.store.as_ref().map(|(_, directory)| directory), "ranges": describe_ranges(network), "leases": leases,
    })
}
