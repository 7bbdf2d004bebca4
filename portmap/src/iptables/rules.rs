//! The rules of published ports, in the order of the reference.

use std::net::{IpAddr, Ipv4Addr};

use cni::{Code, Error, Result};
use linux::ip::{Cidr, Protocol};
use linux::iptables::{MAX_PORTS, Match, Rule, Step, Target, View};
use linux::netlink::nft::Hook;

use super::names::{self, ContainerChain, ENTRIES, SET_MARK};
use super::{TablePlan, found};
use crate::condition::Condition;
use crate::config::{Config, Marking, Masquerade};
use crate::host::Host;
use crate::mapping::{Key, Mapping, Port};
use crate::publication::PortRemoval;

/// A rule that all containers share.
#[derive(Debug)]
pub(super) struct SharedRule<'a> {
    pub(super) rule: Rule<'a>,
    /// The hook of the chain, if it is a base chain.
    hook: Option<Hook>,
    /// Whether the rule comes before all others of its chain.
    is_first: bool,
}

impl<'a> SharedRule<'a> {
    fn new(chain: &'a str, found: Match<'a>, target: Target<'a>, hook: Option<Hook>) -> SharedRule<'a> {
        SharedRule { rule: Rule::new(chain, vec![found], target), hook, is_first: false }
    }

    /// Returns whether the rule exists. Either implementation may have added it.
    fn exists(&self, view: &mut View<'_>) -> Result<bool> {
        let Rule { chain, target, matches, .. } = &self.rule;
        Ok(match (target, &matches[..]) {
            (Target::Jump(to), _) => view.has_jump(chain, to)?,
            (Target::SetMark(bit), _) => found::list(view, chain)?.iter().any(|rule| rule.sets_mark == Some(*bit)),
            (_, [Match::PacketMark(bit)]) => {
                found::list(view, chain)?.iter().any(|rule| rule.masquerades == Some(*bit))
            }
            _ => false,
        })
    }
}

/// The rules that publish the ports of one address of a container.
#[derive(Debug)]
pub(super) struct Rules<'a> {
    pub(super) chain: &'a ContainerChain,
    pub(super) mappings: &'a [Mapping],
    shared: Vec<SharedRule<'a>>,
    /// The rules that lead to the chain of the container.
    pub(super) entries: Vec<Rule<'a>>,
    /// The rules of the chain of the container for each mapping: those that mark packets, and the one that translates.
    pub(super) translations: Vec<Vec<Rule<'a>>>,
    /// The chain of another program that marks packets.
    external: Option<&'a str>,
}

impl<'a> Rules<'a> {
    pub(super) fn new(
        chain: &'a ContainerChain,
        config: &'a Config,
        address: Cidr,
        mappings: &'a [Mapping],
        link: Option<&'a str>,
    ) -> Result<Rules<'a>> {
        let marking = (config.masquerade != Masquerade::Never).then_some(&config.marking);
        let (set_mark, external) = match marking {
            Some(Marking::Chain(external)) => (Some(external.as_str()), Some(external.as_str())),
            Some(Marking::Bit(_)) => (Some(SET_MARK), None),
            None => (None, None),
        };
        let sources = sources(address, config.masquerade);
        let mut translations = Vec::new();
        for Mapping { key, target } in mappings {
            let rule = |source: Option<Cidr>, target| {
                let mut matches = vec![Match::Protocol(key.protocol)];
                // `iptables` leaves out a network that includes all addresses.
                matches.extend(source.filter(|net| net.prefix() > 0).map(Match::source));
                matches.extend(key.host_ip.map(Match::destination));
                matches.push(Match::Port(key.protocol, key.port));
                Rule::new(&chain.name, matches, target)
            };
            let marks = sources.iter().filter_map(|source| Some(rule(Some(*source), Target::Jump(set_mark?))));
            translations.push(marks.chain([rule(None, Target::Translate(*target))]).collect());
        }
        Ok(Rules {
            chain,
            mappings,
            shared: shared(marking),
            entries: entries(chain, &config.ports, config.conditions(address.ip()), link)?,
            translations,
            external,
        })
    }

    /// Returns the shared rules that do not exist.
    pub(super) fn missing(&self, view: &mut View<'_>) -> Result<Vec<&SharedRule<'a>>> {
        let mut missing = Vec::new();
        for shared in &self.shared {
            if !shared.exists(view)? {
                missing.push(shared);
            }
        }
        Ok(missing)
    }

    /// Returns the steps that add the rules, after those that remove the rules of an earlier ADD.
    pub(super) fn plan(
        &self,
        host: &mut Host,
        view: &mut View<'_>,
        removal: &PortRemoval<'_>,
    ) -> Result<TablePlan<'a>> {
        if let Some(external) = self.external
            && !view.has_chain(external)?
        {
            let what = format!("publish ports: chain {external:?} does not exist in table nat");
            return Err(Error::new(Code::TRY_LATER, what)
                .details("start the program that creates it, or remove \"externalSetMarkChain\""));
        }
        let mut steps = self.create_shared(view)?;
        if view.has_chain(&self.chain.name)? {
            steps.extend(removal.plan(host, view, self.chain, false)?.steps);
        } else {
            steps.push(Step::CreateChain(&self.chain.name));
        }
        steps.extend(self.translations.iter().flatten().chain(&self.entries).cloned().map(Step::Append));
        Ok(TablePlan { steps, removed: vec![] })
    }

    /// Returns the steps that create missing shared rules and their chains.
    fn create_shared(&self, view: &mut View<'_>) -> Result<Vec<Step<'a>>> {
        let missing = self.missing(view)?;
        let mut steps: Vec<Step<'a>> = Vec::new();
        let mut known: Vec<&str> = Vec::new();
        for shared in &missing {
            let target = match shared.rule.target {
                Target::Jump(target) => Some((target, None)),
                _ => None,
            };
            for (chain, hook) in [Some((shared.rule.chain, shared.hook)), target].into_iter().flatten() {
                if !known.contains(&chain) && !view.has_chain(chain)? {
                    steps.push(match hook {
                        Some(hook) => Step::CreateBaseChain(chain, hook),
                        None => Step::CreateChain(chain),
                    });
                }
                known.push(chain);
            }
        }
        steps.extend(missing.into_iter().map(|shared| match shared.is_first {
            true => Step::Prepend(shared.rule.clone()),
            false => Step::Append(shared.rule.clone()),
        }));
        Ok(steps)
    }
}

/// Returns the shared rules.
fn shared(marking: Option<&Marking>) -> Vec<SharedRule<'static>> {
    let mut rules = Vec::new();
    if let Some(Marking::Bit(bit)) = marking {
        let comment = Match::Comment("CNI portfwd masquerade mark");
        rules.push(SharedRule::new(SET_MARK, comment, Target::SetMark(*bit), None));
        rules.push(SharedRule::new(names::MASQUERADE, Match::PacketMark(*bit), Target::Masquerade, None));
        let comment = Match::Comment("CNI portfwd requiring masquerade");
        let target = Target::Jump(names::MASQUERADE);
        let postrouting = SharedRule::new("POSTROUTING", comment, target, Some(Hook::SOURCE_NAT));
        // The masquerade of other plugins would end the chain.
        rules.push(SharedRule { is_first: true, ..postrouting });
    }
    for (chain, hook) in [("PREROUTING", Hook::DESTINATION_NAT), ("OUTPUT", Hook::LOCAL_DESTINATION_NAT)] {
        rules.push(SharedRule::new(chain, Match::ToThisHost, Target::Jump(ENTRIES), Some(hook)));
    }
    rules
}

/// Returns the sources whose connections to a container are masqueraded.
fn sources(address: Cidr, masquerade: Masquerade) -> Vec<Cidr> {
    match masquerade {
        Masquerade::Never => vec![],
        Masquerade::Always => vec![Cidr::default_route(address.ip())],
        Masquerade::Local if address.ip().is_ipv6() => vec![address.network()],
        Masquerade::Local => vec![address.network(), Cidr::host(IpAddr::from(Ipv4Addr::LOCALHOST))],
    }
}

/// Returns the rules that lead to the chain of a container: one for each protocol, 15 ports, and combination of
/// conditions.
///
/// As those of the reference, they also list ports that are published only at addresses of the other family. The chain
/// does not translate these.
fn entries<'a>(
    chain: &'a ContainerChain,
    ports: &[Port],
    conditions: &[Condition],
    link: Option<&'a str>,
) -> Result<Vec<Rule<'a>>> {
    let alternatives = Condition::alternatives(conditions);
    for alternative in &alternatives {
        refuse_repetition(alternative)?;
    }
    let mut entries = Vec::new();
    for protocol in Protocol::ALL {
        let ports: Vec<u16> =
            ports.iter().filter(|port| port.protocol == protocol).map(|port| port.host_port).collect();
        for ports in ports.chunks(MAX_PORTS) {
            for alternative in &alternatives {
                let mut matches: Vec<Match<'a>> = alternative.iter().flat_map(Condition::matches).collect();
                matches.push(Match::Protocol(protocol));
                matches.push(Match::Comment(&chain.comment));
                matches.push(Match::Ports(ports.to_vec()));
                entries.push(Rule { mark: link, ..Rule::new(ENTRIES, matches, Target::Jump(&chain.name)) });
            }
        }
    }
    Ok(entries)
}

/// Returns whether an entry rule leads packets to a published port into the chain of the container.
pub(super) fn covers(entry: &Rule<'_>, key: &Key) -> bool {
    entry.matches.iter().all(|found| match found {
        Match::Protocol(protocol) => *protocol == key.protocol,
        Match::Ports(ports) => ports.contains(&key.port),
        _ => true,
    })
}

/// Returns an error if conditions have the same option twice, which `iptables` does not allow in a rule.
fn refuse_repetition(conditions: &[Condition]) -> Result<()> {
    let mut known: Vec<String> = Vec::new();
    for options in conditions.iter().flat_map(Condition::options) {
        let option = options.trim_start_matches("! ").split(' ').next().unwrap_or_default().to_owned();
        if known.contains(&option) {
            let what = format!("publish ports with iptables: the conditions have option {option:?} more than once");
            return Err(Error::new(Code::CONFIG, what)
                .details("use one network or interface for each option, or set \"backend\" to \"nftables\""));
        }
        known.push(option);
    }
    Ok(())
}
