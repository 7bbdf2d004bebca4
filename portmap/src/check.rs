//! CHECK: compares what is published with what the configuration and the previous result require.

use cni::key::mark_in;
use cni::{Code, Error, Result};
use linux::netlink::Netlink;
use linux::netlink::nft::Nftables;

use crate::config::Backend;
use crate::entry::{self, Entry, EntryKey};
use crate::localnet::{self, ContainerLink};
use crate::publication::{Publication, difference};
use crate::published::PortOwner;
use crate::table::{ATTACHMENTS, Frame};
use crate::{iptables, reference};

/// Returns an error for the first difference.
pub(crate) fn run(publication: &Publication<'_>) -> Result<()> {
    if publication.addresses.is_empty() {
        return Ok(());
    }
    let mut nft = Nftables::open()?;
    let are_ours = match publication.config.backend {
        Backend::Iptables => iptables::check(&mut nft, publication)?,
        Backend::Nftables => check_nftables(&mut nft, publication)?,
        // The ADD may have used iptables: without nftables, or because the reference prefers it.
        Backend::Auto => check_nftables(&mut nft, publication)
            .or_else(|error| iptables::check(&mut nft, publication).map_err(|_| error))?,
    };
    let Some(container) = publication.loopback_target() else { return Ok(()) };
    let mut host = Netlink::open()?;
    let Some(link) = localnet::link_to(&mut host, publication.result, container.ip())? else { return Ok(()) };
    ContainerLink::read(&mut host, &mut nft, link)?.map_or(Ok(()), |link| link.check(are_ours))
}

/// Compares the entries, unless the reference has published the ports with nftables. Returns whether cni0 has.
fn check_nftables(nft: &mut Nftables, publication: &Publication<'_>) -> Result<bool> {
    match check_entries(nft, publication) {
        Err(_) if reference::publishes(nft, publication)? => Ok(false),
        outcome => outcome.map(|()| true),
    }
}

fn check_entries(nft: &mut Nftables, publication: &Publication<'_>) -> Result<()> {
    let scopes = publication.scopes();
    if let Some(missing) = Frame::new(&scopes, publication.loopback_target().is_some(), None).missing(nft)? {
        return Err(difference(format!("{missing} does not exist")));
    }
    let wanted = publication.entries(&scopes);
    let keys: Vec<EntryKey> = wanted.iter().map(Entry::key).collect();
    for (wanted, found) in wanted.iter().zip(entry::look_up(nft, &keys)?) {
        compare(wanted, found.as_ref(), publication.owner.container)?;
    }
    let head = EntryKey::of_attachment(&publication.owner.mark());
    match entry::look_up(nft, &[head])?.pop().flatten() {
        Some(_) => Ok(()),
        None => missing(&format!("the attachment in set {ATTACHMENTS}")),
    }
}

fn missing(subject: &str) -> Result<()> {
    Err(difference(format!("{subject} is missing")))
}

/// Compares an entry with the one of the same key. Another network of the container may publish the port.
fn compare(wanted: &Entry, found: Option<&Entry>, container: &str) -> Result<()> {
    let mapping = wanted.read_mapping();
    let subject = match &mapping {
        Some(mapping) => mapping.key.to_string(),
        None => format!("the attachment in set {}", wanted.set),
    };
    let Some(found) = found else { return missing(&subject) };
    // Another attachment with the same address may have the entries for masquerade.
    let Some(mapping) = mapping else { return Ok(()) };
    if mark_in(found.comment()) != mark_in(wanted.comment()) {
        let owner = PortOwner::Attachment(found.comment().to_owned());
        if owner.is_container(container) {
            return Ok(());
        }
        // Only an attachment can be gone, so that another ADD may replace it.
        return Err(match mark_in(found.comment()) {
            Some(_) => difference(format!("{subject} is published by another attachment ({owner})")),
            None => Error::new(Code::INTERNAL, format!("{subject} is published by another program ({owner})"))
                .details("delete the element from table inet cni_hostport, and then run `cnitool repair`"),
        });
    }
    match found.read_mapping() {
        Some(found) if found.target != mapping.target => {
            Err(difference(format!("{subject} leads to {}, not to {}", found.target, mapping.target)))
        }
        _ => Ok(()),
    }
}
