//! CHECK: compares the state of the kernel with the result of ADD and with the current configuration.

use cni::{Attachment, AttachmentKey, Call, Code, Error, IpConfig, Result};
use interface::check::{Checker, difference, find_link, not_listed, same, same_mac};
use linux::ip::{Cidr, MacAddr};
use linux::netlink::{Link, OperState};

use crate::config::Config;
use crate::{spoofcheck, vlan};

/// A check in progress.
struct BridgeCheck<'a> {
    config: &'a Config,
    checker: Checker<'a>,
}

/// Compares everything. Returns an error for the first difference.
pub(crate) fn run(call: &Call<'_>, at: &Attachment, config: &Config) -> Result<()> {
    let mut check = BridgeCheck { config, checker: Checker::open(call, at)? };
    let key = AttachmentKey::new(call, at);

    let bridge = check.bridge()?;
    let container = check.checker.interface("veth", config.container_up)?;
    let port = check.port(&bridge, &container)?;
    if config.spoof_check {
        let mac = container.mac.unwrap_or(MacAddr::ZERO);
        spoofcheck::check(key, &port.name, mac)?;
    }
    if config.ipam.is_none() {
        return Ok(());
    }
    let ips = check.checker.addresses(&container)?;
    check.checker.routes(&container)?;
    check.gateways(&bridge, &ips)?;
    match &config.masquerade {
        Some(masquerade) => masquerade.check(key, &ips.iter().map(|ip| ip.address).collect::<Vec<_>>()),
        None => Ok(()),
    }
}

impl BridgeCheck<'_> {
    /// Checks the bridge.
    fn bridge(&mut self) -> Result<Link> {
        let name = self.config.bridge.as_str();
        let listed =
            self.checker.prev_result.interfaces.iter().rfind(|listed| listed.name == name && listed.sandbox.is_empty());
        let listed = listed.ok_or_else(|| not_listed(&format!("bridge {name:?}")))?.clone();
        let bridge = find_link(&mut self.checker.host, name)?;
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

    /// Checks the host veth.
    fn port(&mut self, bridge: &Link, container: &Link) -> Result<Link> {
        let port = self.checker.host_veth(container)?;
        let name = port.name.as_str();
        if port.master != Some(bridge.index) {
            let master = port.master.map_or(Ok(None), |index| self.checker.host.link(index))?;
            let master = master.as_ref().map_or("none", |master| &master.name);
            return Err(difference(name, "bridge", &bridge.name, &master));
        }
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
            vlans.check(&mut self.checker.host, port.index, name)?;
        }
        Ok(port)
    }

    /// Checks the interface with the gateway address of a VLAN: it reaches the bridge only if both ends of its pair are
    /// up.
    fn vlan_gateway(&mut self, name: &str) -> Result<Link> {
        let link = find_link(&mut self.checker.host, name)?;
        let port = vlan::gateway_port(&mut self.checker.host, &link)?;
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
        let have = self.checker.host.addresses(link.index)?;
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
