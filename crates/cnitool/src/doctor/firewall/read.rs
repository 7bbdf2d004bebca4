//! Reads the rules that packets can reach from a base chain: from nf_tables, or from the text of a legacy table.

use cni::Result;
use linux::iptables::words;
use linux::netlink::Link;
use linux::netlink::nft::{self, Condition, LinkPattern, Nftables, Property, Side, Table};

use super::path::{Chains, Rule, Verdict};

/// The number of chains that are read at most.
const MAX_CHAINS: usize = 500;

/// Reads a chain of nf_tables, and the chains that it leads to.
pub(super) fn from_nftables(nft: &mut Nftables, table: Table<'_>, base: &str, links: &[Link]) -> Result<Chains> {
    read_reachable(base, |name| {
        let rules = nft.rules(table.chain(name))?;
        Ok(rules.iter().map(|rule| of_nftables(table, rule, links)).collect())
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

/// Converts a rule of nf_tables. Conditions about the index of a link become conditions about its name.
fn of_nftables(table: Table<'_>, rule: &nft::Rule, links: &[Link]) -> Rule {
    let verdict = match &rule.verdict {
        _ if rule.refuses() => Verdict::Refuse,
        Some(nft::Verdict::Accept) => Verdict::Accept,
        Some(nft::Verdict::Return) => Verdict::Return,
        Some(nft::Verdict::Jump(chain)) => Verdict::Jump(chain.clone()),
        Some(nft::Verdict::Goto(chain)) => Verdict::Goto(chain.clone()),
        Some(nft::Verdict::Drop) | None => Verdict::Continue,
    };
    let chain = table.chain(&rule.chain);
    let name = |index: u32| links.iter().find(|link| link.index.number() == index).map(|link| link.name.clone());
    let conditions = rule.conditions().into_iter().map(|condition| match condition.property {
        Property::Link(side, LinkPattern::Index(index)) => {
            let link = name(index).map(|name| Property::Link(side, LinkPattern::Name(name)));
            Condition { property: link.unwrap_or(Property::Other), ..condition }
        }
        _ => condition,
    });
    Rule { conditions: conditions.collect(), verdict, name: format!("{chain} handle {}", rule.handle) }
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
            "-p" | "--dport" | "--sport" | "--dports" | "--sports" | "--icmp-type" | "--icmpv6-type" => {
                words.next();
                Property::Protocol
            }
            "-m" => match words.next() {
                Some("comment" | "tcp" | "udp" | "sctp" | "icmp" | "icmp6" | "multiport") => continue,
                _ => Property::Other,
            },
            "-j" | "-g" => {
                verdict = legacy_verdict(word, words.next().unwrap_or_default());
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
        chain if option == "-g" => Verdict::Goto(chain.to_owned()),
        chain => Verdict::Jump(chain.to_owned()),
    }
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
        assert_eq!(conditions, [(false, Property::Protocol), (false, Property::Protocol)]);
        assert_eq!(verdict, Verdict::Jump("USER".to_owned()));
        let (conditions, _) = read("-m conntrack --ctstate INVALID -j DROP");
        assert!(conditions.contains(&(false, Property::Other)), "{conditions:?}");
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
