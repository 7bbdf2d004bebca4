//! Masquerade rules, apart from the backend: the packets that they change, and a rule as both backends list it.

use std::net::IpAddr;

use cni::{Code, Error};
use linux::ip::Cidr;

/// The remedy if rules of an attached container are missing.
pub(crate) const REPAIR_HINT: &str = "something flushed the host's rules; `cnitool repair` restores them";

/// The packets of a container that are masqueraded: from its addresses to destinations outside of their networks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic<'a> {
    /// The addresses, with the prefixes of their networks.
    pub(crate) ips: &'a [Cidr],
    /// More networks to which packets are not masqueraded, of both families.
    pub(crate) exclude: &'a [Cidr],
}

impl<'a> Traffic<'a> {
    /// Returns the excluded networks of the family of `ip`.
    pub(crate) fn excluded(&self, ip: IpAddr) -> impl Iterator<Item = Cidr> + use<'a> {
        self.exclude.iter().copied().filter(move |net| net.ip().is_ipv4() == ip.is_ipv4())
    }
}

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

/// Returns the error for a missing rule.
pub(crate) fn missing(what: String) -> Error {
    Error::new(Code::INTERNAL, what).details(REPAIR_HINT)
}

/// Returns the error for rules that masquerade other traffic than the configuration says.
pub(crate) fn outdated(what: String) -> Error {
    Error::new(Code::INTERNAL, what)
        .details("key \"ipMasqExclude\" was changed after ADD; `cnitool repair` adapts the rules")
}
