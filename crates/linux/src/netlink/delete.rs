//! Deletes links, also without waiting for the kernel's cleanup.
//!
//! Half a millisecond after the request to delete a veth pair, the kernel has removed both ends and their names, and
//! sends a notification. It answers the request itself 10 to 20 ms later, when no processor uses the link any more. A
//! detached child process can wait for that answer.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::{Change, Event, LinkIndex, LinkRef, Netlink, Watch, nft};
use crate::detached::DetachedChild;
use crate::error::Result;
use crate::log::debug;
use crate::wait::Deadline;

/// How long the deletion of a link may take. It usually takes less than a millisecond.
const TIMEOUT: Duration = Duration::from_secs(10);

impl Netlink {
    /// Deletes a link. Succeeds if the link does not exist.
    pub fn delete_link<'a>(&mut self, link: impl Into<LinkRef<'a>>) -> Result<()> {
        match self.apply(&[Change::delete_link(link)]) {
            Err(error) if matches!(error.errno(), Some(libc::ENODEV | libc::ENXIO)) => Ok(()),
            outcome => outcome,
        }
    }

    /// Deletes a link in a detached child process, and returns when the kernel reports that the link is gone. The child
    /// keeps `keep_open`, a netfilter socket, open until the kernel has finished and the rules have settled.
    ///
    /// The socket must be in the namespace of the calling thread.
    pub fn delete_link_detached(&mut self, link: LinkIndex, keep_open: Option<BorrowedFd<'_>>) -> Result<()> {
        let gone = Watch::open(Event::Link).and_then(|mut watch| {
            let delete = || {
                drop(Netlink::open().and_then(|mut netlink| netlink.delete_link(link)));
                if keep_open.is_some() {
                    nft::settle();
                }
            };
            let child = DetachedChild::start(keep_open, delete)?;
            watch.await_gone(link, child.as_fd(), Deadline::after(TIMEOUT))
        });
        match gone {
            Ok(true) => {
                debug!("deleted link {link}");
                Ok(())
            }
            // The child failed, was killed or could not be started. Deleting the link here reports the actual error, if
            // any.
            outcome => {
                debug!("delete link {link} without a child: {outcome:?}");
                self.delete_link(link)
            }
        }
    }
}
