//! CHECK: compares what is there with what ADD told, and with what the configuration wants now.

use std::fmt::Debug;

use cni::ip::{Cidr, MacAddr};
use cni::netlink::{KernelRoute, Link, Netlink, OperState};
use cni::{AddResult, Attachment, AttachmentKey, Call, Code, Context, Error, Home, Interface, IpConfig, Result, Route};

use crate::config::Config;
use crate::{masquerade, spoofcheck, vlan};

/// The main routing table.
const MAIN: u32 = libc::RT_TABLE_MAIN as u32;

/// Both sides of an attachment, and what was told about it.
struct Scene<'a> {
    config: &'a Config,
    at: &'a Attachment,
    told: AddResult,
    host: Netlink,
    guest: Netlink,
}

/// Compares everything; the first difference is the error.
pub(crate) fn run(call: &Call<'_>, at: &Attachment, config: &Config) -> Result<()> {
    let mut scene = Scene::open(call, at, config)?;
    let owner = AttachmentKey::new(call, at);

    let bridge = scene.bridge()?;
    let container = scene.container()?;
    let port = scene.port(&bridge, &container)?;
    if config.spoof_check {
        let mac = container.mac.unwrap_or(MacAddr([0; 6]));
        spoofcheck::check(owner, &port.name, mac)?;
    }
    if config.ipam.is_none() {
        return Ok(());
    }
    let ips = scene.addresses(&container)?;
    scene.routes(&container)?;
    scene.gateways(&bridge, &ips)?;
    match config.masquerade {
        Some(backend) => {
            let ips: Vec<Cidr> = ips.iter().map(|ip| ip.address).collect();
            masquerade::check(backend, owner, &ips)
        }
        None => Ok(()),
    }
}

/// Returns the addresses of an attachment whose interface in the container is as ADD made it, whatever the host has.
pub(crate) fn addresses(call: &Call<'_>, at: &Attachment, config: &Config) -> Result<Vec<Cidr>> {
    let mut scene = Scene::open(call, at, config)?;
    let container = scene.container()?;
    Ok(scene.addresses(&container)?.iter().map(|ip| ip.address).collect())
}

impl<'a> Scene<'a> {
    fn open(call: &Call<'_>, at: &'a Attachment, config: &'a Config) -> Result<Scene<'a>> {
        let told = call.previous()?.ok_or_else(|| {
            Error::new(Code::CONFIG, "CHECK without \"prevResult\"")
                .details("the runtime must pass on what ADD answered")
        })?;
        let Home { netns: home, netlink: host } = call.home()?;
        let guest = at.open_netns()?.run(&home, Netlink::open)?;
        Ok(Scene { config, at, told, host, guest })
    }

    fn bridge(&mut self) -> Result<Link> {
        let name = self.config.bridge.as_str();
        let told = self.told.interfaces.iter().rfind(|told| told.name == name && told.sandbox.is_empty());
        let told = told.ok_or_else(|| untold(&format!("bridge {name:?}")))?.clone();
        let bridge = look(&mut self.host, name, "on the host")?;
        same(name, "kind", &"bridge", &bridge.kind.as_str())?;
        same_mac(&told, &bridge)?;
        same(name, "up", &true, &bridge.up)?;
        // Only this way round: somebody may look at the traffic.
        if self.config.promiscuous {
            same(name, "promiscuous", &true, &bridge.promiscuous)?;
        }
        if self.config.vlans.is_some() {
            same(name, "filtering of VLANs", &Some(true), &bridge.vlan_filtering)?;
        }
        Ok(bridge)
    }

    fn container(&mut self) -> Result<Link> {
        let (name, sandbox) = (self.at.ifname.as_str(), self.at.sandbox());
        let told = self.told.interfaces.iter().rfind(|told| told.name == name && told.sandbox == sandbox);
        let told = told.ok_or_else(|| untold(&format!("interface {name:?} in {sandbox:?}")))?.clone();
        let link = look(&mut self.guest, name, &format!("in {sandbox:?}"))?;
        same(name, "kind", &"veth", &link.kind.as_str())?;
        same_mac(&told, &link)?;
        if self.config.container_up {
            same(name, "up", &true, &link.up)?;
        }
        Ok(link)
    }

    /// The host's end, found from the container's.
    fn port(&mut self, bridge: &Link, container: &Link) -> Result<Link> {
        let lost = || {
            let what = format!("{:?} in {:?} has no other end on this host", container.name, self.at.sandbox());
            Error::new(Code::INTERNAL, what)
        };
        let port = match container.peer {
            Some(index) => self.host.link(index)?.ok_or_else(lost)?,
            None => return Err(lost()),
        };
        let name = port.name.as_str();
        same(name, "kind", &"veth", &port.kind.as_str())?;
        same(name, "other end", &Some(container.index), &port.peer)?;
        same(name, "bridge", &Some(bridge.index), &port.master)
            .map_err(|error| error.details(format!("{:?} is {}", bridge.name, bridge.index)))?;
        let told = self.told.interfaces.iter().find(|told| told.name == name && told.sandbox.is_empty());
        same_mac(told.ok_or_else(|| untold(&format!("port {name:?}")))?, &port)?;
        let settings = port.port.unwrap_or_default();
        same(name, "hairpin mode", &self.config.port.hairpin, &settings.hairpin)?;
        same(name, "isolation", &self.config.port.isolated, &settings.isolated)?;
        if self.config.container_up {
            same(name, "state", &OperState::Up, &port.state)?;
        }
        if let Some(vlans) = &self.config.vlans {
            vlans.check(&mut self.host, port.index, name)?;
        }
        Ok(port)
    }

    /// The container's addresses, all of which must be there.
    fn addresses(&mut self, container: &Link) -> Result<Vec<IpConfig>> {
        let have = self.guest.addresses(container.index)?;
        let place = self
            .told
            .interfaces
            .iter()
            .rposition(|told| told.name == self.at.ifname.as_str() && told.sandbox == self.at.sandbox());
        let is_ours = |ip: &&IpConfig| ip.interface.is_none_or(|told| usize::try_from(told).ok() == place);
        let ips: Vec<_> = self.told.ips.iter().filter(is_ours).cloned().collect();
        for ip in &ips {
            if !have.iter().any(|have| have.cidr == ip.address) {
                let have: Vec<_> = have.iter().map(|have| have.cidr.to_string()).collect();
                let what = format!(
                    "{:?} should have the address {}, and has [{}]",
                    container.name,
                    ip.address,
                    have.join(" ")
                );
                return Err(Error::new(Code::INTERNAL, what));
            }
        }
        Ok(ips)
    }

    fn routes(&mut self, container: &Link) -> Result<()> {
        let have = self.guest.routes(container.index)?;
        for route in &self.told.routes {
            if have.iter().any(|have| fits(route, have)) {
                continue;
            }
            let near: Vec<_> =
                have.iter().filter(|have| have.leads_to(route.dst)).map(|have| describe(&have.route)).collect();
            let what = format!(
                "{:?} should have the route {}, and has [{}]",
                container.name,
                describe(route),
                near.join("; ")
            );
            return Err(Error::new(Code::INTERNAL, what));
        }
        Ok(())
    }

    /// The interface that has the gateway's address of a VLAN, which leads to the bridge if both its ends are up.
    fn vlan_gateway(&mut self, name: &str) -> Result<Link> {
        let link = look(&mut self.host, name, "on the host")?;
        let port = vlan::gateway_port(&mut self.host, &link)?;
        if let Some(end) = port.iter().chain([&link]).find(|end| !end.up) {
            let what = format!("{:?} of the VLAN's gateway {name:?} is down", end.name);
            return Err(Error::new(Code::INTERNAL, what).details("the next ADD sets it up"));
        }
        Ok(link)
    }

    /// The gateways of the container's addresses, on the bridge or on the VLAN's interface.
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
                    format!("{:?} should have the gateway's address {want}, and has [{}]", link.name, have.join(" "));
                return Err(Error::new(Code::INTERNAL, what));
            }
        }
        Ok(())
    }
}

/// Is this the route that was told? What was not told does not matter.
fn fits(told: &Route, have: &KernelRoute) -> bool {
    let scope_matters = told.dst.ip().is_ipv4(); // IPv6 routes have none.
    // What is nowhere and what is zero stand for nothing.
    let gw = told.gw.filter(|gw| !gw.is_unspecified());
    let table = told.table.filter(|table| *table != 0);
    have.leads_to(told.dst)
        && gw.is_none_or(|gw| have.route.gw == Some(gw))
        && have.route.table == Some(table.unwrap_or(MAIN))
        && (told.priority == 0 || told.priority == have.route.priority)
        && (!scope_matters || told.scope.is_none_or(|scope| have.route.scope == Some(scope)))
}

fn describe(route: &Route) -> String {
    let gw = route.gw.map_or_else(String::new, |gw| format!(" via {gw}"));
    let table = route.table.filter(|table| *table != MAIN);
    let table = table.map_or_else(String::new, |table| format!(" table {table}"));
    let metric = if route.priority > 0 { format!(" metric {}", route.priority) } else { String::new() };
    format!("{}{gw}{table}{metric}", route.dst)
}

fn look(netlink: &mut Netlink, name: &str, place: &str) -> Result<Link> {
    netlink.link(name)?.ok_or_else(|| Error::new(Code::INTERNAL, format!("there is no link {name:?} {place}")))
}

fn untold(what: &str) -> Error {
    Error::new(Code::INTERNAL, format!("\"prevResult\" does not list {what}"))
        .details("it must be the answer to an ADD with this configuration")
}

fn same_mac(told: &Interface, link: &Link) -> Result<()> {
    if told.mac.is_empty() {
        return Ok(());
    }
    let want = told.mac.parse::<MacAddr>();
    let want = want.map_err(|why| Error::new(Code::CONFIG, why.to_string())).trying(|| "read \"prevResult\"")?;
    same(&link.name, "hardware address", &Some(want), &link.mac)
}

fn same<T: PartialEq + Debug>(link: &str, what: &str, want: &T, got: &T) -> Result<()> {
    if want == got {
        return Ok(());
    }
    Err(Error::new(Code::INTERNAL, format!("{what} of {link:?}: want {want:?}, got {got:?}")))
}
