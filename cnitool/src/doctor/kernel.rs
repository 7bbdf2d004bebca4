//! Checks settings of the kernel that affect packets from and to containers.

use cni::Result;
use cni::inspect::{Finding, Subject, Usage, shell_word};
use linux::netlink::Netlink;
use linux::netlink::nft::Nftables;
use linux::{sysctl, tool};

use super::{Report, Scope};
use crate::node::Network;

/// The checks.
const FORWARDING: &str = "forwarding";
const IPV6: &str = "ipv6";
const RP_FILTER: &str = "rp_filter";
const NF_TABLES: &str = "nf_tables";

pub(super) fn check(scope: &Scope, report: &mut Report) -> Result<()> {
    forwarding(scope, report)?;
    forwarding_of_bridges(scope, report)?;
    ipv6(scope, report)?;
    rp_filter(scope, report)?;
    nf_tables(scope, report)
}

/// Returns whether a network has ranges of this family. If its ranges are unknown, it is assumed to use IPv4.
fn has_family(network: &Network, v4: bool) -> bool {
    if network.ranges.is_empty() {
        return v4;
    }
    network.ranges.iter().flatten().any(|range| range.gateway.is_ipv4() == v4)
}

/// Returns whether a network has containers now.
fn is_busy(scope: &Scope, network: &Network) -> bool {
    scope.node.bridges(network).iter().any(|bridge| scope.node.ports(bridge).next().is_some())
}

/// Returns the name of a setting: with slashes if the name of a link in it contains dots.
fn name_of(key: &[&str]) -> String {
    key.join(if key.iter().any(|part| part.contains('.')) { "/" } else { "." })
}

/// Returns the subject for a setting.
fn setting(key: &[&str]) -> Subject {
    Subject::new("setting", name_of(key))
}

/// Returns the command that changes a setting.
fn set(key: &[&str], value: &str) -> String {
    format!("sysctl -w {}", shell_word(&format!("{}={value}", name_of(key))))
}

/// Reports for each address family whether the host forwards packets, if a network needs that.
fn forwarding(scope: &Scope, report: &mut Report) -> Result<()> {
    for (family, v4, key) in [
        ("IPv4", true, ["net", "ipv4", "ip_forward"].as_slice()),
        ("IPv6", false, &["net", "ipv6", "conf", "all", "forwarding"]),
    ] {
        let gateways: Vec<&Network> = scope
            .networks()
            .filter(|network| network.bridge.as_ref().is_some_and(|bridge| bridge.gateway.is_some()))
            .filter(|network| has_family(network, v4))
            .collect();
        if gateways.is_empty() {
            continue;
        }
        let names: Vec<&str> = gateways.iter().map(|network| network.name.as_str()).collect();
        let names = names.join(", ");
        let busy = gateways.iter().any(|network| is_busy(scope, network));
        let Some(value) = sysctl::read(key)? else { continue };
        let name = name_of(key);
        let finding = match (value.as_str(), busy) {
            ("0", true) => Finding::fail(
                FORWARDING,
                format!("{family} is not forwarded ({name} is 0): containers of {names} reach only this host"),
            ),
            ("0", false) => Finding::warn(
                FORWARDING,
                format!("{family} is not forwarded ({name} is 0); the first add to {names} turns it on"),
            ),
            _ => {
                report.host(Finding::ok(FORWARDING, format!("{family} is forwarded, for {names}")));
                continue;
            }
        };
        let remedy = format!("set {name}=1 in /etc/sysctl.d, so that it stays on");
        report.host(finding.about([setting(key)]).remedy(remedy).run([set(key, "1")]));
    }
    Ok(())
}

/// Reports bridges whose packets are not forwarded, although the host forwards others.
fn forwarding_of_bridges(scope: &Scope, report: &mut Report) -> Result<()> {
    if sysctl::read(&["net", "ipv4", "ip_forward"])?.is_none_or(|value| value == "0") {
        return Ok(());
    }
    let gateways = scope.networks().filter_map(|network| network.bridge.as_ref()?.gateway.as_deref());
    for bridge in gateways.filter(|name| scope.node.link(name).is_some()) {
        let key = ["net", "ipv4", "conf", bridge, "forwarding"];
        if sysctl::read(&key)?.as_deref() == Some("0") {
            let what = format!("packets from {bridge} are not forwarded, although forwarding is on");
            let finding = Finding::fail(FORWARDING, what).about([Subject::link(bridge), setting(&key)]);
            report.host(finding.run([set(&key, "1")]));
        }
    }
    Ok(())
}

/// Reports whether IPv6 is enabled, if a network has IPv6 ranges.
fn ipv6(scope: &Scope, report: &mut Report) -> Result<()> {
    let names: Vec<&str> =
        scope.networks().filter(|network| has_family(network, false)).map(|network| network.name.as_str()).collect();
    if names.is_empty() {
        return Ok(());
    }
    let key = ["net", "ipv6", "conf", "all", "disable_ipv6"];
    let subjects = names.iter().map(|name| Subject::new("network", *name));
    let joined = names.join(", ");
    report.host(match sysctl::read(&key)?.as_deref() {
        None => Finding::fail(IPV6, format!("the kernel has no IPv6, and {joined} has IPv6 ranges"))
            .about(subjects)
            .remedy("remove the IPv6 ranges, or boot without ipv6.disable=1"),
        Some("0") => Finding::ok(IPV6, "IPv6 is enabled"),
        Some(_) => Finding::fail(IPV6, format!("IPv6 is disabled on this host, and {joined} has IPv6 ranges"))
            .about(subjects)
            .about([setting(&key)])
            .remedy("enable IPv6, or remove the IPv6 ranges")
            .run([set(&key, "0")]),
    });
    router_advertisements(scope, report)
}

/// Warns if the host will lose its IPv6 default route: a host that forwards IPv6 ignores router advertisements, unless
/// `accept_ra` is 2.
fn router_advertisements(scope: &Scope, report: &mut Report) -> Result<()> {
    let forwards = sysctl::read(&["net", "ipv6", "conf", "all", "forwarding"])?.is_some_and(|value| value != "0");
    let defaults = Netlink::open()?.default_routes()?;
    let advertised = defaults.iter().filter(|route| route.route.dst.ip().is_ipv6() && route.is_advertised);
    let links = advertised
        .filter_map(|route| scope.node.links.iter().find(|link| Some(link.index) == route.link))
        .map(|l| &l.name);
    for link in links.filter(|_| forwards) {
        let key = ["net", "ipv6", "conf", link, "accept_ra"];
        if sysctl::read(&key)?.as_deref() == Some("1") {
            let what = format!(
                "IPv6 is forwarded, so {link} ignores router advertisements, \
                 and the default route that it got from them expires"
            );
            let finding = Finding::warn(IPV6, what).about([Subject::link(link), setting(&key)]);
            report.host(finding.run([set(&key, "2")]));
        }
    }
    Ok(())
}

/// Checks `rp_filter`. A strict filter is only harmful if replies can arrive on another link than requests leave by.
fn rp_filter(scope: &Scope, report: &mut Report) -> Result<()> {
    let defaults = Netlink::open()?.default_routes()?;
    let mut uplinks: Vec<_> =
        defaults.iter().filter(|route| route.route.dst.ip().is_ipv4()).filter_map(|route| route.link).collect();
    uplinks.dedup();
    let key = ["net", "ipv4", "conf", "all", RP_FILTER];
    let all = sysctl::read(&key)?.unwrap_or_default();
    let mut strict = Vec::new();
    for link in scope.node.links.iter().filter(|link| uplinks.contains(&link.index) || link.kind == "bridge") {
        let own = sysctl::read(&["net", "ipv4", "conf", &link.name, RP_FILTER])?.unwrap_or_default();
        // The kernel uses the greater of the two values; 2 is loose.
        if own.as_str().max(all.as_str()) == "1" {
            strict.push(link.name.as_str());
        }
    }
    let names = strict.join(", ");
    report.host(match uplinks.len() {
        _ if strict.is_empty() => Finding::ok(RP_FILTER, "not strict"),
        0 | 1 => Finding::ok(RP_FILTER, format!("strict on {names}, harmless with one default route")),
        number => {
            let what = format!(
                "strict on {names}, and there are {number} default routes: \
                 replies that arrive on another link are dropped"
            );
            let subjects = strict.iter().map(|link| Subject::link(link)).chain([setting(&key)]);
            Finding::warn(RP_FILTER, what).about(subjects).run([set(&key, "2")])
        }
    });
    Ok(())
}

/// Reports whether the kernel has nf_tables, if a network uses it.
fn nf_tables(scope: &Scope, report: &mut Report) -> Result<()> {
    let users: Vec<&Network> = scope.networks().filter(|network| network.nftables > Usage::No).collect();
    if users.is_empty() {
        return Ok(());
    }
    match Nftables::open()?.is_available() {
        Ok(true) => report.host(Finding::ok(NF_TABLES, "the kernel has nf_tables")),
        Err(error) => report.unseen(error.to_string()),
        Ok(false) => {
            let has_iptables = tool::find("iptables-restore").is_some();
            for network in users {
                let what = "the kernel has no nf_tables";
                let load = |remedy| Finding::fail(NF_TABLES, what).remedy(remedy).run(["modprobe nf_tables"]);
                let finding = match (network.nftables, has_iptables) {
                    (Usage::Required, _) => load("modprobe nf_tables, or use a kernel that has it"),
                    (_, false) => load("modprobe nf_tables, or install iptables"),
                    (_, true) => Finding::warn(NF_TABLES, what)
                        .remedy("none needed: the plugin uses iptables instead, which is slower"),
                };
                report.network(&network.name, finding.about([Subject::new("module", NF_TABLES)]));
            }
        }
    }
    Ok(())
}
