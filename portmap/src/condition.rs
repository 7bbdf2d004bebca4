//! Further conditions of a network for the packets whose destination is translated: `conditionsV4` and `conditionsV6`.
//!
//! The reference passes them to `iptables` or `nft` as they are. Here a small grammar in both spellings is parsed:
//! sources, destinations and interfaces. Everything else is an error.

use std::fmt;

use cni::IfName;
use cni::json::Fault;
use linux::ip::Cidr;
use linux::iptables::{Links, Match};
use linux::netlink::nft::{Comparison, Family, RuleSpec};

/// Limits the rules that lists of alternatives expand to.
const MAX_ALTERNATIVES: usize = 64;

/// The language in which conditions are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelling {
    Iptables,
    Nftables,
}

impl Spelling {
    /// Returns the language of a list of words, by the first character as the reference does; `None` for an empty list.
    pub(crate) fn of(words: &[String]) -> Option<Spelling> {
        let first = words.first()?;
        Some(if first.starts_with(['-', '!']) { Spelling::Iptables } else { Spelling::Nftables })
    }
}

/// What a condition looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MatchedPart {
    Source,
    Destination,
    InputLink,
    OutputLink,
}

/// A value that a packet is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Network(Cidr),
    Links(Links<'static>),
}

/// One condition: the packet has, or does not have, one of these values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    subject: MatchedPart,
    is_negated: bool,
    values: Vec<Value>,
}

impl Condition {
    /// Parses the words of `conditionsV4` or `conditionsV6`.
    pub(crate) fn parse(words: &[String], family: Family) -> Result<Vec<Condition>, Fault> {
        let conditions = match Spelling::of(words) {
            None => return Ok(Vec::new()),
            Some(Spelling::Iptables) => parse_iptables(words, family)?,
            Some(Spelling::Nftables) => parse_nftables(&words.join(" "), family)?,
        };
        if conditions.is_empty() {
            return Err(Fault::value("the list has words, but no condition"));
        }
        let alternatives = conditions.iter().filter(|condition| !condition.is_negated);
        let number = alternatives.map(|condition| condition.values.len()).fold(1, usize::saturating_mul);
        if number > MAX_ALTERNATIVES {
            return Err(Fault::value(format_args!(
                "the lists have {number} combinations, more than {MAX_ALTERNATIVES}"
            )));
        }
        Ok(conditions)
    }

    /// Returns the combinations of single values of which a packet must match one. Each is a list of conditions with
    /// one value, or with several if negated.
    pub(crate) fn alternatives(conditions: &[Condition]) -> Vec<Vec<Condition>> {
        let mut all = vec![Vec::new()];
        for condition in conditions {
            let choices: Vec<Condition> = match condition.is_negated {
                true => vec![condition.clone()],
                false => condition.values.iter().map(|v| Condition { values: vec![v.clone()], ..*condition }).collect(),
            };
            let extend = |begun: &Vec<Condition>| {
                choices.iter().map(|choice| begun.iter().chain([choice]).cloned().collect()).collect::<Vec<_>>()
            };
            all = all.iter().flat_map(extend).collect();
        }
        all
    }

    /// Returns the matches of a rule for this condition. It must have one value unless it is negated.
    pub(crate) fn matches(&self) -> Vec<Match<'static>> {
        let how = if self.is_negated { Comparison::NotEqual } else { Comparison::Equal };
        let one = |value: &Value| match (self.subject, value) {
            (MatchedPart::Source, Value::Network(net)) => Match::Source(how, *net),
            (_, Value::Network(net)) => Match::Destination(how, *net),
            (MatchedPart::OutputLink, Value::Links(links)) => Match::OutputLink(how, links.clone()),
            (_, Value::Links(links)) => Match::InputLink(how, links.clone()),
        };
        self.values.iter().map(one).collect()
    }

    /// Appends the expressions of this condition to a rule. It must have one value unless it is negated.
    pub(crate) fn apply<'a>(&self, rule: RuleSpec<'a>) -> RuleSpec<'a> {
        self.matches().iter().fold(rule, |rule, found| found.append_to(rule))
    }

    /// Returns the options of `iptables` for this condition. It must have one value unless it is negated.
    pub(crate) fn options(&self) -> Vec<String> {
        self.matches().iter().map(Match::text).collect()
    }
}

impl fmt::Display for Condition {
    /// Formats the condition as `nft` would show it, for comparisons and for readers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ip = match self.values.first() {
            Some(Value::Network(net)) if net.ip().is_ipv6() => "ip6 ",
            Some(Value::Network(_)) => "ip ",
            _ => "",
        };
        let subject = match self.subject {
            MatchedPart::Source => "saddr",
            MatchedPart::Destination => "daddr",
            MatchedPart::InputLink => "iifname",
            MatchedPart::OutputLink => "oifname",
        };
        let values: Vec<String> = self
            .values
            .iter()
            .map(|value| match value {
                Value::Network(net) => net.to_string(),
                Value::Links(Links::Named(name)) => name.clone().into_owned(),
                Value::Links(Links::WithPrefix(prefix)) => format!("{prefix}*"),
            })
            .collect();
        let negation = if self.is_negated { "!= " } else { "" };
        write!(f, "{ip}{subject} {negation}{}", values.join(","))
    }
}

/// Parses the options of `iptables`, one word each.
fn parse_iptables(words: &[String], family: Family) -> Result<Vec<Condition>, Fault> {
    let mut conditions = Vec::new();
    let mut words = words.iter().enumerate();
    while let Some((index, word)) = words.next() {
        let (is_negated, index, option) = match word.as_str() {
            "!" => {
                let (index, option) = words.next().ok_or_else(|| at(index, "\"!\" is not followed by an option"))?;
                (true, index, option.as_str())
            }
            option => (false, index, option),
        };
        let subject = match option {
            "-s" | "--source" | "--src" => MatchedPart::Source,
            "-d" | "--destination" | "--dst" => MatchedPart::Destination,
            "-i" | "--in-interface" => MatchedPart::InputLink,
            "-o" | "--out-interface" => MatchedPart::OutputLink,
            _ => return Err(at(index, format_args!("{option:?} is not supported"))),
        };
        let (index, text) = words.next().ok_or_else(|| at(index, format_args!("{option:?} has no value")))?;
        let texts: Vec<&str> = match subject {
            MatchedPart::Source | MatchedPart::Destination => text.split(',').collect(),
            MatchedPart::InputLink | MatchedPart::OutputLink => vec![text.as_str()],
        };
        let value = |text: &str| Value::parse(subject, text, '+', family).map_err(|why| at(index, why));
        let values = texts.into_iter().map(value).collect::<Result<Vec<_>, _>>()?;
        if is_negated && values.len() > 1 {
            return Err(at(index, "a list cannot be negated"));
        }
        conditions.push(Condition { subject, is_negated, values });
    }
    Ok(conditions)
}

/// Parses the language of `nft`.
fn parse_nftables(text: &str, family: Family) -> Result<Vec<Condition>, Fault> {
    let spaced = text.replace('{', " { ").replace('}', " } ").replace(',', " , ");
    let mut words = spaced.split_whitespace().peekable();
    let mut conditions = Vec::new();
    let unsupported = |word: &str| Fault::value(format_args!("{word:?} is not supported in {text:?}"));
    let incomplete = || Fault::value(format_args!("{text:?} is incomplete"));
    while let Some(word) = words.next() {
        let subject = match (word, family) {
            ("ip", Family::Ipv4) | ("ip6", Family::Ipv6) => match words.next().ok_or_else(incomplete)? {
                "saddr" => MatchedPart::Source,
                "daddr" => MatchedPart::Destination,
                other => return Err(unsupported(other)),
            },
            ("iifname" | "iif", _) => MatchedPart::InputLink,
            ("oifname" | "oif", _) => MatchedPart::OutputLink,
            (other, _) => return Err(unsupported(other)),
        };
        let is_negated = words.next_if_eq(&"!=").is_some();
        if !is_negated {
            words.next_if_eq(&"==");
        }
        let value = |text: &str| Value::parse(subject, text.trim_matches('"'), '*', family).map_err(Fault::value);
        let mut values = Vec::new();
        if words.next_if_eq(&"{").is_some() {
            loop {
                match words.next().ok_or_else(incomplete)? {
                    "}" => break,
                    "," => {}
                    word => values.push(value(word)?),
                }
            }
        } else {
            values.push(value(words.next().ok_or_else(incomplete)?)?);
        }
        if values.is_empty() {
            return Err(Fault::value(format_args!("the list after {word:?} is empty")));
        }
        conditions.push(Condition { subject, is_negated, values });
    }
    Ok(conditions)
}

impl Value {
    /// Parses a value. `wildcard` at the end of a link's name stands for any further characters.
    fn parse(subject: MatchedPart, text: &str, wildcard: char, family: Family) -> Result<Value, String> {
        match subject {
            MatchedPart::Source | MatchedPart::Destination => {
                let net = match text.contains('/') {
                    true => text.parse::<Cidr>().map_err(|why| why.to_string())?,
                    false => Cidr::host(linux::ip::parse_ip(text).map_err(|why| why.to_string())?),
                };
                match Family::of(net.ip()) == family {
                    true => Ok(Value::Network(net.network())),
                    false => Err(format!("{text:?} is of the other address family")),
                }
            }
            MatchedPart::InputLink | MatchedPart::OutputLink => {
                let name = text.strip_suffix(wildcard).unwrap_or(text);
                match IfName::from_config(name) {
                    // Quotes would confuse the tools of iptables.
                    Ok(_) if !name.contains(['"', '\'', '\\']) => {
                        let links = if name.len() < text.len() { Links::WithPrefix } else { Links::Named };
                        Ok(Value::Links(links(name.to_owned().into())))
                    }
                    _ => Err(format!("{text:?} is not the name of an interface")),
                }
            }
        }
    }
}

/// Returns the fault of a word.
fn at(index: usize, why: impl fmt::Display) -> Fault {
    Fault::value(why).under(format_args!("[{index}]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str], family: Family) -> Result<String, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let conditions = Condition::parse(&words, family).map_err(|fault| fault.to_string())?;
        Ok(conditions.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
    }

    #[test]
    fn both_spellings_mean_the_same() {
        let both: [(&[&str], &[&str], &str); 5] = [
            (&["-s", "10.0.0.1/8"], &["ip saddr 10.0.0.0/8"], "ip saddr 10.0.0.0/8"),
            (&["!", "-d", "192.0.2.1"], &["ip", "daddr", "!=", "192.0.2.1"], "ip daddr != 192.0.2.1/32"),
            (&["-i", "eth0"], &["iifname", "\"eth0\""], "iifname eth0"),
            (&["!", "-o", "veth+"], &["oifname != veth*"], "oifname != veth*"),
            (
                &["-s", "10.0.0.0/8,192.0.2.0/24", "-i", "eth0"],
                &["ip saddr {10.0.0.0/8, 192.0.2.0/24} iifname eth0"],
                "ip saddr 10.0.0.0/8,192.0.2.0/24; iifname eth0",
            ),
        ];
        for (iptables, nftables, want) in both {
            assert_eq!(parse(iptables, Family::Ipv4).as_deref(), Ok(want));
            assert_eq!(parse(nftables, Family::Ipv4).as_deref(), Ok(want));
        }
        let exclusions = "ip daddr != { 127.0.0.0/8, 198.19.254.254 }";
        assert_eq!(parse(&[exclusions], Family::Ipv4).as_deref(), Ok("ip daddr != 127.0.0.0/8,198.19.254.254/32"));
        assert_eq!(parse(&["-s", "fd00::/8"], Family::Ipv6).as_deref(), Ok("ip6 saddr fd00::/8"));
        assert_eq!(parse(&[], Family::Ipv6).as_deref(), Ok(""));
    }

    #[test]
    fn everything_else_is_an_error_that_names_the_place() {
        let long = ["ip saddr {", &"10.0.0.1,".repeat(65), "}"];
        let cases: [(&[&str], &str); 16] = [
            (&[""], "the list has words, but no condition"),
            (&[" ", ""], "the list has words, but no condition"),
            (&["-m", "state"], "key \"[0]\": \"-m\" is not supported"),
            (&["-s"], "key \"[0]\": \"-s\" has no value"),
            (&["-i", "eth0", "!"], "key \"[2]\": \"!\" is not followed by an option"),
            (&["-s", "fd00::/8"], "key \"[1]\": \"fd00::/8\" is of the other address family"),
            (&["-s", "x"], "key \"[1]\": invalid IP address: \"x\""),
            (&["!", "-s", "10.0.0.1,10.0.0.2"], "key \"[2]\": a list cannot be negated"),
            (&["-i", "a/b"], "key \"[1]\": \"a/b\" is not the name of an interface"),
            (&["-i", "+"], "key \"[1]\": \"+\" is not the name of an interface"),
            (&["a", "b"], "\"a\" is not supported in \"a b\""),
            (&["ip saddr"], "\"ip saddr\" is incomplete"),
            (&["ip saddr {"], "\"ip saddr {\" is incomplete"),
            (&["ip saddr {}"], "the list after \"ip\" is empty"),
            (&["ip6 saddr fd00::/8"], "\"ip6\" is not supported in \"ip6 saddr fd00::/8\""),
            (&long, "the lists have 65 combinations, more than 64"),
        ];
        for (words, want) in cases {
            assert_eq!(parse(words, Family::Ipv4).unwrap_err(), want, "{words:?}");
        }
    }

    #[test]
    fn lists_expand_to_alternatives() {
        let words =
            ["ip saddr { 10.0.0.1, 10.0.0.2 } iifname { a, b } ip daddr != { 192.0.2.1, 192.0.2.2 }".to_owned()];
        let conditions = Condition::parse(&words, Family::Ipv4).unwrap();
        let all = Condition::alternatives(&conditions);
        assert_eq!(all.len(), 4);
        assert_eq!(
            all[3].iter().flat_map(Condition::options).collect::<Vec<_>>(),
            ["-s 10.0.0.2/32", "-i b", "! -d 192.0.2.1/32", "! -d 192.0.2.2/32"]
        );
        assert_eq!(Condition::alternatives(&[]), [vec![]]);
    }
}
