//! Evidence whether the owner of a published port still exists. A port whose owner is gone can be given to another
//! container; in doubt the owner exists.

use cni::key::{AliasOwner, mark_in};
use cni::{AttachmentKey, Result, evidence};
use linux::netlink::Netlink;

use crate::published::PortOwner;

/// Returns whether the owner of a published port is provably gone. `port` is its link on this host, if known.
pub(crate) fn is_gone(host: &mut Netlink, owner: &PortOwner, port: Option<&str>) -> Result<bool> {
    match (owner, port) {
        (_, Some(port)) => Ok(match host.link(port)? {
            None => true,
            // The name may be that of a later attachment.
            Some(link) => belongs_to_other(&link.alias, owner),
        }),
        (PortOwner::OnNetwork { network, container }, None) => {
            let is_its = |alias: &str| evidence::may_name(alias, network, container);
            Ok(evidence::has_lease(network, container) == Some(false) && host.find_veths_by_alias(&is_its)?.is_empty())
        }
        (PortOwner::Attachment(_) | PortOwner::Container(_), None) => Ok(false),
    }
}

/// Returns whether an alias names another attachment than `owner`. An alias that is cut could name any.
fn belongs_to_other(alias: &str, owner: &PortOwner) -> bool {
    let Some(AliasOwner { network, attachment: Some((container, ifname)) }) = AliasOwner::parse(alias) else {
        return false;
    };
    match owner {
        PortOwner::Attachment(comment) => {
            let key = AttachmentKey { network: &network, container: &container, ifname: &ifname };
            mark_in(comment) != Some(&key.mark())
        }
        PortOwner::OnNetwork { .. } => {
            !matches!(owner, PortOwner::OnNetwork { network: n, container: c } if *n == network && *c == container)
        }
        PortOwner::Container(id) => *id != container,
    }
}
