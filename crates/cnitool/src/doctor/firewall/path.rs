//! Follows packets of containers through the rules of a chain and of the chains that it leads to. Pure logic without
//! I/O.

use std::collections::BTreeMap;
use std::net::IpAddr;

use linux::netlink::nft::Condition;

use super::packets::{Match, Packets};

/// The prefixes of chains that plugins create, here and in the reference.
const OF_PLUGINS: [&str; 2] = ["CNI-", "cni-"];
/// The chain in which the plugin `firewall` accepts the packets of its containers, after the rules of the
/// administrator.
const ACCEPTING: &str = "CNI-FORWARD";
const ADMIN: &str = "CNI-ADMIN";

/// The rules of each chain that packets can reach, by the name of the chain.
pub(super) type Chains = BTreeMap<String, Vec<Rule>>;

/// A rule of nf_tables or of a legacy table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) conditions: Vec<Condition>,
    pub(super) verdict: Verdict,
    /// How a user finds the rule, such as `ip filter FORWARD handle 7`.
    pub(super) name: String,
}

/// What a rule decides about packets that it matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Accept,
    /// Drops or rejects them.
    Refuse,
    Return,
    /// Continues in another chain, then here.
    Jump(String),
    /// Continues in another chain without coming back.
    Goto(String),
    /// Replaces the destination, which also decides.
    TranslateDestination,
    /// Replaces the source by this address, which also decides.
    TranslateSource(IpAddr),
    /// Decides nothing.
    Continue,
}

impl Verdict {
    /// Returns the chain in which packets continue.
    fn target(&self) -> Option<&str> {
        match self {
            Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain),
            _ => None,
        }
    }

    /// Returns the chain in which packets continue, unless a plugin decides there for each container.
    pub(super) fn followed(&self) -> Option<&str> {
        let is_of_plugin = |chain: &str| OF_PLUGINS.iter().any(|prefix| chain.starts_with(prefix));
        self.target().filter(|chain| !is_of_plugin(chain) || [ACCEPTING, ADMIN].contains(chain))
    }
}

/// Returns whether a chain leads to the one in which the plugin `firewall` accepts packets.
pub(super) fn leads_to_acceptance(chains: &Chains, base: &str) -> bool {
    chains.get(base).into_iter().flatten().any(|rule| rule.verdict.target() == Some(ACCEPTING))
}

/// Where packets get to in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End<'a> {
    /// Its end, or a rule that returns.
    Continue,
    /// A rule accepts them.
    Accepted,
    /// A rule that is about containers, or in another chain, refuses them.
    Refused(&'a Rule),
    /// The rule of the base chain with this number is not about containers, and refuses all packets that come that far.
    RefusedWithOthers(usize),
}

/// What a base chain does to packets of containers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Effect<'a> {
    /// The rules that drop some or all of them.
    pub(super) rules: Vec<&'a Rule>,
    /// What drops those that no rule accepts.
    pub(super) last: Option<Last>,
    /// The rule that drops all of them before they get to the rules of a plugin, which accepts them.
    pub(super) above: Option<&'a Rule>,
    /// The rules that may drop some of them.
    pub(super) unclear: Vec<&'a Rule>,
}

/// What drops packets that no rule accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Last {
    /// The rule of the base chain with this number, from 1.
    Rule(usize),
    Policy,
}

/// Follows packets through a base chain: the first rule that matches decides. `is_accepted` means that a plugin accepts
/// them in a chain of its own, or would do so if the base chain led there, which the plugin reports itself.
pub(super) fn follow<'a>(chains: &'a Chains, base: &str, drops: bool, of: &Packets, is_accepted: bool) -> Effect<'a> {
    let mut walk = Walk::new(chains, of, is_accepted);
    let end = walk.chain(base, true);
    let mut rules = walk.partial;
    let last = match end {
        End::Accepted => None,
        End::Continue => drops.then_some(Last::Policy),
        End::RefusedWithOthers(number) => Some(Last::Rule(number)),
        End::Refused(rule) => {
            rules.push(rule);
            None
        }
    };
    let above = match last {
        Some(Last::Rule(number)) if is_accepted && leads_to_acceptance(chains, base) => {
            chains.get(base).and_then(|all| all.get(number - 1))
        }
        _ => None,
    };
    Effect { rules, last: last.filter(|_| !is_accepted), above, unclear: walk.unclear }
}

/// Returns the rule that certainly refuses all these packets, if it is about them, and how it gets them. Nothing else
/// may have decided about any of them before.
pub(super) fn refusing<'a>(chains: &'a Chains, base: &str, of: &Packets, is_accepted: bool) -> Option<&'a Rule> {
    let mut walk = Walk::new(chains, of, is_accepted);
    match walk.chain(base, true) {
        End::Refused(rule) if !walk.may_have_left => Some(rule),
        _ => None,
    }
}

struct Walk<'a, 'b> {
    chains: &'a Chains,
    packets: &'b Packets,
    is_accepted: bool,
    /// Whether some of the packets may have left the base chain by a rule that accepts them.
    may_have_left: bool,
    /// The rules that are about the packets, and refuse some of them on conditions that are not examined.
    unclear: Vec<&'a Rule>,
    /// The rules that refuse a part of the packets.
    partial: Vec<&'a Rule>,
    /// Where packets get to in each chain that another one leads to.
    ends: BTreeMap<&'a str, End<'a>>,
}

impl<'a, 'b> Walk<'a, 'b> {
    fn new(chains: &'a Chains, packets: &'b Packets, is_accepted: bool) -> Walk<'a, 'b> {
        let (partial, unclear) = (Vec::new(), Vec::new());
        Walk { chains, packets, is_accepted, may_have_left: false, unclear, partial, ends: BTreeMap::new() }
    }

    /// Follows packets through a chain that another one leads to. Each is followed once: the number of paths to it can
    /// double with every chain on the way.
    fn other_chain(&mut self, name: &'a str) -> End<'a> {
        if let Some(end) = self.ends.get(name) {
            return *end;
        }
        // For a chain that leads to itself, which the kernel refuses.
        self.ends.insert(name, End::Continue);
        let end = self.chain(name, false);
        self.ends.insert(name, end);
        end
    }

    /// Follows the packets through a chain until a rule decides about all of them. A rule that refuses only some of
    /// them becomes a part of `partial`.
    fn chain(&mut self, name: &str, is_base: bool) -> End<'a> {
        // Some packets may have left the chain by an earlier rule.
        let mut may_leave = false;
        for (number, rule) in (1..).zip(self.chains.get(name).into_iter().flatten()) {
            let (matched, is_about) = self.packets.compare(rule);
            let is_certain = matched == Match::All;
            match &rule.verdict {
                _ if matched == Match::None => {}
                Verdict::Accept | Verdict::Return | Verdict::TranslateDestination | Verdict::TranslateSource(_)
                    if !is_certain =>
                {
                    may_leave = true;
                    self.may_have_left |= rule.verdict != Verdict::Return;
                }
                Verdict::Accept | Verdict::TranslateDestination | Verdict::TranslateSource(_) => return End::Accepted,
                Verdict::Return => return End::Continue,
                Verdict::Refuse if matched == Match::Unknown => self.unclear.extend(is_about.then_some(rule)),
                _ if matched == Match::Unknown => {}
                Verdict::Refuse if is_certain && is_about => return End::Refused(rule),
                Verdict::Refuse if is_certain && is_base => return End::RefusedWithOthers(number),
                Verdict::Refuse if is_certain && !may_leave => return End::Refused(rule),
                Verdict::Refuse if is_about => self.partial.push(rule),
                Verdict::Jump(chain) | Verdict::Goto(chain) => match self.other_chain(chain) {
                    End::Continue if is_certain && self.is_accepted && chain == ACCEPTING => return End::Accepted,
                    End::Accepted if !is_certain => {
                        may_leave = true;
                        self.may_have_left = true;
                    }
                    End::Refused(inner) if !is_certain => self.partial.extend(is_about.then_some(inner)),
                    End::Continue if is_certain && matches!(rule.verdict, Verdict::Goto(_)) => return End::Continue,
                    End::Continue => {}
                    end => return end,
                },
                Verdict::Refuse | Verdict::Continue => {}
            }
        }
        End::Continue
    }
}

#[cfg(test)]
mod tests {
    use linux::netlink::nft::{Family, LinkPattern, Property, Side};

    use super::*;

    fn link(side: Side, name: &str) -> Condition {
        Condition { is_negated: false, property: Property::Link(side, LinkPattern::Name(name.to_owned())) }
    }

    fn address(side: Side, net: &str) -> Condition {
        Condition { is_negated: false, property: Property::Address(side, net.parse().unwrap()) }
    }

    fn not(condition: Condition) -> Condition {
        Condition { is_negated: true, ..condition }
    }

    fn other() -> Condition {
        Condition { is_negated: false, property: Property::Other }
    }

    fn rule(conditions: &[Condition], verdict: Verdict) -> Rule {
        Rule { conditions: conditions.to_vec(), verdict, name: "r".to_owned() }
    }

    fn chains(named: &[(&str, Vec<Rule>)]) -> Chains {
        named.iter().map(|(name, rules)| ((*name).to_owned(), rules.clone())).collect()
    }

    /// Packets from the containers on the bridge `br`.
    fn outgoing() -> Packets {
        Packets {
            links: [Some(vec!["br".to_owned()]), None],
            addresses: [Some(vec!["10.1.0.0/24".parse().unwrap()]), None],
            families: vec![Family::Ipv4],
            ..Packets::default()
        }
    }

    /// Returns the number of rules that drop outgoing packets, and whether those that no rule accepts are dropped.
    fn effect(base: Vec<Rule>, drops: bool) -> (usize, bool) {
        effect_in(&chains(&[("base", base)]), drops)
    }

    fn effect_in(chains: &Chains, drops: bool) -> (usize, bool) {
        let effect = follow(chains, "base", drops, &outgoing(), false);
        (effect.rules.len(), effect.last.is_some())
    }

    use Side::{From as Source, To};
    use Verdict::{Accept, Goto, Jump, Refuse, Return};

    #[test]
    fn a_policy_applies_to_what_no_rule_accepts() {
        assert_eq!(effect(vec![], true), (0, true));
        assert_eq!(effect(vec![], false), (0, false));
        assert_eq!(effect(vec![rule(&[], Refuse)], false), (0, true));
        assert_eq!(effect(vec![rule(&[], Accept), rule(&[], Refuse)], true), (0, false));
        assert_eq!(effect(vec![rule(&[link(Source, "br")], Accept)], true), (0, false));
        assert_eq!(effect(vec![rule(&[link(Source, "eth0")], Accept)], true), (0, true));
        assert_eq!(effect(vec![rule(&[other()], Accept)], true), (0, true), "only some connections");
        assert_eq!(effect(vec![rule(&[address(Source, "10.1.0.128/25")], Accept)], true), (0, true), "only a part");
    }

    #[test]
    fn only_rules_about_containers_are_reported() {
        for about in [
            vec![link(Source, "br")],
            vec![link(Source, "br"), link(To, "eth0")],
            vec![address(Source, "10.1.0.0/24")],
            vec![address(Source, "10.0.0.0/8")],
            vec![address(Source, "10.1.0.7/32")],
            vec![link(Source, "br"), Condition { is_negated: false, property: Property::Protocol }],
            vec![link(Source, "br"), not(link(To, "br"))],
        ] {
            assert_eq!(effect(vec![rule(&about, Refuse)], false), (1, false), "{about:?}");
        }
        for not_about in [
            vec![link(Source, "eth0")],
            vec![not(link(Source, "br"))],
            vec![address(Source, "10.2.0.0/24")],
            vec![not(address(Source, "10.1.0.0/24")), link(Source, "br")],
            vec![other()],
            vec![link(Source, "br"), other()],
            vec![link(To, "eth0")],
            vec![Condition { is_negated: false, property: Property::Protocol }],
            vec![Condition { is_negated: false, property: Property::Family(Family::Ipv6) }],
        ] {
            assert_eq!(effect(vec![rule(&not_about, Refuse)], false), (0, false), "{not_about:?}");
        }
        let accepted = rule(&[link(Source, "br")], Accept);
        assert_eq!(effect(vec![accepted, rule(&[link(Source, "br")], Refuse)], false), (0, false), "accepted before");
    }

    #[test]
    fn links_match_by_prefix() {
        let prefix = |text: &str| Condition {
            is_negated: false,
            property: Property::Link(Source, LinkPattern::Prefix(text.to_owned())),
        };
        assert_eq!(effect(vec![rule(&[prefix("b")], Refuse)], false), (1, false));
        assert_eq!(effect(vec![rule(&[prefix("x")], Refuse)], false), (0, false));
        assert_eq!(effect(vec![rule(&[prefix("")], Refuse)], false), (0, true), "every link");
    }

    #[test]
    fn other_chains_are_followed() {
        let jump = |conditions: &[Condition]| rule(conditions, Jump("next".to_owned()));
        let drop = || vec![rule(&[], Refuse)];
        let in_next =
            |first: Rule, next: Vec<Rule>, drops| effect_in(&chains(&[("base", vec![first]), ("next", next)]), drops);
        assert_eq!(in_next(jump(&[]), drop(), false), (1, false));
        assert_eq!(in_next(jump(&[link(Source, "br")]), drop(), false), (1, false));
        assert_eq!(in_next(jump(&[link(Source, "eth0")]), drop(), false), (0, false));
        assert_eq!(in_next(jump(&[link(To, "eth0")]), drop(), false), (0, false), "not about containers");
        assert_eq!(in_next(jump(&[other()]), drop(), false), (0, false));
        assert_eq!(in_next(jump(&[]), vec![rule(&[], Return)], true), (0, true));
        assert_eq!(in_next(jump(&[]), vec![rule(&[], Accept)], true), (0, false));
        // As chains that check the sender: packets that pass leave the chain.
        let guarded = || vec![rule(&[other()], Return), rule(&[], Refuse)];
        assert_eq!(in_next(jump(&[link(Source, "br")]), guarded(), false), (0, false));
        assert_eq!(in_next(rule(&[], Goto("next".to_owned())), vec![], true), (0, true));
        let cycle = chains(&[("base", vec![jump(&[])]), ("next", vec![jump(&[])])]);
        assert_eq!(effect_in(&cycle, false), (0, false));
    }

    #[test]
    fn a_chain_is_followed_once_however_many_paths_lead_to_it() {
        let jumps = |target: u32| vec![rule(&[], Jump(target.to_string())); 2];
        let mut all = chains(&[("base", jumps(1)), ("16", vec![rule(&[address(Source, "10.1.0.7/32")], Refuse)])]);
        all.extend((1..16).map(|chain| (chain.to_string(), jumps(chain + 1))));
        assert_eq!(effect_in(&all, false), (1, false));
        let jump = |conditions: &[Condition]| rule(conditions, Jump("next".to_owned()));
        let some = Condition { is_negated: false, property: Property::Protocol };
        let twice = chains(&[("base", vec![jump(&[some]), jump(&[])]), ("next", vec![rule(&[], Refuse)])]);
        assert_eq!(effect_in(&twice, false), (1, false), "the second rule refuses all packets");
    }

    #[test]
    fn chains_of_plugins_accept_only_for_their_network() {
        let jump = rule(&[], Jump("CNI-FORWARD".to_owned()));
        let isolation = rule(&[], Jump("CNI-ISOLATION-STAGE-1".to_owned()));
        let accepting = chains(&[("base", vec![isolation, jump.clone(), rule(&[], Refuse)])]);
        let of = |is_accepted| follow(&accepting, "base", true, &outgoing(), is_accepted).last;
        assert_eq!((of(false), of(true)), (Some(Last::Rule(3)), None));
        let before = |conditions: &[Condition]| chains(&[("base", vec![rule(conditions, Refuse), jump.clone()])]);
        for (conditions, rules, above) in [(&[][..], 0, true), (&[link(Source, "br")], 1, false)] {
            let chains = before(conditions);
            let effect = follow(&chains, "base", true, &outgoing(), true);
            assert_eq!(
                (effect.rules.len(), effect.above.is_some(), effect.last),
                (rules, above, None),
                "{conditions:?}"
            );
        }
        for flushed in [vec![], vec![rule(&[], Refuse)]] {
            let flushed = chains(&[("base", flushed)]);
            assert_eq!(follow(&flushed, "base", true, &outgoing(), true), Effect::default(), "the plugin reports it");
        }
        // The rules of the administrator come before those of the plugin.
        let to = |name: &str| vec![rule(&[], Jump(name.to_owned()))];
        let admin =
            |rules| chains(&[("base", vec![jump.clone()]), ("CNI-FORWARD", to("CNI-ADMIN")), ("CNI-ADMIN", rules)]);
        let refusing = admin(vec![rule(&[], Refuse)]);
        assert_eq!(follow(&refusing, "base", true, &outgoing(), true).rules.len(), 1);
        assert_eq!(follow(&admin(vec![]), "base", true, &outgoing(), true), Effect::default());
    }
}
