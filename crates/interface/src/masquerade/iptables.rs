//! Masquerade by rules in the nat tables of iptables, if the configuration requests it. The chains and rules are those
//! of the reference.
//!
//! ```text
//! -A POSTROUTING -s 10.1.0.2/32 -m comment --comment "name: \"net1\" id: \"id1\"" -j CNI-1
//! -A CNI-1 -d 10.1.0.0/24 -m comment --comment "name: \"net1\" id: \"id1\"" -j ACCEPT
//! -A CNI-1 ! -d 224.0.0.0/4 -m comment --comment "name: \"net1\" id: \"id1\"" -j MASQUERADE
//! ```
//!
//! All attachments of a container to a network share the chain and the comment.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni::key::container_in_iptables_comment;
use cni::{
    AttachmentKey, ErrorCollector, Judgement, Keep, NamedLink, Ownership, Result, SortedSet, Trace, add_rules, lease,
    remove_chains, try_iptables,
};
use linux::ip::Cidr;
use linux::iptables::{FAMILIES, ListedRule, MAX_COMMENT, Match, Rule, Step, TablePlan, Target, Tools, View};
use linux::netlink::Netlink;
use linux::netlink::nft::{Comparison, Family, Hook, Nftables};

use super::rule::{ListedMasquerade, Traffic, missing, outdated};

/// The name of the tables.
const NAT: &str = "nat";
/// The chain with the rules that lead to the chains of containers.
const POSTROUTING: &str = "POSTROUTING";
/// The beginning of the comments of all networks.
const COMMENT: &str = "name: \"";

/// The chain of a container on a network.
struct ContainerChain {
    name: String,
    /// The comment of all rules. Two containers can have chains of the same name, because nothing separates the parts
    /// of which it is the hash.
    comment: String,
}

impl ContainerChain {
    fn new(owner: AttachmentKey<'_>) -> ContainerChain {
        let mut comment = owner.iptables_comment();
        // Valid names have only ASCII characters.
        comment.truncate(MAX_COMMENT);
        ContainerChain { name: owner.chain(), comment }
    }

    /// Returns the rules that lead to the chain.
    fn jumps(&self, view: &mut View<'_>) -> Result<Vec<ListedRule>> {
        let mut rules = view.rules(POSTROUTING)?;
        rules.retain(|rule| rule.target().as_deref() == Some(&self.name));
        Ok(rules)
    }

    /// Returns whether a rule that leads to the chain belongs to another container.
    fn is_foreign(&self, jump: &ListedRule) -> bool {
        let comment = jump.comment();
        comment.starts_with(COMMENT) && comment != self.comment
    }
}

/// Returns the address of the container that a rule matches.
fn source(rule: &ListedRule) -> Option<IpAddr> {
    rule.source().map(|net| net.ip())
}

/// The rules of an attachment in the table of one address family.
struct Rules<'a> {
    family: Family,
    chain: &'a ContainerChain,
    ips: Vec<Cidr>,
    /// The networks to which packets are not masqueraded: those of the addresses, and excluded ones.
    accepted: Vec<Cidr>,
}

impl<'a> Rules<'a> {
    fn new(tools: &Tools, chain: &'a ContainerChain, traffic: Traffic<'_>) -> Rules<'a> {
        let ips: Vec<Cidr> = traffic.ips.iter().copied().filter(|ip| tools.includes(ip.ip())).collect();
        let mut accepted: Vec<Cidr> = Vec::new();
        for net in ips.iter().chain(traffic.exclude).map(Cidr::network).filter(|net| tools.includes(net.ip())) {
            if !accepted.contains(&net) {
                accepted.push(net);
            }
        }
        Rules { family: tools.family, chain, ips, accepted }
    }

    /// Returns the rule that leads packets from an address to the chain.
    fn jump(&self, ip: Cidr) -> Rule<'a> {
        self.rule(POSTROUTING, Some(Match::source(Cidr::host(ip.ip()))), Target::Jump(&self.chain.name))
    }

    /// Returns the rule that accepts packets to a network as they are.
    fn accept(&self, net: Cidr) -> Rule<'a> {
        // `iptables` leaves out a network that includes all addresses.
        let destination = Some(Match::Destination(Comparison::Equal, net)).filter(|_| net.prefix() > 0);
        self.rule(&self.chain.name, destination, Target::Accept)
    }

    /// Returns the rule that masquerades all other packets, except multicast.
    fn masquerade(&self) -> Rule<'a> {
        let multicast = match self.family {
            Family::Ipv6 => Cidr::new(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0).into(), 8),
            _ => Cidr::new(Ipv4Addr::new(224, 0, 0, 0).into(), 4),
        };
        let destination = multicast.map(|net| Match::Destination(Comparison::NotEqual, net));
        self.rule(&self.chain.name, destination, Target::Masquerade)
    }

    fn rule(&self, chain: &'a str, first: Option<Match<'a>>, target: Target<'a>) -> Rule<'a> {
        Rule::new(chain, first.into_iter().chain([Match::Comment(&self.chain.comment)]).collect(), target)
    }

    /// Returns the steps that add the rules, except those that exist. Another attachment of the container may have
    /// added them, or an ADD whose DEL was lost.
    ///
    /// Unlike the reference, the rules for destinations inside of all the container's networks come before the
    /// masquerade rule: otherwise traffic to its second network would be masqueraded.
    fn plan(&self, view: &mut View<'_>) -> Result<TablePlan<'a>> {
        let mut steps = Vec::new();
        if !view.has_chain(POSTROUTING)? {
            steps.push(Step::CreateBaseChain(POSTROUTING, Hook::SOURCE_NAT));
        }
        let (mut rules, mut jumps) = (Vec::new(), Vec::new());
        if view.has_chain(&self.chain.name)? {
            (rules, jumps) = (view.rules(&self.chain.name)?, self.chain.jumps(view)?);
        } else {
            steps.push(Step::CreateChain(&self.chain.name));
        }
        let (before, after) = rules.split_at(rules.iter().position(ListedRule::masquerades).unwrap_or(rules.len()));
        let accepted = self.accepted.iter().rev().map(|net| self.accept(*net));
        steps.extend(accepted.filter(|rule| !self.exists(rule, before)).map(Step::Prepend));
        if after.is_empty() {
            steps.push(Step::Append(self.masquerade()));
        }
        let own = self.ips.iter().map(|ip| self.jump(*ip));
        steps.extend(own.filter(|rule| !self.exists(rule, &jumps)).map(Step::Append));
        Ok(TablePlan { steps, removed: vec![] })
    }

    /// Returns whether a rule is among those that are listed, with any comment.
    fn exists(&self, rule: &Rule<'_>, listed: &[ListedRule]) -> bool {
        listed.iter().any(|found| found.has_effect_of(rule, self.family))
    }

    /// Returns an error if no rule leads to the chain for one of the addresses, if the chain does not masquerade, or if
    /// it does not accept packets to the network of an address or to an excluded one. More may be accepted, because
    /// other attachments of the container share the chain.
    fn check(&self, view: &mut View<'_>) -> Result<()> {
        let chain = &self.chain.name;
        let jumps = self.chain.jumps(view)?;
        if let Some(ip) = self.ips.iter().find(|ip| !self.exists(&self.jump(**ip), &jumps)) {
            return Err(missing(format!("no rule in chain POSTROUTING leads {} to chain {chain}", ip.ip())));
        }
        let rules = view.rules(chain)?;
        if !rules.iter().any(ListedRule::masquerades) {
            return Err(missing(format!("no rule in chain {chain} masquerades packets")));
        }
        if let Some(net) = self.accepted.iter().find(|net| !self.exists(&self.accept(**net), &rules)) {
            let what = format!("no rule in chain {chain} accepts packets to {net}");
            let is_own = self.ips.iter().any(|ip| ip.network() == *net);
            return Err(if is_own { missing(what) } else { outdated(what) });
        }
        Ok(())
    }
}

/// Returns the families in which the container has addresses.
fn families(traffic: Traffic<'_>) -> impl Iterator<Item = &'static Tools> {
    FAMILIES.iter().filter(move |tools| traffic.ips.iter().any(|ip| tools.includes(ip.ip())))
}

/// Adds the rules of an attachment.
pub(super) fn add(owner: AttachmentKey<'_>, traffic: Traffic<'_>) -> Result<()> {
    let chain = ContainerChain::new(owner);
    add_rules(NAT, families(traffic), |tools, view| Rules::new(tools, &chain, traffic).plan(view))
}

/// Removes the rules of an attachment, by either implementation, and the chain if no other attachment uses it. `ips`
/// are the addresses of the attachment, if known. They matter only if the container may have other attachments to the
/// network.
pub(super) fn remove(nft: &mut Nftables, host: &mut Netlink, owner: AttachmentKey<'_>, ips: &[IpAddr]) -> Result<()> {
    remove_jumps(nft, owner, |sources| owns(host, owner, ips, sources))
}

/// Removes those rules that lead to the chain of a container which `select` returns by their source addresses, and the
/// chain if no other is left.
fn remove_jumps(
    nft: &mut Nftables,
    owner: AttachmentKey<'_>,
    mut select: impl FnMut(&[Option<IpAddr>]) -> Result<Vec<bool>>,
) -> Result<()> {
    let chain = ContainerChain::new(owner);
    let removed = remove_chains(nft, NAT, &[&chain.name], |view, delete_chain| -> Result<TablePlan<'_>> {
        if !view.has_chain(&chain.name)? {
            return Ok(TablePlan::default());
        }
        let (foreign, own): (Vec<_>, Vec<_>) = chain.jumps(view)?.into_iter().partition(|jump| chain.is_foreign(jump));
        let selected = select(&own.iter().map(source).collect::<Vec<_>>())?;
        let is_last = foreign.is_empty() && selected.iter().all(|selected| *selected);
        let selected = own.into_iter().zip(selected).filter(|(_, selected)| *selected);
        let mut steps: Vec<_> = selected.map(|(jump, _)| Step::Delete(POSTROUTING, jump)).collect();
        if is_last {
            steps.push(Step::Flush(&chain.name));
            steps.extend(delete_chain.then_some(Step::DeleteChain(&chain.name)));
        }
        Ok(TablePlan { steps, removed: vec![] })
    });
    removed.map(drop)
}

/// Returns which of the rules with these source addresses belong to an attachment, and not to another one of the same
/// container to the same network. Leases decide: the runtime may have passed no result, or that of the other
/// attachment. They are not read for the usual DEL, because there may be many.
fn owns(host: &mut Netlink, owner: AttachmentKey<'_>, ips: &[IpAddr], sources: &[Option<IpAddr>]) -> Result<Vec<bool>> {
    let is_only = host.find_veths_by_alias(&|alias| owner.is_sibling_alias(alias))?.is_empty();
    let is_known = |ip: &Option<IpAddr>| ip.is_some_and(|ip| ips.contains(&ip));
    let is_usual = is_only && sources.iter().all(is_known);
    let ownership = Ownership::new(owner);
    let is_ours = |source: &Option<IpAddr>| {
        let ip = source.filter(|_| !is_usual);
        match ip.map(|ip| ownership.judge(Trace::OnNetwork { ip, link: &NamedLink::None })) {
            Some(Judgement::Ours(_)) => true,
            Some(Judgement::Others(_)) => false,
            _ => is_only || is_known(source),
        }
    };
    Ok(sources.iter().map(is_ours).collect())
}

/// GC: removes the chains of a network's containers that are not in `keep`, and the rules of single interfaces that are
/// not.
pub(super) fn collect(nft: &mut Nftables, keep: &Keep<'_>) -> Result<()> {
    let network = keep.network;
    // Of rules in all chains: a DEL that was killed may have left a chain without a rule that leads to it.
    let comments = comments(nft)?;
    let containers = comments.iter().filter_map(|comment| container_in_iptables_comment(network, comment));
    let found: SortedSet<String> = containers.map(str::to_owned).collect();
    let of_container = |id| AttachmentKey { network, container: id, ifname: "" };
    let mut failures = ErrorCollector::default();
    for id in found.iter().filter(|id| !keep.has_container(id)) {
        failures.record(remove_jumps(nft, of_container(id), |sources| Ok(vec![true; sources.len()])));
    }
    if found.iter().any(|id| keep.has_container(id)) {
        let leases = lease::in_network(network);
        // The interfaces of a container share a chain. A rule is stale if the container has no lease of its address,
        // although each valid interface has one in its family.
        let is_stale = |id: &str, ip: IpAddr| {
            let own: Vec<_> =
                leases.iter().filter(|lease| lease.container == id && lease.ip.is_ipv4() == ip.is_ipv4()).collect();
            let has_lease = |ifname| own.iter().any(|lease| lease.ifname.as_deref() == Some(ifname));
            !own.is_empty() && own.iter().all(|lease| lease.ip != ip) && keep.interfaces_of(id).all(has_lease)
        };
        let rules = list(nft)?;
        for rule in &rules {
            let id = container_in_iptables_comment(network, &rule.comment).filter(|id| keep.has_container(id));
            if let Some((id, ip)) = id.zip(rule.source).filter(|(id, ip)| is_stale(id, *ip)) {
                let select =
                    |sources: &[Option<IpAddr>]| Ok(sources.iter().map(|source| *source == Some(ip)).collect());
                failures.record(remove_jumps(nft, of_container(id), select));
            }
        }
    }
    failures.into_result()
}

/// Returns the comments of all rules in the nat tables.
fn comments(nft: &mut Nftables) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for tools in &FAMILIES {
        found.extend(nft.table_rules(tools.table(NAT))?.into_iter().map(|rule| rule.comment));
        if let Some(table) = tools.legacy_table_in_use(NAT)? {
            found.extend(table.lines.iter().map(|line| ListedRule::Legacy(line.clone()).comment()));
        }
    }
    Ok(found)
}

/// Lists the rules of all networks that lead to the chains of containers. Rules of other programs have other comments.
pub(super) fn list(nft: &mut Nftables) -> Result<Vec<ListedMasquerade>> {
    let mut rules = Vec::new();
    for tools in &FAMILIES {
        rules.extend(View::Nft(nft, tools.table(NAT)).rules(POSTROUTING)?);
        if let Some(table) = tools.legacy_table_in_use(NAT)? {
            rules.extend(View::Legacy(&table.lines).rules(POSTROUTING)?);
        }
    }
    let found =
        rules.iter().map(|rule| ListedMasquerade { source: source(rule), iptables: true, comment: rule.comment() });
    Ok(found.filter(|rule| rule.comment.starts_with(COMMENT)).collect())
}

/// CHECK: returns an error if `traffic` is not masqueraded.
pub(super) fn check(owner: AttachmentKey<'_>, traffic: Traffic<'_>) -> Result<()> {
    let chain = ContainerChain::new(owner);
    let mut nft = Nftables::open()?;
    for tools in families(traffic) {
        let legacy = tools.legacy_table_in_use(NAT)?.filter(|table| table.has_chain(&chain.name));
        Rules::new(tools, &chain, traffic).check(&mut match &legacy {
            Some(table) => View::Legacy(&table.lines),
            None => View::Nft(&mut nft, tools.table(NAT)),
        })?;
    }
    Ok(())
}

/// STATUS: returns an error if the kernel does not accept the rules of an imaginary container, or the tools that would
/// be needed do not work.
pub(super) fn status() -> Result<()> {
    let chain = ContainerChain::new(AttachmentKey { network: "", container: "", ifname: "" });
    let traffic = Traffic { ips: &[Cidr::host(Ipv4Addr::LOCALHOST.into())], exclude: &[] };
    try_iptables(NAT, "install iptables, or set \"ipMasqBackend\" to \"nftables\"", |tools, view| {
        Rules::new(tools, &chain, traffic).plan(view)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: AttachmentKey<'_> = AttachmentKey { network: "net1", container: "cid1", ifname: "eth0" };
    const NAME: &str = "CNI-e8f6f419596f7f47b3468487";

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    /// Returns the script that adds the rules of a container with two networks to a table with these lines.
    fn script(lines: &[String]) -> String {
        let ips = [cidr("10.1.0.2/24"), cidr("10.2.0.2/16"), cidr("10.2.0.3/16"), cidr("fd01::2/64")];
        let traffic = Traffic { ips: &ips, exclude: &[cidr("10.244.0.0/16"), cidr("fd02::/64")] };
        let chain = ContainerChain::new(OWNER);
        let rules = Rules::new(&FAMILIES[0], &chain, traffic);
        rules.plan(&mut View::Legacy(lines)).unwrap().script(NAT)
    }

    #[test]
    fn rules_for_inside_destinations_come_before_the_masquerade() {
        let comment = r#"-m comment --comment "name: \"net1\" id: \"cid1\"""#;
        let added = script(&[]);
        let want = format!(
            "*nat\n-N {NAME}\n\
             -I {NAME} -d 10.244.0.0/16 {comment} -j ACCEPT\n\
             -I {NAME} -d 10.2.0.0/16 {comment} -j ACCEPT\n\
             -I {NAME} -d 10.1.0.0/24 {comment} -j ACCEPT\n\
             -A {NAME} ! -d 224.0.0.0/4 {comment} -j MASQUERADE\n\
             -A POSTROUTING -s 10.1.0.2/32 {comment} -j {NAME}\n\
             -A POSTROUTING -s 10.2.0.2/32 {comment} -j {NAME}\n\
             -A POSTROUTING -s 10.2.0.3/32 {comment} -j {NAME}\n\
             COMMIT\n"
        );
        assert_eq!(added, want);

        // The rules of the reference, which masquerade packets to the second network.
        let masquerade = format!("-A {NAME} ! -d 224.0.0.0/4 {comment} -j MASQUERADE");
        let mut lines: Vec<String> =
            vec![format!(":{NAME} - [0:0]"), format!("-A {NAME} -d 10.1.0.0/24 {comment} -j ACCEPT")];
        lines.extend([masquerade, format!("-A {NAME} -d 10.2.0.0/16 {comment} -j ACCEPT")]);
        lines.push(format!("-A POSTROUTING -s 10.2.0.2/32 {comment} -j {NAME}"));
        let want = format!(
            "*nat\n\
             -I {NAME} -d 10.244.0.0/16 {comment} -j ACCEPT\n\
             -I {NAME} -d 10.2.0.0/16 {comment} -j ACCEPT\n\
             -A POSTROUTING -s 10.1.0.2/32 {comment} -j {NAME}\n\
             -A POSTROUTING -s 10.2.0.3/32 {comment} -j {NAME}\n\
             COMMIT\n"
        );
        assert_eq!(script(&lines), want);
    }

    #[test]
    fn check_compares_networks() {
        let comment = r#"-m comment --comment "name: \"net1\" id: \"cid1\"""#;
        let chain = ContainerChain::new(OWNER);
        let check = |accepted: &str, exclude: &str| {
            let lines = [
                format!("-A POSTROUTING -s 10.1.0.2/32 {comment} -j {NAME}"),
                format!("-A {NAME} -d 10.1.0.0/24 {comment} -j ACCEPT"),
                format!("-A {NAME} {accepted}{comment} -j ACCEPT"),
                format!("-A {NAME} ! -d 224.0.0.0/4 {comment} -j MASQUERADE"),
            ];
            let traffic = Traffic { ips: &[cidr("10.1.0.2/24")], exclude: &[cidr(exclude)] };
            Rules::new(&FAMILIES[0], &chain, traffic).check(&mut View::Legacy(&lines)).is_ok()
        };
        assert!(check("-d 10.244.0.0/16 ", "10.244.0.0/16") && !check("-d 10.244.0.0/16 ", "10.244.0.0/24"));
        assert!(check("", "0.0.0.0/0") && !check("-d 10.244.0.0/16 ", "0.0.0.0/0"));
    }
}
