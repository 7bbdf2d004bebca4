//! Decides what ADD changes, from the addresses of the interface and what exists. Without I/O.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni::IpConfig;
use linux::ip::Cidr;
use linux::netlink::{Change, KernelRoute, LinkIndex, ListedRoute, Route, Rule, SourceRule};

use crate::config::Config;
use crate::owner::{PROTOCOL, RuleOwner, source_of_reference};

/// The main routing table.
const MAIN: u32 = libc::RT_TABLE_MAIN as u32;
/// The first table that is used, as in the reference.
const FIRST: u32 = 100;

/// What exists in the container.
#[derive(Debug)]
pub(crate) struct Present {
    /// The interface.
    pub(crate) link: LinkIndex,
    /// All rules.
    pub(crate) rules: Vec<Rule>,
    /// The entries of all tables.
    pub(crate) routes: Vec<ListedRoute>,
}

/// What ADD changes. What exists already, from an earlier ADD, is not included.
#[derive(Debug)]
pub(crate) struct RoutingPlan {
    link: LinkIndex,
    /// Routes, with the tables to which they are copied.
    copies: Vec<(ListedRoute, u32)>,
    /// Default routes.
    defaults: Vec<Route>,
    /// Rules to add.
    rules: Vec<SourceRule>,
    /// Routes to delete: those that were copied, and those of an earlier ADD.
    old_routes: Vec<ListedRoute>,
    /// Rules of an earlier ADD to delete.
    old_rules: Vec<Rule>,
}

impl RoutingPlan {
    pub(crate) fn new(present: Present, owner: RuleOwner, config: &Config, ips: &[&IpConfig]) -> RoutingPlan {
        let Present { link, rules, routes } = present;
        let has_address = |ip: IpAddr| ips.iter().any(|own| own.address.ip() == ip);
        let (mut own, others) = owner.divide(rules);
        let is_of_reference = |rule: &Rule| source_of_reference(rule, &own).is_some_and(has_address);
        let (of_reference, others): (Vec<Rule>, Vec<Rule>) = others.into_iter().partition(is_of_reference);
        own.extend(of_reference);
        let mut tables = Tables::new(&own, &others, &routes, link);
        let mut plan = RoutingPlan {
            link,
            copies: Vec::new(),
            defaults: Vec::new(),
            rules: Vec::new(),
            old_routes: Vec::new(),
            old_rules: Vec::new(),
        };
        let mut wanted = Vec::new();
        for ip in ips {
            let src = ip.address.ip();
            let table = config.table.unwrap_or_else(|| tables.of_address(ip, &own, &routes));
            let rule = owner.rule(src, table);
            if !own.iter().any(|have| have.source == Some(rule)) && !wanted.contains(&rule) {
                plan.rules.push(rule);
            }
            wanted.push(rule);
            if config.table.is_none() {
                plan.fill(table, ip, ips, config, &routes);
            }
        }
        plan.copies.sort_by_key(|(listed, _)| unicast(listed).is_some_and(|route| route.gw.is_some()));
        if config.table.is_none() {
            let moved = routes.iter().filter(|listed| leaves_main(listed, link, config, ips));
            plan.old_routes.extend(moved.cloned());
        }
        let is_wanted = |rule: &Rule| rule.source.is_some_and(|source| wanted.contains(&source));
        plan.old_rules = own.into_iter().filter(|rule| !is_wanted(rule)).collect();
        let is_used = |table| wanted.iter().any(|rule| rule.table == table);
        let obsolete = routes.iter().filter(|listed| is_copy(listed, link) && !is_used(listed.table));
        plan.old_routes.extend(obsolete.cloned());
        // A route by a next hop needs the route to that next hop, also when they are restored.
        plan.old_routes.sort_by_key(|listed| unicast(listed).is_some_and(|route| route.gw.is_some()));
        plan
    }

    /// Plans the routes of a table for the packets from an address: those of the main table, and a default route. A
    /// gateway of the configuration takes precedence over a default route of the main table, and that over the gateway
    /// of the address.
    fn fill(&mut self, table: u32, ip: &IpConfig, ips: &[&IpConfig], config: &Config, routes: &[ListedRoute]) {
        let link = self.link;
        let of = |table| routes.iter().filter(move |listed| listed.table == table && is_by(listed, link));
        let gateway = |listed: &ListedRoute| unicast(listed).and_then(|route| route.gw);
        let is_default = |listed: &ListedRoute| unicast(listed).is_some_and(|route| route.dst.is_default());
        let explicit = config.gateway(ip.address.ip());
        let is_replaced =
            |listed: &ListedRoute| is_default(listed) && explicit.is_some() && gateway(listed) != explicit;
        let wanted: Vec<_> = of(MAIN).filter(|listed| is_for(listed, ip, ips) && !is_replaced(listed)).collect();
        let is_copied = |listed: &ListedRoute| wanted.iter().any(|wanted| wanted.is_copy_of(listed));
        let copies_default = wanted.iter().any(|listed| is_default(listed));
        let next_hop = explicit.or(ip.gateway).filter(|_| !copies_default);
        let is_there = |listed: &ListedRoute| next_hop.is_some() && gateway(listed) == next_hop;
        if copies_default || next_hop.is_some() {
            let defaults = of(table).filter(|listed| is_default(listed));
            self.old_routes.extend(defaults.filter(|listed| !is_copied(listed) && !is_there(listed)).cloned());
        }
        let is_missing = |wanted: &&ListedRoute| !of(table).any(|have| have.is_copy_of(wanted));
        self.copies.extend(wanted.iter().copied().filter(is_missing).map(|listed| (listed.clone(), table)));
        if let Some(gateway) = next_hop.filter(|_| !of(table).any(|listed| is_default(listed) && is_there(listed))) {
            let dst = Cidr::default_route(gateway);
            self.defaults.push(Route { table: Some(table), ..Route::new(dst, Some(gateway)) });
        }
    }

    /// Returns the changes that make packets from the addresses use their tables. The rules come last: until then, the
    /// tables have no effect.
    pub(crate) fn additions(&self) -> Vec<Change<'_>> {
        let copies = self.copies.iter().map(|(listed, table)| Change::copy_route(listed, *table, PROTOCOL));
        let defaults = self.defaults.iter().map(|route| Change::add_route_of(PROTOCOL, self.link, route));
        copies.chain(defaults).chain(self.rules.iter().map(Change::add_rule)).collect()
    }

    /// Returns the changes that remove what the additions replace.
    pub(crate) fn removals(&self) -> Vec<Change<'_>> {
        let rules = self.old_rules.iter().map(Change::delete_listed_rule);
        // A route by a next hop first: it needs the others.
        rules.chain(self.old_routes.iter().rev().map(Change::delete_listed_route)).collect()
    }

    /// Returns the changes that revert both.
    pub(crate) fn reversal(&self) -> Vec<Change<'_>> {
        let mut changes: Vec<_> = self.old_routes.iter().map(Change::restore_route).collect();
        changes.extend(self.old_rules.iter().map(Change::restore_rule));
        changes.extend(self.rules.iter().map(Change::delete_rule));
        changes.extend(self.defaults.iter().map(|route| Change::delete_route(self.link, route)));
        let copies = self.copies.iter().rev();
        changes.extend(copies.map(|(listed, table)| Change::delete_copied_route(listed, *table, PROTOCOL)));
        changes
    }
}

/// The numbers of tables.
struct Tables {
    /// Those of an earlier ADD, which no address has yet.
    earlier: BTreeSet<u32>,
    used: BTreeSet<u32>,
}

impl Tables {
    /// Unlike the reference, looks at the entries of all tables, and not only of the main one: a table may have routes
    /// before a rule selects it.
    fn new(own: &[Rule], others: &[Rule], routes: &[ListedRoute], link: LinkIndex) -> Tables {
        let mut foreign: BTreeSet<u32> = others.iter().map(|rule| rule.table).collect();
        foreign.extend([libc::RT_TABLE_DEFAULT, libc::RT_TABLE_MAIN, libc::RT_TABLE_LOCAL].map(u32::from));
        // A table with routes of another interface has another owner by now.
        foreign.extend(routes.iter().filter(|listed| !is_by(listed, link)).map(|listed| listed.table));
        // Something may have deleted the rules.
        let copies = routes.iter().filter(|listed| is_copy(listed, link)).map(|listed| listed.table);
        let earlier =
            own.iter().map(|rule| rule.table).chain(copies).filter(|table| !foreign.contains(table)).collect();
        let used = routes.iter().map(|listed| listed.table).chain(own.iter().map(|rule| rule.table));
        Tables { used: used.chain(foreign).collect(), earlier }
    }

    /// Returns the table of an address: that of an earlier ADD, or one that nothing uses.
    fn of_address(&mut self, ip: &IpConfig, own: &[Rule], routes: &[ListedRoute]) -> u32 {
        let selected = |table| own.iter().filter_map(|rule| rule.source).find(|rule| rule.table == table);
        let has_network = |table| {
            let mut routes = routes.iter().filter(|listed| listed.table == table).filter_map(unicast);
            routes.any(|route| route.dst == ip.address.network())
        };
        let is_its = |table: &u32| match selected(*table) {
            Some(rule) => rule.src == ip.address.ip(),
            None => has_network(*table),
        };
        let free = || (FIRST..=u32::MAX).find(|table| !self.used.contains(table)).unwrap_or(FIRST);
        let table = self.earlier.iter().copied().find(is_its).unwrap_or_else(free);
        self.earlier.remove(&table);
        self.used.insert(table);
        table
    }
}

/// Returns the route of an entry.
pub(crate) fn unicast(listed: &ListedRoute) -> Option<&Route> {
    listed.unicast.as_ref().map(|KernelRoute { route, .. }| route)
}

/// Returns whether packets leave by the link.
pub(crate) fn is_by(listed: &ListedRoute, link: LinkIndex) -> bool {
    listed.unicast.as_ref().is_some_and(|route| route.link == Some(link))
}

/// Returns whether the plugin has added the entry for an interface.
pub(crate) fn is_copy(listed: &ListedRoute, link: LinkIndex) -> bool {
    listed.protocol == PROTOCOL && is_by(listed, link)
}

/// Returns whether packets from an address need the route: its source or its next hop is in the network of the address,
/// or in that of no address. Unlike the reference, which also takes the routes of the other family, and loses those by
/// a next hop elsewhere.
fn is_for(listed: &ListedRoute, ip: &IpConfig, ips: &[&IpConfig]) -> bool {
    let Some(route) = unicast(listed) else { return false };
    let is_near = |ip: &IpConfig| [route.src, route.gw].into_iter().flatten().any(|near| ip.address.contains(near));
    route.dst.ip().is_ipv4() == ip.address.ip().is_ipv4() && (is_near(ip) || !ips.iter().any(|other| is_near(other)))
}

/// Returns whether a route is removed from the main table: the tables of the addresses have a copy.
fn leaves_main(listed: &ListedRoute, link: LinkIndex, config: &Config, ips: &[&IpConfig]) -> bool {
    let Some(route) = unicast(listed).filter(|_| listed.table == MAIN && is_by(listed, link)) else { return false };
    // Unlike the reference: without this route, no address of the link can be reached that is only valid there, such as
    // that of a neighbour.
    let is_link_local = matches!(route.dst.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local());
    let is_kept = config.keeps_subnets && route.gw.is_none();
    !is_link_local && !is_kept && ips.iter().any(|ip| ip.address.ip().is_ipv4() == route.dst.ip().is_ipv4())
}
