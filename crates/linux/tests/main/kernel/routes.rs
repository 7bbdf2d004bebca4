//! Routes and neighbours.

use linux::ip::MacAddr;
use linux::netlink::{Change, DuplicateDetection, ListedRoute, Route, SourceRule};
use testing::{Lab, wait_until};

use super::{MAC, attached, cidr};

#[test]
fn routes_with_all_their_fields() {
    let lab = Lab::without_plugins();
    let (_, mut guest, _, _, eth0) = attached(&lab);
    let gw = "10.1.0.1".parse().ok();
    let routes = [
        Route::new(cidr("0.0.0.0/0"), gw),
        Route { mtu: 1300, advmss: 1200, priority: 5, ..Route::new(cidr("10.2.0.0/16"), gw) },
        Route { table: Some(1000), scope: Some(253), ..Route::new(cidr("10.3.0.0/16"), None) },
        Route::new(cidr("::/0"), "fd00::1".parse().ok()),
        Route { table: Some(99), priority: 7, ..Route::new(cidr("fd02::/64"), "fd00::1".parse().ok()) },
    ];
    let mut changes: Vec<Change<'_>> = ["10.1.0.2/24", "fd00::2/64"]
        .map(|address| Change::add_address(eth0.index, cidr(address), DuplicateDetection::Off))
        .into();
    changes.extend(routes.iter().map(|route| Change::add_route(eth0.index, route)));
    guest.apply(&changes).unwrap();

    let found = guest.routes(eth0.index).unwrap();
    let all = guest.all_routes().unwrap();
    assert!(found.iter().all(|route| all.contains(route)), "{found:#?} in {all:#?}");
    for wanted in &routes {
        let matching = found.iter().filter(|r| r.leads_to(wanted.dst) && r.route.gw == wanted.gw);
        let matching: Vec<_> = matching.filter(|r| r.route.table == Some(wanted.table.unwrap_or(254))).collect();
        let [one] = matching[..] else { panic!("{wanted:?} in {found:#?}") };
        assert_eq!((one.route.mtu, one.route.advmss), (wanted.mtu, wanted.advmss), "{wanted:?}");
        // IPv6 routes always have a metric.
        let metric = if wanted.dst.ip().is_ipv6() && wanted.priority == 0 { 1024 } else { wanted.priority };
        assert_eq!(one.route.priority, metric, "{wanted:?}");
        assert_eq!(one.link, Some(eth0.index));
    }
    let again = guest.apply(&[Change::add_route(eth0.index, &routes[0])]).unwrap_err();
    assert_eq!(again.errno(), Some(libc::EEXIST));
    let unreachable = Route::new(cidr("10.5.0.0/16"), "192.0.2.1".parse().ok());
    let error = guest.apply(&[Change::add_route(eth0.index, &unreachable)]).unwrap_err();
    assert!(error.to_string().starts_with("add route to 10.5.0.0/16 via 192.0.2.1 by link #"), "{error}");
    assert!(format!("{error:?}").contains("kernel: Nexthop has invalid gateway"), "{error:?}");
    assert!(lab.sh("ip -n c1 route show").contains("10.2.0.0/16 via 10.1.0.1 dev eth0 metric 5 mtu 1300 advmss 1200"));
}

#[test]
fn neighbours_are_set_and_deleted() {
    let lab = Lab::without_plugins();
    let (mut host, _, bridge, _, _) = attached(&lab);
    host.apply(&[Change::add_address(bridge.index, cidr("10.1.0.1/24"), DuplicateDetection::Off)]).unwrap();
    let ip = "10.1.0.2".parse().unwrap();
    for mac in [MAC, MacAddr([2, 0, 0, 0, 0, 9])] {
        host.apply(&[Change::set_neighbour(bridge.index, ip, mac)]).unwrap();
        let found = host.neighbours(bridge.index).unwrap();
        assert!(found.iter().any(|n| n.ip == ip && n.mac == Some(mac)), "{found:?}");
    }
    host.apply(&[Change::delete_neighbour(bridge.index, ip)]).unwrap();
    let seen = lab.sh("ip neigh show dev cni0 nud reachable");
    assert!(!seen.contains("10.1.0.2"), "{seen}");
}

/// Links on top of a link receive frames by it, in whatever namespace they are.
#[test]
fn a_link_receives_frames_for_those_on_top_of_it() {
    let lab = Lab::without_plugins();
    let (mut host, _, _, port, _) = attached(&lab);
    lab.sh(
        "ip link set veth0 nomaster; ip link set veth0 up; ip link add link veth0 name eth1 netns c1 address 02:00:00:00:00:0a type macvlan",
    );
    assert_eq!(host.received_addresses(port.index).unwrap(), []);
    lab.sh("ip -n c1 link set eth1 up");
    assert_eq!(host.received_addresses(port.index).unwrap(), [MacAddr([2, 0, 0, 0, 0, 10])]);
    lab.sh("ip -n c1 link del eth1");
    assert_eq!(host.received_addresses(port.index).unwrap(), []);
}

/// A container that reaches everything by a next hop that no interface has.
#[test]
fn an_address_without_a_route_and_a_permanent_neighbour() {
    let lab = Lab::without_plugins();
    let (_, mut guest, _, _, eth0) = attached(&lab);
    let (hop, src) = ("169.254.1.1".parse().unwrap(), "10.1.0.2".parse().ok());
    let on_link = Route { scope: Some(253), src, ..Route::new(cidr("169.254.1.1/32"), None) };
    guest
        .apply(&[
            Change::add_address_without_route(eth0.index, cidr("10.1.0.2/24")),
            Change::add_address_without_route(eth0.index, cidr("fd00::2/64")),
            Change::set_permanent_neighbour(eth0.index, hop, MAC),
            Change::add_only_route(eth0.index, &on_link),
            Change::add_route(eth0.index, &Route::new(cidr("0.0.0.0/0"), Some(hop))),
        ])
        .unwrap();
    let seen = lab.sh("ip -n c1 route show; ip -n c1 -6 route show; ip -n c1 neigh show nud permanent");
    assert!(!seen.contains("10.1.0.0/24") && !seen.contains("fd00::/64"), "{seen}");
    assert!(seen.contains("169.254.1.1 dev eth0 scope link src 10.1.0.2"), "{seen}");
    assert!(seen.contains(&format!("169.254.1.1 dev eth0 lladdr {MAC} PERMANENT")), "{seen}");
    let found = guest.addresses(eth0.index).unwrap();
    assert!(found.iter().any(|a| a.cidr == cidr("fd00::2/64") && !a.tentative), "{found:?}");
    let found = guest.neighbours(eth0.index).unwrap();
    assert!(found.iter().any(|n| n.ip == hop && n.permanent && n.mac == Some(MAC)), "{found:?}");
    assert!(guest.routes(eth0.index).unwrap().iter().any(|route| route.route.src == src));
    // Another metric is another route.
    let second = Route { src: None, ..on_link };
    let error = guest.apply(&[Change::add_only_route(eth0.index, &second)]).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EEXIST));
    guest.apply(&[Change::add_only_route(eth0.index, &Route { priority: 5, ..second })]).unwrap();
}

#[test]
fn the_preferred_default_route_comes_first() {
    let lab = Lab::without_plugins();
    let (mut host, _, bridge, port, _) = attached(&lab);
    assert_eq!(host.default_routes().unwrap(), []);
    lab.sh(
        "ip address add 10.1.0.1/24 dev cni0; ip address add 10.2.0.1/24 dev veth0; ip link set veth0 nomaster
         ip route add default via 10.1.0.254 dev cni0 metric 200; ip route add default via 10.2.0.254 dev veth0 metric 100
         ip route add default via 10.2.0.253 dev veth0 table 99; ip -6 route add default dev cni0",
    );
    let links: Vec<_> = host.default_routes().unwrap().iter().map(|route| route.link).collect();
    assert_eq!(links, [Some(port.index), Some(bridge.index), Some(bridge.index)]);
}

#[test]
fn the_route_to_an_address_has_its_outgoing_link() {
    let lab = Lab::without_plugins();
    let (mut host, _, bridge, veth, _) = attached(&lab);
    let lo = host.link_index("lo").unwrap();
    lab.sh("ip link set lo up; ip link set veth0 nomaster
         ip address add 10.1.0.1/24 dev cni0; ip address add 10.2.0.1/24 dev veth0
         ip -6 address add fd01::1/64 dev cni0 nodad; ip -6 address add fd02::1/64 dev veth0 nodad");
    let (bridge, veth) = (Some(bridge.index), Some(veth.index));
    // The kernel adds the route to an IPv6 address of its own after the command that adds the address.
    let mut check = |ip: &str, link| {
        wait_until(&format!("{link:?} for {ip}"), || host.route_to(ip.parse().unwrap()).unwrap() == link);
    };
    for (ip, link) in [
        ("10.1.0.9", bridge),
        ("10.2.0.9", veth),
        ("10.1.0.1", lo),
        ("127.0.0.1", lo),
        ("10.3.0.1", None),
        ("fd01::9", bridge),
        ("fd02::9", veth),
        ("fd01::1", lo),
        ("fd03::1", None),
    ] {
        check(ip, link);
    }
    lab.sh("ip route add default via 10.2.0.9; ip -6 route add default via fd02::9
         for kind in unreachable:4 prohibit:5 blackhole:6; do
             n=${kind#*:}; kind=${kind%:*}; ip route add $kind 10.$n.0.0/16; ip -6 route add $kind fd0$n::/64
         done");
    for (n, link) in [(3, veth), (4, None), (5, None), (6, None)] {
        check(&format!("10.{n}.0.1"), link);
        check(&format!("fd0{n}::1"), link);
    }
}

/// Returns what `ip` lists of a table, without the names of programs.
fn table(lab: &Lab, table: &str) -> Vec<String> {
    let routes = lab.sh(&format!(
        "for family in 4 6; do ip -n c1 -$family route show table {table} 2>/dev/null | sed 's/ proto [^ ]*//; s/  *$//' || true; done"
    ));
    routes
        .lines()
        .filter(|line| !line.starts_with("fe80::") && !line.starts_with("multicast"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn routes_are_copied_and_restored_with_all_their_properties() {
    let lab = Lab::without_plugins();
    let (_, mut guest, _, _, eth0) = attached(&lab);
    let addresses = ["10.1.0.2/24", "fd00::2/64"]
        .map(|address| Change::add_address(eth0.index, cidr(address), DuplicateDetection::Off));
    guest.apply(&addresses).unwrap();
    lab.sh("ip -n c1 route add 10.2.0.0/16 via 10.1.0.1 metric 5 mtu lock 1300 advmss 1200 initcwnd 20 src 10.1.0.2 realm 7
            ip -n c1 route add 10.3.0.0/16 via 192.0.2.1 dev eth0 onlink proto 99
            ip -n c1 route append 10.3.0.0/16 via 192.0.2.2 dev eth0 onlink
            ip -n c1 route add tos 0x10 10.4.0.0/16 dev eth0
            ip -n c1 route add default nexthop via 10.1.0.1 weight 3 nexthop via 10.1.0.9 weight 2
            ip -n c1 route add unreachable 10.5.0.0/16
            ip -n c1 -6 route add fd02::/64 via fd00::1 metric 8 pref high
            ip -n c1 -6 route add fd03::/64 from fd00::/64 via fd00::1
            ip -n c1 nexthop add id 5 via 10.1.0.7 dev eth0; ip -n c1 route add 10.6.0.0/16 nhid 5");
    let main = table(&lab, "main");
    assert!(main.len() > 10, "{main:#?}");
    let is_link_local =
        |listed: &ListedRoute| listed.unicast.as_ref().is_some_and(|found| found.leads_to(cidr("fe80::/64")));
    let mut listed = guest.listed_routes().unwrap();
    listed.retain(|listed| listed.table == 254 && !is_link_local(listed));
    // Those by a next hop need those without.
    listed.sort_by_key(|listed| listed.unicast.as_ref().is_none_or(|found| found.route.gw.is_some()));
    assert_eq!(listed.iter().filter(|listed| listed.unicast.is_none()).count(), 2, "several next hops, and none");
    assert!(listed.iter().any(|listed| listed.protocol == 99));
    for number in [7, 100_000] {
        let copies: Vec<_> = listed.iter().map(|listed| Change::copy_route(listed, number, 142)).collect();
        guest.apply(&copies).unwrap();
        // A route by an object is copied with its next hop.
        let plain: Vec<_> = main.iter().map(|line| line.replace("nhid 5 ", "")).collect();
        assert_eq!(table(&lab, &number.to_string()), plain);
        let found = guest.listed_routes().unwrap();
        let of_table: Vec<_> = found.iter().filter(|found| found.table == number).collect();
        assert!(of_table.iter().all(|found| found.protocol == 142));
        for listed in &listed {
            let is_by_object = !of_table.iter().any(|found| found.is_copy_of(listed));
            assert!(!is_by_object, "{listed:?}");
        }
        let again = guest.apply(&copies).unwrap_err();
        assert_eq!(again.errno(), Some(libc::EEXIST));
        guest.apply_ignoring(&copies, &[libc::EEXIST]).unwrap();
        let deletions: Vec<_> = listed.iter().map(|listed| Change::delete_copied_route(listed, number, 142)).collect();
        guest.apply(&deletions).unwrap();
        assert_eq!(table(&lab, &number.to_string()), [""; 0]);
        assert_eq!(guest.apply(&deletions).unwrap_err().errno(), Some(libc::ESRCH));
    }
    assert_eq!(table(&lab, "main"), main);
    guest.apply(&listed.iter().rev().map(Change::delete_listed_route).collect::<Vec<_>>()).unwrap();
    assert_eq!(table(&lab, "main"), [""; 0]);
    guest.apply(&listed.iter().map(Change::restore_route).collect::<Vec<_>>()).unwrap();
    assert_eq!(table(&lab, "main"), main);
}

#[test]
fn rules_are_added_found_deleted_and_restored() {
    let lab = Lab::without_plugins();
    let (_, mut guest, ..) = attached(&lab);
    let rules = [("10.1.0.2", 100, 7), ("10.1.0.2", 100_000, 8), ("fd00::2", 101, 0)]
        .map(|(src, table, mark)| SourceRule { src: src.parse().unwrap(), table, protocol: 142, mark });
    // Others, of which none is by a source alone.
    lab.sh("ip -n c1 rule add from 10.1.0.2 fwmark 7 table 100 protocol 142
            ip -n c1 rule add from 10.1.0.2 iif eth0 table 100; ip -n c1 rule add to 10.1.0.2 table 100
            ip -n c1 rule add from 10.1.0.0/24 table 100; ip -n c1 rule add not from 10.1.0.2 table 100
            ip -n c1 rule add from 10.1.0.2 tos 0x10 table 100; ip -n c1 rule add from 10.1.0.2 unreachable
            ip -n c1 rule add from 10.1.0.2 table 100 suppress_prefixlength 0; ip -n c1 rule add from 10.1.0.2 ipproto tcp table 100");
    let show = || lab.sh("ip -n c1 rule; ip -n c1 -6 rule");
    let before = show();
    guest.apply(&rules.iter().map(Change::add_rule).collect::<Vec<_>>()).unwrap();
    let added = show();
    assert!(added.contains("from 10.1.0.2 fwmark 0x8/0 lookup 100000 proto 142"), "{added}");
    let found = guest.rules().unwrap();
    let mut sources: Vec<_> = found.iter().filter_map(|found| found.source).collect();
    sources.sort_by_key(|source| (source.src, source.table));
    assert_eq!(sources, rules);
    // Deleting one by its properties, or all as they were listed, leaves the others.
    guest.apply(&rules.iter().map(Change::delete_rule).collect::<Vec<_>>()).unwrap();
    assert_eq!(show(), before);
    guest.apply(&rules.iter().map(Change::add_rule).collect::<Vec<_>>()).unwrap();
    let found = guest.rules().unwrap();
    let own: Vec<_> = found.iter().filter(|found| found.source.is_some()).collect();
    guest.apply(&own.iter().map(|rule| Change::delete_listed_rule(rule)).collect::<Vec<_>>()).unwrap();
    assert_eq!(show(), before);
    guest.apply(&own.iter().map(|rule| Change::restore_rule(rule)).collect::<Vec<_>>()).unwrap();
    assert_eq!(show(), added);
}
