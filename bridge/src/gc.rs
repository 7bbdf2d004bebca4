//! GC: removes everything of attachments of this network that the runtime does not list as valid.

use cni::{Call, Delegate, ErrorCollector, Keep, Result};
use interface::ipam::remove_and_release;
use interface::{host_veth, masquerade};
use linux::netlink::Netlink;
use linux::netlink::nft::Nftables;

use crate::{spoofcheck, stale};

/// GC: removes ports, leases and rules of stale attachments. Adds errors to `failures` and continues.
pub(crate) fn run(call: &Call<'_>, ipam: Option<Delegate<'_>>, failures: &mut ErrorCollector) -> Result<()> {
    let valid = call.valid_attachments()?;
    let keep = Keep::new(call.network.as_str(), &valid);

    let mut host = Netlink::open()?;
    remove_and_release(
        failures,
        ipam.as_ref(),
        |ipam| ipam.gc(),
        |failures| failures.keep(host_veth::collect(&mut host, &keep)).is_some(),
    );
    failures.record(collect_rules(&mut host, &keep));
    if let Some(ipam) = &ipam {
        stale::after_gc(call, ipam);
    }
    Ok(())
}

/// Removes the rules of stale attachments.
pub(crate) fn collect_rules(host: &mut Netlink, keep: &Keep<'_>) -> Result<()> {
    let mut nft = Nftables::open()?;
    let mut failures = ErrorCollector::default();
    failures.record(spoofcheck::collect(&mut nft, host, keep));
    failures.record(masquerade::collect(&mut nft, keep));
    failures.into_result()
}
