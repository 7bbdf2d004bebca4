//! The `bridge` plugin: connects containers to a Linux bridge.
//!
//! `add` walks through the steps of an ADD, which sends few messages to the kernel: `attach` creates the bridge and a
//! veth pair, `spoofcheck` lets only frames from its MAC address pass, the container veth is set up, an IPAM plugin
//! leases addresses, forwarding is enabled, masquerade rules are added, the container gets its addresses and routes,
//! and `gateway` and `layer3` add the addresses of the gateway. What other plugins do in the same way is in the crate
//! `interface`.
//!
//! - `check` is CHECK, and `gc` is GC.
//! - `stale` removes gateway addresses of subnets that are no longer configured.
//! - `ports` knows to which networks the ports of a bridge belong, `mtu` which MTU the bridge gets.
//! - `vlan` has the VLANs of a port and their gateway.
//! - `inspect` is for `cnitool`.

mod add;
mod attach;
mod check;
mod config;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod gateway;
mod gc;
mod inspect;
mod layer3;
mod mtu;
mod ports;
mod spoofcheck;
mod stale;
mod vlan;

use std::net::IpAddr;

use cni::{AddResult, Attachment, AttachmentKey, Call, Code, ErrorCollector, Plugin, Prepared, Result};
use interface::attach::explain_forbidden;
use interface::config::ipam_to_clean_up;
use interface::host_veth::VethRemoval;
use interface::ipam::remove_and_release;
use interface::{forwarding, masquerade};
use linux::netlink::Netlink;
use linux::netlink::nft::Nftables;

use add::PreparedAdd;
use config::Config;
pub use ports::is_gateway_port;

/// The `bridge` plugin.
#[derive(Debug)]
pub struct Bridge;

impl Plugin for Bridge {
    fn name(&self) -> &'static str {
        "bridge"
    }

    fn prepare<'a>(&self, call: &'a Call<'a>, at: &Attachment) -> Result<Option<Box<dyn Prepared + 'a>>> {
        Ok(Some(Box::new(PreparedAdd::read(call, at)?)))
    }

    fn add(&self, call: &Call<'_>, at: &Attachment) -> Result<AddResult> {
        PreparedAdd::read(call, at)?.add(at)
    }

    /// Removes everything of the attachment. A failed step does not prevent the later ones.
    fn del(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let key = AttachmentKey::new(call, at);
        let mut failures = ErrorCollector::default();
        let ipam = failures.keep(ipam_to_clean_up(call, Config::parse(call).map(|config| config.ipam))).flatten();
        let prev_result = call.prev_result_to_clean_up();
        let ips: Vec<IpAddr> = prev_result.ips.iter().map(|ip| ip.address.ip()).collect();
        let nft = Nftables::open();
        let removal = VethRemoval {
            call,
            key,
            at,
            prev_result: &prev_result,
            ipam: ipam.as_ref(),
            bridge: config::bridge(call),
            keep_open: nft.as_ref().ok().and_then(Nftables::fd),
        };
        remove_and_release(
            &mut failures,
            ipam.as_ref(),
            |ipam| ipam.del(at),
            |failures| failures.keep(call.home().and_then(|home| removal.run(home))).is_some(),
        );
        if let Some(mut nft) = failures.keep(nft) {
            failures.record(remove_rules(&mut nft, key, &ips));
        }
        if let Some(ipam) = &ipam {
            stale::after_del(call, ipam, &prev_result);
        }
        failures.into_result()
    }

    fn check(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let config = Config::parse(call)?;
        config.refuse_contradictions()?;
        if let Some(ipam) = config.find_ipam(call)? {
            ipam.check(at)?;
        }
        check::run(call, at, &config)
    }

    fn gc(&self, call: &Call<'_>) -> Result<()> {
        let mut failures = ErrorCollector::default();
        let ipam = failures.keep(ipam_to_clean_up(call, Config::parse(call).map(|config| config.ipam))).flatten();
        gc::run(call, ipam, &mut failures)?;
        failures.into_result()
    }

    fn status(&self, call: &Call<'_>) -> Result<()> {
        let config = Config::parse(call)?;
        config.refuse_contradictions()?;
        let not_available = |error| explain_forbidden(error).with_code(Code::NOT_AVAILABLE);
        let ipam = config.find_ipam(call).map_err(not_available)?;
        attach::status(&mut Netlink::open()?, &config).map_err(not_available)?;
        if config.spoof_check {
            spoofcheck::status().map_err(not_available)?;
        }
        if let Some(ipam) = ipam {
            ipam.status()?;
            if config.gateway {
                forwarding::status().map_err(not_available)?;
            }
            if let Some(masquerade) = &config.masquerade {
                masquerade.status().map_err(not_available)?;
            }
        }
        Ok(())
    }
}

/// Removes all firewall rules of an attachment, of both backends: the configuration may have changed since ADD.
fn remove_rules(nft: &mut Nftables, key: AttachmentKey<'_>, ips: &[IpAddr]) -> Result<()> {
    let mut failures = ErrorCollector::default();
    if let Some(mut host) = failures.keep(Netlink::open()) {
        failures.record(masquerade::remove(nft, &mut host, key, ips));
        failures.record(spoofcheck::remove(nft, &mut host, key));
    }
    failures.into_result()
}
