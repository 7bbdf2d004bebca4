//! CHECK: compares the host's firewall with what the configuration and the previous result require. Changes nothing.

use std::cell::Cell;

use cni::{AttachmentKey, Code, Error, Result};
use linux::iptables::{FAMILIES, ListedRule, Tools, View};
use linux::netlink::nft::Nftables;

use crate::accepted::{self, Frame, Member};
use crate::add::Traffic;
use crate::config::Backend;
use crate::filter::{self, CONTAINERS, FILTER, FORWARD, address_rules};
use crate::firewalld::{Firewalld, not_running};
use crate::isolation;
use crate::policy::{self, Policy, STAGE_1};

/// The remedy if something of an attached container is missing.
const REPAIR_HINT: &str = "something changed the host's firewall; run `cnitool repair`, or repeat the ADD";

/// Returns an error for the first difference.
pub(crate) fn run(traffic: &Traffic<'_>) -> Result<()> {
    let mut nft = Nftables::open()?;
    let accepted = match traffic.config.backend {
        Backend::Iptables | Backend::Nftables => check_rules(&mut nft, traffic),
        Backend::Firewalld => check_zone(&mut Firewalld::connect()?.ok_or_else(not_running)?, traffic),
        // firewalld may have started or stopped since ADD.
        Backend::Auto => match check_rules(&mut nft, traffic) {
            Ok(()) => Ok(()),
            Err(error) => match Firewalld::connect()? {
                Some(mut firewalld) => check_zone(&mut firewalld, traffic),
                None => Err(error),
            },
        },
    };
    accepted?;
    check_policy(&mut nft, traffic)
}

fn check_zone(firewalld: &mut Firewalld, traffic: &Traffic<'_>) -> Result<()> {
    let zone = &traffic.config.zone;
    for ip in &traffic.ips {
        if !firewalld.query(zone, *ip)? {
            return Err(difference(format!("{ip} is not in firewalld zone {zone}")));
        }
    }
    Ok(())
}

/// Calls `check` for each table of these families with chains of the plugin. Returns an error if there is no such
/// table.
fn for_each_table<'t>(
    nft: &mut Nftables,
    families: impl IntoIterator<Item = &'t Tools>,
    chain: &str,
    mut check: impl FnMut(&Tools, &mut View<'_>) -> Result<()>,
) -> Result<()> {
    for tools in families {
        let table = tools.table(FILTER);
        let mut is_found = false;
        if nft.has_chain(table.chain(chain))? {
            is_found = true;
            check(tools, &mut View::Nft(nft, table))?;
        }
        // A packet must pass both tables.
        let is_skipped = !is_found && nft.has_chain(table.chain(FORWARD))?;
        if let Some(legacy) = tools.legacy_table_in_use(FILTER)?.filter(|legacy| legacy.has_chain(chain)) {
            is_found = true;
            check(tools, &mut View::Legacy(&legacy.lines))?;
        }
        if !is_found || is_skipped {
            return Err(difference(format!("chain {chain} does not exist in table {table}")));
        }
    }
    Ok(())
}

/// Compares the plugin's own table, if it has the attachment. Returns whether it has.
fn check_addresses(nft: &mut Nftables, traffic: &Traffic<'_>) -> Result<bool> {
    if Member::find(nft, &traffic.owner.mark())?.is_none() {
        return Ok(false);
    }
    if !(Frame { bit: traffic.config.accept_bit }).is_complete(nft)? {
        return Err(difference("rules of table inet cni_firewall do not exist".to_owned()));
    }
    for ip in &traffic.ips {
        // Also if a container with the same address has it.
        if accepted::owner_of(nft, *ip)?.is_none() {
            return Err(difference(format!("{ip} is not in table inet cni_firewall")));
        }
    }
    Ok(true)
}

/// Compares the rules that accept the traffic, and the jumps that lead to them, in every table that has them.
fn check_rules(nft: &mut Nftables, traffic: &Traffic<'_>) -> Result<()> {
    let is_marked = check_addresses(nft, traffic)?;
    for_each_table(nft, FAMILIES.iter().filter(|tools| traffic.has_address(tools)), CONTAINERS, |tools, view| {
        let forward = view.rules_with_mark(FORWARD, &str::is_empty)?;
        let containers = view.rules_with_mark(CONTAINERS, &str::is_empty)?;
        for (chain, rules, target) in
            [(FORWARD, &forward, CONTAINERS), (CONTAINERS, &containers, &traffic.config.admin_chain)]
        {
            if !has_jump(rules, target) {
                return Err(difference(format!("no rule of chain {chain} leads to {target}")));
            }
        }
        let is_open = traffic.policy.is_none();
        if is_open
            && has_jump(&forward, STAGE_1)
            && !policy::remove(view, traffic.owner.network, &mut |_| Ok(false))?.is_empty()
        {
            return Err(too_strict(traffic));
        }
        let listed = filter::list(view, &traffic.mark)?;
        if is_marked {
            let bit = traffic.config.accept_bit;
            return match filter::accept_mark(&listed, tools, bit) {
                true => Ok(()),
                false => Err(missing(&filter::mark_rule(bit).text(), CONTAINERS)),
            };
        }
        // The reference does not add the last one.
        let number = if listed.iter().any(|rule| filter::is_of(&traffic.mark, rule)) { 3 } else { 2 };
        for ip in traffic.ips.iter().filter(|ip| tools.includes(**ip)) {
            for rule in address_rules(*ip, None).iter().take(number) {
                if !listed.iter().any(|listed| listed.is_same_as(rule, tools.family)) {
                    return Err(missing(&rule.text(), rule.chain));
                }
            }
        }
        Ok(())
    })
}

fn has_jump(rules: &[ListedRule], target: &str) -> bool {
    rules.iter().any(|rule| rule.is_jump_to(target))
}

/// Compares the rules of the ingress policy and the isolation of the port, if the attachment has a policy.
fn check_policy(nft: &mut Nftables, traffic: &Traffic<'_>) -> Result<()> {
    let Some(policy) = &traffic.policy else { return Ok(()) };
    // Whether this plugin has attached the container, and not the reference.
    let is_ours = Member::find(nft, &traffic.owner.mark())?.is_some();
    let is_strict = Cell::new(false);
    let check = |tools: &Tools, view: &mut View<'_>| {
        let is_marked = policy.is_marked(view)?;
        is_strict.set(is_strict.get() || (is_marked && is_ours));
        let forward = view.rules(FORWARD)?;
        match policy.difference(view, tools, &forward, is_marked)? {
            Some(what) => Err(difference(what)),
            None if policy.is_exceeded(view, tools)? => Err(too_strict(traffic)),
            None => Ok(()),
        }
    };
    for_each_table(nft, FAMILIES.iter().filter(|tools| traffic.has_address(tools)), STAGE_1, check)?;
    // The reference applies a policy only in families in which the container has an address.
    if is_strict.get() {
        for tools in FAMILIES.iter().filter(|tools| !traffic.has_address(tools)) {
            if traffic.concerns(tools)? {
                for_each_table(nft, [tools], STAGE_1, check)?;
            }
        }
    }
    if is_strict.get() && policy.is_isolated { check_isolation(nft, traffic.owner, policy) } else { Ok(()) }
}

fn check_isolation(nft: &mut Nftables, owner: AttachmentKey<'_>, policy: &Policy) -> Result<()> {
    match policy.isolated_port() {
        Some(port) if !port.is_isolated(nft)? => Err(difference(format!("port {:?} is not isolated", port.name))),
        // The table names the port of ADD, which another program has renamed or removed.
        None if !policy.has_link() => match isolation::port_of(nft, owner)? {
            Some(port) => Err(difference(format!("the isolated port {port:?} does not exist"))),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

fn too_strict(traffic: &Traffic<'_>) -> Error {
    difference(format!("network {:?} has rules of a stricter ingress policy", traffic.owner.network))
}

fn missing(rule: &str, chain: &str) -> Error {
    difference(format!("rule \"{rule}\" in chain {chain} does not exist"))
}

fn difference(what: String) -> Error {
    Error::new(Code::INTERNAL, what).details(REPAIR_HINT)
}
