//! `cnitool add`, `del`, `check`, `gc` and `status`, which call the plugins of a network.

use std::path::Path;

use cni::{AddResult, Code, Context, Error, Result};
use linux::Netns;

use crate::cache::{Cache, Entry};
use crate::chain::{Chain, Endpoint, container_id};
use crate::conf::{self, NetworkList};
use crate::known::unknown_keys;
use crate::lock::Lock;
use crate::privilege::require_capabilities;
use crate::{netns, out, prune, settings};

/// Runs `cnitool add`.
pub(crate) fn add(network: &str, netns: &Path) -> Result<()> {
    let list = find(network)?;
    netns::require(netns)?;
    let at = endpoint(netns, None)?;
    let chain = Chain::find(&list, &settings::plugins())?;
    require_capabilities()?;
    list.unused(&at.capabilities).iter().for_each(out::print_error);
    unknown_keys(&list).iter().for_each(|remark| out::warn(&remark.line()));
    let _lock = Lock::shared()?;
    let deliver = |result: &AddResult| {
        let text = [result.print(list.version)?.as_slice(), b"\n"].concat();
        // A new error has no errno. So a closed pipe, which is ignored otherwise, is reported as a failed add.
        out::print(text).map_err(|error| Error::new(error.code(), error.to_string()).details(error.details_text()))
    };
    chain.add_and_deliver(&at, deliver).map(drop).context(|| attempt("add", &at, network, "to"))
}

/// Runs `cnitool del`.
pub(crate) fn del(network: &str, netns: &Path) -> Result<()> {
    require_capabilities()?;
    let at = endpoint(netns, None)?;
    let _lock = Lock::shared()?;
    let entry = Cache::of_host().load(network, at.container.as_str(), at.ifname.as_str())?;
    let list = match (find(network), &entry) {
        (Ok(list), _) => list,
        (Err(error), Some(entry)) if !entry.config.is_empty() => {
            out::print_error(&error.details("using the configuration of the add"));
            let cache = Cache::of_host().path(network, at.container.as_str(), at.ifname.as_str());
            conf::from_cache(&cache, &entry.config)?
        }
        (Err(error), _) => return Err(error),
    };
    if entry.is_none() && Netns::open_if_exists(&at.netns)?.is_none() {
        netns::require(netns)?;
        let what = format!("there is no network namespace at {:?}, and nothing was added there", at.netns);
        return Err(Error::new(Code::NETNS, what).details("use the same path as for the add"));
    }
    let at = endpoint(netns, entry)?;
    let chain = Chain::find(&list, &settings::plugins())?;
    chain.del(&at).context(|| attempt("delete", &at, network, "from"))
}

/// Runs `cnitool check`.
pub(crate) fn check(network: &str, netns: &Path) -> Result<()> {
    let list = find(network)?;
    let at = endpoint(netns, None)?;
    let chain = Chain::find(&list, &settings::plugins())?;
    require_capabilities()?;
    let entry = Cache::of_host().load(network, at.container.as_str(), at.ifname.as_str())?;
    if entry.is_none() {
        netns::require(netns)?;
    }
    let at = endpoint(netns, entry)?;
    chain.check(&at).context(|| attempt("check", &at, network, "in"))
}

/// Runs `cnitool gc`.
pub(crate) fn gc(network: &str) -> Result<()> {
    let list = find(network)?;
    Chain::find(&list, &settings::plugins())?;
    require_capabilities()?;
    if list.disable_gc {
        return Ok(());
    }
    prune::collect(&list).context(|| format!("collect garbage of network {network:?}"))
}

/// Runs `cnitool status`.
pub(crate) fn status(network: &str) -> Result<()> {
    let list = find(network)?;
    let chain = Chain::find(&list, &settings::plugins())?;
    require_capabilities()?;
    if !chain.status().context(|| format!("get the status of network {network:?}"))? {
        out::warn(&format!("cniVersion {} has no STATUS: the plugins exist, but were not called", list.version));
    }
    Ok(())
}

/// Describes what a command tries to do, for its error.
fn attempt(verb: &str, at: &Endpoint, network: &str, preposition: &str) -> String {
    format!("{verb} {:?} of {} {preposition} network {network:?}", at.ifname.as_str(), at.netns.display())
}

/// Returns the configuration of the network. Warns of broken files.
fn find(network: &str) -> Result<NetworkList> {
    let (list, broken) = conf::find(&settings::configurations(), network)?;
    conf::warn_of_broken(&broken);
    Ok(list)
}

/// Returns the endpoint for `netns`. Arguments that the environment does not set are those of the cache entry.
fn endpoint(netns: &Path, entry: Option<Entry>) -> Result<Endpoint> {
    let netns = netns::path(netns)?;
    let entry = entry.unwrap_or_default();
    Ok(Endpoint {
        container: container_id(&netns)?,
        ifname: settings::ifname()?,
        netns,
        args: settings::args()?.unwrap_or(entry.args),
        capabilities: settings::capabilities()?.unwrap_or(entry.capabilities),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_ids_match_the_reference() {
        // printf %s /run/netns/blue | sha512sum
        let id = container_id(&netns::path(Path::new("/run//netns/./x/../blue/")).unwrap()).unwrap();
        assert_eq!(id, container_id(Path::new("/run/netns/blue")).unwrap());
        assert_eq!(id.as_str(), "cnitool-df26705e2e4ffd095eb1");
    }
}
