//! The form in which ports are published: maps in an nf_tables table of this plugin, which a packet looks up once,
//! however many ports there are.
//!
//! ```text
//! table inet cni_hostport {
//!     chain prerouting   { type nat hook prerouting priority -99    fib daddr type local jump published }
//!     chain output       { type nat hook output priority -99        fib daddr type local jump published }
//!     chain published    { meta nfproto ipv4 jump ipv4_translate }
//!     chain ipv4_translate {
//!         adds ip daddr to @ipv4_reached, if one of the maps has the packet
//!         dnat ip to ip daddr . meta l4proto . th dport map @ipv4_address_ports
//!         dnat ip to meta l4proto . th dport map @ipv4_ports }
//!     chain postrouting  { type nat hook postrouting priority 100
//!         ct status dnat ct original ip daddr @ipv4_reached ip saddr . ip daddr @ipv4_masquerade masquerade }
//!     chain guard        { type filter hook prerouting priority -300   drops 127.0.0.0/8 from other links than lo }
//!     chain replies      { type filter hook prerouting priority -90    marks replies to 127.0.0.0/8, for the guard }
//!     set attachments    one element for each attachment, so that a repeated ADD is noticed
//!     map inventory      what each attachment has in the table; every element leads to a chain that it needs
//!     map versions       a number that changes with every ADD of a port at one address
//!     chain attached     counts attachments: the kernel counts the elements that lead to it
//!     chain attached_7   counts those whose ports loopback addresses reach through the link with this index
//! }
//! ```
//!
//! The same objects exist for `ipv6`. A network with conditions has a [`Scope`] of its own. All objects are created
//! when the first ADD needs them. This module has all that does not belong to a single attachment: chains, rules, and
//! the definitions of maps and sets. Their elements are in [`entry`](crate::entry).

use std::net::{IpAddr, Ipv4Addr};

use cni::Result;
use linux::ip::Cidr;
use linux::netlink::nft::{
    Chain, Comparison, DataType, Edit, Element, Elements, Family, Field, Hook, MapsTo, Nftables, Position, Rule,
    RuleSpec, Set, SetSpec, Table, Verdict,
};
use linux::netlink::{LOOPBACK_REPLY, LinkIndex};
use linux::sha2::sha512;

use crate::condition::Condition;
use crate::mapping::Key;

/// Unlike the reference, which has a table of this name for each family, this one has both families.
pub(crate) const TABLE: Table<'_> = Table { family: Family::Inet, name: "cni_hostport" };
const PREROUTING: Chain<'_> = TABLE.chain("prerouting");
const OUTPUT: Chain<'_> = TABLE.chain("output");
const PUBLISHED: Chain<'_> = TABLE.chain("published");
const POSTROUTING: Chain<'_> = TABLE.chain("postrouting");
/// The chain to which the inventories of attachments lead.
const ATTACHED: Chain<'_> = TABLE.chain("attached");
const GUARD: Chain<'_> = TABLE.chain("guard");
const REPLIES: Chain<'_> = TABLE.chain("replies");
/// The attachments that have anything in this table.
pub(crate) const ATTACHMENTS: &str = "attachments";
/// What each attachment has in this table.
pub(crate) const INVENTORY: &str = "inventory";
/// Numbers that change with what they count.
pub(crate) const VERSIONS: &str = "versions";

/// The most addresses of this host that are recorded. A host with local routes may have any number of addresses.
const MAX_REACHED: u32 = 1 << 16;

/// The names of the maps and the chain of a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) family: Family,
    pub(crate) translate: String,
    pub(crate) ports: String,
    pub(crate) address_ports: String,
    masquerade: String,
    pub(crate) reached: String,
}

impl Names {
    /// Returns the names for a suffix, which is empty for the scope without conditions.
    pub(crate) fn new(family: Family, suffix: &str) -> Names {
        let prefix = prefix(family);
        Names {
            family,
            translate: format!("{prefix}_translate{suffix}"),
            ports: format!("{prefix}_ports{suffix}"),
            address_ports: format!("{prefix}_address_ports{suffix}"),
            masquerade: format!("{prefix}_masquerade"),
            reached: format!("{prefix}_reached"),
        }
    }
}

/// What the name of a map says about its keys and its scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapName<'a> {
    pub(crate) family: Family,
    /// Whether its keys have an address of this host.
    pub(crate) has_addresses: bool,
    /// Empty for the scope without conditions.
    pub(crate) suffix: &'a str,
}

impl MapName<'_> {
    /// Returns `None` for other sets.
    pub(crate) fn parse(name: &str) -> Option<MapName<'_>> {
        [Family::Ipv4, Family::Ipv6].into_iter().find_map(|family| {
            let rest = name.strip_prefix(prefix(family))?;
            let of_one = rest.strip_prefix("_address_ports");
            let suffix = of_one.or_else(|| rest.strip_prefix("_ports"))?;
            Some(MapName { family, has_addresses: of_one.is_some(), suffix })
        })
    }
}

/// Packets of one address family to which the same conditions apply. Their mappings share maps, in which two mappings
/// with the same key exclude each other. Scopes with conditions are looked up before the one without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scope {
    conditions: Vec<Condition>,
    names: Names,
}

impl Scope {
    /// Returns the scope of mappings to an address with these conditions.
    pub(crate) fn new(container: IpAddr, conditions: &[Condition]) -> Scope {
        let text: Vec<String> = conditions.iter().map(ToString::to_string).collect();
        let suffix = match conditions {
            [] => String::new(),
            _ => format!("_{}", sha512(8, &text.join(" "))),
        };
        Scope { conditions: conditions.to_vec(), names: Names::new(Family::of(container), &suffix) }
    }

    /// Returns the name of the map for mappings with this key.
    pub(crate) fn map(&self, key: &Key) -> &str {
        if key.host_ip.is_some() { &self.names.address_ports } else { &self.names.ports }
    }

    /// Returns the name of the set of connections to masquerade.
    pub(crate) fn masquerade(&self) -> &str {
        &self.names.masquerade
    }

    /// Returns the chain that must not be deleted while an attachment uses the scope; `None` for the scope without
    /// conditions, which is never deleted.
    pub(crate) fn chain(&self) -> Option<&str> {
        (!self.conditions.is_empty()).then_some(&*self.names.translate)
    }

    /// Returns the edits that create the chain, the maps and the set unless they exist.
    fn create(&self) -> Vec<Edit> {
        let Names { family, translate, ports, address_ports, masquerade, reached } = &self.names;
        let ip = address_type(*family);
        let map = |name: &'_ str, key: &[DataType]| {
            let maps_to = MapsTo::Values(&[ip, DataType::Port]);
            Edit::add_set(&SetSpec { set: set(name), key, maps_to, elements: Elements::Keys })
        };
        vec![
            Edit::add_chain(TABLE.chain(translate)),
            map(ports, &[DataType::Protocol, DataType::Port]),
            map(address_ports, &[ip, DataType::Protocol, DataType::Port]),
            Edit::add_set(&SetSpec {
                set: set(masquerade),
                key: &[ip, ip],
                maps_to: MapsTo::Nothing,
                elements: Elements::Ranges,
            }),
            Edit::add_set(&SetSpec {
                set: set(reached),
                key: &[ip],
                maps_to: MapsTo::Nothing,
                elements: Elements::AddedByRules(MAX_REACHED),
            }),
        ]
    }

    /// Returns the rules of this scope.
    fn rules<'a>(&'a self) -> Vec<FixedRule<'a>> {
        let Names { family, translate, ports, address_ports, masquerade, reached } = &self.names;
        let (source, destination, original) = match family {
            Family::Ipv4 => (Field::SOURCE_V4, Field::DESTINATION_V4, Field::ORIGINAL_DESTINATION_V4),
            _ => (Field::SOURCE_V6, Field::DESTINATION_V6, Field::ORIGINAL_DESTINATION_V6),
        };
        let (chain, family) = (TABLE.chain(translate), *family);
        let mut rules = Vec::new();
        for (number, alternative) in Condition::alternatives(&self.conditions).into_iter().enumerate() {
            let comment = if number == 0 { translate.clone() } else { format!("{translate} {number}") };
            let place = if self.conditions.is_empty() { RulePlace::Last } else { RulePlace::First };
            rules.push(FixedRule::new(PUBLISHED, comment, place, move |rule| {
                alternative.iter().fold(rule.family(family), |rule, condition| condition.apply(rule)).jump(translate)
            }));
        }
        rules.push(FixedRule::new(chain, "ports of one address", RulePlace::First, move |rule| {
            let key = [destination, Field::PROTOCOL, Field::DESTINATION_PORT];
            rule.translate_destination_by(family, &key, address_ports)
        }));
        rules.push(FixedRule::new(chain, "ports of all addresses", RulePlace::Last, move |rule| {
            rule.translate_destination_by(family, &[Field::PROTOCOL, Field::DESTINATION_PORT], ports)
        }));
        // Connections to addresses of other hosts that are translated to a container, such as those of services, must
        // keep their source. So the first packets to published ports record which addresses of this host they reach.
        // Loopback addresses are too many to record, and only this host can be their source.
        let loopback = loopback().filter(|_| family == Family::Ipv4);
        let record = move |rule: RuleSpec<'a>| {
            loopback.into_iter().fold(rule, RuleSpec::destination_outside).add_to_set(&[destination], reached)
        };
        rules.push(FixedRule::new(chain, "reached ports of one address", RulePlace::First, move |rule| {
            record(rule.map(&[destination, Field::PROTOCOL, Field::DESTINATION_PORT], address_ports))
        }));
        rules.push(FixedRule::new(chain, "reached ports of all addresses", RulePlace::First, move |rule| {
            record(rule.map(&[Field::PROTOCOL, Field::DESTINATION_PORT], ports))
        }));
        let translated = |rule: RuleSpec<'a>| rule.matches_any_bit(Field::CONNECTION_STATUS, Field::TRANSLATED);
        let pair = [source, destination];
        if let Some(loopback) = loopback {
            rules.push(FixedRule::new(POSTROUTING, "from loopback addresses", RulePlace::Last, move |rule| {
                translated(rule).source_in(loopback).in_set(&pair, masquerade).masquerade()
            }));
        }
        rules.push(FixedRule::new(POSTROUTING, masquerade.clone(), RulePlace::Last, move |rule| {
            translated(rule).in_set(&[original], reached).in_set(&pair, masquerade).masquerade()
        }));
        rules
    }
}

/// A rule that the elements of the table need, identified by its chain and comment.
struct FixedRule<'a> {
    chain: Chain<'a>,
    comment: String,
    place: RulePlace,
    /// Appends the expressions. Rarely needed, because the rule usually exists.
    write: Box<dyn Fn(RuleSpec<'a>) -> RuleSpec<'a> + 'a>,
}

/// Where a rule belongs in its chain.
enum RulePlace {
    First,
    Last,
}

impl<'a> FixedRule<'a> {
    fn new(
        chain: Chain<'a>,
        comment: impl Into<String>,
        place: RulePlace,
        write: impl Fn(RuleSpec<'a>) -> RuleSpec<'a> + 'a,
    ) -> FixedRule<'a> {
        FixedRule { chain, comment: comment.into(), place, write: Box::new(write) }
    }

    /// Returns whether the rule is among those with these chains and comments.
    fn is_among(&self, rules: &[(String, String)]) -> bool {
        rules.iter().any(|(chain, comment)| chain == self.chain.name && *comment == self.comment)
    }

    fn edit(&self) -> Edit {
        let rule = (self.write)(RuleSpec::new(self.chain)).comment(&self.comment);
        match self.place {
            RulePlace::First => Edit::insert_rule(&rule, Position::First),
            RulePlace::Last => Edit::add_rule(&rule),
        }
    }
}

/// The chains, maps and rules that the elements of an attachment need.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    scopes: Vec<&'a Scope>,
    /// The chain that counts the attachments of its link.
    attached: String,
    /// Whether loopback addresses reach the ports.
    guard: bool,
}

impl<'a> Frame<'a> {
    /// Returns the frame for these scopes. With `guard`, loopback addresses reach the ports, through `link` if it is
    /// known.
    pub(crate) fn new(scopes: &'a [Scope], guard: bool, link: Option<LinkIndex>) -> Frame<'a> {
        Frame { scopes: scopes.iter().collect(), attached: attached(link), guard }
    }

    /// Returns the rules that packets pass.
    fn rules(&self) -> Vec<FixedRule<'_>> {
        let jump = |chain| {
            FixedRule::new(chain, "packets to this host", RulePlace::Last, |rule| {
                rule.destination_is_local().jump(PUBLISHED.name)
            })
        };
        // IPv6 has no `route_localnet`: a translated packet from ::1 would be lost. So the client gets an error at
        // once.
        let localhost = Cidr::host(IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1_u16]));
        let mut rules = vec![
            jump(PREROUTING),
            jump(OUTPUT),
            FixedRule::new(OUTPUT, "not from ::1, which has no route to containers", RulePlace::First, move |rule| {
                rule.destination_in(localhost).verdict(Verdict::Return)
            }),
        ];
        rules.extend(self.scopes.iter().flat_map(|scope| scope.rules()));
        if self.guard {
            rules.extend(guard_rules());
        }
        rules
    }

    /// Returns all rules: also those that attachments of earlier versions do not need, and those that only make the
    /// chains which count attachments visible in a list of rules.
    fn all_rules(&self) -> Vec<FixedRule<'_>> {
        let mut rules = self.rules();
        rules.extend(reply_rule().filter(|_| self.guard));
        let mut chains = vec![ATTACHED, TABLE.chain(&self.attached)];
        chains.dedup();
        for chain in chains {
            let comment = "attachments, counted as users of this chain";
            rules.push(FixedRule::new(chain, comment, RulePlace::Last, |rule| rule.verdict(Verdict::Return)));
        }
        rules
    }

    /// Returns the chain and comment of the first rule for packets that is missing in the table.
    pub(crate) fn missing(&self, nft: &mut Nftables) -> Result<Option<String>> {
        let have = nft.rule_comments(TABLE)?;
        let missing = self.rules().into_iter().find(|rule| !rule.is_among(&have));
        Ok(missing.map(|rule| format!("rule {:?} in chain {}", rule.comment, rule.chain)))
    }

    /// Returns whether no rule is missing.
    pub(crate) fn is_complete(&self, nft: &mut Nftables) -> Result<bool> {
        let have = nft.rule_comments(TABLE)?;
        Ok(self.all_rules().iter().all(|rule| rule.is_among(&have)))
    }

    /// Returns the edits that create what is missing.
    pub(crate) fn create(&self, nft: &mut Nftables) -> Result<Vec<Edit>> {
        let have = nft.rule_comments(TABLE)?;
        let rules = self.all_rules();
        let missing: Vec<_> = rules.iter().filter(|rule| !rule.is_among(&have)).collect();
        let sets = nft.sets(TABLE)?;
        let records: [(&'static str, MapsTo<'_>); 3] = [
            (ATTACHMENTS, MapsTo::Nothing),
            (INVENTORY, MapsTo::Verdicts),
            (VERSIONS, MapsTo::Values(&[DataType::PacketMark])),
        ];
        let mut edits = Vec::new();
        for (name, maps_to) in records.into_iter().filter(|(name, _)| !sets.iter().any(|set| set == name)) {
            let spec = SetSpec { set: set(name), key: &[DataType::LinkName], maps_to, elements: Elements::Keys };
            edits.push(Edit::add_set(&spec));
        }
        // Rules keep the other sets from being deleted, and their chains.
        let lacks = |chain: Chain<'_>| missing.iter().any(|rule| rule.chain == chain);
        for (chain, hook) in [
            (PUBLISHED, None),
            (ATTACHED, None),
            (TABLE.chain(&self.attached), None),
            (PREROUTING, Some(Hook::LATE_DESTINATION_NAT)),
            (OUTPUT, Some(Hook::LATE_LOCAL_DESTINATION_NAT)),
            (POSTROUTING, Some(Hook::SOURCE_NAT)),
            (GUARD, Some(Hook::RAW_INPUT)),
            (REPLIES, Some(Hook::TRANSLATED_INPUT)),
        ] {
            if lacks(chain) {
                edits.push(hook.map_or_else(|| Edit::add_chain(chain), |hook| Edit::add_base_chain(chain, hook)));
            }
        }
        for scope in &self.scopes {
            if scope.rules().iter().any(|rule| !rule.is_among(&have)) {
                edits.extend(scope.create());
            }
        }
        edits.extend(missing.iter().map(|rule| rule.edit()));
        if !edits.is_empty() {
            edits.insert(0, Edit::add_table(TABLE));
        }
        Ok(edits)
    }
}

/// Returns the name of the chain that counts the attachments whose ports loopback addresses reach through a link, or
/// all others.
pub(crate) fn attached(link: Option<LinkIndex>) -> String {
    link.map_or_else(|| ATTACHED.name.to_owned(), |link| format!("{}_{}", ATTACHED.name, link.number()))
}

/// Returns the number of attachments that lead to such a chain beside those with this number of elements; `None` if the
/// chain does not exist. The chain has one rule.
pub(crate) fn others_attached(nft: &mut Nftables, chain: &str, users: usize) -> Result<Option<usize>> {
    let uses = nft.uses_of(TABLE.chain(chain))?;
    Ok(uses.map(|uses| usize::try_from(uses).unwrap_or(usize::MAX).saturating_sub(1 + users)))
}

/// Returns whether a chain counts attachments, and the link of its name.
pub(crate) fn read_attached(chain: &str) -> Option<Option<LinkIndex>> {
    let rest = chain.strip_prefix(ATTACHED.name)?;
    let link = rest.strip_prefix('_').and_then(|number| LinkIndex::optional(number.parse().ok()?));
    (link.is_some() || rest.is_empty()).then_some(link)
}

/// Returns whether rules protect the loopback services of this host, and whether replies to loopback addresses are
/// marked for the guard of a link.
pub(crate) fn has_guard(nft: &mut Nftables) -> Result<(bool, bool)> {
    let have = nft.rule_comments(TABLE)?;
    let is_there = |rule: &FixedRule<'_>| rule.is_among(&have);
    Ok((guard_rules().iter().all(is_there), reply_rule().as_ref().is_some_and(is_there)))
}

/// Adds the rules of loopback addresses for ports that are published in another form.
pub(crate) fn add_guard(nft: &mut Nftables) -> Result<()> {
    nft.apply_guarded(|nft| -> Result<Vec<Edit>> {
        let have = nft.rule_comments(TABLE)?;
        let rules = guard_rules().into_iter().chain(reply_rule());
        let missing: Vec<_> = rules.filter(|rule| !rule.is_among(&have)).collect();
        if missing.is_empty() {
            return Ok(Vec::new());
        }
        let mut edits = vec![
            Edit::add_table(TABLE),
            Edit::add_base_chain(GUARD, Hook::RAW_INPUT),
            Edit::add_base_chain(REPLIES, Hook::TRANSLATED_INPUT),
        ];
        edits.extend(missing.iter().map(FixedRule::edit));
        Ok(edits)
    })
}

/// Returns the rules that protect the host's loopback services, and ports that are published only at loopback
/// addresses. With them, packets that arrive on other links are not even translated.
fn guard_rules<'a>() -> Vec<FixedRule<'a>> {
    let Some(loopback) = loopback() else { return Vec::new() };
    let foreign = |rule: RuleSpec<'a>| rule.input_link_not("lo");
    vec![
        FixedRule::new(GUARD, "route_localnet must not expose loopback services", RulePlace::Last, move |rule| {
            foreign(rule).destination_in(loopback).verdict(Verdict::Drop)
        }),
        FixedRule::new(GUARD, "route_localnet must not admit loopback sources", RulePlace::Last, move |rule| {
            foreign(rule).source_in(loopback).verdict(Verdict::Drop)
        }),
    ]
}

/// Returns the rule that marks the replies of containers to connections from loopback addresses; never `None`.
fn reply_rule<'a>() -> Option<FixedRule<'a>> {
    let loopback = loopback()?;
    Some(FixedRule::new(REPLIES, "replies of published ports to loopback addresses", RulePlace::Last, move |rule| {
        let rule = rule.input_link_not("lo").destination_in(loopback);
        let rule = rule.matches_any_bit(Field::CONNECTION_STATUS, Field::TRANSLATED);
        rule.matches(Field::CONNECTION_DIRECTION, Comparison::Equal, &[Field::REPLY]).set_packet_mark(LOOPBACK_REPLY)
    }))
}

/// Returns the edits that delete a scope, if nothing uses it any more once `users` elements of the inventory and the
/// elements for which `removed` returns true are deleted. Another program may have deleted a part of it, or may use it.
pub(crate) fn delete_scope(
    nft: &mut Nftables,
    names: &Names,
    users: usize,
    removed: &dyn Fn(&str, &Element) -> bool,
) -> Result<Vec<Edit>> {
    let chain = TABLE.chain(&names.translate);
    let jumps: Vec<Rule> = nft.rules(PUBLISHED)?.into_iter().filter(|rule| rule.target() == Some(chain.name)).collect();
    let mut edits: Vec<Edit> = jumps.iter().map(|rule| Edit::delete_rule(PUBLISHED, rule)).collect();
    if let Some(uses) = nft.uses_of(chain)? {
        let known = nft.rules(chain)?.len() + jumps.len() + users;
        if usize::try_from(uses).is_ok_and(|uses| uses > known) {
            return Ok(Vec::new());
        }
        edits.extend([Edit::flush(chain), Edit::delete_chain(chain)]);
    }
    let mut maps = nft.sets(TABLE)?;
    maps.retain(|map| [&names.ports, &names.address_ports].contains(&map));
    for map in &maps {
        // Earlier versions have no inventory, so that their elements do not count as users of the chain.
        if !nft.elements(set(map))?.iter().all(|element| removed(map, element)) {
            return Ok(Vec::new());
        }
    }
    edits.extend(maps.iter().map(|map| Edit::delete_set(set(map))));
    Ok(edits)
}

/// Returns the network of the loopback addresses; never `None`.
pub(crate) fn loopback() -> Option<Cidr> {
    Cidr::new(Ipv4Addr::LOCALHOST.into(), 8).map(|cidr| cidr.network())
}

pub(crate) fn set(name: &str) -> Set<'_> {
    TABLE.set(name)
}

/// Returns the first part of the names of objects for a family.
pub(crate) fn prefix(family: Family) -> &'static str {
    if family == Family::Ipv4 { "ipv4" } else { "ipv6" }
}

/// Returns whether a set has the connections to masquerade of a family.
pub(crate) fn is_masquerade(set: &str) -> bool {
    [Family::Ipv4, Family::Ipv6].iter().any(|family| Names::new(*family, "").masquerade == set)
}

pub(crate) fn address_type(family: Family) -> DataType {
    if family == Family::Ipv4 { DataType::Ipv4 } else { DataType::Ipv6 }
}
