//! Checks settings of the kernel that affect packets from and to containers.

use cni::Result;
use cni::inspect::Usage;
use linux::netlink::Netlink;
use linux::netlink::nft::Nftables;
use linux::{sysctl, tool};

use super::{Level, Report};
use crate::node::Network;

pub(super) fn check(report: &mut Report) -> Result<()> {
    forwarding(report)?;
    ipv6(report)?;
    rp_filter(report)?;
    nf_tables(report)
}

/// Returns whether a network has ranges of this family. If its ranges are unknown, it is assumed to use IPv4.
fn has_family(network: &Network, v4: bool) -> bool {
    if network.ranges.is_empty() {
        return v4;
    }
    network.ranges.iter().flatten().any(|range| range.gateway.is_ipv4() == v4)
}

/// Returns whether a network has containers now.
fn is_busy(report: &Report, network: &Network) -> bool {
    report.node.bridges(network).iter().any(|bridge| report.node.ports(bridge).next().is_some())
}

fn forwarding(report: &mut Report) -> Result<()> {
    for (family, v4, key) in [
        ("IPv4", true, ["net", "ipv4", "ip_forward"].as_slice()),
        ("IPv6", false, &["net", "ipv6", "conf", "all", "forwarding"]),
    ] {
        let gateways: Vec<&Network> = report
            .node
            .networks
            .iter()
            .filter(|network| network.bridge.as_ref().is_some_and(|bridge| bridge.gateway.is_some()))
            .filter(|network| has_family(network, v4))
            .collect();
        if gateways.is_empty() {
            continue;
        }
        let names: Vec<&str> = gateways.iter().map(|network| network.name.as_str()).collect();
        let names = names.join(", ");
        let busy = gateways.iter().any(|network| is_busy(report, network));
        let Some(value) = sysctl::read(key)? else { continue };
        let setting = key.join(".");
        match (value.as_str(), busy) {
            ("0", true) => {
                let what =
                    format!("{family} is not forwarded ({setting} is 0): containers of {names} reach only this host");
                report.add(
                    Level::Fail,
                    "forwarding",
                    None,
                    what,
                    format!("sysctl -w {setting}=1, and set it in /etc/sysctl.d"),
                );
            }
            ("0", false) => {
                let what = format!("{family} is not forwarded ({setting} is 0); the first add to {names} turns it on");
                let remedy = format!("set {setting}=1 in /etc/sysctl.d, so that it stays on");
                report.add(Level::Warn, "forwarding", None, what, remedy);
            }
            _ => report.ok("forwarding", None, format!("{family} is forwarded, for {names}")),
        }
    }
    let bridges: Vec<String> = report
        .node
        .networks
        .iter()
        .filter_map(|network| network.bridge.as_ref()?.gateway.clone())
        .filter(|name| report.node.link(name).is_some())
        .collect();
    for bridge in bridges {
        let all_on = sysctl::read(&["net", "ipv4", "ip_forward"])?.is_some_and(|value| value != "0");
        let key = ["net", "ipv4", "conf", bridge.as_str(), "forwarding"];
        if all_on && sysctl::read(&key)?.as_deref() == Some("0") {
            let what = format!("packets from {bridge} are not forwarded, although forwarding is on");
            // With slashes, because the name of a link may contain dots.
            report.add(Level::Fail, "forwarding", None, what, format!("sysctl -w {}=1", key.join("/")));
        }
    }
    Ok(())
}

fn ipv6(report: &mut Report) -> Result<()> {
    let names: Vec<String> = report
        .node
        .networks
        .iter()
        .filter(|network| has_family(network, false))
        .map(|network| network.name.clone())
        .collect();
    if names.is_empty() {
        return Ok(());
    }
    let names = names.join(", ");
    match sysctl::read(&["net", "ipv6", "conf", "all", "disable_ipv6"])?.as_deref() {
        None => {
            let what = format!("the kernel has no IPv6, and {names} has IPv6 ranges");
            report.add(Level::Fail, "ipv6", None, what, "remove the IPv6 ranges, or boot without ipv6.disable=1");
        }
        Some("0") => report.ok("ipv6", None, "IPv6 is enabled"),
        Some(_) => {
            let what = format!("IPv6 is disabled on this host, and {names} has IPv6 ranges");
            let remedy = "sysctl -w net.ipv6.conf.all.disable_ipv6=0, or remove the IPv6 ranges";
            report.add(Level::Fail, "ipv6", None, what, remedy);
        }
    }
    router_advertisements(report)
}

/// Warns if the host will lose its IPv6 default route: a host that forwards IPv6 ignores router advertisements, unless
/// `accept_ra` is 2.
fn router_advertisements(report: &mut Report) -> Result<()> {
    let links: Vec<String> = Netlink::open()?
        .default_routes()?
        .iter()
        .filter(|route| route.route.dst.ip().is_ipv6() && route.is_advertised)
        .filter_map(|route| report.node.links.iter().find(|link| Some(link.index) == route.link))
        .map(|link| link.name.clone())
        .collect();
    let forwards = sysctl::read(&["net", "ipv6", "conf", "all", "forwarding"])?.is_some_and(|value| value != "0");
    for link in links {
        if forwards && sysctl::read(&["net", "ipv6", "conf", &link, "accept_ra"])?.as_deref() == Some("1") {
            let what = format!(
                "IPv6 is forwarded, so {link} ignores router advertisements, \
                 and the default route that it got from them expires"
            );
            report.add(Level::Warn, "ipv6", None, what, format!("sysctl -w net/ipv6/conf/{link}/accept_ra=2"));
        }
    }
    Ok(())
}

/// Checks `rp_filter`. A strict filter is only harmful if replies can arrive on another link than requests leave by.
fn rp_filter(report: &mut Report) -> Result<()> {
    let defaults = Netlink::open()?.default_routes()?;
    let mut uplinks: Vec<_> =
        defaults.iter().filter(|route| route.route.dst.ip().is_ipv4()).filter_map(|route| route.link).collect();
    uplinks.dedup();
    let all = sysctl::read(&["net", "ipv4", "conf", "all", "rp_filter"])?.unwrap_or_default();
    let links: Vec<String> = report
        .node
        .links
        .iter()
        .filter(|link| uplinks.contains(&link.index) || link.kind == "bridge")
        .map(|link| link.name.clone())
        .collect();
    let mut strict = Vec::new();
    for link in links {
        let own = sysctl::read(&["net", "ipv4", "conf", &link, "rp_filter"])?.unwrap_or_default();
        // The kernel uses the greater of the two values; 2 is loose.
        if own.as_str().max(all.as_str()) == "1" {
            strict.push(link);
        }
    }
    if strict.is_empty() {
        report.ok("rp_filter", None, "not strict");
    } else if uplinks.len() > 1 {
        let what = format!(
            "strict on {}, and there are {} default routes: replies that arrive on another link are dropped",
            strict.join(", "),
            uplinks.len()
        );
        report.add(Level::Warn, "rp_filter", None, what, "sysctl -w net.ipv4.conf.all.rp_filter=2");
    } else {
        report.ok("rp_filter", None, format!("strict on {}, harmless with one default route", strict.join(", ")));
    }
    Ok(())
}

fn nf_tables(report: &mut Report) -> Result<()> {
    let users: Vec<(String, bool)> = report
        .node
        .networks
        .iter()
        .filter(|network| network.nftables > Usage::No)
        .map(|network| (network.name.clone(), network.nftables == Usage::Required))
        .collect();
    if users.is_empty() {
        return Ok(());
    }
    match Nftables::open()?.is_available() {
        Ok(true) => report.ok("nf_tables", None, "the kernel has nf_tables"),
        Err(error) => report.unseen(&error.into()),
        Ok(false) => {
            let has_iptables = tool::find("iptables-restore").is_some();
            for (name, only) in users {
                let (level, remedy) = match (only, has_iptables) {
                    (true, _) => (Level::Fail, "modprobe nf_tables, or use a kernel that has it"),
                    (false, false) => (Level::Fail, "modprobe nf_tables, or install iptables"),
                    (false, true) => (Level::Warn, "none needed: the plugin uses iptables instead, which is slower"),
                };
                report.add(level, "nf_tables", Some(&name), "the kernel has no nf_tables", remedy);
            }
        }
    }
    Ok(())
}
