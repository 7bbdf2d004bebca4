//! CHECK: compares the state of the kernel with the result of ADD and with the current configuration.

use std::fmt::Display;

use cni::{
    AddResult, Attachment, AttachmentKey, Call, Code, Context, Error, Guest, Interface, IpConfig, Namespaces, Result,
    Route,
};
use linux::ip::{Cidr, MacAddr};
use linux::netlink::{self, KernelRoute, Link, Netlink, OperState};

use crate::config::Config;
use crate::rule::Traffic;
use crate::{masquerade, spoofcheck, vlan};

/// The main routing table.
const MAIN: u32 = libc::RT_TABLE_MAIN as u32;

/// Both sides of an attachment, and the result of its ADD.
struct Checker<'a> {
    config: &'a Config,
    at: &'a Attachment,
    prev_result: AddResult,
    host: Netlink,
    guest: Guest<'a>,
}

/// Compares everything. Returns an error for the first difference.
pub(crate) fn run(call: &Call<'_>, at: &Attachment, config: &Config) -> Result<()> {
    let mut checker = Checker::open(call, at, config)?;
    let key = AttachmentKey::new(call, at);

    let bridge = checker.bridge()?;
    let container = checker.container()?;
    let port = checker.port(&bridge, &container)?;
    if config.spoof_check {
        let mac = container.mac.unwrap_or(MacAddr::ZERO);
        spoofcheck::check(key, &port.name, mac)?;
    }
    if config.ipam.is_none() {
        return Ok(());
    }
    let ips = checker.addresses(&container)?;
    checker.routes(&container)?;
    checker.gateways(&bridge, &ips)?;
    match config.masquerade {
        Some(backend) => {
            let ips: Vec<Cidr> = ips.iter().map(|ip| ip.address).collect();
            masquerade::check(backend, key, Traffic { ips: &ips, exclude: &config.masquerade_exclude })
        }
        None => Ok(()),
    }
}

/// Returns the addresses of an attachment whose container veth is as ADD configured it. Does not check the host.
pub(crate) fn addresses(call: &Call<'_>, at: &Attachment, config: &Config) -> Result<Vec<Cidr>> {
    let mut checker = Checker::open(call, at, config)?;
    let container = checker.container()?;
    Ok(checker.addresses(&container)?.iter().map(|ip| ip.address).collect())
}

impl<'a> Checker<'a> {
    fn open(call: &Call<'_>, at: &'a Attachment, config: &'a Config) -> Result<Checker<'a>> {
        let prev_result = call.prev_result()?.ok_or_else(|| {
            Error::new(Code::CONFIG, "CHECK without \"prevResult\"").details("the runtime must pass the result of ADD")
        })?;
        let namespaces = Namespaces::open(call, at)?;
        let guest = namespaces.open_guest(at)?;
        Ok(Checker { config, at, prev_result, host: namespaces.host.netlink, guest })
    }

    /// Checks the bridge.
    fn bridge(&mut self) -> Result<Link> {
        let name = self.config.bridge.as_str();
        let listed =
            self.prev_result.interfaces.iter().rfind(|listed| listed.name == name && listed.sandbox.is_empty());
        let listed = listed.ok_or_else(|| not_listed(&format!("bridge {name:?}")))?.clone();
        let bridge = find_link(&mut self.host, name)?;
        same(name, "kind", "bridge", bridge.kind.as_str())?;
        same_mac(&listed, &bridge)?;
        same(name, "up", true, bridge.up)?;
        // Promiscuous mode that the configuration does not ask for is allowed: another program may capture traffic.
        if self.config.promiscuous {
            same(name, "promiscuous", true, bridge.promiscuous)?;
        }
        if self.config.vlans.is_some() {
            same(name, "VLAN filtering", true, bridge.vlan_filtering)?;
        }
        Ok(bridge)
    }

    /// Checks the container veth.
    fn container(&mut self) -> Result<Link> {
        let (name, sandbox) = (self.at.ifname.as_str(), self.at.sandbox());
        let listed =
            self.prev_result.interfaces.iter().rfind(|listed| listed.name == name && listed.sandbox == sandbox);
        let listed = listed.ok_or_else(|| not_listed(&format!("interface {name:?} in {sandbox:?}")))?.clone();
        let link = self.guest.interface()?;
        same(name, "kind", "veth", link.kind.as_str())?;
        same_mac(&listed, &link)?;
        if self.config.container_up {
            same(name, "up", true, link.up)?;
        }
        Ok(link)
    }

    /// Checks the host veth, which is found as the peer of the container veth.
    fn port(&mut self, bridge: &Link, container: &Link) -> Result<Link> {
        let no_peer = || {
            let what = format!("{:?} in {:?} has no peer on this host", container.name, self.at.sandbox());
            Error::new(Code::INTERNAL, what)
        };
        let port = match container.peer {
            Some(index) => self.host.link(index)?.ok_or_else(no_peer)?,
            None => return Err(no_peer()),
        };
        let name = port.name.as_str();
        same(name, "kind", "veth", port.kind.as_str())?;
        same(name, "peer", container.index, port.peer)?;
        if port.master != Some(bridge.index) {
            let master = port.master.map_or(Ok(None), |index| self.host.link(index))?;
            let master = master.as_ref().map_or("none", |master| &master.name);
            return Err(difference(name, "bridge", &bridge.name, &master));
        }
        let listed = self.prev_result.interfaces.iter().find(|listed| listed.name == name && listed.sandbox.is_empty());
        same_mac(listed.ok_or_else(|| not_listed(&format!("port {name:?}")))?, &port)?;
        let settings = port.port.unwrap_or_default();
        same(name, "hairpin mode", self.config.port.hairpin, settings.hairpin)?;
        // Another program may have isolated the port, which restricts only this container.
        if self.config.port.isolated {
            same(name, "isolation", true, settings.isolated)?;
        }
        if self.config.container_up {
            same(name, "state", OperState::Up, port.state)?;
        }
        if let Some(vlans) = &self.config.vlans {
            vlans.check(&mut self.host, port.index, name)?;
        }
        Ok(port)
    }

    /// Checks that the container veth has all addresses of the result, and returns them.
    fn addresses(&mut self, container: &Link) -> Result<Vec<IpConfig>> {
        let have = self.guest.netlink.addresses(container.index)?;
        let place = self
            .prev_result
            .interfaces
            .iter()
            .rposition(|listed| listed.name == self.at.ifname.as_str() && listed.sandbox == self.at.sandbox());
        let is_ours = |ip: &&IpConfig| ip.interface.is_none_or(|index| usize::try_from(index).ok() == place);
        let ips: Vec<_> = self.prev_result.ips.iter().filter(is_ours).cloned().collect();
        for ip in &ips {
            if !have.iter().any(|have| have.cidr == ip.address) {
                let have: Vec<_> = have.iter().map(|have| have.cidr.to_string()).collect();
                let what = format!(
                    "{:?} should have the address {}, but has [{}]",
                    container.name,
                    ip.address,
                    have.join(" ")
                );
                return Err(Error::new(Code::INTERNAL, what));
            }
        }
        Ok(ips)
    }

    /// Checks that the container has all routes of the result.
    fn routes(&mut self, container: &Link) -> Result<()> {
        let have = self.guest.netlink.routes(container.index)?;
        for route in &self.prev_result.routes {
            if have.iter().any(|have| matches_route(route, have)) {
                continue;
            }
            let similar: Vec<_> =
                have.iter().filter(|have| have.leads_to(route.dst)).map(|have| describe(&have.route)).collect();
            let what = format!(
                "{:?} should have the route {}, but has [{}]",
                container.name,
                describe(&route.into()),
                similar.join("; ")
            );
            return Err(Error::new(Code::INTERNAL, what));
        }
        Ok(())
    }

    /// Checks the interface with the gateway address of a VLAN: it reaches the bridge only if both ends of its pair are
    /// up.
    fn vlan_gateway(&mut self, name: &str) -> Result<Link> {
        let link = find_link(&mut self.host, name)?;
        let port = vlan::gateway_port(&mut self.host, &link)?;
        if let Some(end) = port.iter().chain([&link]).find(|end| !end.up) {
            let what = format!("{:?} of the VLAN's gateway {name:?} is down", end.name);
            return Err(Error::new(Code::INTERNAL, what).details("the next ADD sets it up"));
        }
        Ok(link)
    }

    /// Checks that the bridge, or the VLAN's interface, has the gateways of the container's addresses.
    fn gateways(&mut self, bridge: &Link, ips: &[IpConfig]) -> Result<()> {
        if !self.config.gateway {
            return Ok(());
        }
        let link = match self.config.vlan_gateway() {
            Some(name) => self.vlan_gateway(&name)?,
            None => bridge.clone(),
        };
        let have = self.host.addresses(link.index)?;
        for ip in ips {
            let Some(want) = ip.gateway.and_then(|gateway| Cidr::new(gateway, ip.address.prefix())) else {
                continue;
            };
            if !have.iter().any(|have| have.cidr == want) {
                let have: Vec<_> = have.iter().map(|have| have.cidr.to_string()).collect();
                let what =
                    format!("{:?} should have the gateway's address {want}, but has [{}]", link.name, have.join(" "));
                return Err(Error::new(Code::INTERNAL, what));
            }
        }
        Ok(())
    }
}

/// Returns whether a route of the kernel is the route `want`. Properties that `want` leaves out are not compared.
fn matches_route(want: &Route, have: &KernelRoute) -> bool {
    let scope_matters = want.dst.ip().is_ipv4(); // IPv6 routes have none.
    // An unspecified gateway and table 0 mean that none is given.
    let gw = want.gw.filter(|gw| !gw.is_unspecified());
    let table = want.table.filter(|table| *table != 0);
    have.leads_to(want.dst)
        && gw.is_none_or(|gw| have.route.gw == Some(gw))
        && have.route.table == Some(table.unwrap_or(MAIN))
        && (want.priority == 0 || want.priority == have.route.priority)
        && (!scope_matters || want.scope.is_none_or(|scope| have.route.scope == Some(scope)))
}

/// Formats a route as `ip route` does.
fn describe(route: &netlink::Route) -> String {
    let gw = route.gw.map_or_else(String::new, |gw| format!(" via {gw}"));
    let table = route.table.filter(|table| *table != MAIN);
    let table = table.map_or_else(String::new, |table| format!(" table {table}"));
    let metric = if route.priority > 0 { format!(" metric {}", route.priority) } else { String::new() };
    format!("{}{gw}{table}{metric}", route.dst)
}

/// Returns a link of the host. It must exist.
fn find_link(host: &mut Netlink, name: &str) -> Result<Link> {
    host.link(name)?.ok_or_else(|| {
        let error = Error::new(Code::INTERNAL, format!("there is no link {name:?} on the host"));
        error.details("attach the container again")
    })
}

/// Returns the error for an object that is missing from the previous result.
fn not_listed(what: &str) -> Error {
    Error::new(Code::INTERNAL, format!("\"prevResult\" does not list {what}"))
        .details("it must be the result of an ADD with this configuration")
}

/// Compares the MAC address of a link with the one in the previous result, if that has one.
fn same_mac(listed: &Interface, link: &Link) -> Result<()> {
    if listed.mac.is_empty() {
        return Ok(());
    }
    let want = listed.mac.parse::<MacAddr>();
    let want = want.map_err(|why| Error::new(Code::CONFIG, why.to_string())).context(|| "read \"prevResult\"")?;
    same(&link.name, "MAC address", want, link.mac)
}

/// Returns an error that names the property `what` of `link` unless it has the value `want`.
fn same<T: PartialEq + Display>(link: &str, what: &str, want: T, got: impl Into<Option<T>>) -> Result<()> {
    match got.into() {
        Some(got) if got == want => Ok(()),
        Some(got) => Err(difference(link, what, &want, &got)),
        None => Err(difference(link, what, &want, &"none")),
    }
}

#[cold]
fn difference(link: &str, what: &str, want: &dyn Display, got: &dyn Display) -> Error {
    Error::new(Code::INTERNAL, format!("{what} of {link:?}: want {want}, got {got}"))
}
