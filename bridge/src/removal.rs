//! Deleting a pair, without the kernel's last wait.
//!
//! A link is gone, with both ends and its name, after half a millisecond, and the kernel tells so. Whoever asked for it
//! gets his answer when all processors have forgotten the link, ten to twenty milliseconds later. Nobody needs to wait for
//! that: a child does, which nobody hears of.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use cni::netlink::{Change, Event, LinkIndex, Netlink, Watch};
use cni::{AddResult, Aside, Attachment, AttachmentKey, Context, Deadline, Failures, Home, Netns, Result};
use log::debug;

use crate::attach;

/// How long a link may take to go. It takes less than a millisecond.
const PATIENCE: Duration = Duration::from_secs(10);

/// Deletes the pair by the host's end, of which the container can change nothing. Only a pair that somebody else made
/// has no alias there, and is deleted by the container's end.
///
/// `hold` is kept open until the kernel has done everything: what is deleted by that socket meanwhile shares its wait.
pub(crate) fn delete_pair(
    mut home: Home,
    owner: AttachmentKey<'_>,
    at: &Attachment,
    told: &AddResult,
    hold: Option<BorrowedFd<'_>>,
) -> Result<()> {
    let mut failures = Failures::default();
    match delete_ports(&mut home.netlink, owner, told, hold) {
        Ok(true) => return Ok(()),
        outcome => failures.note(outcome.map(drop)),
    }
    let netns = at.open_netns_if_there();
    failures.note(netns.and_then(|netns| netns.map_or(Ok(()), |netns| delete_guest(&netns, &home.netns, at))));
    failures.into_result()
}

/// Deletes the container's end, if there is one. What cannot be deleted, such as `lo` under another name, is not ours.
fn delete_guest(netns: &Netns, home: &Netns, at: &Attachment) -> Result<()> {
    let mut guest = netns.run(home, Netlink::open)?;
    match guest.apply(&[Change::delete_link(at.ifname.as_str())]) {
        Err(error) if matches!(error.errno(), Some(libc::ENODEV | libc::ENXIO | libc::EOPNOTSUPP)) => Ok(()),
        outcome => outcome.trying(|| format!("in {:?}", at.sandbox())),
    }
}

/// Deletes the host's end, which its alias tells from all others; `false` if there is none. What ADD answered tells
/// where to look first: a host may have thousands of links.
fn delete_ports(
    host: &mut Netlink,
    owner: AttachmentKey<'_>,
    told: &AddResult,
    hold: Option<BorrowedFd<'_>>,
) -> Result<bool> {
    let alias = owner.alias();
    for interface in told.interfaces.iter().filter(|interface| interface.sandbox.is_empty()) {
        if let Some(port) = host.link(interface.name.as_str())?.filter(|link| link.alias == alias) {
            return delete_aside(host, port.index, hold).map(|()| true);
        }
    }
    let mut failures = Failures::default();
    let ports = host.find_links(&|found| found == alias)?;
    for port in &ports {
        failures.note(delete_aside(host, port.index, hold));
    }
    failures.into_result().map(|()| !ports.is_empty())
}

/// Deletes a link by way of a child, and returns when it is gone.
fn delete_aside(host: &mut Netlink, link: LinkIndex, hold: Option<BorrowedFd<'_>>) -> Result<()> {
    let told = Watch::open(Event::Link).and_then(|mut watch| {
        let delete = || drop(Netlink::open().and_then(|mut host| attach::delete(&mut host, link)));
        let child = Aside::start(hold, delete)?;
        watch.await_gone(link, child.as_fd(), Deadline::after(PATIENCE))
    });
    match told {
        Ok(true) => {
            debug!("link {link} is gone");
            Ok(())
        }
        // It failed, was killed, or could not be had: whatever it was, it is found out here.
        outcome => {
            debug!("delete link {link} without a child: {outcome:?}");
            attach::delete(host, link)
        }
    }
}
