//! What identifies a link, and the namespace of another link.

use std::fmt;
use std::num::NonZeroU32;

use crate::error::Result;
use crate::netlink::wire;

/// The kernel's index of a link, unique in its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkIndex(NonZeroU32);

impl LinkIndex {
    /// The loopback interface in every network namespace (LOOPBACK_IFINDEX).
    pub const LOOPBACK: LinkIndex = LinkIndex(NonZeroU32::MIN);

    pub(in crate::netlink) fn read(index: u32) -> Result<LinkIndex> {
        NonZeroU32::new(index).map(LinkIndex).ok_or_else(|| wire::malformed("a link without an index"))
    }

    /// Returns the index with this number; `None` for zero.
    pub fn optional(index: u32) -> Option<LinkIndex> {
        NonZeroU32::new(index).map(LinkIndex)
    }

    /// Returns the number, as messages and records have it.
    pub fn number(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Display for LinkIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// The kernel's ID of another namespace, as seen from the namespace of the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetnsId(u32);

impl NetnsId {
    /// Returns `None` for a negative number.
    pub(super) fn optional(id: u32) -> Option<NetnsId> {
        (id.cast_signed() >= 0).then_some(NetnsId(id))
    }

    /// Returns the number for a message.
    pub(in crate::netlink) fn number(self) -> u32 {
        self.0
    }
}

/// A link, identified by its index, or by its name where the index is not known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkRef<'a> {
    /// By index.
    Index(LinkIndex),
    /// By name.
    Name(&'a str),
    /// By a name beside its own one, which can be longer (Linux 5.5).
    AlternativeName(&'a str),
}

impl From<LinkIndex> for LinkRef<'_> {
    fn from(index: LinkIndex) -> Self {
        LinkRef::Index(index)
    }
}

impl<'a> From<&'a str> for LinkRef<'a> {
    fn from(name: &'a str) -> Self {
        LinkRef::Name(name)
    }
}

impl fmt::Display for LinkRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkRef::Index(index) => write!(f, "{index}"),
            LinkRef::Name(name) | LinkRef::AlternativeName(name) => write!(f, "{name:?}"),
        }
    }
}
