//! The `static` plugin: assigns the addresses that the configuration or the runtime names. A network can have a lease
//! for each address in use, so that no two of its attachments get the same one.

mod config;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod inspect;

use std::net::IpAddr;
use std::path::Path;

use cni::lease::{self, LeaseOwner};
use cni::{AddResult, Attachment, Call, Code, Error, Ipam, Plugin, Prepared, Result, Rollback};
use linux::ip::Cidr;
use linux::log::debug;

use crate::config::{Config, Directory};

/// The `static` plugin.
#[derive(Debug)]
pub struct Static;

/// A validated ADD that has not changed anything yet.
#[derive(Debug)]
struct PreparedAdd(Config);

impl PreparedAdd {
    /// Unlike the reference, refuses an ADD without addresses, of which the delegating plugin would only report that
    /// they are missing.
    fn read(call: &Call<'_>) -> Result<PreparedAdd> {
        let config = Config::read(call)?;
        if config.ips.is_empty() {
            let what = format!("network {:?} has no addresses for the attachment", call.network.as_str());
            return Err(Error::new(Code::CONFIG, what).details(
                "set \"ipam.addresses\", or let the runtime pass \"runtimeConfig.ips\" (\"capabilities\": {\"ips\": true}), \
                 \"args.cni.ips\", or IP in CNI_ARGS",
            ));
        }
        Ok(PreparedAdd(config))
    }
}

impl Prepared for PreparedAdd {
    fn add(&self, at: &Attachment) -> Result<AddResult> {
        let Config { lease_dir, ips, routes, dns } = &self.0;
        if let Some(dir) = lease_dir {
            lease::reserve_all(dir, ips.iter().map(|ip| ip.address.ip()), &LeaseOwner::of(at))?;
        }
        Ok(AddResult { ips: ips.clone(), routes: routes.clone(), dns: dns.clone(), ..AddResult::default() })
    }
}

impl Plugin for Static {
    fn name(&self) -> &'static str {
        "static"
    }

    fn prepare<'a>(&self, call: &'a Call<'a>, _: &Attachment) -> Result<Option<Box<dyn Prepared + 'a>>> {
        Ok(Some(Box::new(PreparedAdd::read(call)?)))
    }

    /// Returns false: the delegating plugin sets the addresses.
    fn uses_netns(&self) -> bool {
        false
    }

    fn add(&self, call: &Call<'_>, at: &Attachment) -> Result<AddResult> {
        PreparedAdd::read(call)?.add(at)
    }

    fn del(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let dir = Directory::of(call)?;
        dir.filter(lease::release(&dir.path, LeaseOwner::of(at)))
    }

    /// The rollback does nothing: ADD may have renewed the leases of an earlier ADD of the same attachment, whose
    /// addresses are in use. The delegating plugin calls DEL if it gets no result, once the interface is gone.
    fn add_with_rollback<'a>(&'a self, call: &'a Call<'_>, at: &'a Attachment) -> Result<(AddResult, Rollback<'a>)> {
        Ok((self.add(call, at)?, Box::new(|| Ok(()))))
    }

    fn check(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let config = Config::read(call)?;
        let Some(result) = call.prev_result()? else {
            let error = Error::new(Code::CONFIG, "Required prevResult missing");
            return Err(error.details("pass the result of ADD as \"prevResult\""));
        };
        for ip in &config.ips {
            let reported = result.ips.iter().find(|reported| reported.address.ip() == ip.address.ip());
            // Unlike the reference, which does not notice that an address is missing. Another plugin may have added a
            // gateway.
            if reported.is_none_or(|found| ip.gateway.is_some() && found.gateway != ip.gateway) {
                let (address, ifname) = (ip.address.ip(), at.ifname.as_str());
                let what = format!("static: Failed to match addr {address} on interface {ifname}");
                let error = Error::new(Code::INTERNAL, what);
                return Err(error.details("the configuration has changed: detach the container and attach it again"));
            }
        }
        let Some(dir) = config.lease_dir else { return Ok(()) };
        let owner = LeaseOwner::of(at);
        let held = lease::held_by(&dir, &owner)?;
        match config.ips.iter().find(|ip| !held.all().any(|held| held == ip.address.ip())) {
            Some(ip) => Err(lease::missing(&dir, &owner, &ip.address.ip().to_string())),
            None => Ok(()),
        }
    }

    fn gc(&self, call: &Call<'_>) -> Result<()> {
        let (dir, valid) = (Directory::of(call)?, call.valid_attachments()?);
        dir.filter(lease::collect(&dir.path, &valid))
    }

    fn status(&self, call: &Call<'_>) -> Result<()> {
        match Config::read(call)?.lease_dir {
            Some(dir) => lease::usable(&dir).map(drop).or_else(lease::status_of),
            None => Ok(()),
        }
    }

    fn ipam(&self) -> Option<&dyn Ipam> {
        Some(self)
    }
}

impl Ipam for Static {
    /// Returns the leases of the attachment. Without leases, returns the addresses that an ADD would assign to it.
    fn leased_to(&self, call: &Call<'_>, at: &Attachment) -> Result<Vec<IpAddr>> {
        let dir = Directory::of(call)?;
        let held: Vec<IpAddr> = dir.filter(lease::held_by(&dir.path, &LeaseOwner::of(at)))?.all().collect();
        if !held.is_empty() || dir.used().is_some() {
            return Ok(held);
        }
        Ok(Config::read(call).map_or_else(
            |error| {
                debug!("the addresses of the attachment are not known: {error}");
                Vec::new()
            },
            |config| config.ips.iter().map(|ip| ip.address.ip()).collect(),
        ))
    }

    /// Checks the leases of all networks in the data directory, because several networks can share a bridge. Without
    /// leases, the addresses of other attachments are not known.
    fn uses_subnet(&self, call: &Call<'_>, subnet: Cidr) -> Result<bool> {
        match Directory::of(call)?.used().as_deref().and_then(Path::parent) {
            Some(all) => lease::has_lease_in(all, subnet),
            None => Ok(true),
        }
    }
}
