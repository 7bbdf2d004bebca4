//! Reads the rules that packets can reach from a base chain: from nf_tables, or from the text of a legacy table.

use std::collections::BTreeMap;

use cni::Result;
use linux::iptables::words;
use linux::netlink::Link;
use linux::netlink::nft::{
    self, Condition, ConnectionStates, Element, LinkPattern, Lookup, Nftables, Property, Side, Table,
};

use super::path::{Chains, Rule, Verdict};

/// The number of chains that are read at most.
const MAX_CHAINS: usize = 500;

/// Reads a chain of nf_tables, and the chains that it leads to.
pub(super) fn from_nftables(nft: &mut Nftables, table: Table<'_>, base: &str, links: &[Link]) -> Result<Chains> {
    let mut sets = Sets::new();
    read_reachable(base, |name| {
        let mut rules = Vec::new();
        for rule in nft.rules(table.chain(name))? {
            for lookup in rule.lookups.iter().filter(|lookup| !sets.contains_key(&lookup.set)).collect::<Vec<_>>() {
                sets.insert(lookup.set.clone(), nft.listed_elements(table.set(&lookup.set))?);
            }
            rules.extend(of_nftables(table, &rule, links, &sets));
        }
        Ok(rules)
    })
}

/// Reads a chain of a legacy table, and the chains that it leads to.
pub(super) fn from_legacy(lines: &[String], base: &str) -> Result<Chains> {
    read_reachable(base, |name| {
        let prefix = format!("-A {name} ");
        let rules = lines.iter().filter_map(|line| line.strip_prefix(&prefix));
        Ok(rules.map(|rule| of_legacy(name, rule)).collect())
    })
}

fn read_reachable(base: &str, mut read: impl FnMut(&str) -> Result<Vec<Rule>>) -> Result<Chains> {
    let mut chains = Chains::new();
    let mut left = vec![base.to_owned()];
    while let Some(name) = left.pop() {
        if chains.contains_key(&name) || chains.len() >= MAX_CHAINS {
            continue;
        }
        let rules = read(&name)?;
        left.extend(rules.iter().filter_map(|rule| rule.verdict.followed().map(str::to_owned)));
        chains.insert(name, rules);
    }
    Ok(chains)
}

/// The elements of the sets that rules of a table name.
type Sets = BTreeMap<String, Vec<Element>>;

/// Converts a rule of nf_tables, for each verdict that it can have. Conditions about the index of a link become
/// conditions about its name, and those about a set conditions about its elements.
fn of_nftables(table: Table<'_>, rule: &nft::Rule, links: &[Link], sets: &Sets) -> Vec<Rule> {
    let verdict = |verdict: &nft::Verdict| match verdict {
        nft::Verdict::Accept => Verdict::Accept,
        nft::Verdict::Return => Verdict::Return,
        nft::Verdict::Drop => Verdict::Refuse,
        nft::Verdict::Jump(chain) => Verdict::Jump(chain.clone()),
        nft::Verdict::Goto(chain) => Verdict::Goto(chain.clone()),
    };
    let own = match &rule.verdict {
        _ if rule.refuses() => Verdict::Refuse,
        _ if rule.translates_destination => Verdict::TranslateDestination,
        Some(own) => verdict(own),
        None => rule.translates_source_to.map_or(Verdict::Continue, Verdict::TranslateSource),
    };
    let chain = table.chain(&rule.chain);
    let elements = |lookup: &Lookup| sets.get(&lookup.set).map(Vec::as_slice).unwrap_or_default();
    let conditions = rule.conditions().into_iter().map(|condition| match condition.property {
        Property::InSet(lookup) => {
            Condition { property: named(lookup.property(elements(&lookup)), links), ..condition }
        }
        property => Condition { property: named(property, links), ..condition },
    });
    let whole =
        Rule { conditions: conditions.collect(), verdict: own, name: format!("{chain} handle {}", rule.handle) };
    let with = |property, verdict| {
        let condition = Condition { is_negated: false, property };
        Rule { conditions: [whole.conditions.as_slice(), &[condition]].concat(), verdict, name: whole.name.clone() }
    };
    let mut rules = Vec::new();
    for lookup in rule.lookups.iter().filter(|lookup| lookup.is_verdict_map()) {
        match lookup.verdicts(elements(lookup)) {
            Some(all) => {
                rules.extend(all.into_iter().map(|(property, own)| with(named(property, links), verdict(&own))))
            }
            // It may decide about any packet.
            None => rules.push(with(Property::Other, Verdict::Accept)),
        }
    }
    rules.push(whole);
    rules
}

/// Replaces the indexes of links by their names.
fn named(property: Property, links: &[Link]) -> Property {
    match property {
        Property::Link(side, LinkPattern::Index(index)) => {
            let link = links.iter().find(|link| link.index.number() == index);
            link.map_or(Property::Other, |link| Property::Link(side, LinkPattern::Name(link.name.clone())))
        }
        Property::AnyOf(all) => Property::AnyOf(all.into_iter().map(|property| named(property, links)).collect()),
        other => other,
    }
}

/// Parses a rule in the form of `iptables-save`, without `-A` and the chain.
fn of_legacy(chain: &str, text: &str) -> Rule {
    let mut conditions = Vec::new();
    let mut verdict = Verdict::Continue;
    let mut is_negated = false;
    let words = words(text);
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        let property = match word {
            "!" => {
                is_negated = true;
                continue;
            }
            "-i" => Property::Link(Side::From, link_pattern(words.next().unwrap_or_default())),
            "-o" => Property::Link(Side::To, link_pattern(words.next().unwrap_or_default())),
            "-s" => network(Side::From, words.next()),
            "-d" => network(Side::To, words.next()),
            "--comment" => {
                words.next();
                continue;
            }
            "-p" => {
                let number = words.next().and_then(protocol);
                number.map_or(Property::Protocol, Property::TransportProtocol)
            }
            "--sport" | "--dports" | "--sports" | "--icmp-type" | "--icmpv6-type" => {
                words.next();
                Property::Protocol
            }
            "--dport" => ports(words.next().unwrap_or_default()),
            "--ctstate" | "--state" => states(words.next().unwrap_or_default()),
            "--dst-type" if words.next() == Some("LOCAL") => Property::ToHost,
            "-m" => match words.next() {
                // Their options follow.
                Some("comment" | "tcp" | "udp" | "sctp" | "icmp" | "icmp6" | "multiport" | "conntrack" | "state")
                | Some("addrtype") => continue,
                _ => Property::Other,
            },
            "-j" | "-g" => {
                verdict = legacy_verdict(word, words.next().unwrap_or_default());
                if let (Verdict::Jump(target), Some("--to-source")) = (&verdict, words.next())
                    && target == "SNAT"
                    && let Some(Ok(ip)) = words.next().map(str::parse)
                {
                    verdict = Verdict::TranslateSource(ip);
                }
                break;
            }
            // The options of other matches, and their values.
            _ => Property::Other,
        };
        conditions.push(Condition { is_negated: std::mem::take(&mut is_negated), property });
    }
    Rule { conditions, verdict, name: format!("{chain} {text}") }
}

fn legacy_verdict(option: &str, target: &str) -> Verdict {
    match target {
        "ACCEPT" => Verdict::Accept,
        "DROP" | "REJECT" => Verdict::Refuse,
        "RETURN" => Verdict::Return,
        "DNAT" | "REDIRECT" => Verdict::TranslateDestination,
        chain if option == "-g" => Verdict::Goto(chain.to_owned()),
        chain => Verdict::Jump(chain.to_owned()),
    }
}

/// Returns the number of a transport protocol.
pub(super) fn protocol(name: &str) -> Option<u8> {
    match name {
        "tcp" => Some(6),
        "udp" => Some(17),
        "dccp" => Some(33),
        "sctp" => Some(132),
        _ => None,
    }
}

/// Parses a port, or the first and the last one.
fn ports(text: &str) -> Property {
    let (first, last) = text.split_once(':').unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) => Property::DestinationPort(first, last),
        _ => Property::Protocol,
    }
}

/// Parses states of connections.
fn states(text: &str) -> Property {
    let state = |name: &str| match name {
        "INVALID" => Some(ConnectionStates::INVALID),
        "ESTABLISHED" => Some(ConnectionStates::ESTABLISHED),
        "RELATED" => Some(ConnectionStates::RELATED),
        "NEW" => Some(ConnectionStates::NEW),
        // UNTRACKED, SNAT, DNAT
        _ => None,
    };
    let states: Option<Vec<u32>> = text.split(',').map(state).collect();
    states
        .map_or(Property::Other, |all| Property::State(ConnectionStates(all.into_iter().fold(0, |all, one| all | one))))
}

fn link_pattern(name: &str) -> LinkPattern {
    match name.strip_suffix('+') {
        Some(prefix) => LinkPattern::Prefix(prefix.to_owned()),
        None => LinkPattern::Name(name.to_owned()),
    }
}

fn network(side: Side, text: Option<&str>) -> Property {
    text.and_then(|text| text.parse().ok()).map_or(Property::Other, |net| Property::Address(side, net))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Vec<(bool, Property)>, Verdict) {
        let rule = of_legacy("FORWARD", text);
        (rule.conditions.into_iter().map(|c| (c.is_negated, c.property)).collect(), rule.verdict)
    }

    #[test]
    fn rules_of_legacy_tables_are_parsed() {
        let link = |side, name: &str| Property::Link(side, LinkPattern::Name(name.to_owned()));
        assert_eq!(read("-j DROP"), (vec![], Verdict::Refuse));
        let (conditions, verdict) =
            read("! -s 10.1.0.0/24 -i br-pods ! -o br+ -j REJECT --reject-with icmp-port-unreachable");
        let source = Property::Address(Side::From, "10.1.0.0/24".parse().unwrap());
        let output = Property::Link(Side::To, LinkPattern::Prefix("br".to_owned()));
        assert_eq!(conditions, [(true, source), (false, link(Side::From, "br-pods")), (true, output)]);
        assert_eq!(verdict, Verdict::Refuse);
        let (conditions, verdict) = read("-p tcp -m tcp --dport 25 -m comment --comment \"no -j mail\" -j USER");
        assert_eq!(conditions, [(false, Property::TransportProtocol(6)), (false, Property::DestinationPort(25, 25))]);
        assert_eq!(verdict, Verdict::Jump("USER".to_owned()));
        let (conditions, _) = read("-m conntrack ! --ctstate INVALID,NEW -j DROP");
        assert_eq!(conditions, [(true, Property::State(ConnectionStates(9)))]);
        let (conditions, _) = read("-m mark --mark 0x1 -j DROP");
        assert!(conditions.contains(&(false, Property::Other)), "{conditions:?}");
        assert_eq!(read("-m addrtype --dst-type LOCAL -j DOCKER").0, [(false, Property::ToHost)]);
        assert_eq!(read("-j DNAT --to-destination 10.1.0.2:80").1, Verdict::TranslateDestination);
        assert_eq!(read("-j SNAT --to-source 192.0.2.1").1, Verdict::TranslateSource([192, 0, 2, 1].into()));
    }

    #[test]
    fn only_chains_that_packets_reach_are_read() {
        let lines = [
            "-A FORWARD -j A",
            "-A A -j B",
            "-A B -j A",
            "-A FORWARD -j CNI-ISOLATION-STAGE-1",
            "-A FORWARD -j CNI-FORWARD",
            "-A OTHER -j DROP",
        ];
        let lines = lines.map(str::to_owned);
        let chains = from_legacy(&lines, "FORWARD").unwrap();
        assert_eq!(chains.keys().collect::<Vec<_>>(), ["A", "B", "CNI-FORWARD", "FORWARD"]);
    }
}
