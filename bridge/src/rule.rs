//! A masquerade rule, as both backends list it.

use std::net::IpAddr;

use cni::{Code, Error};
use linux::netlink::nft::Rule;

/// The remedy if rules of an attached container are missing.
pub(crate) const REPAIR_HINT: &str = "something flushed the host's rules; `cnitool repair` restores them";

/// A rule that masquerades the packets of one container address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Masquerade {
    /// The container's address.
    pub(crate) source: Option<IpAddr>,
    /// Whether it is a rule of iptables.
    pub(crate) iptables: bool,
    /// The comment, which names the owner. Long IDs may be truncated.
    pub(crate) comment: String,
}

impl Masquerade {
    /// Returns the readable part of the comment, without the mark.
    pub(crate) fn about(&self) -> &str {
        match self.comment.split_once(", net: ") {
            Some((_, about)) if !self.iptables => about,
            _ => &self.comment,
        }
    }

    /// Returns the mark that identifies the owner: one of those in [`cni::inspect::Marks`].
    pub(crate) fn mark(&self) -> &str {
        match self.iptables {
            true => &self.comment,
            false => self.comment.split_once(',').map_or(self.comment.as_str(), |(mark, _)| mark),
        }
    }
}

/// Returns the source address that a rule matches. Skips the protocol, which rules for both families match first.
pub(crate) fn source(rule: &Rule) -> Option<IpAddr> {
    rule.values.iter().find_map(|value| match value.as_slice() {
        octets @ [_, _, _, _] => <[u8; 4]>::try_from(octets).ok().map(IpAddr::from),
        octets => <[u8; 16]>::try_from(octets).ok().map(IpAddr::from),
    })
}

/// Returns the error for a missing rule.
pub(crate) fn missing(what: String) -> Error {
    Error::new(Code::INTERNAL, what).details(REPAIR_HINT)
}
