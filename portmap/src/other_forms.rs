//! Ports in the forms of the reference, which ADD replaces and DEL removes.

use cni::Result;
use linux::iptables::{FAMILIES, Tools};
use linux::netlink::nft::{Family, Nftables};

use crate::published::{PublishedPort, Wanted};
use crate::{iptables, reference};

/// Lists the ports of all networks that are published in the forms of the reference. Usually one message shows that
/// there are none.
pub(crate) fn list(nft: &mut Nftables) -> Result<Vec<PublishedPort>> {
    if may_exist(nft)? { Ok(list_some(nft, &|_, _| true)?.1) } else { Ok(Vec::new()) }
}

/// Lists at least those ports for which `wanted` returns true. Also returns whether any port is published.
pub(crate) fn list_some(nft: &mut Nftables, wanted: Wanted<'_>) -> Result<(bool, Vec<PublishedPort>)> {
    let mut found = reference::list(nft)?;
    let (has_chains, in_chains) = iptables::list(nft, wanted)?;
    found.extend(in_chains);
    Ok((has_chains || !found.is_empty(), found))
}

/// Returns whether a table exists in which the reference could publish ports.
pub(crate) fn may_exist(nft: &mut Nftables) -> Result<bool> {
    let is_its =
        |family: Family, name: &str| family != Family::Inet && [reference::TABLE, iptables::NAT].contains(&name);
    Ok(nft.has_table(&is_its)? || FAMILIES.iter().any(Tools::has_legacy_tables))
}
