//! What is limited for an attachment, from its configuration and its previous result: ADD sets it, CHECK compares it.

use cni::{AddResult, Attachment, AttachmentKey, Call, Namespaces, Result};
use linux::netlink::{Link, Netlink};

use crate::config::Config;
use crate::veth;

/// The limits of an attachment.
#[derive(Debug)]
pub(crate) struct Limits<'a> {
    pub(crate) owner: AttachmentKey<'a>,
    pub(crate) config: &'a Config,
    /// The host veth.
    pub(crate) veth: Link,
}

impl<'a> Limits<'a> {
    /// Returns the limits of an attachment with this previous result, and a socket of the host; `None` if nothing is to
    /// be limited.
    pub(crate) fn find(
        call: &'a Call<'_>,
        at: &'a Attachment,
        config: &'a Config,
        result: &AddResult,
    ) -> Result<Option<(Limits<'a>, Netlink)>> {
        if config.is_empty() {
            return Ok(None);
        }
        let mut namespaces = Namespaces::open(call, at)?;
        let veth = veth::find(&mut namespaces, at, result, call.version)?;
        Ok(Some((Limits { owner: AttachmentKey::new(call, at), config, veth }, namespaces.host.netlink)))
    }
}
