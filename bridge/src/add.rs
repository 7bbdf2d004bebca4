//! ADD, from top to bottom.

use cni::{AddResult, Attachment, AttachmentKey, Call, Delegate, Error, Interface, Namespaces, Prepared, Result, Undo};
use linux::ip::Cidr;
use linux::netlink::LinkChange;
use linux::netlink::nft::Nftables;

use crate::attach::{self, ContainerVeth, Pair};
use crate::config::Config;
use crate::gateway::Plan;
use crate::layer3::{self, Gateway};
use crate::rule::Traffic;
use crate::{masquerade, spoofcheck, stale, vlan};

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
        match &mut ipam {
            Some(ipam) => ipam.prepare(at)?,
            // The results of old versions cannot express a container without addresses.
            None => AddResult::default().to_version(call.version).map(drop)?,
        }
        Ok(PreparedAdd { call, config, ipam })
    }
}

impl Prepared for PreparedAdd<'_> {
    /// Attaches the container. If a step fails, reverts the steps before it.
    fn add(&self, at: &Attachment) -> Result<AddResult> {
        let PreparedAdd { call, config, ipam } = self;
        let undo = Undo::new(Namespaces::open(call, at)?);
        let mut add = Add { call, at, key: AttachmentKey::new(call, at), config, undo };
        // A result that this version cannot express must fail before the commit.
        let outcome = add.attach(ipam.as_ref()).and_then(|result| result.to_version(call.version).map(|_| result));
        match outcome {
            Ok(result) => {
                add.undo.commit();
                Ok(result)
            }
            Err(error) => Err(add.roll_back(error)),
        }
    }
}

/// An ADD in progress. Each rollback step is registered before the step that it reverts.
struct Add<'a> {
    call: &'a Call<'a>,
    at: &'a Attachment,
    key: AttachmentKey<'a>,
    config: &'a Config,
    undo: Undo<'a, Namespaces>,
}

/// The part of the result that needs an IPAM plugin.
#[derive(Default)]
struct Layer3 {
    plan: Plan,
    /// The interface with the gateway address of a VLAN.
    vlan_gateway: Option<Interface>,
}

impl<'a> Add<'a> {
    /// Creates everything that an ADD creates, and returns the result.
    fn attach(&mut self, ipam: Option<&'a Delegate<'a>>) -> Result<AddResult> {
        let pair = attach::create(&mut self.undo, self.config, self.key, self.at)?;
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
        let (key, port) = (self.key, pair.port_name.clone());
        self.undo.push("remove the spoof check", move |_| spoofcheck::roll_back(&mut Nftables::open()?, key, &port));
        spoofcheck::add(key, &pair.port_name, pair.mac)
    }

    /// Layer 2: sets the container veth up and waits until the bridge forwards its frames.
    fn bring_up(&mut self, pair: &Pair<'_>) -> Result<()> {
        let namespaces = self.undo.context();
        pair.open_container(namespaces, || ())?.set(&LinkChange { up: Some(true), ..LinkChange::default() })?;
        pair.await_up(&mut namespaces.host.netlink)
    }

    /// Layer 3: configures addresses and routes in the container, and the gateway and masquerade rules on the host.
    fn configure_layer3(&mut self, pair: &Pair<'a>, ipam: &'a Delegate<'a>) -> Result<Layer3> {
        // Unlike the reference, set the veth up before the addresses are known, so that the port comes up meanwhile.
        let mut container = self.start_container(pair)?;
        let plan = Plan::new(self.lease_addresses(pair, ipam)?, self.config)?;

        // First the changes that do not need the RTNL lock, which the kernel holds while the port comes up.
        if self.config.gateway {
            layer3::enable_forwarding(&plan)?;
        }
        self.add_masquerade(&plan)?;

        let namespaces = self.undo.context();
        pair.await_up(&mut namespaces.host.netlink)?;
        layer3::configure_container(&mut container, namespaces, &plan, self.config)?;
        let vlan_gateway = if self.config.gateway { self.configure_gateway(pair, &plan, ipam)? } else { None };
        Ok(Layer3 { plan, vlan_gateway })
    }

    /// Sets the container veth up, with the settings that it needs before it gets addresses.
    fn start_container(&mut self, pair: &Pair<'a>) -> Result<ContainerVeth<'a>> {
        let prepare = || layer3::prepare_ipv6(self.at.ifname.as_str(), self.config.detect_duplicates);
        let mut container = pair.open_container(self.undo.context(), prepare)?;
        container.set(&LinkChange { up: Some(true), arp_notify: Some(true), ..LinkChange::default() })?;
        Ok(container)
    }

    /// Calls ADD of the IPAM plugin, and returns its result.
    fn lease_addresses(&mut self, pair: &Pair<'_>, ipam: &'a Delegate<'a>) -> Result<AddResult> {
        let (at, port) = (self.at, pair.port_name.clone());
        self.undo.push("release the addresses", move |namespaces| {
            // An address that is still in use must not be leased to another container.
            namespaces.host.netlink.delete_link(port.as_str())?;
            ipam.del(at)
        });
        ipam.add(at).map_err(|failure| failure.without_del(&mut self.undo))
    }

    /// Adds the masquerade rules, if the network has masquerade.
    fn add_masquerade(&mut self, plan: &Plan) -> Result<()> {
        let Some(backend) = self.config.masquerade else { return Ok(()) };
        let key = self.key;
        let ips: Vec<Cidr> = plan.ips.iter().map(|ip| ip.address).collect();
        let added = ips.clone();
        self.undo.push("remove the masquerade rules", move |_| masquerade::remove_all(key, &added));
        masquerade::add(backend, key, Traffic { ips: &ips, exclude: &self.config.masquerade_exclude })
    }

    /// Adds the gateway addresses to the bridge or, for a VLAN, to the VLAN's own interface. Returns that interface,
    /// which is part of the result.
    fn configure_gateway(&mut self, pair: &Pair<'_>, plan: &Plan, ipam: &Delegate<'_>) -> Result<Option<Interface>> {
        let host = &mut self.undo.context().host;
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
            network: self.key.network,
        };
        gateway.ensure_addresses(host, have.clone())?;
        stale::after_add(self.call, ipam, &have, &plan.gateways);
        Ok(vlan_gateway.map(|(name, link)| Interface::new(name, link.mac, "")))
    }

    /// Reverts all steps because of `error`, and returns the error to report.
    fn roll_back(mut self, error: Error) -> Error {
        let error = attach::explain_forbidden(error);
        // Rollback steps run on the host, but the failure may have left this thread in the container namespace.
        let error = match self.undo.context().return_to_host() {
            Ok(()) => error,
            Err(stuck) => error.details(stuck.to_string()),
        };
        self.undo.roll_back(error)
    }
}
