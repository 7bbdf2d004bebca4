//! ADD, from top to bottom.

use cni::{AddResult, Attachment, Call, Delegate, Interface, Prepared, Result};
use interface::attach::{Add, prepare_ipam};
use interface::container::{ContainerInterface, prepare_ipv6};
use interface::forwarding;
use interface::ipam::works_over_interface;
use interface::plan::{AddressPlan, Wanted};
use linux::ip::Cidr;
use linux::netlink::LinkChange;
use linux::netlink::nft::Nftables;

use crate::attach::{self, Pair};
use crate::config::Config;
use crate::layer3::Gateway;
use crate::{spoofcheck, stale, vlan};

/// A validated ADD that has not changed anything yet.
#[derive(Debug)]
pub(crate) struct PreparedAdd<'a> {
    call: &'a Call<'a>,
    config: Config,
    ipam: Option<Delegate<'a>>,
}

impl<'a> PreparedAdd<'a> {
    pub(crate) fn read(call: &'a Call<'a>, at: &Attachment) -> Result<PreparedAdd<'a>> {
        let config = Config::parse(call)?;
        config.refuse_contradictions()?;
        let mut ipam = config.find_ipam(call)?;
        prepare_ipam(call, at, ipam.as_mut())?;
        Ok(PreparedAdd { call, config, ipam })
    }
}

impl Prepared for PreparedAdd<'_> {
    fn add(&self, at: &Attachment) -> Result<AddResult> {
        Add::run(self.call, at, |add| BridgeAdd { add, config: &self.config }.attach(self.ipam.as_ref()))
    }
}

/// Index of the container veth in the result's list of interfaces.
const CONTAINER: u32 = 2;

/// An ADD in progress.
struct BridgeAdd<'s, 'a> {
    add: &'s mut Add<'a>,
    config: &'a Config,
}

/// The part of the result that needs an IPAM plugin.
#[derive(Default)]
struct Layer3 {
    plan: AddressPlan,
    /// The interface with the gateway address of a VLAN.
    vlan_gateway: Option<Interface>,
}

impl<'a> BridgeAdd<'_, 'a> {
    /// Creates everything that an ADD creates, and returns the result.
    fn attach(&mut self, ipam: Option<&'a Delegate<'a>>) -> Result<AddResult> {
        let mac = self.config.mac.address(self.add.call, self.add.at)?;
        let pair = attach::create(&mut self.add.undo, self.config, self.add.key, self.add.at, mac)?;
        if self.config.spoof_check {
            self.add_spoof_check(&pair)?;
        }
        let Layer3 { plan, vlan_gateway } = match ipam {
            Some(ipam) => self.configure_layer3(&pair, ipam)?,
            None => {
                if self.config.container_up {
                    self.bring_up(&pair)?;
                }
                Layer3::default()
            }
        };
        Ok(AddResult {
            interfaces: pair.interfaces().into_iter().chain(vlan_gateway).collect(),
            ips: plan.ips,
            routes: plan.routes,
            dns: self.config.dns.clone().unwrap_or(plan.dns),
        })
    }

    /// Adds the rules that drop frames with a source MAC address other than the container's.
    fn add_spoof_check(&mut self, pair: &Pair<'_>) -> Result<()> {
        let (key, port) = (self.add.key, pair.port_name.clone());
        self.add
            .undo
            .push("remove the spoof check", move |_| spoofcheck::roll_back(&mut Nftables::open()?, key, &port));
        spoofcheck::add(key, &pair.port_name, pair.mac)
    }

    /// Layer 2: sets the container veth up and waits until the bridge forwards its frames.
    fn bring_up(&mut self, pair: &Pair<'_>) -> Result<()> {
        let namespaces = self.add.undo.context();
        pair.open_container(namespaces, false, || ())?.set(&LinkChange { up: Some(true), ..LinkChange::default() })?;
        pair.await_up(&mut namespaces.host.netlink)
    }

    /// Layer 3: configures addresses and routes in the container, and the gateway and masquerade rules on the host.
    fn configure_layer3(&mut self, pair: &Pair<'a>, ipam: &'a Delegate<'a>) -> Result<Layer3> {
        // Unlike the reference, set the veth up before the addresses are known, so that the port comes up meanwhile.
        let mut container = self.start_container(pair)?;
        let port = pair.port_name.clone();
        if works_over_interface(ipam) {
            pair.await_up(&mut self.add.undo.context().host.netlink)?;
        }
        let leased = self
            .add
            .lease_addresses(ipam, move |namespaces| Ok(namespaces.host.netlink.delete_link(port.as_str())?))?;
        let plan = AddressPlan::new(leased, &self.wanted())?;

        // First the changes that do not need the RTNL lock, which the kernel holds while the port comes up.
        if self.config.gateway {
            forwarding::enable(plan.gateways.iter().map(Cidr::ip))?;
        }
        if let Some(masquerade) = &self.config.masquerade {
            masquerade.add(self.add, &plan.addresses())?;
        }

        let namespaces = self.add.undo.context();
        pair.await_up(&mut namespaces.host.netlink)?;
        container.configure(namespaces, &plan)?;
        let vlan_gateway = if self.config.gateway { self.configure_gateway(pair, &plan, ipam)? } else { None };
        Ok(Layer3 { plan, vlan_gateway })
    }

    /// Returns what the configuration says about layer 3.
    fn wanted(&self) -> Wanted<'a> {
        Wanted {
            ipam: self.config.ipam.as_deref().unwrap_or_default(),
            interface: CONTAINER,
            gateway: self.config.gateway,
            default_gateway: self.config.default_gateway,
            mtu: self.config.mtu,
            has_layer2: true,
        }
    }

    /// Sets the container veth up, with the settings that it needs before it gets addresses.
    fn start_container(&mut self, pair: &Pair<'a>) -> Result<ContainerInterface<'a>> {
        let detects_duplicates = self.config.detect_duplicates;
        let prepare = || prepare_ipv6(self.add.at.ifname.as_str(), detects_duplicates);
        let mut container = pair.open_container(self.add.undo.context(), detects_duplicates, prepare)?;
        container.set(&LinkChange { up: Some(true), arp_notify: Some(true), ..LinkChange::default() })?;
        Ok(container)
    }

    /// Adds the gateway addresses to the bridge or, for a VLAN, to the VLAN's own interface. Returns that interface,
    /// which is part of the result.
    fn configure_gateway(
        &mut self,
        pair: &Pair<'_>,
        plan: &AddressPlan,
        ipam: &Delegate<'_>,
    ) -> Result<Option<Interface>> {
        let host = &mut self.add.undo.context().host;
        let vlan_gateway = match (self.config.vlan_gateway(), &self.config.vlans) {
            (Some(name), Some(vlans)) => {
                let link = vlan::ensure_gateway(host, &pair.bridge, &name, vlans)?;
                Some((name, link))
            }
            _ => None,
        };
        let host = &mut host.netlink;
        let (link, have) = match &vlan_gateway {
            Some((_, link)) => (link, host.addresses(link.index)?),
            None => {
                let mut have = pair.bridge_addresses.clone();
                if plan.gateways.iter().any(|gateway| gateway.ip().is_ipv6()) {
                    have.extend(host.ipv6_addresses(pair.bridge.index)?);
                }
                (&pair.bridge, have)
            }
        };
        let gateway = Gateway {
            link,
            addresses: &plan.gateways,
            replaces_others: self.config.force_address,
            network: self.add.key.network,
        };
        gateway.ensure_addresses(host, have.clone())?;
        stale::after_add(self.add.call, ipam, &have, &plan.gateways);
        Ok(vlan_gateway.map(|(name, link)| Interface::new(name, link.mac, "")))
    }
}
