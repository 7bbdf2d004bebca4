//! ADD: leases one address from each range set, or none at all.

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use cni::lease::{LeaseOwner, Store, in_use, lease};
use cni::{Code, Error, IpConfig, Result, Undo};
use linux::log::warn;

use crate::EXHAUSTED;
use crate::config::Config;
use crate::range::RangeSet;

/// Leases one address from each range set to `owner`. On failure, releases those that it leased.
pub(crate) fn reserve(config: &Config, network: &str, owner: &LeaseOwner) -> Result<Vec<IpConfig>> {
    let mut undo = Undo::new(Store::create(&config.dir)?);
    let requests = config.sets.iter().zip(&config.requested).enumerate();
    let results = requests.map(|(number, (set, requested))| {
        let request = Request { network, number, set, requested: *requested, owner };
        let mut grant = request.allocate(&mut undo)?;
        if let Err(refusal) = &grant
            && config.reclaim
        {
            let count = undo.context().reclaim()?;
            if count > 0 {
                warn!("reclaimed {count} leases of earlier boots: {refusal}");
                grant = request.allocate(&mut undo)?;
            }
        }
        grant.map_err(|refusal| match refusal.code() {
            EXHAUSTED if !config.reclaim => {
                refusal.details("\"reclaimAfterReboot\" is false, so leases of earlier boots are kept")
            }
            _ => refusal,
        })
    });
    let grants = match results.collect::<Result<Vec<_>>>() {
        Ok(grants) => grants,
        Err(error) => return Err(undo.roll_back(error)),
    };
    for (number, grant) in grants.iter().enumerate().filter(|(_, grant)| grant.new) {
        undo.context().set_last_reserved(number, grant.ip);
    }
    undo.commit();
    Ok(grants.iter().zip(&config.sets).map(|(grant, set)| set.describe(grant.ip)).collect())
}

/// An address leased to the owner of a [`Request`].
struct Grant {
    ip: IpAddr,
    /// Whether this call created the lease.
    new: bool,
}

/// A request for one address from one range set.
struct Request<'a> {
    network: &'a str,
    number: usize,
    set: &'a RangeSet,
    requested: Option<IpAddr>,
    owner: &'a LeaseOwner,
}

impl Request<'_> {
    /// Leases an address. The outer error is a failure to read or write leases; the inner one is a refusal, such as an
    /// exhausted range set.
    fn allocate(&self, undo: &mut Undo<'_, Store>) -> Result<Result<Grant>> {
        // Old lease records name only the container, so they count for this interface too.
        let held = undo.context().held_by(self.owner)?;
        let mut in_set = held.all().filter(|ip| self.set.contains(*ip));
        match (self.requested, in_set.next()) {
            // Unlike the reference, a repeated request for an address that the owner already has succeeds.
            (Some(requested), Some(_)) if held.all().any(|ip| ip == requested) => {
                // The lease may be from an earlier boot. Renewing it prevents that it is reclaimed.
                undo.context().renew(requested)?;
                Ok(Ok(Grant { ip: requested, new: false }))
            }
            (_, Some(other)) => Ok(Err(self.duplicate(other))),
            (Some(requested), None) => Ok(match lease(undo, requested, self.owner)? {
                None => Ok(Grant { ip: requested, new: true }),
                Some(holder) => Err(in_use(requested, &holder)),
            }),
            (None, None) => self.allocate_any(undo),
        }
    }

    /// Leases the first free address after the one that was leased last.
    fn allocate_any(&self, undo: &mut Undo<'_, Store>) -> Result<Result<Grant>> {
        let round = self.set.round(undo.context().last_reserved(self.number));
        // The loop ends: the index now knows each address that turned out to be taken.
        while let Some(ip) = undo.context().first_free(&round)? {
            if lease(undo, ip, self.owner)?.is_none() {
                return Ok(Ok(Grant { ip, new: true }));
            }
        }
        let store = undo.context();
        let error = exhausted(store.path(), self.network, self.number, self.set);
        Ok(Err(error.details(format!("the oldest lease is {} old", oldest(store, self.set)?))))
    }

    /// Returns the error for an owner that already has an address of this range set.
    fn duplicate(&self, held: IpAddr) -> Error {
        let what = format!("duplicate allocation: {} already holds {held} in network {:?}", self.owner, self.network);
        Error::new(Code::INTERNAL, what).details("detach it first, or request that address")
    }
}

/// Returns the error for an exhausted range set, with the number of addresses and the lease directory.
pub(crate) fn exhausted(dir: &Path, network: &str, number: usize, set: &RangeSet) -> Error {
    let what = format!(
        "network {network:?}: no IP addresses available in range set {number} ({set}): all {} are leased in {dir:?}",
        set.size()
    );
    Error::new(EXHAUSTED, what)
        .details("release the leases of containers that are gone (`cnitool prune` does), or widen the ranges")
}

/// Returns the age of the oldest lease of a range set in words. Reads all leases of the network.
fn oldest(store: &Store, set: &RangeSet) -> Result<String> {
    let mut oldest = SystemTime::now();
    store.for_each(|lease| {
        if set.contains(lease.ip) {
            oldest = oldest.min(lease.since);
        }
    })?;
    Ok(in_words(SystemTime::now().duration_since(oldest).unwrap_or_default()))
}

/// Formats a duration in the largest unit of which it has at least two.
fn in_words(time: Duration) -> String {
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
    fn durations_are_printed_in_a_readable_unit() {
        for (seconds, want) in [
            (0, "0 seconds"),
            (1, "1 second"),
            (119, "119 seconds"),
            (120, "2 minutes"),
            (7_200, "2 hours"),
            (200_000, "2 days"),
        ] {
            assert_eq!(in_words(Duration::from_secs(seconds)), want);
        }
    }
}
