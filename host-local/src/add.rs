//! ADD: one address out of each range set, all of them or none.

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use cni::{Code, Error, IpConfig, Result, Undo};
use log::warn;

use crate::EXHAUSTED;
use crate::config::Config;
use crate::lease::Owner;
use crate::range::RangeSet;
use crate::store::{Holder, Store};

/// Reserves an address of each range set for `owner`.
pub(crate) fn reserve(config: &Config, network: &str, owner: &Owner) -> Result<Vec<IpConfig>> {
    let mut undo = Undo::new(Store::create(&config.dir)?);
    let orders = config.sets.iter().zip(&config.wanted).enumerate();
    let granted = orders.map(|(number, (set, wanted))| {
        let order = Order { network, number, set, wanted: *wanted, owner };
        let mut grant = order.fill(&mut undo)?;
        if let Err(refusal) = &grant
            && config.reclaim
        {
            let count = undo.world().reclaim()?;
            if count > 0 {
                warn!("reclaimed {count} leases of earlier boots: {refusal}");
                grant = order.fill(&mut undo)?;
            }
        }
        grant.map_err(|refusal| match refusal.code() {
            EXHAUSTED if !config.reclaim => {
                refusal.details("\"reclaimAfterReboot\" is false, so leases of earlier boots are kept")
            }
            _ => refusal,
        })
    });
    let grants = match granted.collect::<Result<Vec<_>>>() {
        Ok(grants) => grants,
        Err(error) => return Err(undo.roll_back(error)),
    };
    for (number, grant) in grants.iter().enumerate().filter(|(_, grant)| grant.new) {
        undo.world().set_last_reserved(number, grant.ip);
    }
    undo.commit();
    Ok(grants.iter().zip(&config.sets).map(|(grant, set)| set.describe(grant.ip)).collect())
}

/// An address for a container.
struct Grant {
    ip: IpAddr,
    /// Reserved just now.
    new: bool,
}

/// One address that has to be found.
struct Order<'a> {
    network: &'a str,
    number: usize,
    set: &'a RangeSet,
    wanted: Option<IpAddr>,
    owner: &'a Owner,
}

impl Order<'_> {
    /// Finds and reserves an address; the inner error tells why there is none.
    fn fill(&self, undo: &mut Undo<'_, Store>) -> Result<Result<Grant>> {
        // An old record of the container is a lease of this interface too.
        let held = undo.world().held_by(self.owner)?;
        let mut here = held.all().filter(|ip| self.set.contains(*ip));
        match (self.wanted, here.next()) {
            // Unlike upstream: who asks again for what they have, gets it.
            (Some(wanted), Some(_)) if held.all().any(|ip| ip == wanted) => {
                // It may be from an earlier boot, and must not be reclaimed from now on.
                undo.world().renew(wanted)?;
                Ok(Ok(Grant { ip: wanted, new: false }))
            }
            (_, Some(other)) => Ok(Err(self.duplicate(other))),
            (Some(wanted), None) => Ok(match self.take(undo, wanted)? {
                None => Ok(Grant { ip: wanted, new: true }),
                Some(holder) => Err(in_use(wanted, &holder)),
            }),
            (None, None) => self.any(undo),
        }
    }

    fn any(&self, undo: &mut Undo<'_, Store>) -> Result<Result<Grant>> {
        let round = self.set.round(undo.world().last_reserved(self.number));
        // Each address that turns out to be taken is known to be from then on: the search ends.
        while let Some(ip) = undo.world().first_free(&round)? {
            if self.take(undo, ip)?.is_none() {
                return Ok(Ok(Grant { ip, new: true }));
            }
        }
        let store = undo.world();
        let error = exhausted(store.path(), self.network, self.number, self.set);
        Ok(Err(error.details(format!("the oldest is held for {}", oldest(store, self.set)?))))
    }

    /// Takes `ip`, unless somebody holds it.
    fn take(&self, undo: &mut Undo<'_, Store>, ip: IpAddr) -> Result<Option<Holder>> {
        let owner = self.owner.clone();
        undo.push(format!("release {ip}"), move |store: &mut Store| store.release(ip, &owner));
        let holder = undo.world().reserve(ip, self.owner)?;
        if holder.is_some() {
            undo.forget_last();
        }
        Ok(holder)
    }

    fn duplicate(&self, held: IpAddr) -> Error {
        let what = format!("duplicate allocation: {} already holds {held} in network {:?}", self.owner, self.network);
        Error::new(Code::INTERNAL, what).details("detach it first, or request that address")
    }
}

fn in_use(ip: IpAddr, holder: &Holder) -> Error {
    let whom = match holder {
        Holder::Owner(owner) => owner.to_string(),
        Holder::Nobody | Holder::Unknown => "something that is no lease".to_owned(),
    };
    Error::new(Code::INTERNAL, format!("the requested address {ip} is in use by {whom}"))
        .details("request another address, or detach its holder")
}

/// Nothing is free in a range set: says what there is, so that somebody can do something about it.
pub(crate) fn exhausted(dir: &Path, network: &str, number: usize, set: &RangeSet) -> Error {
    let what = format!(
        "network {network:?}: no IP addresses available in range set {number} ({set}): all {} are leased in {dir:?}",
        set.size()
    );
    Error::new(EXHAUSTED, what).details("release the leases of containers that are gone (GC does), or widen the ranges")
}

/// How long the oldest lease of a range set is held, in words. It takes reading them all.
fn oldest(store: &Store, set: &RangeSet) -> Result<String> {
    let mut oldest = SystemTime::now();
    store.each(|lease| {
        if set.contains(lease.ip) {
            oldest = oldest.min(lease.since);
        }
    })?;
    Ok(words(SystemTime::now().duration_since(oldest).unwrap_or_default()))
}

/// A length of time in the largest unit of which there are two.
fn words(time: Duration) -> String {
    let seconds = time.as_secs();
    let (count, unit) = match seconds {
        1 => (1, "second"),
        0..120 => (seconds, "seconds"),
        120..7_200 => (seconds / 60, "minutes"),
        7_200..172_800 => (seconds / 3_600, "hours"),
        _ => (seconds / 86_400, "days"),
    };
    format!("{count} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_told_in_a_sensible_unit() {
        for (seconds, want) in [
            (0, "0 seconds"),
            (1, "1 second"),
            (119, "119 seconds"),
            (120, "2 minutes"),
            (7_200, "2 hours"),
            (200_000, "2 days"),
        ] {
            assert_eq!(words(Duration::from_secs(seconds)), want);
        }
    }
}
