//! Finds out why a probe failed: repeats it while its packets are traced, and examines what they need where they were
//! not seen any more.

use std::net::IpAddr;
use std::time::Duration;

use cni::Result;
use linux::netlink::{Conntrack, Link, Neighbour, Rejection};
use linux::sysctl;

use super::cause::{Cause, owner};
use super::flow::{Flow, Packet};
use super::scene::{Scene, Spot};
use super::trace::{Addresses, Direction, Stage, Tracer};

/// How long an answer may take while packets are traced: also on a busy machine.
const PATIENT: Duration = Duration::from_secs(2);
/// How long an answer may take if nothing is found that stops it.
const LAST: Duration = Duration::from_secs(5);
/// The kind of a cause that was not found.
const UNKNOWN: &str = "unknown";
/// The spanning tree state of a port that forwards.
const FORWARDING: u8 = 3;

/// What repeating a failed probe showed.
#[derive(Debug)]
pub(super) enum Explanation {
    /// It succeeded, after this time.
    Passed(Duration),
    Failed(Vec<Cause>),
}

/// Repeats a failed probe, and finds out why it fails.
pub(super) fn explain(scene: &mut Scene, flow: &Flow) -> Result<Explanation> {
    let Some(source) = scene.source(flow.from, flow.target)? else {
        let mut seeker = Seeker { scene, tracer: None, source: flow.target.ip(), flow };
        return Ok(Explanation::Failed(vec![seeker.without_route(flow.from, flow.target.ip())?]));
    };
    let addresses = Addresses { source, target: flow.target.ip(), receiver: flow.receiver };
    let mut spots = vec![flow.from, Spot::Host, flow.to];
    spots.retain(|spot| *spot != Spot::Outside);
    spots.dedup();
    let mut tracer = Tracer::start(scene, &spots, addresses)?;
    let again = flow.attempt(scene, PATIENT)?;
    tracer.collect()?;
    if let Ok(time) = again {
        return Ok(Explanation::Passed(time));
    }
    let drops = tracer.drops(scene)?;
    if !drops.is_empty() {
        let causes = drops.into_iter().map(|drop| {
            let owner = owner(&drop.chain).or_else(|| owner(&drop.table));
            let what = if drop.direction == Some(Direction::Reply) { "the answer" } else { "the packet" };
            let text = format!("{what} is dropped by {}", drop.text);
            Cause { kind: "rule", place: scene.title(drop.spot), text, owner }
        });
        return Ok(Explanation::Failed(causes.collect()));
    }
    let mut seeker = Seeker { scene, tracer: Some(tracer), source, flow };
    let cause = match seeker.seek(Direction::Request)? {
        Some(cause) => cause,
        None => seeker.seek(Direction::Reply)?.map_or_else(|| seeker.last_seen(), Ok)?,
    };
    // On a busy machine, an answer may only be late.
    match cause.kind {
        UNKNOWN => {
            Ok(flow.attempt(scene, LAST)?.map_or_else(|_| Explanation::Failed(vec![cause]), Explanation::Passed))
        }
        _ => Ok(Explanation::Failed(vec![cause])),
    }
}

/// Looks for the reason why packets of a flow disappear without a rule that drops them.
struct Seeker<'a> {
    scene: &'a mut Scene,
    /// `None` if the sender has no route.
    tracer: Option<Tracer>,
    /// The address of the sender.
    source: IpAddr,
    flow: &'a Flow,
}

impl Seeker<'_> {
    /// Follows the packets in one direction. Returns `None` if they arrive.
    fn seek(&mut self, direction: Direction) -> Result<Option<Cause>> {
        let Flow { from, to, receiver, target, .. } = *self.flow;
        let (sender, other, source, destination) = match direction {
            Direction::Request => (from, to, self.source, target.ip()),
            Direction::Reply => (to, from, receiver, self.source),
        };
        if self.saw(other, direction, Stage::Delivered) {
            return Ok(None);
        }
        let receivers = if direction == Direction::Request { receiver } else { self.source };
        if let Some(cause) = self.small_mtu()? {
            return Ok(Some(cause));
        }
        let is_translated = direction == Direction::Request && receiver != target.ip();
        if is_translated && self.saw(Spot::Host, direction, Stage::Delivered) {
            return Ok(Some(self.not_translated()));
        }
        if self.covers(sender) && !self.saw(sender, direction, Stage::Left) {
            return match direction {
                Direction::Request => self.not_sent(sender, destination).map(Some),
                // A host that got no request sends no answer.
                Direction::Reply if !self.saw(sender, Direction::Request, Stage::Delivered) => Ok(None),
                Direction::Reply => self.not_sent(sender, destination).map(Some),
            };
        }
        let is_between = sender != Spot::Host && other != Spot::Host;
        if is_between && self.covers(Spot::Host) && self.saw(Spot::Host, direction, Stage::Arrived) {
            let is_forwarded = self.saw(Spot::Host, direction, Stage::Forwarded);
            if !is_forwarded && let Some(cause) = self.not_forwarded(sender, other, source, destination)? {
                return Ok(Some(cause));
            }
        }
        if let (Spot::Host, Spot::Member(number)) = (sender, other)
            && let Some(cause) = self.misrouted(number, receivers)?
        {
            return Ok(Some(cause));
        }
        if other == Spot::Outside
            && let Some(cause) = self.not_masqueraded(destination)?
        {
            return Ok(Some(cause));
        }
        // Frames get lost between a container and the host.
        for spot in [sender, other] {
            if let Spot::Member(number) = spot
                && let Some(cause) = self.broken_link(number)?
            {
                return Ok(Some(cause));
            }
        }
        for (spot, to) in [(sender, destination), (Spot::Host, receivers), (other, source)] {
            if let Some(cause) = self.wrong_neighbour(spot, to)? {
                return Ok(Some(cause));
            }
        }
        if self.saw(other, direction, Stage::Arrived) {
            return self.not_delivered(other, receivers);
        }
        Ok(is_translated.then(|| self.not_translated()))
    }

    /// Returns the link with an MTU below the size of the packets.
    fn small_mtu(&mut self) -> Result<Option<Cause>> {
        let Packet::Echo { payload: 1.. } = self.flow.packet else { return Ok(None) };
        for spot in [self.flow.from, self.flow.to] {
            let Spot::Member(number) = spot else { continue };
            let inside = self.scene.members.get_mut(number).map(|member| member.interface()).transpose()?.flatten();
            let Some(inside) = inside else { continue };
            let port = self.scene.host_side(number)?;
            let bridge = self.scene.bridge.as_ref().map(|bridge| bridge.name.clone());
            let bridge = bridge.map(|name| self.scene.host.link(name.as_str())).transpose()?.flatten();
            let small = port.into_iter().chain(bridge).find(|link| link.mtu < inside.mtu);
            if let Some(Link { name, mtu, .. }) = small {
                let what = format!(
                    "link {name} has the MTU {mtu}, and {} in {} has {}",
                    inside.name,
                    self.scene.title(spot),
                    inside.mtu
                );
                return Ok(Some(self.cause("mtu", Spot::Host, what)));
            }
        }
        Ok(None)
    }

    /// Returns that the host does not send packets to a published port on to the container.
    fn not_translated(&self) -> Cause {
        let Flow { target, receiver, .. } = *self.flow;
        let last = self.tracer.as_ref().and_then(|tracer| tracer.last_decision(Spot::Host));
        let last = last.map_or_else(String::new, |rule| format!("; the last rule that decided is {rule}"));
        let what = format!("no rule translates {target} to {receiver}, or another one is first{last}");
        self.cause("translation", Spot::Host, what)
    }

    /// Returns that the host sends packets to a container elsewhere.
    fn misrouted(&mut self, number: usize, to: IpAddr) -> Result<Option<Cause>> {
        let Some(wanted) = self.scene.gateway_link(number)? else { return Ok(None) };
        let Some(link) = self.scene.host.route_to(to)?.filter(|link| *link != wanted.index) else { return Ok(None) };
        let name = self.scene.host.link_name(link)?.unwrap_or_default();
        let what = format!("the route to {to} leads to link {name}, not to {}", wanted.name);
        Ok(Some(self.cause("route", Spot::Host, what)))
    }

    /// Returns that packets leave this host with the address of the container, to which the outside may have no route.
    fn not_masqueraded(&mut self, to: IpAddr) -> Result<Option<Cause>> {
        let seen = Conntrack::open()?.reply_destination(self.source, to)?;
        if seen != Some(self.source) {
            return Ok(None);
        }
        if !self.scene.masquerades(to) {
            let what = format!("no answer comes back: it needs a route to {}, which is not masqueraded", self.source);
            return Ok(Some(self.cause("route", Spot::Outside, what)));
        }
        let what = format!("packets to {to} leave with the address {}: no rule masquerades them", self.source);
        Ok(Some(self.cause("translation", Spot::Host, what)))
    }

    fn saw(&self, spot: Spot, direction: Direction, stage: Stage) -> bool {
        self.tracer.as_ref().is_some_and(|tracer| tracer.saw(spot, direction, stage))
    }

    fn covers(&self, spot: Spot) -> bool {
        self.tracer.as_ref().is_some_and(|tracer| tracer.covers(spot))
    }

    fn cause(&self, kind: &'static str, spot: Spot, text: String) -> Cause {
        Cause { kind, place: self.scene.title(spot), text, owner: None }
    }

    /// Returns why a spot does not send to `to`.
    fn not_sent(&mut self, spot: Spot, to: IpAddr) -> Result<Cause> {
        if let Some(cause) = self.rejection(spot, None, to)? {
            return Ok(cause);
        }
        if let Spot::Member(number) = spot
            && let Some(cause) = self.broken_link(number)?
        {
            return Ok(cause);
        }
        if let Some(cause) = self.wrong_neighbour(spot, to)? {
            return Ok(cause);
        }
        self.without_route(spot, to)
    }

    fn without_route(&mut self, spot: Spot, to: IpAddr) -> Result<Cause> {
        if let Some(cause) = self.rejection(spot, None, to)? {
            return Ok(cause);
        }
        if let Spot::Member(number) = spot
            && let Some(cause) = self.broken_link(number)?
        {
            return Ok(cause);
        }
        let has_route = match self.scene.netlink(spot) {
            Some(netlink) => netlink.route_to(to)?.is_some(),
            None => true,
        };
        Ok(match has_route {
            true => self.cause(UNKNOWN, spot, format!("it does not send to {to}, although it has a route")),
            false => self.cause("route", spot, format!("there is no route to {to}")),
        })
    }

    /// Returns the route or rule of a spot that rejects packets to `to`.
    fn rejection(&mut self, spot: Spot, from: Option<IpAddr>, to: IpAddr) -> Result<Option<Cause>> {
        let Some(netlink) = self.scene.netlink(spot) else { return Ok(None) };
        let rules = netlink.rules()?;
        let by_rule = rules.iter().filter_map(|rule| rule.rejection).find(|rejection| rejection.includes(from, to));
        if let Some(Rejection { kind, .. }) = by_rule {
            return Ok(Some(self.cause("route", spot, format!("a rule of `ip rule` makes {to} {kind}"))));
        }
        let listed = netlink.listed_routes()?;
        let longest = |rejection: &Rejection| rejection.destination.map_or(0, |net| net.prefix());
        let mut found: Vec<Rejection> = listed.iter().filter_map(|route| route.rejection).collect();
        found.retain(|rejection| rejection.includes(from, to));
        found.sort_by_key(|rejection| std::cmp::Reverse(longest(rejection)));
        // A more specific route to a next hop wins.
        let unicast = listed.iter().filter_map(|route| Some(route.unicast.as_ref()?.route.dst));
        let specific = unicast.filter(|dst| dst.contains(to)).map(|dst| dst.prefix()).max();
        let best = found.first().filter(|rejection| Some(longest(rejection)) >= specific);
        Ok(best.map(|rejection| {
            let net = rejection.destination.map_or_else(|| "all".to_owned(), |net| net.to_string());
            self.cause("route", spot, format!("the route \"{} {net}\" discards the packet", rejection.kind))
        }))
    }

    /// Returns why the host does not forward a packet that has arrived.
    fn not_forwarded(&mut self, sender: Spot, other: Spot, source: IpAddr, to: IpAddr) -> Result<Option<Cause>> {
        let to = if to == self.flow.target.ip() { self.flow.receiver } else { to };
        if let Some(cause) = self.rejection(Spot::Host, Some(source), to)? {
            return Ok(Some(cause));
        }
        let incoming = match sender {
            Spot::Member(number) => self.scene.gateway_link(number)?,
            _ => self.uplink(source)?,
        };
        let Some(incoming) = incoming else { return Ok(None) };
        if let Some(cause) = self.forwarding_off(&incoming, to)? {
            return Ok(Some(cause));
        }
        let outgoing = self.scene.host.forwarding_route(source, incoming.index, to)?;
        let wanted = match other {
            Spot::Member(number) => self.scene.gateway_link(number)?.map(|link| link.index),
            _ => outgoing,
        };
        Ok(match outgoing {
            None => {
                let what = format!("it has no route for packets from {source} on {} to {to}", incoming.name);
                let what = what + " (also if reverse path filtering, rp_filter, rejects the source)";
                Some(self.cause("route", Spot::Host, what))
            }
            Some(link) if Some(link) != wanted => {
                let name = self.scene.host.link_name(link)?.unwrap_or_default();
                Some(self.cause("route", Spot::Host, format!("the route to {to} leads to link {name}")))
            }
            Some(_) => None,
        })
    }

    /// Returns the link of the host by which packets to another machine leave.
    fn uplink(&mut self, ip: IpAddr) -> Result<Option<Link>> {
        match self.scene.host.route_to(ip)? {
            Some(link) => Ok(self.scene.host.link(link)?),
            None => Ok(None),
        }
    }

    fn forwarding_off(&mut self, incoming: &Link, to: IpAddr) -> Result<Option<Cause>> {
        let protocol = if to.is_ipv4() { "ipv4" } else { "ipv6" };
        for name in ["all", incoming.name.as_str()] {
            // IPv4 has only the setting of the link.
            let is_relevant = name != "all" || to.is_ipv6();
            if is_relevant && sysctl::read(&["net", protocol, "conf", name, "forwarding"])?.as_deref() == Some("0") {
                let what = format!("it does not forward: sysctl net.{protocol}.conf.{name}.forwarding is 0");
                return Ok(Some(self.cause("forwarding", Spot::Host, what)));
            }
        }
        Ok(None)
    }

    /// Returns what is wrong with the link between a container and the host.
    fn broken_link(&mut self, number: usize) -> Result<Option<Cause>> {
        let inside = Spot::Member(number);
        let Some(member) = self.scene.members.get_mut(number) else { return Ok(None) };
        let name = member.at.ifname.as_str().to_owned();
        let Some(interface) = member.interface()? else {
            return Ok(Some(self.cause("link", inside, format!("interface {name} is gone"))));
        };
        if let Some(text) = flaw(&interface) {
            return Ok(Some(self.cause("link", inside, text)));
        }
        let have = member.inside.addresses(interface.index)?;
        let missing = member.ips().iter().map(|ip| ip.address).find(|ip| !have.iter().any(|has| has.cidr == *ip));
        if let Some(missing) = missing {
            return Ok(Some(self.cause("address", inside, format!("interface {name} lost the address {missing}"))));
        }
        if interface.kind != "veth" {
            return Ok(None);
        }
        let Some(port) = self.scene.host_side(number)? else {
            return Ok(Some(self.cause("link", Spot::Host, format!("the host side of {name} is gone"))));
        };
        if let Some(text) = flaw(&port) {
            return Ok(Some(self.cause("link", Spot::Host, text)));
        }
        if !interface.running {
            return Ok(Some(self.cause("link", inside, format!("link {name} has no carrier"))));
        }
        let Some(bridge) = self.scene.bridge.clone() else { return Ok(None) };
        let Some(link) = self.scene.host.link(bridge.name.as_str())? else {
            return Ok(Some(self.cause("link", Spot::Host, format!("bridge {} is gone", bridge.name))));
        };
        let text = match () {
            () if flaw(&link).is_some() => flaw(&link),
            () if port.master != Some(link.index) => Some(format!("{} is not a port of {}", port.name, link.name)),
            () if port.port_state.is_some_and(|state| state != FORWARDING) => {
                Some(format!("port {} of {} does not forward (spanning tree)", port.name, link.name))
            }
            () if port.port.is_some_and(|port| port.isolated) && !bridge.isolated => {
                Some(format!("port {} of {} is isolated, which the network does not ask for", port.name, link.name))
            }
            () => None,
        };
        if let Some(text) = text {
            return Ok(Some(self.cause("link", Spot::Host, text)));
        }
        self.missing_gateway(number)
    }

    /// Returns the gateway address that the host lost.
    fn missing_gateway(&mut self, number: usize) -> Result<Option<Cause>> {
        let Some(gateway) = self.scene.gateway_link(number)? else { return Ok(None) };
        if self.scene.bridge.as_ref().is_some_and(|bridge| bridge.gateway.is_none()) {
            return Ok(None);
        }
        let have = self.scene.host.addresses(gateway.index)?;
        let wanted = self.scene.members.get(number).map(|member| member.ips().to_vec()).unwrap_or_default();
        let lost = wanted.iter().filter_map(|ip| ip.gateway).find(|ip| !have.iter().any(|has| has.cidr.ip() == *ip));
        let text = lost.map(|ip| format!("{} lost the gateway address {ip}", gateway.name));
        Ok(text.map(|text| self.cause("address", Spot::Host, text)))
    }

    /// Returns a static neighbour entry on the way of a spot to `to` that has another MAC address than the link with
    /// the address.
    fn wrong_neighbour(&mut self, spot: Spot, to: IpAddr) -> Result<Option<Cause>> {
        let Some(netlink) = self.scene.netlink(spot) else { return Ok(None) };
        let Some(link) = netlink.route_to(to)? else { return Ok(None) };
        let entries = netlink.neighbours(link)?;
        for Neighbour { ip, mac, permanent } in entries.into_iter().filter(|entry| entry.permanent) {
            let Some(real) = self.mac_of(ip)? else { continue };
            if permanent && mac != Some(real) {
                let mac = mac.map_or_else(|| "none".to_owned(), |mac| mac.to_string());
                let what = format!("the static neighbour entry of {ip} has the MAC address {mac}, which is {real}");
                return Ok(Some(self.cause("neighbour", spot, what)));
            }
        }
        Ok(None)
    }

    /// Returns the MAC address of the container or of the gateway that has an address.
    fn mac_of(&mut self, ip: IpAddr) -> Result<Option<linux::ip::MacAddr>> {
        for number in 0..self.scene.members.len() {
            let Some(member) = self.scene.members.get_mut(number) else { break };
            if member.ips().iter().any(|config| config.address.ip() == ip) {
                return Ok(member.interface()?.and_then(|link| link.mac));
            }
            if member.ips().iter().any(|config| config.gateway == Some(ip))
                && let Some(gateway) = self.scene.gateway_link(number)?
            {
                return Ok(gateway.mac);
            }
        }
        Ok(None)
    }

    /// Returns why a packet that has arrived does not get to a program.
    fn not_delivered(&mut self, spot: Spot, to: IpAddr) -> Result<Option<Cause>> {
        if let Spot::Member(number) = spot
            && let Some(cause) = self.broken_link(number)?
        {
            return Ok(Some(cause));
        }
        if let Some(cause) = self.rejection(spot, None, self.source)? {
            return Ok(Some(cause));
        }
        let has_address = match self.scene.netlink(spot) {
            Some(netlink) => netlink.all_addresses()?.iter().any(|(_, has)| has.cidr.ip() == to),
            None => true,
        };
        Ok(match has_address {
            true => Some(
                self.cause(
                    "route",
                    spot,
                    "the packet arrives, and reverse path filtering (rp_filter) or a \
                route discards it"
                        .to_owned(),
                ),
            ),
            false => Some(self.cause("address", spot, format!("the packet arrives, but {to} is not an address there"))),
        })
    }

    /// Returns where the packets were seen last.
    fn last_seen(&self) -> Result<Cause> {
        let Flow { from, to, .. } = *self.flow;
        let places = [
            (from, Direction::Reply, "the answer"),
            (Spot::Host, Direction::Reply, "the answer"),
            (to, Direction::Reply, "the answer"),
            (to, Direction::Request, "the packet"),
            (Spot::Host, Direction::Request, "the packet"),
            (from, Direction::Request, "the packet"),
        ];
        let seen = self.tracer.as_ref().and_then(|tracer| {
            let (spot, _, what) = places.into_iter().find(|(spot, direction, _)| tracer.saw_any(*spot, *direction))?;
            let decision = tracer.last_decision(spot).map_or_else(String::new, |rule| format!(", last by {rule}"));
            Some(self.cause(UNKNOWN, spot, format!("{what} was seen here last{decision}")))
        });
        Ok(seen.unwrap_or_else(|| self.cause(UNKNOWN, from, "no packet was seen".to_owned())))
    }
}

/// Returns why a link carries no packets.
fn flaw(link: &Link) -> Option<String> {
    match () {
        () if !link.up => Some(format!("link {} is down", link.name)),
        () if !link.arp => Some(format!("link {} does not answer ARP (`arp off`)", link.name)),
        () => None,
    }
}
