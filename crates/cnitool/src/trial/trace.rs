//! Follows the packets of a flow through the rules of all namespaces that it passes.

use std::net::IpAddr;
use std::time::Duration;

use cni::Result;
use linux::ip::Cidr;
use linux::iptables::FAMILIES;
use linux::netlink::nft::{Chain, Edit, Family, Hook, Nftables, RuleSpec, Table, Trace, TraceEvent};
use linux::tool;

use super::scene::{Scene, Spot};

/// The hooks at which packets are marked and seen, by the kernel's numbers. The chains before routing are earlier than
/// those of other programs, and the others later: a packet that is seen there was not dropped at that hook.
const HOOKS: [(Stage, &str, u32, i32); 5] = [
    (Stage::Arrived, "prerouting", 0, EARLY),
    (Stage::Delivered, "input", 1, LATE),
    (Stage::Forwarded, "forward", 2, LATE),
    (Stage::Sent, "output", 3, EARLY),
    (Stage::Left, "postrouting", 4, LATE),
];
/// The beginning of the names of tables that plugins create.
const OF_PLUGINS: &str = "cni_";
const EARLY: i32 = -399;
const LATE: i32 = 10_000;
/// How long a tool may take to print a chain.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How far a packet came in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Arrived,
    Delivered,
    Forwarded,
    Sent,
    Left,
}

/// Which packets of a flow are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Request,
    Reply,
}

impl Direction {
    const ALL: [Direction; 2] = [Direction::Request, Direction::Reply];

    fn word(self) -> &'static str {
        match self {
            Direction::Request => "request",
            Direction::Reply => "reply",
        }
    }
}

/// The addresses of a flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    pub(super) source: IpAddr,
    pub(super) target: IpAddr,
    /// The same as the target, unless that is translated.
    pub(super) receiver: IpAddr,
}

/// Traces the packets of a flow in some namespaces. The tables that it needs belong to its sockets: the kernel removes
/// them when this value is dropped, or its process killed.
#[derive(Debug)]
pub(super) struct Tracer {
    table: String,
    places: Vec<Place>,
    legacy: Vec<Counter>,
}

#[derive(Debug)]
struct Place {
    spot: Spot,
    trace: Trace,
    events: Vec<TraceEvent>,
    /// The socket that owns the tables.
    _owner: Nftables,
}

/// A rule of a legacy table, or the policy of a chain, with the number of its packets.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Counter {
    table: &'static str,
    rule: String,
    packets: u64,
}

/// Where a packet was dropped.
#[derive(Debug)]
pub(super) struct Drop {
    pub(super) spot: Spot,
    pub(super) direction: Option<Direction>,
    pub(super) table: String,
    pub(super) chain: String,
    /// What drops it, for a reader.
    pub(super) text: String,
}

impl Tracer {
    /// Starts to trace. A namespace without nf_tables is left out.
    pub(super) fn start(scene: &Scene, spots: &[Spot], addresses: Addresses) -> Result<Tracer> {
        let mut places = Vec::new();
        for spot in spots.iter().copied() {
            let place = scene.within(spot, || {
                let (trace, mut owner) = (Trace::open()?, Nftables::open()?);
                owner.apply(&edits(&scene.table, Family::Inet, addresses))?;
                if spot == Spot::Host {
                    // Frames within a bridge, if the kernel can filter them.
                    drop(owner.apply(&edits(&scene.table, Family::Bridge, addresses)));
                }
                Ok(Place { spot, trace, events: Vec::new(), _owner: owner })
            });
            places.extend(place.ok());
        }
        Ok(Tracer { table: scene.table.clone(), places, legacy: legacy_counters() })
    }

    /// Receives what was reported so far.
    pub(super) fn collect(&mut self) -> Result<()> {
        for place in &mut self.places {
            place.events.extend(place.trace.events()?);
        }
        Ok(())
    }

    /// Returns whether a packet came this far.
    pub(super) fn saw(&self, spot: Spot, direction: Direction, stage: Stage) -> bool {
        let mut places = self.places.iter().filter(|place| place.spot == spot);
        places.any(|place| {
            let mut own = place.events.iter().filter(|event| event.table == self.table);
            own.any(|event| {
                let is_there = own_chain(&event.chain).is_some_and(|(found, _)| found == stage);
                is_there && self.direction_of(place, event) == Some(direction)
            })
        })
    }

    /// Returns whether a packet was seen at all.
    pub(super) fn saw_any(&self, spot: Spot, direction: Direction) -> bool {
        HOOKS.iter().any(|(stage, ..)| self.saw(spot, direction, *stage))
    }

    /// Returns whether packets of this spot are traced.
    pub(super) fn covers(&self, spot: Spot) -> bool {
        self.places.iter().any(|place| place.spot == spot)
    }

    /// Returns the last rule that decided about a packet, for a reader: one of another program rather than of a plugin.
    pub(super) fn last_decision(&self, spot: Spot) -> Option<String> {
        let events = self.places.iter().filter(|place| place.spot == spot).flat_map(|place| &place.events);
        let rules = events.filter(|event| event.table != self.table && event.rule.is_some());
        rules.max_by_key(|event| !event.table.starts_with(OF_PLUGINS)).map(ToString::to_string)
    }

    /// Returns the rules and policies that dropped packets, in the order of the namespaces.
    pub(super) fn drops(&self, scene: &Scene) -> Result<Vec<Drop>> {
        let mut found: Vec<Drop> = Vec::new();
        for place in &self.places {
            for event in place.events.iter().filter(|event| event.drops && event.table != self.table) {
                let text = match event.rule {
                    Some(handle) => match scene.within(place.spot, || Ok(rule_text(event, handle)))? {
                        Some(rule) => format!("rule \"{rule}\" ({event})"),
                        None => format!("rule {event}"),
                    },
                    None => {
                        let name = event.to_string();
                        format!("the policy of chain {}", name.trim_end_matches(" (policy)"))
                    }
                };
                if !found.iter().any(|drop| drop.text == text) {
                    let direction = self.direction_of(place, event);
                    let (table, chain) = (event.table.clone(), event.chain.clone());
                    found.push(Drop { spot: place.spot, direction, table, chain, text });
                }
            }
        }
        let before = |now: &Counter| {
            let same = |old: &&Counter| (old.table, &old.rule) == (now.table, &now.rule);
            self.legacy.iter().find(same).map_or(0, |old| old.packets)
        };
        for counter in legacy_counters().into_iter().filter(|now| now.packets > before(now)) {
            let words: Vec<&str> = counter.rule.split(' ').collect();
            let chain = words.get(1).copied().unwrap_or_default().to_owned();
            let text = match words.first().copied() {
                Some("-P") => format!("the policy of chain {chain} of the legacy table {}", counter.table),
                _ => format!("rule \"{}\" of the legacy table {}", counter.rule, counter.table),
            };
            found.push(Drop { spot: Spot::Host, direction: None, table: counter.table.to_owned(), chain, text });
        }
        Ok(found)
    }

    /// Returns the direction of the packet of an event: that of our rule which has matched it. A chain that it only
    /// passes says nothing, and a later one may not match it, because its addresses were translated.
    fn direction_of(&self, place: &Place, event: &TraceEvent) -> Option<Direction> {
        let is_match = |other: &&TraceEvent| other.table == self.table && other.rule.is_some();
        let mut same = place.events.iter().filter(is_match).filter(|other| other.packet == event.packet);
        same.find_map(|event| own_chain(&event.chain)).map(|(_, direction)| direction)
    }
}

/// Returns the stage and the direction of one of our chains.
fn own_chain(name: &str) -> Option<(Stage, Direction)> {
    let (hook, direction) = name.split_once('_')?;
    let (stage, ..) = HOOKS.iter().find(|(_, name, ..)| *name == hook)?;
    Some((*stage, Direction::ALL.into_iter().find(|known| known.word() == direction)?))
}

/// Returns the edits that mark and count the packets of a flow.
fn edits(table: &str, family: Family, addresses: Addresses) -> Vec<Edit> {
    let table = Table { family, name: table };
    let Addresses { source, target, receiver } = addresses;
    let [source, target, receiver] = [source, target, receiver].map(Cidr::host);
    let mut edits = vec![Edit::add_owned_table(table)];
    for (_, hook, place, priority) in HOOKS {
        for direction in Direction::ALL {
            // A packet must match in one direction only. Of replies only the source is known, because the source of the
            // request may have been translated.
            let selections = match direction {
                Direction::Request => vec![(source, Some(target)), (source, Some(receiver))],
                Direction::Reply if receiver == source => Vec::new(),
                Direction::Reply => vec![(receiver, None)],
            };
            let name = format!("{hook}_{}", direction.word());
            let chain = Chain { table, name: &name };
            edits.push(Edit::add_base_chain(chain, Hook { kind: "filter", place, priority }));
            for (from, to) in selections {
                let rule = RuleSpec::new(chain);
                let rule = if family == Family::Bridge { rule.frames_of(Family::of(from.ip())) } else { rule };
                edits.push(Edit::add_rule(&rule.trace(from, to)));
            }
        }
    }
    edits
}

/// Returns the text of a rule, as `nft` of the calling thread's namespace prints it; `None` without that program.
fn rule_text(event: &TraceEvent, handle: u64) -> Option<String> {
    let family = event.family?.to_string();
    let listed = tool::run("nft", &["-a", "list", "chain", &family, &event.table, &event.chain], "", TIMEOUT).ok()?;
    let end = format!(" # handle {handle}");
    listed.lines().find_map(|line| line.trim().strip_suffix(&end)).map(str::to_owned)
}

/// Returns the rules and policies of legacy tables that drop packets.
fn legacy_counters() -> Vec<Counter> {
    let mut counters = Vec::new();
    for tools in FAMILIES.iter().filter(|tools| tools.has_legacy_tables()) {
        for table in ["raw", "mangle", "filter", "security"] {
            let Ok(Some(lines)) = tools.legacy_counters(table) else { continue };
            counters.extend(lines.iter().filter_map(|line| read_counter(table, line)));
        }
    }
    counters
}

/// Parses a line of `iptables-save -c`: `[7:420] -A FORWARD -s 10.1.0.0/16 -j DROP`, or `:FORWARD DROP [7:420]`.
fn read_counter(table: &'static str, line: &str) -> Option<Counter> {
    let packets = |counts: &str| counts.trim_matches(['[', ']']).split(':').next()?.parse::<u64>().ok();
    if let Some(policy) = line.strip_prefix(':') {
        let mut words = policy.split(' ');
        let (chain, verdict, counts) = (words.next()?, words.next()?, words.next()?);
        let rule = format!("-P {chain} {verdict}");
        return (verdict == "DROP").then_some(Counter { table, rule, packets: packets(counts)? });
    }
    let (counts, rule) = line.split_once(' ')?;
    let refuses = rule.contains("-j DROP") || rule.contains("-j REJECT");
    refuses.then_some(Counter { table, rule: rule.to_owned(), packets: packets(counts)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_legacy_tables() {
        let read = |line| read_counter("filter", line).map(|counter| (counter.rule, counter.packets));
        assert_eq!(read("[7:420] -A FORWARD -s 10.1.0.0/16 -j DROP").unwrap().1, 7);
        assert_eq!(read(":FORWARD DROP [9:1]"), Some(("-P FORWARD DROP".to_owned(), 9)));
        for other in [":FORWARD ACCEPT [9:1]", "[1:2] -A FORWARD -j ACCEPT", "# Generated", "*filter", "COMMIT", ""] {
            assert_eq!(read(other), None, "{other}");
        }
    }

    #[test]
    fn own_chains_are_recognised() {
        assert_eq!(own_chain("prerouting_request"), Some((Stage::Arrived, Direction::Request)));
        assert_eq!(own_chain("postrouting_reply"), Some((Stage::Left, Direction::Reply)));
        assert_eq!(own_chain("forward"), None);
        assert_eq!(own_chain("elsewhere_reply"), None);
    }
}
