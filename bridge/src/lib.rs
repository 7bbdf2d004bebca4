//! The `bridge` plugin: connects containers to a Linux bridge.
//!
//! An ADD takes these steps, with few messages to the kernel: `attach` creates the bridge and a veth pair, the
//! container veth is set up, an IPAM plugin leases addresses, `gateway` derives gateways and routes from them,
//! `masquerade` and `spoofcheck` add firewall rules, and `layer3` configures addresses and routes on both sides. Each
//! rollback step is registered before the step that it reverts.

mod attach;
mod check;
mod config;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod gateway;
mod gc;
pub mod inspect;
mod iptables;
mod keep;
mod layer3;
mod masquerade;
mod name;
mod removal;
mod spoofcheck;
mod stale;
mod vlan;

use std::net::IpAddr;

use cni::{
    AddResult, Attachment, AttachmentKey, Call, Code, Delegate, DelegateError, ErrorCollector, Interface, Plugin,
    Result, Undo,
};
use linux::ip::Cidr;
use linux::netlink::nft::Nftables;
use linux::netlink::{LinkChange, Netlink};

use attach::{AddContext, Pair};
use config::Config;
use gateway::Plan;
use layer3::Guest;
use removal::Removal;

/// The `bridge` plugin.
#[derive(Debug)]
pub struct Bridge;

impl Plugin for Bridge {
    fn name(&self) -> &'static str {
        "bridge"
    }

    fn add(&self, call: &Call<'_>, at: &Attachment) -> Result<AddResult> {
        let config = Config::parse(call)?;
        config.refuse_contradictions()?;
        let owner = AttachmentKey::new(call, at);
        if config.spoof_check {
            spoofcheck::validate(owner)?;
        }
        let mut ipam = ipam(call, &config)?;
        match &mut ipam {
            Some(ipam) => ipam.prepare()?,
            // The results of old versions cannot express a container without addresses.
            None => AddResult::default().to_version(call.version).map(drop)?,
        }
        let mut undo = Undo::new(AddContext::open(call, at)?);
        let outcome = create_attachment(&mut undo, at, owner, &config, ipam.as_ref())
            .and_then(|result| result.to_version(call.version).map(|_| result));
        match outcome {
            Ok(result) => {
                undo.commit();
                Ok(result)
            }
            Err(error) => {
                let error = attach::explain_forbidden(error);
                // Rollback steps run on the host, but the failure may have left this thread in the container.
                if let Err(stuck) = undo.context().return_home() {
                    return Err(undo.roll_back(error.details(stuck.to_string())));
                }
                Err(undo.roll_back(error))
            }
        }
    }

    /// Removes everything of the attachment. A failed step does not prevent the later ones.
    fn del(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let owner = AttachmentKey::new(call, at);
        let mut failures = ErrorCollector::default();
        let ipam = failures.keep(ipam_to_clean_up(call)).flatten();
        let prev_result = call.prev_result().ok().flatten().unwrap_or_default();
        let ips: Vec<IpAddr> = prev_result.ips.iter().map(|ip| ip.address.ip()).collect();
        let nft = Nftables::open();
        let removal = Removal {
            key: owner,
            at,
            prev_result: &prev_result,
            ipam: ipam.as_ref(),
            bridge: config::bridge(call),
            keep_open: nft.as_ref().ok().and_then(Nftables::fd),
        };
        let removed = failures.keep(call.home().and_then(|home| removal.run(home))).is_some();
        // An address must not be leased again while the interface that has it may still exist.
        if let Some(ipam) = ipam.as_ref().filter(|_| removed) {
            failures.record(ipam.del(at));
        }
        if let Some(mut nft) = failures.keep(nft) {
            failures.record(remove_rules(&mut nft, owner, &ips));
        }
        if let Some(ipam) = &ipam {
            stale::after_del(call, ipam, &prev_result);
        }
        failures.into_result()
    }

    fn rollback_add(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        self.del(call, at)
    }

    fn check(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let config = Config::parse(call)?;
        config.refuse_contradictions()?;
        if let Some(ipam) = ipam(call, &config)? {
            ipam.check(at)?;
        }
        check::run(call, at, &config)
    }

    fn gc(&self, call: &Call<'_>) -> Result<()> {
        let mut failures = ErrorCollector::default();
        let ipam = failures.keep(ipam_to_clean_up(call)).flatten();
        gc::run(call, ipam, &mut failures)?;
        failures.into_result()
    }

    fn status(&self, call: &Call<'_>) -> Result<()> {
        let config = Config::parse(call)?;
        config.refuse_contradictions()?;
        let not_available = |error| attach::explain_forbidden(error).with_code(Code::NOT_AVAILABLE);
        let ipam = ipam(call, &config).map_err(not_available)?;
        attach::status(&mut Netlink::open()?, &config).map_err(not_available)?;
        if let Some(ipam) = ipam {
            ipam.status()?;
            if config.gateway {
                layer3::forwarding_status().map_err(not_available)?;
            }
            if let Some(backend) = config.masquerade {
                masquerade::status(backend).map_err(not_available)?;
            }
        }
        Ok(())
    }
}

/// Finds the IPAM plugin, if the network has one.
fn ipam<'a>(call: &'a Call<'a>, config: &Config) -> Result<Option<Delegate<'a>>> {
    config.ipam.as_deref().map(|name| Delegate::find(call, name)).transpose()
}

/// Finds the IPAM plugin for DEL and GC. Mistakes elsewhere in the configuration are only reported: they matter to the
/// next ADD, and must not prevent the removal.
fn ipam_to_clean_up<'a>(call: &'a Call<'a>) -> Result<Option<Delegate<'a>>> {
    let name = match Config::parse(call) {
        Ok(config) => config.ipam,
        Err(mistake) => {
            let name = config::ipam(call)?;
            cni::report(&mistake);
            name
        }
    };
    name.map(|name| Delegate::find(call, &name)).transpose()
}

/// Creates everything that an ADD creates, and returns the result.
fn create_attachment<'a>(
    undo: &mut Undo<'a, AddContext>,
    at: &'a Attachment,
    owner: AttachmentKey<'a>,
    config: &'a Config,
    ipam: Option<&'a Delegate<'a>>,
) -> Result<AddResult> {
    let pair = attach::create(undo, config, owner, at)?;
    if config.spoof_check {
        let port = pair.port_name.clone();
        undo.push("remove the spoof check", move |_| spoofcheck::roll_back(&mut Nftables::open()?, owner, &port));
        spoofcheck::add(owner, &pair.port_name, pair.mac)?;
    }
    let mut result = pair.describe(at);
    match ipam {
        None => bring_up(undo.context(), &pair, at, config)?,
        Some(ipam) => configure_layer3(undo, &pair, at, owner, config, ipam, &mut result)?,
    }
    if let Some(dns) = &config.dns {
        result.dns = dns.clone();
    }
    Ok(result)
}

/// Layer 2: sets the container veth up and waits until the bridge forwards its frames.
fn bring_up(context: &mut AddContext, pair: &Pair, at: &Attachment, config: &Config) -> Result<()> {
    if !config.container_up {
        return Ok(());
    }
    let up = LinkChange { up: Some(true), ..LinkChange::default() };
    Guest::bring_up(context, pair, at, &up, |_| ())?;
    pair.await_up(&mut context.host)
}

/// Layer 3: configures addresses and routes in the container, and the gateway and masquerade rules on the host.
fn configure_layer3<'a>(
    undo: &mut Undo<'a, AddContext>,
    pair: &Pair,
    at: &'a Attachment,
    owner: AttachmentKey<'a>,
    config: &'a Config,
    ipam: &'a Delegate<'a>,
    result: &mut AddResult,
) -> Result<()> {
    // Unlike upstream, before the addresses are known: the port comes up while the IPAM plugin works.
    let up = LinkChange { up: Some(true), arp_notify: Some(true), ..LinkChange::default() };
    let prepare = |ifname: &str| layer3::prepare_ipv6(ifname, config.detect_duplicates);
    let mut guest = Guest::bring_up(undo.context(), pair, at, &up, prepare)?;

    let port = pair.port_name.clone();
    undo.push("release the addresses", move |context| {
        // An address that is still in use must not be leased to another container.
        context.host.delete_link(port.as_str())?;
        ipam.del(at)
    });
    let answer = match ipam.add(at) {
        Ok(answer) => answer,
        Err(DelegateError::Unknown(error)) => return Err(error),
        Err(DelegateError::CleanedUp(error)) => {
            undo.pop();
            return Err(error);
        }
    };
    result.dns = answer.dns.clone();
    let plan = Plan::new(answer, config)?;

    // First the changes that do not concern links: the kernel holds the lock of links while the port comes up.
    if config.gateway {
        layer3::enable_forwarding(&plan)?;
    }
    if let Some(backend) = config.masquerade {
        let ips: Vec<Cidr> = plan.ips.iter().map(|ip| ip.address).collect();
        let addresses = ips.clone();
        undo.push("remove the masquerade rules", move |_| masquerade::remove_all(owner, &addresses));
        masquerade::add(backend, owner, &ips)?;
    }
    let host = &mut undo.context().host;
    if !pair.seems_up(host) {
        pair.await_up(host)?;
    }
    guest.configure(undo.context(), pair, &plan, config)?;
    if config.gateway {
        result.interfaces.extend(configure_gateway(undo.context(), pair, &plan, config, owner.network)?);
    }
    result.ips = plan.ips;
    result.routes = plan.routes;
    Ok(())
}

/// Adds the gateway addresses to the bridge or, for a VLAN, to the VLAN's own interface. Returns that interface, which
/// is part of the result.
fn configure_gateway(
    context: &mut AddContext,
    pair: &Pair,
    plan: &Plan,
    config: &Config,
    network: &str,
) -> Result<Option<Interface>> {
    let AddContext { home, host, .. } = context;
    let (Some(name), Some(vlans)) = (config.vlan_gateway(), &config.vlans) else {
        let mut have = pair.addresses.clone();
        if plan.gateways.iter().any(|gateway| gateway.ip().is_ipv6()) {
            have.extend(host.ipv6_addresses(pair.bridge.index)?);
        }
        layer3::ensure_gateways(host, &pair.bridge, have, plan, config, network)?;
        return Ok(None);
    };
    let link = vlan::ensure_gateway(host, home, &pair.bridge, &name, vlans)?;
    let have = host.addresses(link.index)?;
    layer3::ensure_gateways(host, &link, have, plan, config, network)?;
    let mac = link.mac.map_or_else(String::new, |mac| mac.to_string());
    Ok(Some(Interface { name, mac, ..Interface::default() }))
}

/// Removes all firewall rules of an attachment, of both backends: the configuration may have changed since ADD.
fn remove_rules(nft: &mut Nftables, owner: AttachmentKey<'_>, ips: &[IpAddr]) -> Result<()> {
    let mut failures = ErrorCollector::default();
    failures.record(masquerade::remove(nft, owner));
    if let Some(mut host) = failures.keep(Netlink::open()) {
        failures.record(spoofcheck::remove(nft, &mut host, owner));
        failures.record(iptables::remove(nft, &mut host, owner, ips));
    }
    failures.into_result()
}
