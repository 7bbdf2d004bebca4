//! GC: removes what belongs to attachments of this network that nobody lists.

use cni::netlink::nft::Nftables;
use cni::netlink::{Link, Netlink};
use cni::{AttachmentKey, Call, Delegate, Failures, Result, key};
use log::debug;

use crate::{attach, iptables, masquerade, spoofcheck};

/// Removes it all, goes on after `failures`, and adds to them.
pub(crate) fn run(call: &Call<'_>, ipam: Result<Option<Delegate<'_>>>, failures: &mut Failures) -> Result<()> {
    let network = call.network.as_str();
    let valid = call.valid_attachments()?;
    let keep: Vec<AttachmentKey<'_>> = valid
        .iter()
        .map(|valid| AttachmentKey { network, container: &valid.container, ifname: &valid.ifname })
        .collect();

    let mut host = Netlink::open()?;
    let mut nft = Nftables::open()?;
    let links = host.links(None)?;
    for link in links.iter().filter(|link| is_stale(link, network, &keep)) {
        debug!("{:?} is needed by nobody: {}", link.name, link.alias);
        failures.note(attach::delete(&mut host, link.index));
    }
    failures.note(ipam.and_then(|ipam| ipam.as_ref().map_or(Ok(()), Delegate::gc)));
    failures.note(spoofcheck::collect(&mut nft, &mut host, |link| is_stale(link, network, &keep)));
    failures.note(masquerade::collect(&mut nft, network, &keep));
    failures.note(iptables::collect(&mut nft, &mut host, network, &keep));
    Ok(())
}

/// Is it the host's end of a pair of this network that nobody needs?
fn is_stale(link: &Link, network: &str, keep: &[AttachmentKey<'_>]) -> bool {
    link.alias.starts_with(&key::alias_prefix(network)) && !keep.iter().any(|owner| owner.alias() == link.alias)
}
