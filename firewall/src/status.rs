//! STATUS: returns an error if an ADD would fail now, and warns of other chains that drop the traffic of containers.

use std::net::Ipv4Addr;

use cni::{Code, Error, Result, try_edits};
use linux::iptables::{FAMILIES, TablePlan, View};
use linux::log::{debug, warn};
use linux::netlink::Netlink;
use linux::netlink::nft::{self, BaseChain, Family, Nftables, Table};

use crate::add::{FIX_HINT, RuleTable, Traffic, connect};
use crate::config::{Config, IngressPolicy};
use crate::filter::{FILTER, FORWARD};
use crate::isolation::IsolatedPort;
use crate::policy::Policy;

/// The table of firewalld in nf_tables.
pub(crate) const FIREWALLD: &str = "firewalld";

pub(crate) fn run(config: &Config) -> Result<()> {
    let unavailable = |error: Error| error.with_code(Code::NOT_AVAILABLE);
    let uses_firewalld = connect(config).map_err(unavailable)?.is_some();
    if !uses_firewalld || config.ingress != IngressPolicy::Open {
        try_rules(config, uses_firewalld).map_err(unavailable)?;
    }
    let mut nft = Nftables::open()?;
    for what in refusing_chains(&mut nft, uses_firewalld)? {
        warn!("{what}: rules of this plugin cannot let packets pass there");
    }
    Ok(())
}

/// Tries to add the rules of an imaginary container, without changing anything.
fn try_rules(config: &Config, uses_firewalld: bool) -> Result<()> {
    let is_isolated = config.ingress == IngressPolicy::Isolated;
    // The loopback interface always exists.
    let policy = Policy::new("", is_isolated, "lo".to_owned());
    let policy = Some(policy).filter(|_| config.ingress != IngressPolicy::Open);
    let traffic = Traffic::imaginary(config, Ipv4Addr::LOCALHOST.into(), policy, uses_firewalld);
    let [tools, _] = &FAMILIES;
    let mut nft = Nftables::open()?;
    let mut host = Netlink::open()?;
    let table = tools.table(FILTER);
    if traffic.places(&mut nft, tools)?.contains(&RuleTable::Nft) {
        let plan = traffic.plan(tools, &mut View::Nft(&mut nft, table), &mut host, true)?;
        let mut edits = plan.edits(table);
        edits.extend(traffic.frame(&mut nft)?);
        if is_isolated {
            edits.extend(IsolatedPort { name: "lo", bridge_mac: None }.isolate(&mut nft, traffic.owner)?);
        }
        match try_edits(&mut nft, &edits) {
            Err(error) if nft::is_unavailable(&error) && traffic.may_use_tools() => {
                debug!("nf_tables is unavailable: {error}");
            }
            outcome => return outcome.map_err(|error| error.details_if(nft::is_unavailable, FIX_HINT)),
        }
    }
    tools.test(&TablePlan::<()>::default().script(FILTER)).map_err(|error| {
        let error = Error::new(Code::INTERNAL, format!("iptables cannot be used: {error}"));
        error.details("install iptables, or load the kernel modules nf_tables and nft_compat")
    })
}

/// Describes the chains of other programs that drop or reject forwarded packets, whatever the rules of this plugin
/// accept.
///
/// Not the chain of iptables, where the rules of this plugin are, and not that of firewalld if it is the backend.
pub(crate) fn refusing_chains(nft: &mut Nftables, uses_firewalld: bool) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for chain in nft.base_chains()? {
        let is_ip = chain.sees(Family::Ipv4) || chain.sees(Family::Ipv6);
        let is_known = (chain.table == FILTER && chain.name == FORWARD && chain.family() != Some(Family::Inet))
            || (chain.table == FIREWALLD && uses_firewalld);
        let Some(family) = chain.family().filter(|_| is_ip && !is_known && chain.place == BaseChain::FORWARD) else {
            continue;
        };
        if chain.drops {
            found.push(format!("chain {chain} drops forwarded packets that none of its rules accepts"));
            continue;
        }
        let table = Table { family, name: &chain.table };
        let rules = nft.rules(table.chain(&chain.name))?;
        if rules.iter().any(|rule| rule.is_unconditional() && rule.refuses()) {
            found.push(format!("chain {chain} refuses forwarded packets that none of its earlier rules accepts"));
        }
    }
    Ok(found)
}
