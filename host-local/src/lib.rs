//! The `host-local` plugin: leases addresses from configured ranges and records each lease in a file on this host.
//!
//! `config` validates the configuration: ranges and requested addresses. `store` is the locked lease directory, with one
//! file per lease that names its owner. `index` finds leases and free addresses without reading all files.

mod add;
mod bitmap;
mod boot;
mod config;
mod digest;
mod earlier;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod index;
mod inspect;
mod lock;
mod range;
mod resolv;
mod status;
mod store;

use std::net::IpAddr;
use std::path::Path;

use cni::lease::LeaseOwner;
use cni::{
    AddResult, Attachment, Call, Code, Dns, Error, ErrorCollector, Ipam, NetworkName, Plugin, Prepared, Result,
    Rollback,
};
use linux::ip::Cidr;

use crate::config::Config;
use crate::store::{Held, LiveOwners, Store, with_hint};

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

/// Releases all leases of `owner` in `dir`.
fn release(dir: &Path, owner: LeaseOwner) -> Result<()> {
    let Some(mut store) = Store::open(dir)? else { return Ok(()) };
    let Held { exact, without_ifname } = store.held_by(&owner)?;
    // Old lease records name only the container. They belong to this interface if it has no leases of its own.
    let (held, owner) = if exact.is_empty() { (without_ifname, owner.without_ifname()) } else { (exact, owner) };
    let mut failures = ErrorCollector::default();
    for ip in held {
        failures.record(store.release(ip, &owner));
    }
    failures.into_result()
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
        let dir = config::directory(call)?;
        release(&dir, LeaseOwner::of(at)).map_err(|error| with_hint(error, &dir))
    }

    /// The rollback does nothing: ADD may have returned the lease of an earlier ADD of the same attachment, whose address is
    /// in use. The delegating plugin calls DEL if it gets no result, once the interface is gone.
    fn add_with_rollback<'a>(&'a self, call: &'a Call<'_>, at: &'a Attachment) -> Result<(AddResult, Rollback<'a>)> {
        Ok((self.add(call, at)?, Box::new(|| Ok(()))))
    }

    /// Unlike the reference, also compares the leases with the result of ADD, if the runtime passes it.
    fn check(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let config = Config::read(call)?;
        let owner = LeaseOwner::of(at);
        let held = match Store::open(&config.dir)? {
            Some(mut store) => store.held_by(&owner)?,
            None => Held::default(),
        };
        let reported = call.prev_result()?.unwrap_or_default().ips.into_iter().map(|ip| ip.address.ip());
        // Addresses outside the ranges may come from another plugin in the list.
        let in_ranges = |ip: &_| config.sets.iter().any(|set| set.contains(*ip));
        let missing = reported.filter(in_ranges).find(|ip| !held.all().any(|held| held == *ip));
        if missing.is_none() && held.all().next().is_some() {
            return Ok(());
        }
        let which = missing.map_or_else(|| "any address".to_owned(), |ip| ip.to_string());
        let error = Error::new(Code::INTERNAL, format!("{owner} has no lease for {which} in {:?}", config.dir));
        Err(error.details("the lease was removed: detach the container and attach it again"))
    }

    fn gc(&self, call: &Call<'_>) -> Result<()> {
        let valid = call.valid_attachments()?;
        let live = LiveOwners::new(valid.iter().map(|valid| LeaseOwner::new(&valid.container, &valid.ifname)));
        let dir = config::directory(call)?;
        let removed = Store::open(&dir).and_then(|store| match store {
            Some(mut store) => store.remove_if(|lease| !live.contains(lease)).map(drop),
            None => Ok(()),
        });
        removed.map_err(|error| with_hint(error, &dir))
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
        let Some(mut store) = Store::open(&config::directory(call)?)? else { return Ok(Vec::new()) };
        Ok(store.held_by(&LeaseOwner::of(at))?.all().collect())
    }

    /// Checks the leases of all networks in the data directory, because several networks can share a bridge.
    fn uses_subnet(&self, call: &Call<'_>, subnet: Cidr) -> Result<bool> {
        let own = config::directory(call)?;
        own.parent().map_or(Ok(true), |all| inspect::has_lease_in(all, subnet))
    }
}
