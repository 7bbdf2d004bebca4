//! Masquerade rules, apart from the backend: the packets that they change, and a rule as both backends list it.

use std::net::IpAddr;

use cni::{Code, Error};
use linux::ip::Cidr;

/// The remedy if rules of an attached container are missing.
pub(super) const REPAIR_HINT: &str = "something flushed the host's rules; `cnitool repair` restores them";

/// The packets of a container that are masqueraded: from its addresses to destinations outside of their networks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traffic<'a> {
    /// The addresses, with the prefixes of their networks.
    pub(super) ips: &'a [Cidr],
    /// More networks to which packets are not masqueraded, of both families.
    pub(super) exclude: &'a [Cidr],
}

impl<'a> Traffic<'a> {
    /// Returns the excluded networks of the family of `ip`.
    pub(super) fn excluded(&self, ip: IpAddr) -> impl Iterator<Item = Cidr> + use<'a> {
        self.exclude.iter().copied().filter(move |net| net.ip().is_ipv4() == ip.is_ipv4())
    }
}

/// A rule that masquerades the packets of one container address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedMasquerade {
    /// The container's address.
    pub(super) source: Option<IpAddr>,
    /// Whether it is a rule of iptables.
    pub(super) iptables: bool,
    /// The comment, which names the owner. Long IDs may be truncated.
    pub(super) comment: String,
}

impl ListedMasquerade {
    /// Returns the readable part of the comment, without the mark.
    pub(super) fn about(&self) -> &str {
        match self.comment.split_once(", net: ") {
            Some((_, about)) if !self.iptables => about,
            _ => &self.comment,
        }
    }

    /// Returns the mark that identifies the owner: one of those in [`cni::inspect::Marks`].
    pub(super) fn mark(&self) -> &str {
        match self.iptables {
            true => &self.comment,
            false => self.comment.split_once(',').map_or(self.comment.as_str(), |(mark, _)| mark),
        }
    }
}

/// Returns the error for a missing rule.
pub(super) fn missing(what: String) -> Error {
    Error::new(Code::INTERNAL, what).details(REPAIR_HINT)
}

/// Returns the error for rules that masquerade other traffic than the configuration says.
pub(super) fn outdated(what: String) -> Error {
    Error::new(Code::INTERNAL, what)
        .details("key \"ipMasqExclude\" was changed after ADD; `cnitool repair` adapts the rules")
}
