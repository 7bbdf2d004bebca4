//! Ports in the forms of the reference, which ADD replaces and DEL removes.

use cni::Result;
use linux::iptables::{FAMILIES, Tools};
use linux::netlink::nft::{Family, Nftables};

use crate::published::Published;
use crate::{iptables, reference};

/// Lists the ports of all networks that are published in the forms of the reference. Usually one message shows that there
/// are none.
pub(crate) fn list(nft: &mut Nftables) -> Result<Vec<Published>> {
    let mut found = Vec::new();
    if may_exist(nft)? {
        found.extend(reference::list(nft)?);
        found.extend(iptables::list(nft)?);
    }
    Ok(found)
}

/// Returns whether a table exists in which the reference could publish ports.
pub(crate) fn may_exist(nft: &mut Nftables) -> Result<bool> {
    let is_its =
        |family: Family, name: &str| family != Family::Inet && [reference::TABLE, iptables::NAT].contains(&name);
    Ok(nft.has_table(&is_its)? || FAMILIES.iter().any(Tools::has_legacy_tables))
}
