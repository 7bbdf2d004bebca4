//! Masquerade by the iptables tools, for hosts that ask for it, and the removal of what they left.
//!
//! Rules are added by `iptables-restore`, one process per family. What `iptables-nft` made is listed and removed
//! through nf_tables, without a process; the older tools run only where the kernel says that they have a nat table.

use std::fmt::Write;
use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use cni::ip::{Cidr, octets};
use cni::netlink::Netlink;
use cni::netlink::nft::{Chain, Edit, Family, Nftables, Rule, Table};
use cni::{AttachmentKey, Code, Error, Failures, Result, key, tool};

use crate::gc::Keep;
use crate::masquerade::{self, Masquerade, missing};

/// How long a tool may take, and a bit less for the lock that it may have to wait for.
const PATIENCE: Duration = Duration::from_secs(20);
const RESTORE: [&str; 2] = ["--noflush", "--wait=15"];
/// How often rules are looked for again because somebody deleted one meanwhile.
const ATTEMPTS: u32 = 10;

/// One family's tools and tables.
#[derive(Debug)]
struct Side {
    v4: bool,
    /// The table as `iptables-nft` keeps it.
    nat: Table<'static>,
    restore: &'static str,
    /// The tools for the older tables: where both kinds are installed, and where there is one.
    legacy: [(&'static str, &'static str); 2],
    /// Names the older tables that are in use.
    names: &'static str,
    multicast: &'static str,
}

const SIDES: [Side; 2] = [
    Side {
        v4: true,
        nat: Table { family: Family::Ipv4, name: "nat" },
        restore: "iptables-restore",
        legacy: [("iptables-legacy-save", "iptables-legacy-restore"), ("iptables-save", "iptables-restore")],
        names: "/proc/net/ip_tables_names",
        multicast: "224.0.0.0/4",
    },
    Side {
        v4: false,
        nat: Table { family: Family::Ipv6, name: "nat" },
        restore: "ip6tables-restore",
        legacy: [("ip6tables-legacy-save", "ip6tables-legacy-restore"), ("ip6tables-save", "ip6tables-restore")],
        names: "/proc/net/ip6_tables_names",
        multicast: "ff00::/8",
    },
];

impl Side {
    fn postrouting(&self) -> Chain<'static> {
        self.nat.chain("POSTROUTING")
    }

    /// The rules of the older nat table as text, and the tool that changes it; `None` if there is no such table.
    fn legacy(&self) -> Result<Option<(Vec<String>, &'static str)>> {
        let names = fs::read_to_string(self.names).unwrap_or_default();
        if !names.lines().any(|name| name == "nat") {
            return Ok(None);
        }
        let Some((save, restore)) = self.legacy.into_iter().find(|(save, _)| tool::find(save).is_some()) else {
            return Ok(None);
        };
        let listing = tool::run(save, &["-t", "nat"], "", PATIENCE)?;
        // On a host with only the newer tools `iptables-save` lists the table of nf_tables, which is handled by netlink.
        if listing.lines().next().is_some_and(|head| head.contains("(nf_tables)")) {
            return Ok(None);
        }
        Ok(Some((listing.lines().map(str::to_owned).collect(), restore)))
    }

    /// Is the chain there already? Then another attachment of the container has made it, or a DEL was lost.
    fn has_chain(&self, chain: &str) -> Result<bool> {
        if Nftables::open()?.has_chain(self.nat.chain(chain))? {
            return Ok(true);
        }
        let declares = |line: &String| line.strip_prefix(':').is_some_and(|rest| rest.split(' ').next() == Some(chain));
        Ok(self.legacy()?.is_some_and(|(lines, _)| lines.iter().any(declares)))
    }
}

/// Adds the rules of an attachment.
pub(crate) fn add(owner: AttachmentKey<'_>, ips: &[Cidr]) -> Result<()> {
    for side in &SIDES {
        let ips: Vec<_> = ips.iter().filter(|ip| ip.ip().is_ipv4() == side.v4).collect();
        if ips.is_empty() {
            continue;
        }
        let chain_is_there = side.has_chain(&owner.chain())?;
        let input = script(side, owner, &ips, chain_is_there);
        tool::run(side.restore, &RESTORE, &input, PATIENCE)?;
    }
    Ok(())
}

/// What `iptables-restore` is told. Unlike upstream, what stays inside comes before the masquerade, for all addresses:
/// else traffic to the container's second network would be masqueraded. And a chain that is there keeps its rules:
/// another attachment needs them.
fn script(side: &Side, owner: AttachmentKey<'_>, ips: &[&Cidr], chain_is_there: bool) -> String {
    let chain = owner.chain();
    // For legal names the reference's quotes are the only characters to be escaped.
    let comment = owner.iptables_comment().replace('"', "\\\"");
    let comment = format!("-m comment --comment \"{comment}\"");
    let mut text = String::from("*nat\n");
    let mut line = |rule: std::fmt::Arguments<'_>| {
        // Writing to a text cannot fail.
        let _ = writeln!(text, "{rule}");
    };
    if !chain_is_there {
        line(format_args!(":{chain} - [0:0]"));
    }
    for ip in ips {
        let verb = if chain_is_there { "-I" } else { "-A" };
        line(format_args!("{verb} {chain} -d {} {comment} -j ACCEPT", ip.network()));
    }
    line(format_args!("-A {chain} ! -d {} {comment} -j MASQUERADE", side.multicast));
    for ip in ips {
        line(format_args!("-A POSTROUTING -s {} {comment} -j {chain}", Cidr::host(ip.ip())));
    }
    text.push_str("COMMIT\n");
    text
}

/// Removes the rules of an attachment, and the chain with its last user. `ips` are its addresses, if they are known;
/// they matter only while the container has other attachments to the network, with which it shares the chain.
pub(crate) fn remove(nft: &mut Nftables, host: &mut Netlink, owner: AttachmentKey<'_>, ips: &[IpAddr]) -> Result<()> {
    let chain = owner.chain();
    let mut alone = None;
    let mut failures = Failures::default();
    for side in &SIDES {
        let mut remove = || -> Result<()> {
            let in_nft = nft.has_chain(side.nat.chain(&chain))?;
            let legacy = side.legacy()?.filter(|(lines, _)| lines.iter().any(|line| line.contains(&chain)));
            if !in_nft && legacy.is_none() {
                return Ok(());
            }
            let alone = match alone {
                Some(alone) => alone,
                None => *alone.insert(is_alone(host, owner)?),
            };
            let is_ours = |source: &[u8]| alone || ips.iter().any(|ip| octets(*ip) == source);
            if in_nft {
                remove_from_nft(nft, side, &chain, is_ours)?;
            }
            if let Some((lines, restore)) = legacy {
                remove_from_legacy(&lines, restore, &chain, |line| {
                    alone || ips.iter().any(|ip| line.contains(&format!("-s {} ", Cidr::host(*ip))))
                })?;
            }
            Ok(())
        };
        failures.note(remove());
    }
    failures.into_result()
}

/// Is this the container's only attachment to the network?
fn is_alone(host: &mut Netlink, owner: AttachmentKey<'_>) -> Result<bool> {
    let (own, all) = (owner.alias(), format!("{}{} ", key::alias_prefix(owner.network), owner.container));
    Ok(host.find_links(&|alias| alias.starts_with(&all) && alias != own)?.is_empty())
}

fn remove_from_nft(nft: &mut Nftables, side: &Side, chain: &str, is_ours: impl Fn(&[u8]) -> bool) -> Result<()> {
    let postrouting = side.postrouting();
    let mut outcome = Ok(());
    for _ in 0..ATTEMPTS {
        let mut jumps = nft.rules(postrouting)?;
        jumps.retain(|rule| rule.target.as_deref() == Some(chain));
        let source = |rule: &Rule| rule.values.first().cloned().unwrap_or_default();
        let (ours, others): (Vec<_>, Vec<_>) = jumps.into_iter().partition(|rule| is_ours(&source(rule)));
        let mut edits: Vec<_> = ours.iter().map(|rule| Edit::delete_rule(postrouting, rule)).collect();
        if others.is_empty() {
            edits.push(Edit::flush(side.nat.chain(chain)));
            edits.push(Edit::delete_chain(side.nat.chain(chain)));
        }
        outcome = nft.apply(&edits);
        match &outcome {
            Err(error) if error.errno() == Some(libc::ENOENT) => {
                // Somebody else was faster, with a rule or with the chain.
                if !nft.has_chain(side.nat.chain(chain))? {
                    return Ok(());
                }
            }
            _ => break,
        }
    }
    outcome
}

fn remove_from_legacy(lines: &[String], restore: &str, chain: &str, is_ours: impl Fn(&str) -> bool) -> Result<()> {
    let target = format!(" -j {chain}");
    let jumps = lines
        .iter()
        .filter_map(|line| line.strip_prefix("-A POSTROUTING ").filter(|rule| format!(" {rule}").ends_with(&target)));
    let (ours, others): (Vec<_>, Vec<_>) = jumps.partition(|rule| is_ours(rule));
    let mut input = String::from("*nat\n");
    for rule in ours {
        input.push_str(&format!("-D POSTROUTING {rule}\n"));
    }
    if others.is_empty() {
        input.push_str(&format!("-F {chain}\n-X {chain}\n"));
    }
    input.push_str("COMMIT\n");
    tool::run(restore, &RESTORE, &input, PATIENCE).map(drop)
}

/// GC: removes the chains of a network's containers that are not in `keep`.
pub(crate) fn collect(nft: &mut Nftables, host: &mut Netlink, keep: &Keep<'_>) -> Result<()> {
    let network = keep.network;
    let prefix = key::iptables_prefix(network);
    let container = |comment: String| {
        let id = comment.strip_prefix(&prefix)?.strip_suffix('"')?.to_owned();
        (!keep.has_container(&id)).then_some(id)
    };
    // Of rules in any chain: whoever was killed may have left one to which nothing leads.
    let mut stale: Vec<String> = comments(nft)?.into_iter().filter_map(container).collect();
    stale.sort_unstable();
    stale.dedup();
    let mut failures = Failures::default();
    for id in &stale {
        failures.note(remove(nft, host, AttachmentKey { network, container: id, ifname: "" }, &[]));
    }
    failures.into_result()
}

/// What the rules of the nat tables say whose they are.
fn comments(nft: &mut Nftables) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for side in &SIDES {
        found.extend(nft.table_rules(side.nat)?.into_iter().map(|rule| rule.comment));
        let lines = side.legacy()?.map(|(lines, _)| lines).unwrap_or_default();
        found.extend(lines.iter().filter_map(|line| legacy_comment(line)).map(|(_, comment)| comment));
    }
    Ok(found)
}

/// What stands before the comment of a rule of the older tables, and the comment.
fn legacy_comment(line: &str) -> Option<(&str, String)> {
    let (what, rest) = line.split_once("--comment \"")?;
    let (comment, _) = rest.split_once("\\\"\"")?;
    Some((what, format!("{}\"", comment.replace("\\\"", "\""))))
}

/// The rules of all networks and containers that lead to their chains. What others wrote has another comment.
pub(crate) fn list(nft: &mut Nftables) -> Result<Vec<Masquerade>> {
    let mut found = Vec::new();
    for side in &SIDES {
        for rule in nft.rules(side.postrouting())? {
            found.push(Masquerade { source: masquerade::source(&rule), iptables: true, comment: rule.comment });
        }
        let lines = side.legacy()?.map(|(lines, _)| lines).unwrap_or_default();
        found.extend(lines.iter().filter_map(|line| {
            let (what, comment) = legacy_comment(line.strip_prefix("-A POSTROUTING ")?)?;
            let source = what.strip_prefix("-s ").and_then(|rest| rest.split(['/', ' ']).next()?.parse().ok());
            Some(Masquerade { source, iptables: true, comment })
        }));
    }
    found.retain(|rule| rule.comment.starts_with("name: \""));
    Ok(found)
}

/// CHECK: does a rule lead to the chain for each address?
pub(crate) fn check(owner: AttachmentKey<'_>, ips: &[Cidr]) -> Result<()> {
    let chain = owner.chain();
    let mut nft = Nftables::open()?;
    for side in &SIDES {
        let ips: Vec<_> = ips.iter().filter(|ip| ip.ip().is_ipv4() == side.v4).collect();
        if ips.is_empty() {
            continue;
        }
        let jumps = nft.rules(side.postrouting())?;
        let legacy = side.legacy()?.map(|(lines, _)| lines).unwrap_or_default();
        for ip in ips {
            let source = octets(ip.ip());
            let in_nft =
                jumps.iter().any(|rule| rule.target.as_deref() == Some(&chain) && rule.values.contains(&source));
            let text = format!("-s {} ", Cidr::host(ip.ip()));
            let in_legacy = || legacy.iter().any(|line| line.contains(&text) && line.ends_with(&chain));
            if !in_nft && !in_legacy() {
                let what = format!("no rule in chain POSTROUTING leads {} to chain {chain}", ip.ip());
                return Err(missing(what));
            }
        }
    }
    Ok(())
}

/// STATUS: are the tools there, and do they work?
pub(crate) fn status() -> Result<()> {
    // An ADD waits for the tools' lock too: that another program holds it for a moment says nothing about the node.
    let [keep, wait] = RESTORE;
    tool::run(SIDES[0].restore, &[keep, wait, "--test"], "*nat\nCOMMIT\n", PATIENCE).map(drop).map_err(|error| {
        Error::new(Code::INTERNAL, format!("iptables cannot be used: {error}"))
            .details("install iptables, or set \"ipMasqBackend\" to \"nftables\"")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: AttachmentKey<'_> = AttachmentKey { network: "net1", container: "cid1", ifname: "eth0" };

    #[test]
    fn what_stays_inside_comes_before_the_masquerade() {
        let ips: [Cidr; 2] = ["10.1.0.2/24".parse().unwrap(), "10.2.0.2/16".parse().unwrap()];
        let text = script(&SIDES[0], OWNER, &ips.iter().collect::<Vec<_>>(), false);
        let comment = r#"-m comment --comment "name: \"net1\" id: \"cid1\"""#;
        let chain = "CNI-e8f6f419596f7f47b3468487";
        let want = format!(
            "*nat\n:{chain} - [0:0]\n\
             -A {chain} -d 10.1.0.0/24 {comment} -j ACCEPT\n\
             -A {chain} -d 10.2.0.0/16 {comment} -j ACCEPT\n\
             -A {chain} ! -d 224.0.0.0/4 {comment} -j MASQUERADE\n\
             -A POSTROUTING -s 10.1.0.2/32 {comment} -j {chain}\n\
             -A POSTROUTING -s 10.2.0.2/32 {comment} -j {chain}\n\
             COMMIT\n"
        );
        assert_eq!(text, want);
        let text = script(&SIDES[0], OWNER, &ips.iter().collect::<Vec<_>>(), true);
        assert!(!text.contains(&format!(":{chain}")), "{text}");
        assert!(text.contains(&format!("-I {chain} -d 10.1.0.0/24")), "{text}");
    }
}
