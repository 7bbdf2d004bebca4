//! The `ptp` plugin: connects each container to the host by a veth pair of its own, and routes its packets.
//!
//! `add` walks through the steps of an ADD: it creates the veth pair, leases addresses, and configures both ends as
//! `hops` describes. `check` is CHECK, and `inspect` is for `cnitool`. What other plugins do in the same way is in the
//! crate `interface`.

mod add;
mod check;
mod config;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod hops;
mod inspect;

use std::net::IpAddr;

use cni::{AddResult, Attachment, AttachmentKey, Call, Code, Delegate, ErrorCollector, Keep, Plugin, Result};
use interface::attach::{Add, explain_forbidden, prepare_ipam};
use interface::config::ipam_to_clean_up;
use interface::host_veth::{self, VethRemoval};
use interface::ipam::remove_and_release;
use interface::{forwarding, masquerade};
use linux::netlink::Netlink;
use linux::netlink::nft::Nftables;

use config::Config;

/// The `ptp` plugin.
#[derive(Debug)]
pub struct Ptp;

impl Plugin for Ptp {
    fn name(&self) -> &'static str {
        "ptp"
    }

    fn add(&self, call: &Call<'_>, at: &Attachment) -> Result<AddResult> {
        let config = Config::parse(call)?;
        let mut ipam = config.find_ipam(call)?;
        prepare_ipam(call, at, ipam.as_mut())?;
        Add::run(call, at, |add| add::attach(add, &config, ipam.as_ref()))
    }

    /// Removes everything of the attachment. A failed step does not prevent the later ones.
    fn del(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let key = AttachmentKey::new(call, at);
        let mut failures = ErrorCollector::default();
        let ipam = failures.keep(ipam_of(call)).flatten();
        let prev_result = call.prev_result_to_clean_up();
        let nft = Nftables::open();
        let removal = VethRemoval {
            call,
            key,
            at,
            prev_result: &prev_result,
            ipam: ipam.as_ref(),
            bridge: None,
            keep_open: nft.as_ref().ok().and_then(Nftables::fd),
        };
        remove_and_release(
            &mut failures,
            ipam.as_ref(),
            |ipam| ipam.del(at),
            |failures| failures.keep(call.home().and_then(|home| removal.run(home))).is_some(),
        );
        // The rules of both backends: the configuration may have changed since ADD.
        if let Some(mut nft) = failures.keep(nft)
            && let Some(mut host) = failures.keep(Netlink::open())
        {
            let ips: Vec<IpAddr> = prev_result.ips.iter().map(|ip| ip.address.ip()).collect();
            failures.record(masquerade::remove(&mut nft, &mut host, key, &ips));
        }
        failures.into_result()
    }

    fn check(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let config = Config::parse(call)?;
        if let Some(ipam) = config.find_ipam(call)? {
            ipam.check(at)?;
        }
        check::run(call, at, &config)
    }

    fn gc(&self, call: &Call<'_>) -> Result<()> {
        let valid = call.valid_attachments()?;
        let keep = Keep::new(call.network.as_str(), &valid);
        let mut failures = ErrorCollector::default();
        let ipam = failures.keep(ipam_of(call)).flatten();
        let mut host = Netlink::open()?;
        remove_and_release(
            &mut failures,
            ipam.as_ref(),
            |ipam| ipam.gc(),
            |failures| failures.keep(host_veth::collect(&mut host, &keep)).is_some(),
        );
        failures.record(collect_rules(&keep));
        failures.into_result()
    }

    fn status(&self, call: &Call<'_>) -> Result<()> {
        let config = Config::parse(call)?;
        let not_available = |error| explain_forbidden(error).with_code(Code::NOT_AVAILABLE);
        let Some(ipam) = config.find_ipam(call).map_err(not_available)? else { return Ok(()) };
        ipam.status()?;
        forwarding::status().map_err(not_available)?;
        config.masquerade.as_ref().map_or(Ok(()), |masquerade| masquerade.status().map_err(not_available))
    }
}

/// Finds the IPAM plugin for DEL and GC.
fn ipam_of<'a>(call: &'a Call<'a>) -> Result<Option<Delegate<'a>>> {
    ipam_to_clean_up(call, Config::parse(call).map(|config| config.ipam))
}

/// Removes the masquerade rules of attachments that are not in `keep`.
fn collect_rules(keep: &Keep<'_>) -> Result<()> {
    masquerade::collect(&mut Nftables::open()?, keep)
}
