//! Settings of the kernel that packets from and to containers depend on.

use cni::netlink::Netlink;
use cni::netlink::nft::Nftables;
use cni::{Result, sysctl, tool};

use super::{Level, Report};
use crate::node::Network;

pub(super) fn check(report: &mut Report) -> Result<()> {
    forwarding(report)?;
    ipv6(report)?;
    rp_filter(report)?;
    nf_tables(report)
}

/// Does a network have ranges of this family? Where they are not known, IPv4 is what most use.
fn has_family(network: &Network, v4: bool) -> bool {
    if network.ranges.is_empty() {
        return v4;
    }
    network.ranges.iter().flatten().any(|range| range.gateway().is_ipv4() == v4)
}

/// Does a network have containers now?
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
                    format!("sysctl -w {setting}=1, and in /etc/sysctl.d"),
                );
            }
            ("0", false) => {
                let what = format!("{family} is not forwarded ({setting} is 0); the first add to {names} turns it on");
                let remedy = format!("set {setting}=1 in /etc/sysctl.d, lest something turns it off again");
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
            let what = format!("what comes in by {bridge} is not forwarded, though others' is");
            // With slashes, because a link's name may have dots.
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
        Some("0") => report.ok("ipv6", None, "IPv6 is there"),
        Some(_) => {
            let what = format!("IPv6 is disabled on this host, and {names} has IPv6 ranges");
            let remedy = "sysctl -w net.ipv6.conf.all.disable_ipv6=0, or remove the IPv6 ranges";
            report.add(Level::Fail, "ipv6", None, what, remedy);
        }
    }
    router_advertisements(report)
}

/// A host that forwards IPv6 no longer listens to routers, and loses the default route that they gave it.
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
                "IPv6 is forwarded, so {link} does not listen to routers any more, \
                 and the default route that they told expires"
            );
            report.add(Level::Warn, "ipv6", None, what, format!("sysctl -w net/ipv6/conf/{link}/accept_ra=2"));
        }
    }
    Ok(())
}

/// Strict only harms where answers may come by another way than questions went.
fn rp_filter(report: &mut Report) -> Result<()> {
    let defaults = Netlink::open()?.default_routes()?;
    let mut ways: Vec<_> =
        defaults.iter().filter(|route| route.route.dst.ip().is_ipv4()).filter_map(|route| route.link).collect();
    ways.dedup();
    let all = sysctl::read(&["net", "ipv4", "conf", "all", "rp_filter"])?.unwrap_or_default();
    let links: Vec<String> = report
        .node
        .links
        .iter()
        .filter(|link| ways.contains(&link.index) || link.kind == "bridge")
        .map(|link| link.name.clone())
        .collect();
    let mut strict = Vec::new();
    for link in links {
        let own = sysctl::read(&["net", "ipv4", "conf", &link, "rp_filter"])?.unwrap_or_default();
        // The greater of the two counts; 2 is loose.
        if own.as_str().max(all.as_str()) == "1" {
            strict.push(link);
        }
    }
    if strict.is_empty() {
        report.ok("rp_filter", None, "not strict");
    } else if ways.len() > 1 {
        let what = format!(
            "strict on {}, and there are {} default routes: answers that come by another way are dropped",
            strict.join(", "),
            ways.len()
        );
        report.add(Level::Warn, "rp_filter", None, what, "sysctl -w net.ipv4.conf.all.rp_filter=2");
    } else {
        report.ok("rp_filter", None, format!("strict on {}, which does no harm with one way out", strict.join(", ")));
    }
    Ok(())
}

fn nf_tables(report: &mut Report) -> Result<()> {
    let wants = |network: &&Network| network.bridge.as_ref().is_some_and(|b| b.masquerade || b.needs_nftables);
    let users: Vec<(String, bool)> = report
        .node
        .networks
        .iter()
        .filter(wants)
        .map(|network| (network.name.clone(), network.bridge.as_ref().is_some_and(|bridge| bridge.needs_nftables)))
        .collect();
    if users.is_empty() {
        return Ok(());
    }
    match Nftables::open()?.is_there() {
        Ok(true) => report.ok("nf_tables", None, "the kernel has nf_tables"),
        Err(error) => report.unseen(&error),
        Ok(false) => {
            let has_iptables = tool::find("iptables-restore").is_some();
            for (name, only) in users {
                let (level, remedy) = match (only, has_iptables) {
                    (true, _) => (Level::Fail, "modprobe nf_tables, or use a kernel that has it"),
                    (false, false) => (Level::Fail, "modprobe nf_tables, or install iptables"),
                    (false, true) => (Level::Warn, "none is needed: iptables is used instead, which is slower"),
                };
                report.add(level, "nf_tables", Some(&name), "the kernel has no nf_tables", remedy);
            }
        }
    }
    Ok(())
}
