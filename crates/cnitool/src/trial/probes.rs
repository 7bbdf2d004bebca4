//! The probes of a network, in the order in which they run.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use cni::Result;
use linux::Deadline;
use linux::ip::Cidr;
use linux::netlink::{Change, Conntrack, LinkChange};
use serde_json::{Value, json};

use super::apart::policy;
use super::cause::Cause;
use super::explain::{Explanation, explain};
use super::flow::{Flow, PORT, Packet, receive, udp};
use super::rate;
use super::report::{Outcome, Report};
use super::scene::{Scene, Spot};
use super::session::Signals;
use crate::chain::Chain;
use crate::conf::NetworkList;
use crate::echo;
use crate::node::Network;

/// How long an answer may take at first.
pub(super) const TIMEOUT: Duration = Duration::from_secs(1);
/// How long a probe waits for what must not arrive.
const SILENCE: Duration = Duration::from_millis(300);
/// The headers of IP before an echo.
const HEADER_V4: usize = 20;
const HEADER_V6: usize = 40;
/// A MAC address that no container has: locally administered.
const FORGED: [u8; 6] = [0x02, 0xc0, 0xff, 0xee, 0x00, 0x01];

/// The capability of plugins that limit rates.
const LIMITS: &str = "bandwidth";

/// The containers of the test.
const FIRST: Spot = Spot::Member(0);
const SECOND: Spot = Spot::Member(1);

/// Probes with an address of the first container, of this family.
type Step<'a> = fn(&mut Probes<'a>, Cidr, &'static str) -> Result<()>;

/// A port of this host that leads to the port of the probes in the first container.
#[derive(Clone, Copy, Debug)]
pub(super) struct Published {
    pub(super) port: u16,
    /// Whether it is a port of UDP, too.
    pub(super) has_udp: bool,
}

impl Published {
    /// Returns the port in the mappings of the caller, if one of TCP leads to the port of the probes.
    pub(super) fn chosen(mappings: &Value) -> Option<Published> {
        let port_of = |protocol: &str| {
            let mut all = mappings.as_array().into_iter().flatten();
            let found =
                all.find(|at| at["protocol"] == protocol && at["containerPort"] == PORT && at["hostIP"].is_null());
            u16::try_from(found?["hostPort"].as_u64()?).ok()
        };
        let port = port_of("tcp")?;
        Some(Published { port, has_udp: port_of("udp") == Some(port) })
    }

    /// Returns the mappings.
    pub(super) fn mappings(self) -> Value {
        let mapping = |protocol: &str| json!({ "hostPort": self.port, "containerPort": PORT, "protocol": protocol });
        json!([mapping("tcp"), mapping("udp")])
    }
}

/// What the probes of a network need.
pub(super) struct Probes<'a> {
    pub(super) list: &'a NetworkList,
    pub(super) network: &'a Network,
    pub(super) chain: &'a Chain<'a>,
    pub(super) scene: &'a mut Scene,
    pub(super) report: &'a mut Report,
    pub(super) signals: &'a Signals,
    /// The port of this host that is published, if the network publishes ports.
    pub(super) published: Option<Published>,
    pub(super) outside: Option<IpAddr>,
    /// The families of addresses at which this host does not reach the container.
    pub(super) unreachable: Vec<&'static str>,
}

impl<'a> Probes<'a> {
    /// Runs all probes between ADD and DEL.
    pub(super) fn run(&mut self) -> Result<()> {
        let addresses = self.addresses(0);
        if addresses.is_empty() {
            let why = "the network gives its containers no address";
            for id in ["address", "gateway", "neighbour-icmp", "host", "outside"] {
                self.skip(id, None, why);
            }
        }
        for address in addresses {
            self.of_family(address)?;
        }
        self.other_bridge()?;
        self.rates()?;
        self.dns()?;
        self.check()
    }

    /// Runs the probes with an address of the first container.
    fn of_family(&mut self, address: Cidr) -> Result<()> {
        let steps: [Step<'a>; 8] = [
            Self::first_packet,
            Self::own_address,
            Self::gateway,
            Self::neighbour,
            Self::host,
            Self::outside,
            Self::ports,
            Self::forged,
        ];
        for step in steps {
            self.signals.check()?;
            step(self, address, family(address.ip()))?;
        }
        Ok(())
    }

    /// Returns the first address of each family of a container.
    pub(super) fn addresses(&self, number: usize) -> Vec<Cidr> {
        let ips = self.scene.members.get(number).map(|member| member.ips().to_vec()).unwrap_or_default();
        let mut found: Vec<Cidr> = Vec::new();
        for ip in ips.iter().map(|ip| ip.address) {
            if !found.iter().any(|other| other.ip().is_ipv4() == ip.ip().is_ipv4()) {
                found.push(ip);
            }
        }
        found
    }

    pub(super) fn skip(&mut self, id: &'static str, family: Option<&'static str>, why: impl Into<String>) {
        self.report.push(id, family, Outcome::Skipped(why.into()), None);
    }

    /// Sends packets that must arrive, and explains why if they do not. Returns whether they did.
    fn expect(&mut self, id: &'static str, family: &'static str, flow: &Flow, seen: &str) -> Result<bool> {
        let (outcome, time) = match flow.attempt(self.scene, TIMEOUT)? {
            Ok(time) => (Outcome::Passed(seen.to_owned()), Some(time)),
            Err(lost) => match explain(self.scene, flow)? {
                Explanation::Passed(time) => {
                    (Outcome::Passed(format!("{seen}; the first attempt: {lost}")), Some(time))
                }
                Explanation::Failed(causes) => (Outcome::Failed(format!("{seen}: {lost}"), causes), None),
            },
        };
        let passed = matches!(outcome, Outcome::Passed(_));
        self.report.push(id, Some(family), outcome, time);
        Ok(passed)
    }

    /// Measures the time until the first answer. Later probes explain why there is none.
    fn first_packet(&mut self, address: Cidr, family: &'static str) -> Result<()> {
        let flow = match self.gateway_of(address.ip()) {
            _ if self.scene.host_side(0)?.is_some() => Flow::echo(Spot::Host, FIRST, address.ip()),
            Some(gateway) => Flow::echo(FIRST, Spot::Outside, gateway),
            None => Flow::echo(FIRST, FIRST, address.ip()),
        };
        if let Ok(time) = flow.attempt(self.scene, TIMEOUT)? {
            let seen = format!("{} answers {}", flow.target.ip(), self.scene.title(flow.from));
            self.report.push("first-packet", Some(family), Outcome::Passed(seen), Some(time));
        }
        Ok(())
    }

    fn own_address(&mut self, address: Cidr, family: &'static str) -> Result<()> {
        let flow = Flow::echo(FIRST, FIRST, address.ip());
        self.expect("address", family, &flow, &address.to_string()).map(drop)
    }

    /// Returns the gateway of the family of `ip`.
    pub(super) fn gateway_of(&self, ip: IpAddr) -> Option<IpAddr> {
        let mut ips = self.scene.members.first()?.ips().iter();
        let gateways = ips.find(|config| config.address.ip().is_ipv4() == ip.is_ipv4())?;
        gateways.gateway
    }

    fn gateway(&mut self, address: Cidr, family: &'static str) -> Result<()> {
        let Some(gateway) = self.gateway_of(address.ip()) else {
            self.skip("gateway", Some(family), "the result has no gateway");
            return Ok(());
        };
        let is_ours = self.scene.host.all_addresses()?.iter().any(|(_, has)| has.cidr.ip() == gateway);
        let scope = self.scene.members.first_mut().map(|member| member.interface()).transpose()?.flatten();
        let scope = scope.filter(|_| is_link_local(gateway)).map_or(0, |link| link.index.number());
        let to = if is_ours { Spot::Host } else { Spot::Outside };
        let flow = Flow { scope, ..Flow::echo(FIRST, to, gateway) };
        let seen = format!("{gateway}{}", if is_ours { "" } else { ", which is not this host" });
        if to == Spot::Outside
            && flow.attempt(self.scene, TIMEOUT)?.is_err()
            && let Some(member) = self.scene.members.first_mut()
            && let Some(link) = member.interface()?
            && member.inside.neighbours(link.index)?.iter().any(|entry| entry.ip == gateway && entry.mac.is_some())
        {
            // Routers need not answer echoes.
            let seen = format!("{seen}, has a MAC address, and answers no echo");
            self.report.push("gateway", Some(family), Outcome::Passed(seen), None);
            return Ok(());
        }
        self.expect("gateway", family, &flow, &seen).map(drop)
    }

    fn neighbour(&mut self, address: Cidr, family: &'static str) -> Result<()> {
        let Some(other) = self.scene.members.get(1).and_then(|member| member.ip_like(address)) else {
            self.skip("neighbour-icmp", Some(family), "the network has a single container");
            return Ok(());
        };
        let to = other.ip();
        if to == address.ip() {
            let why = format!("each container gets the address {to}, so that the network has a single container");
            self.skip("neighbour-icmp", Some(family), why);
            return Ok(());
        }
        if self.is_private() {
            return self.silent(family, &Flow::echo(FIRST, SECOND, to), "the network isolates its containers");
        }
        let seen = format!("{} to {to}", address.ip());
        if !self.expect("neighbour-icmp", family, &Flow::echo(FIRST, SECOND, to), &seen)? {
            return Ok(());
        }
        for (id, packet) in [("neighbour-tcp", Packet::Tcp), ("neighbour-udp", Packet::Udp)] {
            let flow = Flow::to_port(packet, FIRST, SECOND, SocketAddr::new(to, PORT));
            self.expect(id, family, &flow, &format!("{seen}, port {PORT}"))?;
        }
        let interface = self.scene.members.first_mut().map(|member| member.interface()).transpose()?.flatten();
        let mtu = interface.map_or(0, |link| link.mtu) as usize;
        let headers = if to.is_ipv4() { HEADER_V4 } else { HEADER_V6 } + echo::HEADER;
        let flow =
            Flow { packet: Packet::Echo { payload: mtu.saturating_sub(headers) }, ..Flow::echo(FIRST, SECOND, to) };
        self.expect("neighbour-mtu", family, &flow, &format!("{mtu} bytes")).map(drop)
    }

    /// Returns whether the network keeps its own containers apart.
    fn is_private(&self) -> bool {
        let isolated = self.scene.bridge.as_ref().is_some_and(|bridge| bridge.isolated);
        let macvlan = self.list.plugins.iter().find(|plugin| plugin.kind == "macvlan");
        let mode = macvlan.and_then(|plugin| plugin.config.get("mode")?.as_str());
        let mode = mode.is_some_and(|mode| ["private", "vepa"].contains(&mode));
        isolated || mode || policy(self.list) == Some("isolated")
    }

    /// Sends packets that must not arrive.
    pub(super) fn silent(&mut self, family: &'static str, flow: &Flow, rule: &str) -> Result<()> {
        let outcome = match flow.attempt(self.scene, SILENCE)? {
            Err(_) => Outcome::Passed(format!("{rule}: {} does not answer", flow.target.ip())),
            Ok(_) => Outcome::Failed(format!("{rule}, but {} answers", flow.target.ip()), Vec::new()),
        };
        self.report.push("isolation", Some(family), outcome, None);
        Ok(())
    }

    fn host(&mut self, address: Cidr, family: &'static str) -> Result<()> {
        if self.scene.host_side(0)?.is_none() {
            let what = self.network.link.as_ref().map_or("the network", |link| link.what.as_str()).to_owned();
            self.skip("host", Some(family), format!("{what}: a container has no other end on this host"));
            return Ok(());
        }
        if self.scene.bridge.as_ref().is_some_and(|bridge| bridge.gateway.is_none()) {
            self.skip("host", Some(family), "the bridge has no address");
            return Ok(());
        }
        let flow = Flow::echo(Spot::Host, FIRST, address.ip());
        if !self.expect("host", family, &flow, &format!("this host to {}", address.ip()))? {
            self.unreachable.push(family);
        }
        Ok(())
    }

    fn outside(&mut self, address: Cidr, family: &'static str) -> Result<()> {
        let given = self.outside.filter(|ip| ip.is_ipv4() == address.ip().is_ipv4());
        let Some(outside) = given.map_or_else(|| self.next_hop(address.ip()), |ip| Ok(Some(ip)))? else {
            self.skip("outside", Some(family), "this host has no default route with a next hop");
            return Ok(());
        };
        if !self.has_default_route(address.ip()) {
            self.skip("outside", Some(family), "the container has no default route");
            return Ok(());
        }
        let direct = Flow::echo(Spot::Host, Spot::Outside, outside).attempt(self.scene, TIMEOUT)?;
        if direct.is_err() && given.is_none() {
            self.skip("outside", Some(family), format!("{outside} does not answer this host either"));
            return Ok(());
        }
        let flow = Flow::echo(FIRST, Spot::Outside, outside);
        if self.expect("outside", family, &flow, &format!("{outside} answers"))? {
            self.masquerade(address.ip(), outside, family)?;
        }
        Ok(())
    }

    /// Returns the next hop of the default route of this host.
    fn next_hop(&mut self, like: IpAddr) -> Result<Option<IpAddr>> {
        let routes = self.scene.host.default_routes()?;
        let hops = routes.into_iter().filter_map(|route| route.route.gw);
        Ok(hops.into_iter().find(|hop| hop.is_ipv4() == like.is_ipv4() && !is_link_local(*hop)))
    }

    fn has_default_route(&self, like: IpAddr) -> bool {
        let routes = self.scene.members.first().map(|member| member.result.routes.as_slice()).unwrap_or_default();
        routes.iter().any(|route| route.dst.is_default() && route.dst.ip().is_ipv4() == like.is_ipv4())
    }

    fn masquerade(&mut self, from: IpAddr, outside: IpAddr, family: &'static str) -> Result<()> {
        let wanted = self.scene.masquerades(outside);
        let is_excluded = self.scene.excluded.is_some() && !wanted;
        let source = Conntrack::open()?.reply_destination(from, outside)?;
        let outcome = match source {
            None => Outcome::Skipped("the kernel does not track the connection".to_owned()),
            Some(source) if wanted && source == from => {
                Outcome::Failed(format!("\"ipMasq\" is set, but {outside} sees {from}"), Vec::new())
            }
            Some(source) if is_excluded && source != from => {
                Outcome::Failed(format!("\"ipMasqExclude\" has {outside}, but it sees {source}"), Vec::new())
            }
            Some(source) => Outcome::Passed(format!("{outside} sees {source}")),
        };
        self.report.push("masquerade", Some(family), outcome, None);
        Ok(())
    }

    fn ports(&mut self, address: Cidr, family: &'static str) -> Result<()> {
        let Some(Published { port, has_udp }) = self.published else {
            self.skip("port-host", None, format!("no port of this host leads to port {PORT} of TCP in the container"));
            return Ok(());
        };
        if self.unreachable.contains(&family) {
            self.skip("port-host", Some(family), "this host does not reach the container");
            return Ok(());
        }
        let Some(host) = self.host_address(address.ip())? else {
            self.skip("port-host", Some(family), "this host has no address of the family");
            return Ok(());
        };
        let target = SocketAddr::new(host, port);
        let to = |from, packet, target| Flow { receiver: address.ip(), ..Flow::to_port(packet, from, FIRST, target) };
        let seen = |target: SocketAddr| format!("{target} leads to {}", SocketAddr::new(address.ip(), PORT));
        let is_reachable = self.expect("port-host", family, &to(Spot::Host, Packet::Tcp, target), &seen(target))?;
        if !is_reachable {
            return Ok(());
        }
        if has_udp {
            self.expect("port-udp", family, &to(Spot::Host, Packet::Udp, target), &seen(target))?;
        }
        if address.ip().is_ipv4() {
            let local = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
            self.expect("port-loopback", family, &to(Spot::Host, Packet::Tcp, local), &seen(local))?;
        }
        if self.scene.members.len() > 1 && !self.is_private() {
            self.expect("port-neighbour", family, &to(SECOND, Packet::Tcp, target), &seen(target))?;
        }
        self.expect("port-itself", family, &to(FIRST, Packet::Tcp, target), &seen(target)).map(drop)
    }

    /// Returns an address of this host that containers reach: that of its default route, or their gateway.
    fn host_address(&mut self, like: IpAddr) -> Result<Option<IpAddr>> {
        let far: IpAddr =
            if like.is_ipv4() { Ipv4Addr::new(192, 0, 2, 1).into() } else { "2001:db8::1".parse().unwrap_or(like) };
        let own = self.scene.source(Spot::Host, SocketAddr::new(far, PORT))?;
        let addresses = self.scene.host.all_addresses()?;
        let gateway = self.gateway_of(like).filter(|ip| addresses.iter().any(|(_, has)| has.cidr.ip() == *ip));
        Ok(own.filter(|ip| !ip.is_loopback() && !is_link_local(*ip)).or(gateway))
    }

    /// With a spoof check, frames with a forged MAC address must not arrive.
    fn forged(&mut self, address: Cidr, family: &'static str) -> Result<()> {
        let checks =
            self.list.plugins.iter().any(|plugin| plugin.config.get("macspoofchk") == Some(&Value::Bool(true)));
        let Some(other) = self.scene.members.get(1).and_then(|member| member.ip_like(address)) else { return Ok(()) };
        if !checks || self.is_private() {
            return Ok(());
        }
        let receiver = self.scene.within(SECOND, || udp(other.ip(), PORT))?;
        let sender = self.scene.within(FIRST, || udp(address.ip(), 0))?;
        let Some(member) = self.scene.members.first_mut() else { return Ok(()) };
        let Some(interface) = member.interface()? else { return Ok(()) };
        let set = |mac| LinkChange { mac: Some(linux::ip::MacAddr(mac)), ..LinkChange::default() };
        member.inside.apply(&[Change::set_link(interface.index, &set(FORGED))])?;
        let sent = sender.send_to(b"?", SocketAddr::new(other.ip(), PORT));
        let arrived = receive(&receiver, Deadline::after(SILENCE))?;
        if let Some(mac) = interface.mac {
            member.inside.apply(&[Change::set_link(interface.index, &set(mac.0))])?;
        }
        let outcome = match arrived {
            Some(_) => Outcome::Failed("\"macspoofchk\" is set, but a forged frame arrives".to_owned(), Vec::new()),
            None if sent.is_err() => return Ok(()),
            None => Outcome::Passed("a frame with a forged MAC address does not arrive".to_owned()),
        };
        self.report.push("isolation", Some(family), outcome, None);
        Ok(())
    }

    /// Measures the limits of the plugin `bandwidth`.
    fn rates(&mut self) -> Result<()> {
        let Some(plugin) = self.list.plugins.iter().find(|plugin| plugin.kind == "bandwidth") else {
            self.skip("rate-ingress", None, "the network has no plugin \"bandwidth\"");
            return Ok(());
        };
        let Some(address) = self.addresses(0).first().copied() else { return Ok(()) };
        let of_runtime = self.scene.members.first().and_then(|member| member.at.capabilities.get(LIMITS));
        let limits = rate::limits(&plugin.config, of_runtime.unwrap_or(&Value::Null));
        for (id, limit) in ["rate-ingress", "rate-egress"].into_iter().zip(limits) {
            self.signals.check()?;
            let Some(limit) = limit else {
                let passes =
                    plugin.config.get("capabilities").and_then(|all| all.get(LIMITS)) == Some(&Value::Bool(true));
                self.skip(
                    id,
                    None,
                    match passes {
                        true => "neither the configuration nor \"bandwidth\" in CAP_ARGS has a rate",
                        false => "the configuration has no rate",
                    },
                );
                continue;
            };
            let outcome = rate::measure(self.scene, address.ip(), limit, id == "rate-ingress")?;
            self.report.push(id, None, outcome, None);
        }
        Ok(())
    }

    /// Asks each DNS server of the result for the root.
    fn dns(&mut self) -> Result<()> {
        let servers =
            self.scene.members.first().map(|member| member.result.dns.nameservers.clone()).unwrap_or_default();
        if servers.is_empty() {
            self.skip("dns", None, "the result has no DNS server");
        }
        for server in servers {
            self.signals.check()?;
            let Ok(ip) = server.parse::<IpAddr>() else {
                let seen = format!("the result has the DNS server {server:?}, which is not an address");
                self.report.push("dns", None, Outcome::Failed(seen, Vec::new()), None);
                continue;
            };
            let began = Instant::now();
            let socket = self.scene.within(FIRST, || udp(ip, 0))?;
            // A question for the name servers of the root, with the identifier 0 and recursion.
            let question = [0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1];
            let sent = socket.send_to(&question, (ip, 53));
            let answer = if sent.is_ok() { receive(&socket, Deadline::after(TIMEOUT))? } else { None };
            let (outcome, time) = match answer {
                Some(_) => (Outcome::Passed(format!("{server} answers")), Some(began.elapsed())),
                None => {
                    let why = sent.err().map_or_else(|| format!("no answer within {TIMEOUT:?}"), |e| e.to_string());
                    (Outcome::Failed(format!("{server}: {why}"), self.dns_causes(ip)?), None)
                }
            };
            self.report.push("dns", Some(family(ip)), outcome, time);
        }
        Ok(())
    }

    /// Explains why a DNS server does not answer, if echoes do not get through either.
    fn dns_causes(&mut self, server: IpAddr) -> Result<Vec<Cause>> {
        let flow = Flow::echo(FIRST, Spot::Outside, server);
        Ok(match explain(self.scene, &flow)? {
            Explanation::Failed(causes) => causes,
            Explanation::Passed(_) => Vec::new(),
        })
    }

    fn check(&mut self) -> Result<()> {
        self.signals.check()?;
        if self.list.version < cni::Version::V0_4_0 || self.list.disable_check {
            self.skip("check", None, "the network has no CHECK: it needs cniVersion 0.4.0 without \"disableCheck\"");
            return Ok(());
        }
        for member in &self.scene.members {
            let began = Instant::now();
            let outcome = match self.chain.check(&member.at) {
                Ok(()) => Outcome::Passed(member.title.clone()),
                Err(error) => {
                    Outcome::Failed(format!("{}: {}", member.title, crate::out::one_line(&error)), Vec::new())
                }
            };
            self.report.push("check", None, outcome, Some(began.elapsed()));
        }
        Ok(())
    }
}
pub(super) fn family(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { "ipv4" } else { "ipv6" }
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}
