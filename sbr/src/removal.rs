//! DEL: removes the rules of the attachment, and the routes of their tables.

use std::net::IpAddr;

use cni::{Attachment, AttachmentKey, Call, Context, Guest, Judgement, Namespaces, Ownership, Result, Trace};
use interface::lock::lock_namespace;
use linux::log::warn;
use linux::netlink::{Change, Rule};

use crate::owner::{self, RuleOwner, source_of_reference};
use crate::plan::is_copy;

/// Removes what provably belongs to the attachment. Other routes vanish with the interface.
pub(crate) fn run(call: &Call<'_>, at: &Attachment) -> Result<()> {
    let Some(namespaces) = Namespaces::open_if_exists(call, at)? else { return Ok(()) };
    lock_namespace(&namespaces.guest)?;
    let mut guest = namespaces.open_guest(at)?;
    let rules = match guest.netlink.rules() {
        // The kernel has no rules.
        Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => return Ok(()),
        rules => rules?,
    };
    let key = AttachmentKey::new(call, at);
    let (mut own, mut others) = RuleOwner::new(key).divide(rules);
    others.retain(|rule| source_of_reference(rule, &own).is_some());
    own.extend(of_reference(call, &mut guest, key, others)?);
    if own.is_empty() {
        return Ok(());
    }
    let has_table = |table| own.iter().any(|rule| rule.table == table);
    let routes = match guest.find_interface_index()? {
        Some(link) => {
            let mut routes = guest.netlink.listed_routes()?;
            routes.retain(|listed| is_copy(listed, link) && has_table(listed.table));
            routes
        }
        None => Vec::new(),
    };
    let mut changes: Vec<_> = own.iter().map(Change::delete_listed_rule).collect();
    changes.extend(routes.iter().rev().map(Change::delete_listed_route));
    let removed = guest.netlink.apply_ignoring(&changes, &[libc::ENOENT, libc::ESRCH, libc::ENODEV]);
    removed.context(|| format!("in {:?}", at.sandbox()))
}

/// Returns those of the rules that the reference added for the attachment: those from its addresses. By now the path
/// may lead to the namespace of another container, so the addresses of the interface count only if its alias names the
/// attachment.
fn of_reference(
    call: &Call<'_>,
    guest: &mut Guest<'_>,
    key: AttachmentKey<'_>,
    mut rules: Vec<Rule>,
) -> Result<Vec<Rule>> {
    if rules.is_empty() {
        return Ok(rules);
    }
    let ownership = Ownership::new(key);
    let previous = call.prev_result_to_clean_up();
    let mut ips: Vec<IpAddr> = owner::addresses(&previous, key.ifname).iter().map(|ip| ip.address.ip()).collect();
    ips.extend(ownership.leased_addresses(call));
    if let Some(link) = guest.find_interface()? {
        let have = guest.netlink.addresses(link.index)?.into_iter().map(|address| address.cidr.ip());
        match ownership.judge(Trace::Alias(&link.alias)) {
            Judgement::Ours(_) => ips.extend(have),
            _ => {
                let is_unproven = |ip: &IpAddr| {
                    !ips.contains(ip) && rules.iter().filter_map(|rule| rule.source).any(|source| source.src == *ip)
                };
                if let Some(ip) = have.into_iter().find(is_unproven) {
                    warn!(
                        "keep the rule from {ip} in {:?}: cannot prove that it belongs to this attachment",
                        guest.at.sandbox()
                    );
                }
            }
        }
    }
    rules.retain(|rule| rule.source.is_some_and(|source| ips.contains(&source.src)));
    Ok(rules)
}
