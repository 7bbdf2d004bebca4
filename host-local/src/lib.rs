//! The `host-local` plugin: gives containers addresses out of ranges, and remembers to whom, in files of this host.
//!
//! `config` turns the configuration into checked `range`s and wishes. `store` is the locked directory of leases, each
//! a file that says whom its address belongs to; `index` finds the right ones among many.

mod add;
mod bitmap;
mod boot;
mod config;
mod digest;
mod dir;
mod earlier;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod index;
pub mod inspect;
mod lease;
mod lock;
mod range;
mod resolv;
mod status;
mod store;

use std::net::IpAddr;
use std::path::Path;

use cni::ip::Cidr;
use cni::{AddResult, Attachment, Call, Code, Dns, Error, Failures, NetworkName, Plugin, Prepared, Result};

use crate::config::Config;
use crate::lease::Owner;
use crate::store::{Alive, Held, Store, with_remedy};

/// No address is left. Of the codes that a plugin may choose.
pub const EXHAUSTED: Code = Code(100);

/// The `host-local` plugin.
#[derive(Debug)]
pub struct HostLocal;

/// What an ADD is asked for.
#[derive(Debug)]
struct Addition<'a> {
    network: &'a NetworkName,
    config: Config,
    dns: Dns,
}

impl<'a> Addition<'a> {
    fn read(call: &'a Call<'_>) -> Result<Addition<'a>> {
        let config = Config::read(call)?;
        let dns = config.resolv_conf.as_deref().map(resolv::read).transpose()?;
        Ok(Addition { network: &call.network, config, dns: dns.unwrap_or_default() })
    }
}

impl Prepared for Addition<'_> {
    fn add(&self, at: &Attachment) -> Result<AddResult> {
        let ips = add::reserve(&self.config, self.network.as_str(), &Owner::of(at))
            .map_err(|error| with_remedy(error, &self.config.dir))?;
        let (routes, dns) = (self.config.routes.clone(), self.dns.clone());
        Ok(AddResult { ips, routes, dns, ..AddResult::default() })
    }
}

/// Releases what `owner` holds in `dir`.
fn release(dir: &Path, owner: Owner) -> Result<()> {
    let Some(mut store) = Store::open(dir)? else { return Ok(()) };
    let Held { exact, bare } = store.held_by(&owner)?;
    // An old record tells no interface: it is this one's if there is no better.
    let (held, owner) = if exact.is_empty() { (bare, owner.bare()) } else { (exact, owner) };
    let mut failures = Failures::default();
    for ip in held {
        failures.note(store.release(ip, &owner));
    }
    failures.into_result()
}

impl Plugin for HostLocal {
    fn name(&self) -> &'static str {
        "host-local"
    }

    fn prepare<'a>(&self, call: &'a Call<'a>) -> Result<Option<Box<dyn Prepared + 'a>>> {
        Ok(Some(Box::new(Addition::read(call)?)))
    }

    /// Leases are files of the host.
    fn uses_netns(&self) -> bool {
        false
    }

    fn add(&self, call: &Call<'_>, at: &Attachment) -> Result<AddResult> {
        Addition::read(call)?.add(at)
    }

    /// Unlike upstream, needs no valid ranges, and makes no directory to look into.
    fn del(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let dir = config::directory(call)?;
        release(&dir, Owner::of(at)).map_err(|error| with_remedy(error, &dir))
    }

    fn leased_to(&self, call: &Call<'_>, at: &Attachment) -> Result<Option<Vec<IpAddr>>> {
        let Some(mut store) = Store::open(&config::directory(call)?)? else { return Ok(Some(Vec::new())) };
        Ok(Some(store.held_by(&Owner::of(at))?.all().collect()))
    }

    /// Unlike upstream, compares with the answer of ADD, if the runtime gives it.
    fn check(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let config = Config::read(call)?;
        let owner = Owner::of(at);
        let held = match Store::open(&config.dir)? {
            Some(mut store) => store.held_by(&owner)?,
            None => Held::default(),
        };
        let given = call.previous()?.unwrap_or_default().ips.into_iter().map(|ip| ip.address.ip());
        // Addresses that are not ours may come from another plugin of the chain.
        let ours = |ip: &_| config.sets.iter().any(|set| set.contains(*ip));
        let missing = given.filter(ours).find(|ip| !held.all().any(|held| held == *ip));
        if missing.is_none() && held.all().next().is_some() {
            return Ok(());
        }
        let what = missing.map_or_else(|| "no address".to_owned(), |ip| format!("not the address {ip}"));
        let error = Error::new(Code::INTERNAL, format!("{owner} holds {what} in {:?}", config.dir));
        Err(error.details("its lease was removed; detach the container and attach it again"))
    }

    fn gc(&self, call: &Call<'_>) -> Result<()> {
        let valid = call.valid_attachments()?;
        let alive = Alive::new(valid.iter().map(|valid| Owner::new(&valid.container, &valid.ifname)));
        let dir = config::directory(call)?;
        let swept = Store::open(&dir).and_then(|store| match store {
            Some(mut store) => store.sweep(|lease| !alive.has(lease)).map(drop),
            None => Ok(()),
        });
        swept.map_err(|error| with_remedy(error, &dir))
    }

    /// Looks at the leases of all networks in the data directory: several may share a bridge.
    fn uses(&self, call: &Call<'_>, subnet: Cidr) -> Result<Option<bool>> {
        let own = config::directory(call)?;
        own.parent().map(|all| inspect::has_lease_in(all, subnet)).transpose()
    }

    fn status(&self, call: &Call<'_>) -> Result<()> {
        status::status(&Config::read(call)?, call.network.as_str())
    }
}
