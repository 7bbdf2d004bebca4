//! The `host-local` plugin: leases addresses from configured ranges and records each lease in a file on this host.
//!
//! `config` validates the configuration: ranges and requested addresses. `add` chooses addresses, and leases them in
//! the locked lease directory ([`cni::lease`]).

mod add;
mod config;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod inspect;
mod range;
mod resolv;
mod status;

use std::net::IpAddr;

use cni::lease::{self, LeaseOwner, with_hint};
use cni::{AddResult, Attachment, Call, Code, Dns, Ipam, NetworkName, Plugin, Prepared, Result, Rollback};
use linux::ip::Cidr;

use crate::config::Config;

/// The error code for an exhausted range set. CNI reserves codes from 100 for plugins.
pub const EXHAUSTED: Code = Code(100);

/// The `host-local` plugin.
#[derive(Debug)]
pub struct HostLocal;

/// A validated ADD that has not changed anything yet.
#[derive(Debug)]
struct PreparedAdd<'a> {
    network: &'a NetworkName,
    config: Config,
    dns: Dns,
}

impl<'a> PreparedAdd<'a> {
    fn read(call: &'a Call<'_>) -> Result<PreparedAdd<'a>> {
        let config = Config::read(call)?;
        let dns = config.resolv_conf.as_deref().map(resolv::read).transpose()?;
        Ok(PreparedAdd { network: &call.network, config, dns: dns.unwrap_or_default() })
    }
}

impl Prepared for PreparedAdd<'_> {
    fn add(&self, at: &Attachment) -> Result<AddResult> {
        let ips = add::reserve(&self.config, self.network.as_str(), &LeaseOwner::of(at))
            .map_err(|error| with_hint(error, &self.config.dir))?;
        let (routes, dns) = (self.config.routes.clone(), self.dns.clone());
        Ok(AddResult { ips, routes, dns, ..AddResult::default() })
    }
}

impl Plugin for HostLocal {
    fn name(&self) -> &'static str {
        "host-local"
    }

    fn prepare<'a>(&self, call: &'a Call<'a>, _: &Attachment) -> Result<Option<Box<dyn Prepared + 'a>>> {
        Ok(Some(Box::new(PreparedAdd::read(call)?)))
    }

    /// Returns false: leases are files on the host.
    fn uses_netns(&self) -> bool {
        false
    }

    fn add(&self, call: &Call<'_>, at: &Attachment) -> Result<AddResult> {
        PreparedAdd::read(call)?.add(at)
    }

    /// Unlike the reference, does not need valid ranges, and does not create a missing lease directory.
    fn del(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        lease::release(&config::directory(call)?, LeaseOwner::of(at))
    }

    /// The rollback does nothing: ADD may have returned the lease of an earlier ADD of the same attachment, whose
    /// address is in use. The delegating plugin calls DEL if it gets no result, once the interface is gone.
    fn add_with_rollback<'a>(&'a self, call: &'a Call<'_>, at: &'a Attachment) -> Result<(AddResult, Rollback<'a>)> {
        Ok((self.add(call, at)?, Box::new(|| Ok(()))))
    }

    /// Unlike the reference, also compares the leases with the result of ADD, if the runtime passes it.
    fn check(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let config = Config::read(call)?;
        let owner = LeaseOwner::of(at);
        let held = lease::held_by(&config.dir, &owner)?;
        let reported = call.prev_result()?.unwrap_or_default().ips.into_iter().map(|ip| ip.address.ip());
        // Addresses outside the ranges may come from another plugin in the list.
        let in_ranges = |ip: &_| config.sets.iter().any(|set| set.contains(*ip));
        let missing = reported.filter(in_ranges).find(|ip| !held.all().any(|held| held == *ip));
        if missing.is_none() && held.all().next().is_some() {
            return Ok(());
        }
        let which = missing.map_or_else(|| "any address".to_owned(), |ip| ip.to_string());
        Err(lease::missing(&config.dir, &owner, &which))
    }

    fn gc(&self, call: &Call<'_>) -> Result<()> {
        lease::collect(&config::directory(call)?, &call.valid_attachments()?)
    }

    fn status(&self, call: &Call<'_>) -> Result<()> {
        status::status(&Config::read(call)?, call.network.as_str())
    }

    fn ipam(&self) -> Option<&dyn Ipam> {
        Some(self)
    }
}

impl Ipam for HostLocal {
    fn leased_to(&self, call: &Call<'_>, at: &Attachment) -> Result<Vec<IpAddr>> {
        Ok(lease::held_by(&config::directory(call)?, &LeaseOwner::of(at))?.all().collect())
    }

    /// Checks the leases of all networks in the data directory, because several networks can share a bridge.
    fn uses_subnet(&self, call: &Call<'_>, subnet: Cidr) -> Result<bool> {
        let own = config::directory(call)?;
        own.parent().map_or(Ok(true), |all| lease::has_lease_in(all, subnet))
    }
}
