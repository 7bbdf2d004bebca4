//! Masquerade with the iptables tools, if the configuration requests it, and the removal of its rules.
//!
//! `iptables-restore` adds rules, with one process per tools. Rules of `iptables-nft` are listed and removed through
//! nf_tables, without a process. The legacy tools run only if the kernel reports a legacy nat table.

use std::fmt::Write;
use std::net::IpAddr;

use cni::{
    AttachmentKey, Code, Error, ErrorCollector, Judgement, Keep, NamedLink, Ownership, Result, SortedSet, Trace, key,
    lease,
};
use linux::ip::{Cidr, octets};
use linux::iptables::{FAMILIES, LegacyTable, Tools};
use linux::netlink::Netlink;
use linux::netlink::nft::{self, Chain, Comparison, Edit, Family, Nftables, Verdict};

use crate::rule::{self, Masquerade, Traffic, missing, outdated};

/// The table with the rules.
const NAT: &str = "nat";

/// Returns the chain with the rules that jump to the chains of containers.
fn postrouting(tools: &Tools) -> Chain<'static> {
    tools.table(NAT).chain("POSTROUTING")
}

/// Returns the lines of the legacy nat table; none if there is no such table.
fn legacy_lines(tools: &Tools) -> Result<Vec<String>> {
    Ok(tools.legacy_table(NAT)?.map(|table| table.lines).unwrap_or_default())
}

/// Adds the rules of an attachment.
pub(crate) fn add(owner: AttachmentKey<'_>, traffic: Traffic<'_>) -> Result<()> {
    for tools in &FAMILIES {
        let (ips, exclude) = of_family(tools, traffic);
        if ips.is_empty() {
            continue;
        }
        // If it exists, another attachment of the container created it, or a DEL was lost.
        let chain_exists = tools.has_chain(NAT, &owner.chain())?;
        tools.restore(&script(tools, owner, Traffic { ips: &ips, exclude: &exclude }, chain_exists))?;
    }
    Ok(())
}

/// Returns the addresses and the excluded networks of one family.
fn of_family(tools: &Tools, Traffic { ips, exclude }: Traffic<'_>) -> (Vec<Cidr>, Vec<Cidr>) {
    let select = |list: &[Cidr]| list.iter().copied().filter(|net| tools.includes(net.ip())).collect();
    (select(ips), select(exclude))
}

/// Returns the input for `iptables-restore`. Unlike the reference, the rules for destinations inside of all the container's
/// networks come before the masquerade rule: otherwise traffic to its second network would be masqueraded. An existing
/// chain keeps its rules, because another attachment needs them.
fn script(tools: &Tools, owner: AttachmentKey<'_>, traffic: Traffic<'_>, chain_exists: bool) -> String {
    let chain = owner.chain();
    // In valid names, the quotes of the reference are the only characters that need escaping.
    let comment = owner.iptables_comment().replace('"', "\\\"");
    let comment = format!("-m comment --comment \"{comment}\"");
    let mut text = String::from("*nat\n");
    let mut line = |rule: std::fmt::Arguments<'_>| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{rule}");
    };
    if !chain_exists {
        line(format_args!(":{chain} - [0:0]"));
    }
    for net in traffic.ips.iter().chain(traffic.exclude) {
        let verb = if chain_exists { "-I" } else { "-A" };
        line(format_args!("{verb} {chain} -d {} {comment} -j ACCEPT", net.network()));
    }
    let multicast = if tools.family == Family::Ipv4 { "224.0.0.0/4" } else { "ff00::/8" };
    line(format_args!("-A {chain} ! -d {multicast} {comment} -j MASQUERADE"));
    for ip in traffic.ips {
        line(format_args!("-A POSTROUTING -s {} {comment} -j {chain}", Cidr::host(ip.ip())));
    }
    text.push_str("COMMIT\n");
    text
}

/// Removes the rules of an attachment, and the chain if no other attachment uses it. `ips` are the addresses of the
/// attachment, if known. They matter only if the container may have other attachments to the network, which share the chain.
pub(crate) fn remove(nft: &mut Nftables, host: &mut Netlink, owner: AttachmentKey<'_>, ips: &[IpAddr]) -> Result<()> {
    remove_with(nft, host, owner, ips, None)
}

/// As [`remove`], if it is known whether the attachment `is_only`, the container's only one to the network.
fn remove_with(
    nft: &mut Nftables,
    host: &mut Netlink,
    owner: AttachmentKey<'_>,
    ips: &[IpAddr],
    mut is_only: Option<bool>,
) -> Result<()> {
    let chain = owner.chain();
    let mut failures = ErrorCollector::default();
    for tools in &FAMILIES {
        let mut remove = || -> Result<()> {
            let in_nft = nft.has_chain(tools.table(NAT).chain(&chain))?;
            let legacy = tools.legacy_table(NAT)?.filter(|table| table.lines.iter().any(|line| line.contains(&chain)));
            if !in_nft && legacy.is_none() {
                return Ok(());
            }
            let is_only = match is_only {
                Some(is_only) => is_only,
                None => *is_only.insert(is_only_attachment(host, owner)?),
            };
            let removal = Removal { owner, ips, is_only };
            if in_nft {
                removal.remove_from_nft(nft, tools)?;
            }
            if let Some(table) = legacy {
                removal.remove_from_legacy(&table)?;
            }
            Ok(())
        };
        failures.record(remove());
    }
    failures.into_result()
}

/// Returns whether this is the container's only attachment to the network.
fn is_only_attachment(host: &mut Netlink, owner: AttachmentKey<'_>) -> Result<bool> {
    Ok(host.find_veths_by_alias(&|alias| owner.is_sibling_alias(alias))?.is_empty())
}

/// The attachment whose rules are removed.
struct Removal<'a> {
    owner: AttachmentKey<'a>,
    /// The addresses of the attachment, if known.
    ips: &'a [IpAddr],
    /// Whether no alias shows another attachment of the container to the network.
    is_only: bool,
}

impl Removal<'_> {
    /// Returns which of the rules with these source addresses belong to the attachment, and not to another one of the same
    /// container to the same network. Leases decide: the runtime may have passed no result, or that of the other attachment.
    /// They are not read for the usual DEL, because there may be many.
    fn owns(&self, sources: &[Option<IpAddr>]) -> Vec<bool> {
        let ownership = Ownership::new(self.owner);
        let is_known = |ip: &Option<IpAddr>| ip.is_some_and(|ip| self.ips.contains(&ip));
        let is_usual = self.is_only && sources.iter().all(is_known);
        let is_ours = |source: &Option<IpAddr>| {
            let ip = source.filter(|_| !is_usual);
            match ip.map(|ip| ownership.judge(Trace::OnNetwork { ip, link: &NamedLink::None })) {
                Some(Judgement::Ours(_)) => true,
                Some(Judgement::Others(_)) => false,
                _ => self.is_only || is_known(source),
            }
        };
        sources.iter().map(is_ours).collect()
    }

    /// Removes the rules of `iptables-nft`.
    fn remove_from_nft(&self, nft: &mut Nftables, tools: &Tools) -> Result<()> {
        let name = self.owner.chain();
        let (postrouting, chain) = (postrouting(tools), tools.table(NAT).chain(&name));
        nft::retry(|| {
            if !nft.has_chain(chain)? {
                return Ok(());
            }
            let mut jumps = nft.rules(postrouting)?;
            jumps.retain(|rule| rule.target() == Some(chain.name));
            let ours = self.owns(&jumps.iter().map(rule::source).collect::<Vec<_>>());
            let ours = jumps.iter().zip(ours).filter(|(_, is_ours)| *is_ours);
            let mut edits: Vec<_> = ours.map(|(rule, _)| Edit::delete_rule(postrouting, rule)).collect();
            if edits.len() == jumps.len() {
                edits.push(Edit::flush(chain));
                edits.push(Edit::delete_chain(chain));
            }
            Ok(nft.apply(&edits)?)
        })
    }

    /// Removes the rules of legacy iptables.
    fn remove_from_legacy(&self, table: &LegacyTable) -> Result<()> {
        let chain = self.owner.chain();
        let target = format!(" -j {chain}");
        let jumps = table.lines.iter().filter_map(|line| line.strip_prefix("-A POSTROUTING "));
        let jumps: Vec<&str> = jumps.filter(|rule| format!(" {rule}").ends_with(&target)).collect();
        let ours = self.owns(&jumps.iter().map(|rule| legacy_source(rule)).collect::<Vec<_>>());
        let mut input = String::from("*nat\n");
        for (rule, _) in jumps.iter().zip(&ours).filter(|(_, is_ours)| **is_ours) {
            input.push_str(&format!("-D POSTROUTING {rule}\n"));
        }
        if ours.iter().all(|is_ours| *is_ours) {
            input.push_str(&format!("-F {chain}\n-X {chain}\n"));
        }
        input.push_str("COMMIT\n");
        Ok(table.restore(&input)?)
    }
}

/// GC: removes the chains of a network's containers that are not in `keep`, and the rules of single interfaces that are not.
pub(crate) fn collect(nft: &mut Nftables, host: &mut Netlink, keep: &Keep<'_>) -> Result<()> {
    let network = keep.network;
    let container = |comment: &str| key::container_in_iptables_comment(network, comment).map(str::to_owned);
    let mut failures = ErrorCollector::default();
    let mut remove = |nft: &mut Nftables, id: &str, is_only| {
        let owner = AttachmentKey { network, container: id, ifname: "" };
        failures.record(remove_with(nft, host, owner, &[], is_only));
    };
    // Of rules in all chains: a DEL that was killed may have left a chain without a rule that jumps to it.
    let found: SortedSet<String> = comments(nft)?.iter().filter_map(|comment| container(comment)).collect();
    for id in found.iter().filter(|id| !keep.has_container(id)) {
        remove(nft, id, None);
    }
    if found.iter().any(|id| keep.has_container(id)) {
        let leases = lease::in_network(network);
        // The interfaces of a container share a chain. A rule is stale if the container has no lease of its address, although
        // each valid interface has one in its family.
        let is_stale = |rule: Masquerade| {
            let (id, ip) = (container(&rule.comment).filter(|id| keep.has_container(id))?, rule.source?);
            let own: Vec<_> =
                leases.iter().filter(|lease| lease.container == id && lease.ip.is_ipv4() == ip.is_ipv4()).collect();
            let has_lease = |ifname| own.iter().any(|lease| lease.ifname.as_deref() == Some(ifname));
            let is_stale =
                !own.is_empty() && own.iter().all(|lease| lease.ip != ip) && keep.interfaces_of(&id).all(has_lease);
            is_stale.then_some(id)
        };
        let shared: SortedSet<String> = list(nft)?.into_iter().filter_map(is_stale).collect();
        for id in &shared {
            remove(nft, id, Some(false));
        }
    }
    failures.into_result()
}

/// Returns the comments of all rules in the nat tables.
fn comments(nft: &mut Nftables) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for tools in &FAMILIES {
        found.extend(nft.table_rules(tools.table(NAT))?.into_iter().map(|rule| rule.comment));
        let lines = legacy_lines(tools)?;
        found.extend(lines.iter().filter_map(|line| legacy_comment(line)).map(|(_, comment)| comment));
    }
    Ok(found)
}

/// Splits a rule of a legacy table into the part before the comment and the comment.
fn legacy_comment(line: &str) -> Option<(&str, String)> {
    let (what, rest) = line.split_once("--comment \"")?;
    let (comment, _) = rest.split_once("\\\"\"")?;
    Some((what, format!("{}\"", comment.replace("\\\"", "\""))))
}

/// Returns the source address of a rule of a legacy table.
fn legacy_source(rule: &str) -> Option<IpAddr> {
    rule.strip_prefix("-s ")?.split(['/', ' ']).next()?.parse().ok()
}

/// Lists the rules of all networks that jump to the chains of containers. Rules of other programs have other comments.
pub(crate) fn list(nft: &mut Nftables) -> Result<Vec<Masquerade>> {
    let mut found = Vec::new();
    for tools in &FAMILIES {
        for rule in nft.rules(postrouting(tools))? {
            found.push(Masquerade { source: rule::source(&rule), iptables: true, comment: rule.comment });
        }
        let lines = legacy_lines(tools)?;
        found.extend(lines.iter().filter_map(|line| {
            let (what, comment) = legacy_comment(line.strip_prefix("-A POSTROUTING ")?)?;
            Some(Masquerade { source: legacy_source(what), iptables: true, comment })
        }));
    }
    found.retain(|rule| rule.comment.starts_with("name: \""));
    Ok(found)
}

/// CHECK: returns an error if no rule jumps to the chain for one of the addresses, if the chain does not masquerade, or if it
/// does not accept packets to the network of an address or to an excluded one. More may be accepted, because other
/// attachments of the container share the chain.
pub(crate) fn check(owner: AttachmentKey<'_>, traffic: Traffic<'_>) -> Result<()> {
    let chain = owner.chain();
    let mut nft = Nftables::open()?;
    for tools in &FAMILIES {
        let (ips, exclude) = of_family(tools, traffic);
        if ips.is_empty() {
            continue;
        }
        let jumps = nft.rules(postrouting(tools))?;
        let legacy = legacy_lines(tools)?;
        for ip in &ips {
            let source = octets(ip.ip());
            let in_nft = jumps.iter().any(|rule| rule.target() == Some(&chain) && rule.values.contains(&source));
            let text = format!("-s {} ", Cidr::host(ip.ip()));
            let in_legacy = || legacy.iter().any(|line| line.contains(&text) && line.ends_with(&chain));
            if !in_nft && !in_legacy() {
                let what = format!("no rule in chain POSTROUTING leads {} to chain {chain}", ip.ip());
                return Err(missing(what));
            }
        }
        let rules = nft.rules(tools.table(NAT).chain(&chain))?;
        if !rules.iter().any(|rule| rule.masquerades) && !masquerades_in_legacy(&legacy, &chain) {
            return Err(missing(format!("no rule in chain {chain} masquerades packets")));
        }
        let accepted: Vec<_> = rules.iter().filter(|rule| rule.verdict == Some(Verdict::Accept)).collect();
        let networks: Vec<Cidr> = ips.iter().map(Cidr::network).collect();
        for net in networks.iter().chain(&exclude) {
            let in_nft = accepted.iter().any(|rule| match rule.destinations(Comparison::Equal).as_slice() {
                // The tools omit a match of all destinations.
                [] => net.prefix() == 0,
                list => list.contains(net),
            });
            if !in_nft && !accepts_in_legacy(&legacy, &chain, *net) {
                let what = format!("no rule in chain {chain} accepts packets to {net}");
                return Err(if networks.contains(net) { missing(what) } else { outdated(what) });
            }
        }
    }
    Ok(())
}

/// Returns whether the lines of a legacy table have a rule in `chain` that accepts packets to `net`.
fn accepts_in_legacy(lines: &[String], chain: &str, net: Cidr) -> bool {
    let destination = if net.prefix() == 0 { String::new() } else { format!("-d {net} ") };
    let start = format!("-A {chain} {destination}-m comment ");
    lines.iter().any(|line| line.starts_with(&start) && line.ends_with(" -j ACCEPT"))
}

/// Returns whether the lines of a legacy table have a rule in `chain` that masquerades.
fn masquerades_in_legacy(lines: &[String], chain: &str) -> bool {
    let start = format!("-A {chain} ");
    lines.iter().any(|line| line.starts_with(&start) && line.ends_with(" -j MASQUERADE"))
}

/// STATUS: returns an error if the tools are missing or do not work.
pub(crate) fn status() -> Result<()> {
    FAMILIES[0].test("*nat\nCOMMIT\n").map_err(|error| {
        Error::new(Code::INTERNAL, format!("iptables cannot be used: {error}"))
            .details("install iptables, or set \"ipMasqBackend\" to \"nftables\"")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: AttachmentKey<'_> = AttachmentKey { network: "net1", container: "cid1", ifname: "eth0" };

    #[test]
    fn rules_for_inside_destinations_come_before_the_masquerade() {
        let cidr = |text: &str| text.parse::<Cidr>().unwrap();
        let ips = [cidr("10.1.0.2/24"), cidr("10.2.0.2/16")];
        let traffic = Traffic { ips: &ips, exclude: &[cidr("10.244.0.0/16")] };
        let text = script(&FAMILIES[0], OWNER, traffic, false);
        let comment = r#"-m comment --comment "name: \"net1\" id: \"cid1\"""#;
        let chain = "CNI-e8f6f419596f7f47b3468487";
        let want = format!(
            "*nat\n:{chain} - [0:0]\n\
             -A {chain} -d 10.1.0.0/24 {comment} -j ACCEPT\n\
             -A {chain} -d 10.2.0.0/16 {comment} -j ACCEPT\n\
             -A {chain} -d 10.244.0.0/16 {comment} -j ACCEPT\n\
             -A {chain} ! -d 224.0.0.0/4 {comment} -j MASQUERADE\n\
             -A POSTROUTING -s 10.1.0.2/32 {comment} -j {chain}\n\
             -A POSTROUTING -s 10.2.0.2/32 {comment} -j {chain}\n\
             COMMIT\n"
        );
        assert_eq!(text, want);
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        assert!(masquerades_in_legacy(&lines, chain) && !masquerades_in_legacy(&lines, "CNI-"));
        assert!(accepts_in_legacy(&lines, chain, cidr("10.244.0.0/16")));
        assert!(!accepts_in_legacy(&lines, chain, cidr("10.244.0.0/24")));
        assert!(!accepts_in_legacy(&lines, chain, cidr("0.0.0.0/0")));
        let all = [format!("-A {chain} {comment} -j ACCEPT")];
        assert!(accepts_in_legacy(&all, chain, cidr("0.0.0.0/0")));
        let text = script(&FAMILIES[0], OWNER, traffic, true);
        assert!(!text.contains(&format!(":{chain}")), "{text}");
        for net in ["10.1.0.0/24", "10.244.0.0/16"] {
            assert!(text.contains(&format!("-I {chain} -d {net}")), "{text}");
        }
    }
}
