//! Checks settings of the kernel that affect packets from and to containers.

use std::collections::BTreeSet;

use cni::Result;
use cni::inspect::{Command, CommandLine, Finding, Id, Subject, Usage};
use linux::netlink::nft::Nftables;
use linux::netlink::{KernelRoute, Link, Netlink};
use linux::{sysctl, tool};

use super::{Report, Selection};
use crate::node::Network;

/// The checks.
const FORWARDING: &str = "forwarding";
const IPV6: &str = "ipv6";
const RP_FILTER: &str = "rp_filter";
const NF_TABLES: &str = "nf_tables";
const UPLINK: &str = "uplink";

pub(super) fn check(scope: &Selection, report: &mut Report) -> Result<()> {
    forwarding(scope, report)?;
    forwarding_of_links(scope, report)?;
    uplink(scope, report)?;
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
fn is_busy(scope: &Selection, network: &Network) -> bool {
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

/// Reports for each address family whether the host forwards packets, if a network needs that.
fn forwarding(scope: &Selection, report: &mut Report) -> Result<()> {
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
                Id("forwarding-off"),
                format!("{family} is not forwarded ({name} is 0): containers of {names} reach only this host"),
            ),
            ("0", false) => Finding::warn(
                FORWARDING,
                Id("forwarding-off-until-add"),
                format!("{family} is not forwarded ({name} is 0); the first add to {names} turns it on"),
            ),
            _ => {
                report.host(Finding::ok(
                    FORWARDING,
                    Id("forwarding-on"),
                    format!("{family} is forwarded, for {names}"),
                ));
                continue;
            }
        };
        let remedy = format!("set {name}=1 in /etc/sysctl.d, so that it stays on");
        let commands = match v4 {
            true => vec![Command::ForwardIpv4.line(&[])],
            false => forward_ipv6(scope)?,
        };
        report.host(finding.about([setting(key)]).remedy(remedy).run(commands));
    }
    Ok(())
}

/// Returns the commands that turn forwarding of IPv6 on. The host must not lose its default route by it.
fn forward_ipv6(scope: &Selection) -> Result<Vec<CommandLine>> {
    let links = links_of_advertised_routes(scope)?;
    let accept = links.iter().map(|link| Command::AcceptAdvertisements.line(&[link]));
    Ok(accept.chain([Command::ForwardIpv6.line(&[])]).collect())
}

/// Reports bridges and uplinks whose packets are not forwarded, although the host forwards others. Of several uplinks,
/// only the preferred one counts.
fn forwarding_of_links(scope: &Selection, report: &mut Report) -> Result<()> {
    if sysctl::read(&["net", "ipv4", "ip_forward"])?.is_none_or(|value| value == "0") {
        return Ok(());
    }
    let gateways: Vec<&str> =
        scope.networks().filter_map(|network| network.bridge.as_ref()?.gateway.as_deref()).collect();
    let uplink = uplinks(scope)?.into_iter().find(|(_, is_ipv4)| *is_ipv4 && !gateways.is_empty());
    let bridges = gateways.iter().copied().filter(|name| scope.node.link(name).is_some());
    let links: BTreeSet<&str> = bridges.chain(uplink.map(|(link, _)| link.name.as_str())).collect();
    for link in links {
        let key = ["net", "ipv4", "conf", link, "forwarding"];
        if sysctl::read(&key)?.as_deref() == Some("0") {
            let what = format!("packets from {link} are not forwarded, although forwarding is on");
            let finding = Finding::fail(FORWARDING, Id("forwarding-off-on-link"), what)
                .about([Subject::link(link), setting(&key)]);
            report.host(finding.run([Command::ForwardFrom.line(&[link])]));
        }
    }
    Ok(())
}

/// Returns the links of the default routes, and whether each is of IPv4; the preferred one of a family comes first.
fn uplinks(scope: &Selection) -> Result<Vec<(&Link, bool)>> {
    let routes = Netlink::open()?.default_routes()?;
    let link = |route: &KernelRoute| scope.node.links.iter().find(|link| Some(link.index) == route.link);
    Ok(routes.iter().filter_map(|route| Some((link(route)?, route.route.dst.ip().is_ipv4()))).collect())
}

/// Reports an uplink without a carrier. The kernel removes the routes of a link that is set down: then the host has no
/// default route, and a link that is down still has the address.
fn uplink(scope: &Selection, report: &mut Report) -> Result<()> {
    if !scope.networks().any(|network| network.bridge.as_ref().is_some_and(|bridge| bridge.gateway.is_some())) {
        return Ok(());
    }
    let uplinks = uplinks(scope)?;
    let is_of_network = |link: &Link| {
        let bridges = scope.node.networks.iter().filter_map(|network| network.bridge.as_ref());
        bridges
            .flat_map(|bridge| [Some(&bridge.name), bridge.gateway.as_ref()])
            .flatten()
            .any(|name| *name == link.name)
    };
    let (what, link, remedy) = match uplinks.first() {
        Some((link, _)) if !link.running => {
            let what = format!("{}, by which packets to other networks leave, has no carrier", link.name);
            (what, *link, "check the cable, or the network of the virtual machine")
        }
        Some(_) => return Ok(()),
        None => {
            let has_address = |link: &&Link| scope.node.addresses(link.index).iter().any(|cidr| cidr.ip().is_ipv4());
            // Not one of tunnels and bridges, of which a program may have left some.
            let is_possible = |link: &&Link| ["", "veth", "vlan", "bond", "team", "macvlan"].contains(&&*link.kind);
            let links = scope.node.links.iter().filter(|link| !link.up && link.master.is_none());
            let mut down = links.filter(is_possible).filter(has_address);
            let Some(link) = down.find(|link| !is_of_network(link)) else { return Ok(()) };
            let what = format!("{}, which has an address, is down, and this host has no default route", link.name);
            (
                what,
                link,
                "if it is the uplink, set it up with the program that configures it, which adds the route again",
            )
        }
    };
    let what = format!("{what}: containers reach no other network");
    report.host(Finding::warn(UPLINK, Id("uplink-down"), what).about([Subject::link(&link.name)]).remedy(remedy));
    Ok(())
}

/// Reports whether IPv6 is enabled, if a network has IPv6 ranges.
fn ipv6(scope: &Selection, report: &mut Report) -> Result<()> {
    let names: Vec<&str> =
        scope.networks().filter(|network| has_family(network, false)).map(|network| network.name.as_str()).collect();
    if names.is_empty() {
        return Ok(());
    }
    let key = ["net", "ipv6", "conf", "all", "disable_ipv6"];
    let subjects = names.iter().map(|name| Subject::new("network", *name));
    let joined = names.join(", ");
    report.host(match sysctl::read(&key)?.as_deref() {
        None => {
            Finding::fail(IPV6, Id("ipv6-missing"), format!("the kernel has no IPv6, and {joined} has IPv6 ranges"))
                .about(subjects)
                .remedy("remove the IPv6 ranges, or boot without ipv6.disable=1")
        }
        Some("0") => Finding::ok(IPV6, Id("ipv6-enabled"), "IPv6 is enabled"),
        Some(_) => Finding::fail(
            IPV6,
            Id("ipv6-disabled"),
            format!("IPv6 is disabled on this host, and {joined} has IPv6 ranges"),
        )
        .about(subjects)
        .about([setting(&key)])
        .remedy(
            "decide whether this host shall use IPv6: set net.ipv6.conf.all.disable_ipv6=0, or remove the IPv6 ranges",
        ),
    });
    router_advertisements(scope, report)
}

/// Warns if the host will lose its IPv6 default route: a host that forwards IPv6 ignores router advertisements, unless
/// `accept_ra` is 2.
fn router_advertisements(scope: &Selection, report: &mut Report) -> Result<()> {
    let forwards = sysctl::read(&["net", "ipv6", "conf", "all", "forwarding"])?.is_some_and(|value| value != "0");
    for link in links_of_advertised_routes(scope)?.into_iter().filter(|_| forwards) {
        let what = format!(
            "IPv6 is forwarded, so {link} ignores router advertisements, \
             and the default route that it got from them expires"
        );
        let key = ["net", "ipv6", "conf", link, "accept_ra"];
        let finding =
            Finding::warn(IPV6, Id("ipv6-default-route-expires"), what).about([Subject::link(link), setting(&key)]);
        report.host(finding.run([Command::AcceptAdvertisements.line(&[link])]));
    }
    Ok(())
}

/// Returns the links with an IPv6 default route from router advertisements, which they ignore if IPv6 is forwarded.
fn links_of_advertised_routes(scope: &Selection) -> Result<Vec<&str>> {
    let mut links = Vec::new();
    for route in Netlink::open()?.default_routes()? {
        let link = scope.node.links.iter().find(|link| Some(link.index) == route.link);
        let is_advertised = route.route.dst.ip().is_ipv6() && route.is_advertised;
        let Some(link) = link.map(|link| link.name.as_str()).filter(|_| is_advertised) else { continue };
        let is_ignored = sysctl::read(&["net", "ipv6", "conf", link, "accept_ra"])?.as_deref() == Some("1");
        if is_ignored && !links.contains(&link) {
            links.push(link);
        }
    }
    Ok(links)
}

/// Checks `rp_filter`. A strict filter is only harmful if replies can arrive on another link than requests leave by.
fn rp_filter(scope: &Selection, report: &mut Report) -> Result<()> {
    let defaults = Netlink::open()?.default_routes()?;
    let mut uplinks: Vec<_> =
        defaults.iter().filter(|route| route.route.dst.ip().is_ipv4()).filter_map(|route| route.link).collect();
    uplinks.dedup();
    let bridges: Vec<&str> =
        scope.networks().filter_map(|network| network.bridge.as_ref()?.gateway.as_deref()).collect();
    let all = sysctl::read(&["net", "ipv4", "conf", "all", RP_FILTER])?.unwrap_or_default();
    let mut strict = Vec::new();
    let is_used = |link: &&Link| uplinks.contains(&link.index) || bridges.contains(&link.name.as_str());
    for link in scope.node.links.iter().filter(is_used) {
        let own = sysctl::read(&["net", "ipv4", "conf", &link.name, RP_FILTER])?.unwrap_or_default();
        // The kernel uses the greater of the two values; 2 is loose.
        if own.as_str().max(all.as_str()) == "1" {
            strict.push(link.name.as_str());
        }
    }
    let names = strict.join(", ");
    report.host(match uplinks.len() {
        _ if strict.is_empty() => Finding::ok(RP_FILTER, Id("rp-filter-loose"), "not strict"),
        0 | 1 => Finding::ok(
            RP_FILTER,
            Id("rp-filter-harmless"),
            format!("strict on {names}, harmless with one default route"),
        ),
        number => {
            let what = format!(
                "strict on {names}, and there are {number} default routes: \
                 replies that arrive on another link are dropped"
            );
            let finding = Finding::warn(RP_FILTER, Id("rp-filter-strict"), what)
                .about(strict.iter().map(|link| Subject::link(link)));
            finding.run(strict.iter().map(|link| Command::FilterLoosely.line(&[link])))
        }
    });
    Ok(())
}

/// Reports whether the kernel has nf_tables, if a network uses it.
fn nf_tables(scope: &Selection, report: &mut Report) -> Result<()> {
    let users: Vec<&Network> = scope.networks().filter(|network| network.nftables > Usage::No).collect();
    if users.is_empty() {
        return Ok(());
    }
    match Nftables::open()?.is_available() {
        Ok(true) => report.host(Finding::ok(NF_TABLES, Id("nf-tables-present"), "the kernel has nf_tables")),
        Err(error) => report.unseen(error.to_string()),
        Ok(false) => {
            let has_iptables = tool::find("iptables-restore").is_some();
            for network in users {
                let what = "the kernel has no nf_tables";
                let fail = |remedy| Finding::fail(NF_TABLES, Id("nf-tables-missing"), what).remedy(remedy);
                let finding = match (network.nftables, has_iptables) {
                    (Usage::Required, _) => fail("load the kernel module nf_tables, or use a kernel that has it"),
                    (_, false) => fail("load the kernel module nf_tables, or install iptables"),
                    (_, true) => Finding::warn(NF_TABLES, Id("nf-tables-replaced"), what)
                        .remedy("none needed: the plugin uses iptables instead, which is slower"),
                };
                report.network(&network.name, finding.about([Subject::new("module", NF_TABLES)]));
            }
        }
    }
    Ok(())
}
