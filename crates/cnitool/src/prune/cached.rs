//! Networks without a configuration: runtimes define some themselves, such as the loopback of containerd, and others
//! were removed. The cache has the configuration of each ADD, with which DEL is called as the runtime would have done.

use cni::{Code, Error, ErrorCollector, Result};

use super::liveness::Liveness;
use super::{PrunePlan, disables_gc};
use crate::cache::Cache;
use crate::chain::{Chain, Endpoint};
use crate::conf::{self, NetworkList};
use crate::node::Attachment;
use crate::settings;

/// Returns the configuration of the ADD of an attachment, with which its DEL can be called, and its endpoint.
pub(crate) fn list_of(network: &str, at: &Attachment) -> Result<(NetworkList, Endpoint)> {
    let (cache, ifname) = (Cache::of_host(), at.ifname.as_deref().unwrap_or_default());
    let entry = cache.load(network, &at.container, ifname)?;
    let entry = entry.ok_or_else(|| Error::new(Code::UNKNOWN_CONTAINER, "the cache has no entry for it"))?;
    let path = cache.path(network, &at.container, ifname);
    let list = conf::from_cache(&path, &entry.config)?;
    if list.name.as_str() != network {
        let what = format!("{} has the configuration of another network, {:?}", path.display(), list.name.as_str());
        return Err(Error::new(Code::CONFIG, what));
    }
    if list.disable_gc {
        return Err(disables_gc());
    }
    Chain::find(&list, &settings::plugins())?;
    Ok((list, Endpoint::of_entry(&entry)?))
}

/// Returns the plan reduced to attachments in the cache that can be removed, and why others cannot.
pub(super) fn keep_removable(plan: PrunePlan, network: &str) -> Result<(PrunePlan, Option<Error>)> {
    let (mut dead, mut obstacle) = (Vec::new(), None);
    for at in plan.dead.into_iter().filter(|at| at.cached) {
        match list_of(network, &at) {
            Ok(_) => dead.push(at),
            Err(error) => obstacle = Some(error),
        }
    }
    Ok((PrunePlan { dead, keep: plan.keep, ..PrunePlan::default() }, obstacle))
}

/// Calls DEL for each attachment in the plan that is still gone.
pub(super) fn execute(network: &str, plan: &PrunePlan) -> Result<()> {
    let liveness = Liveness { network, dead: &plan.dead };
    let mut failures = ErrorCollector::default();
    for at in &plan.dead {
        failures.record(list_of(network, at).and_then(|(list, at)| {
            if liveness.has(&at) { Ok(()) } else { Chain::find(&list, &settings::plugins())?.del(&at) }
        }));
    }
    failures.into_result()
}
