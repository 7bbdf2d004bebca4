//! The attributes of a link that can be tuned.

use std::fmt;

use linux::ip::MacAddr;
use linux::netlink::{Link, LinkChange};

/// Attributes of a link; `None` if an attribute is not tuned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) mac: Option<MacAddr>,
    pub(crate) promiscuous: Option<bool>,
    pub(crate) mtu: Option<u32>,
    pub(crate) all_multicast: Option<bool>,
    pub(crate) tx_queue: Option<u32>,
}

impl Attributes {
    /// Returns the attributes that a link has now, as far as `self` has them.
    pub(crate) fn of(self, link: &Link) -> Attributes {
        Attributes {
            mac: self.mac.and(link.mac),
            promiscuous: self.promiscuous.map(|_| link.promiscuous),
            mtu: self.mtu.map(|_| link.mtu),
            all_multicast: self.all_multicast.map(|_| link.all_multicast),
            tx_queue: self.tx_queue.map(|_| link.tx_queue),
        }
    }

    /// Returns these attributes, as far as `other` has them too.
    pub(crate) fn of_keys(self, other: Attributes) -> Attributes {
        Attributes {
            mac: other.mac.and(self.mac),
            promiscuous: other.promiscuous.and(self.promiscuous),
            mtu: other.mtu.and(self.mtu),
            all_multicast: other.all_multicast.and(self.all_multicast),
            tx_queue: other.tx_queue.and(self.tx_queue),
        }
    }

    /// Returns these attributes, and those of `other` that are missing here.
    pub(crate) fn or(self, other: Attributes) -> Attributes {
        Attributes {
            mac: self.mac.or(other.mac),
            promiscuous: self.promiscuous.or(other.promiscuous),
            mtu: self.mtu.or(other.mtu),
            all_multicast: self.all_multicast.or(other.all_multicast),
            tx_queue: self.tx_queue.or(other.tx_queue),
        }
    }

    /// Returns whether there is no attribute.
    pub(crate) fn is_empty(self) -> bool {
        self == Attributes::default()
    }

    /// Returns the change that gives a link these attributes, in one message.
    pub(crate) fn change(self) -> LinkChange<'static> {
        let Attributes { mac, promiscuous, mtu, all_multicast, tx_queue } = self;
        LinkChange { mac, promiscuous, mtu, all_multicast, tx_queue, ..LinkChange::default() }
    }

    /// Returns the attributes that have a value, each with the key of the configuration.
    pub(crate) fn values(self) -> impl Iterator<Item = (&'static str, String)> {
        let texts = [
            ("mac", self.mac.map(|mac| mac.to_string())),
            ("promisc", self.promiscuous.map(|on| on.to_string())),
            ("mtu", self.mtu.map(|mtu| mtu.to_string())),
            ("allmulti", self.all_multicast.map(|on| on.to_string())),
            ("txQLen", self.tx_queue.map(|length| length.to_string())),
        ];
        texts.into_iter().filter_map(|(key, text)| Some((key, text?)))
    }
}

impl fmt::Display for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.values().map(|(key, value)| format!("{key} {value}")).collect();
        f.write_str(&texts.join(", "))
    }
}
