//! CHECK: compares the host's firewall with what the configuration and the previous result require. Changes nothing.

use cni::{Code, Error, Result};
use linux::iptables::{FAMILIES, ListedRule, Tools, View};
use linux::netlink::nft::Nftables;

use crate::add::Traffic;
use crate::config::Backend;
use crate::filter::{self, CONTAINERS, FILTER, FORWARD, address_rules};
use crate::firewalld::{Firewalld, not_running};

/// The remedy if something of an attached container is missing.
const REPAIR_HINT: &str = "something changed the host's firewall; `cnitool repair` or another ADD restores it";

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

/// Calls `check` for each table with chains of the plugin, of each family in which the container has an address. Returns
/// an error if there is no such table.
fn for_each_table(
    nft: &mut Nftables,
    traffic: &Traffic<'_>,
    chain: &str,
    mut check: impl FnMut(&Tools, &mut View<'_>) -> Result<()>,
) -> Result<()> {
    for tools in FAMILIES.iter().filter(|tools| traffic.ips.iter().any(|ip| tools.includes(*ip))) {
        let table = tools.table(FILTER);
        let mut is_found = false;
        if nft.has_chain(table.chain(chain))? {
            is_found = true;
            check(tools, &mut View::Nft(nft, table))?;
        }
        if let Some(legacy) = tools.legacy_table_in_use(FILTER)?.filter(|legacy| legacy.has_chain(chain)) {
            is_found = true;
            check(tools, &mut View::Legacy(&legacy.lines))?;
        }
        if !is_found {
            return Err(difference(format!("chain {chain} does not exist in table {table}")));
        }
    }
    Ok(())
}

fn check_rules(nft: &mut Nftables, traffic: &Traffic<'_>) -> Result<()> {
    let admin_chain = &traffic.config.admin_chain;
    for_each_table(nft, traffic, CONTAINERS, |tools, view| {
        for (chain, target) in [(FORWARD, CONTAINERS), (CONTAINERS, admin_chain)] {
            if !view.rules_with_mark(chain, &str::is_empty)?.iter().any(|rule| rule.is_jump_to(target)) {
                return Err(difference(format!("no rule of chain {chain} leads to {target}")));
            }
        }
        let listed = filter::list(view, &traffic.mark)?;
        // The reference does not add the last one.
        let number = if is_ours(traffic, &listed) { 3 } else { 2 };
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

/// Returns whether this plugin has added the rules of an attachment, and not the reference.
fn is_ours(traffic: &Traffic<'_>, listed: &[ListedRule]) -> bool {
    listed.iter().any(|rule| filter::is_of(&traffic.mark, rule))
}

fn check_policy(nft: &mut Nftables, traffic: &Traffic<'_>) -> Result<()> {
    let Some(policy) = &traffic.policy else { return Ok(()) };
    let mut is_strict = false;
    for_each_table(nft, traffic, crate::policy::STAGE_1, |tools, view| {
        let is_marked = policy.is_marked(view)?;
        is_strict |= is_marked && is_ours(traffic, &filter::list(view, &traffic.mark)?);
        let forward = view.rules(FORWARD)?;
        match policy.difference(view, tools, &forward, is_marked)? {
            Some(what) => Err(difference(what)),
            None => Ok(()),
        }
    })?;
    match policy.isolated_port().filter(|_| is_strict) {
        Some(port) if !port.is_isolated(nft)? => Err(difference(format!("port {:?} is not isolated", port.name))),
        _ => Ok(()),
    }
}

fn missing(rule: &str, chain: &str) -> Error {
    difference(format!("rule \"{rule}\" in chain {chain} does not exist"))
}

fn difference(what: String) -> Error {
    Error::new(Code::INTERNAL, what).details(REPAIR_HINT)
}
