//! Removes what ADD added: for an attachment for DEL, for all stale attachments for GC.

use cni::{Attachment, AttachmentKey, Call, ErrorCollector, Keep, Result};
use linux::log::debug;
use linux::netlink::{Change, Link, LinkIndex, Netlink, QdiscPlace};

use crate::config::Config;
use crate::ifb::{self, Evidence, IFB, Source, sources};
use crate::limits::Limits;

/// DEL: removes the ifb links of an attachment, and first the filters that redirect packets to them: the kernel drops
/// packets that are redirected to a link that is gone.
pub(crate) fn remove(call: &Call<'_>, at: &Attachment) -> Result<()> {
    let owner = AttachmentKey::new(call, at);
    let mut host = call.home()?.netlink;
    let mut own: Vec<Link> = Vec::new();
    let result = call.prev_result_to_clean_up();
    let host_veth = result.host_interface(at);
    for link in host.links_of_kind(IFB)? {
        let is_own = ifb::is_marked(&link, owner)
            || (ifb::may_be_of_reference(&link, owner)
                && Evidence::new(call, at, host_veth)?.proves(&mut host, &link)?);
        if is_own {
            own.push(link);
        }
    }
    let Some(targets) = Some(indexes(&own)).filter(|targets| !targets.is_empty()) else { return Ok(()) };
    delete_sources(&mut host, host_veth.map(|veth| veth.name.as_str()), &targets);
    let mut failures = ErrorCollector::default();
    for link in targets {
        failures.record(host.delete_link_detached(link, None));
    }
    failures.into_result()
}

/// GC: removes the ifb links of a network's attachments that are not in `keep`. Those of the reference have no owner.
pub(crate) fn collect(call: &Call<'_>, keep: &Keep<'_>) -> Result<()> {
    let mut host = call.home()?.netlink;
    let mut stale = host.links_of_kind(IFB)?;
    stale.retain(|link| keep.is_stale_alias(&link.alias));
    if stale.is_empty() {
        return Ok(());
    }
    delete_sources(&mut host, None, &indexes(&stale));
    let mut failures = ErrorCollector::default();
    for link in &stale {
        failures.record(host.delete_link(link.index));
    }
    failures.into_result()
}

/// Removes the ifb link that an ADD has just created under this name. Its alias may be missing.
pub(crate) fn remove_created(host: &mut Netlink, owner: AttachmentKey<'_>, name: &str) -> Result<()> {
    for link in host.links_of_kind(IFB)? {
        if ifb::is_marked(&link, owner) || (link.name == name && link.alias.is_empty()) {
            host.delete_link(link.index)?;
        }
    }
    Ok(())
}

/// Removes the limit of the host veth that an ADD has just set. Other programs may use what it has prepared for
/// filters.
pub(crate) fn remove_limit(call: &Call<'_>, at: &Attachment) -> Result<()> {
    let config = Config::parse(call)?;
    match Limits::find(call, at, &config, &call.chained_result()?)? {
        Some((limits, mut host)) if config.ingress.is_some() => {
            delete_qdisc(&mut host, limits.veth.index, QdiscPlace::Root)
        }
        _ => Ok(()),
    }
}

/// Deletes a queueing discipline, if it exists.
pub(crate) fn delete_qdisc(host: &mut Netlink, link: LinkIndex, place: QdiscPlace) -> Result<()> {
    match host.apply(&[Change::delete_qdisc(link, place)]) {
        Err(error) if matches!(error.errno(), Some(libc::ENOENT | libc::EINVAL | libc::ENODEV)) => Ok(()),
        outcome => Ok(outcome?),
    }
}

/// Deletes the filters of a veth that redirect packets to a link.
pub(crate) fn delete_redirects(host: &mut Netlink, veth: LinkIndex, to: LinkIndex) -> Result<()> {
    for redirect in host.redirects(veth)? {
        if redirect.to == Some(to) {
            host.apply(&[Change::delete_redirect(veth, &redirect)])?;
        }
    }
    Ok(())
}

/// Deletes the filters that redirect packets to these links. Best effort: a filter that stays drops the container's
/// packets once the link is gone, but it vanishes with the veth, which the main plugin deletes next.
fn delete_sources(host: &mut Netlink, hint: Option<&str>, targets: &[LinkIndex]) {
    let found = sources(host, hint, targets).unwrap_or_else(|error| {
        debug!("the redirections are unknown: {error}");
        Vec::new()
    });
    for Source { veth, redirect } in found {
        if let Err(error) = host.apply(&[Change::delete_redirect(veth.index, &redirect)]) {
            debug!("not deleted: {error}");
        }
    }
}

fn indexes(links: &[Link]) -> Vec<LinkIndex> {
    links.iter().map(|link| link.index).collect()
}
