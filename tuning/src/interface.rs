//! The interface in the container, and the host veth that leads to it.

use cni::json::invalid;
use cni::{Attachment, Context, Error, Guest, Result};
use linux::Netns;
use linux::ip::IPV6_MIN_MTU;
use linux::log::warn;
use linux::netlink::{Change, Link, LinkChange, Netlink};
use linux::sysctl::{self, Sysctl};
use serde::{Deserialize, Serialize};

use crate::attributes::Attributes;

/// What distinguishes an interface from all others, also from later ones with the same name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Identity {
    /// The boot, because the other numbers start again.
    pub(crate) boot: String,
    pub(crate) netns: String,
    pub(crate) link: u32,
}

impl Identity {
    /// Returns the identity of a link in the namespace of the socket.
    fn of(link: &Link, netlink: &Netlink, netns: &Netns) -> Result<Identity> {
        let netns = match netlink.netns_cookie()? {
            Some(cookie) => format!("cookie {cookie}"),
            None => format!("inode {}", netns.inode()?),
        };
        let boot = sysctl::read(&["kernel", "random", "boot_id"])?.unwrap_or_default();
        Ok(Identity { boot, netns, link: link.index.number() })
    }
}

/// An interface, with a netlink socket in its namespace.
#[derive(Debug)]
pub(crate) struct Interface {
    pub(crate) netlink: Netlink,
    pub(crate) link: Link,
    pub(crate) identity: Identity,
}

impl Interface {
    /// Finds the interface of an attachment in the namespace of this thread, which is `netns`.
    pub(crate) fn find(at: &Attachment, netns: &Netns) -> Result<Option<Interface>> {
        let mut guest = Guest::open_here(at)?;
        let Some(link) = guest.find_interface()? else { return Ok(None) };
        Interface::new(guest, link, netns).map(Some)
    }

    /// Finds the interface, which must exist.
    pub(crate) fn require(at: &Attachment, netns: &Netns) -> Result<Interface> {
        let mut guest = Guest::open_here(at)?;
        let link = guest.interface()?;
        Interface::new(guest, link, netns)
    }

    fn new(guest: Guest<'_>, link: Link, netns: &Netns) -> Result<Interface> {
        let identity = Identity::of(&link, &guest.netlink, netns)?;
        Ok(Interface { netlink: guest.netlink, link, identity })
    }

    /// Returns the host veth, if the interface is a veth whose other end is provably in the plugin's own namespace.
    pub(crate) fn host_veth(&mut self, host: &mut Netlink, home: &Netns) -> Result<Option<Link>> {
        let link = &self.link;
        let Some(peer) = link.lower.filter(|_| link.kind == "veth") else { return Ok(None) };
        // An index counts only in its own namespace.
        if link.lower_netns.is_none() || link.lower_netns != self.netlink.netns_id(home)? {
            return Ok(None);
        }
        let found = host.link(peer)?;
        Ok(found.filter(|found| found.kind == "veth" && found.lower == Some(link.index)))
    }

    /// Returns an error if the interface cannot have the attributes, or would lose its IPv6 addresses.
    pub(crate) fn validate(&mut self, wanted: Attributes) -> Result<()> {
        let Some(mtu) = wanted.mtu else { return Ok(()) };
        let Link { name, min_mtu, max_mtu, .. } = &self.link;
        if mtu < *min_mtu || (*max_mtu != 0 && mtu > *max_mtu) {
            let what = format_args!("interface {name:?} cannot have the MTU {mtu}");
            return Err(invalid("mtu", what, format!("use a number {}", self.mtu_range())));
        }
        if mtu < IPV6_MIN_MTU {
            let addresses = self.netlink.ipv6_addresses(self.link.index)?;
            if let Some(address) = addresses.iter().find(|address| address.global) {
                let what = format_args!("the MTU {mtu} is too small for the IPv6 address {} of {name:?}", address.cidr);
                return Err(invalid("mtu", what, format!("use at least {IPV6_MIN_MTU}, or only IPv4 addresses")));
            }
        }
        Ok(())
    }

    fn mtu_range(&self) -> String {
        match self.link.max_mtu {
            0 => format!("from {}", self.link.min_mtu),
            max => format!("from {} to {max}", self.link.min_mtu),
        }
    }

    /// Changes the attributes with one message.
    pub(crate) fn set(&mut self, wanted: Attributes) -> Result<()> {
        let announcement = wanted.mac.map(|_| Announcement::start(&self.link.name));
        let outcome = self.netlink.apply(&[Change::set_link(self.link.index, &wanted.change())]);
        drop(announcement);
        outcome.context(|| format!("tune interface {:?}", self.link.name)).map_err(|error| {
            let texts: Vec<String> =
                wanted.values().map(|(key, value)| format!("key {key:?} with the value {value}")).collect();
            let error = error.details(format!("the kernel refuses one of: {}", texts.join(", ")));
            self.explain(wanted, error)
        })
    }

    /// Adds the remedy to the kernel's error.
    fn explain(&self, wanted: Attributes, error: Error) -> Error {
        match error.errno() {
            Some(libc::EINVAL | libc::ERANGE) if wanted.mtu.is_some() => error.details(format!(
                "an MTU is {} here, and at most that of the device on which the interface is based",
                self.mtu_range()
            )),
            Some(libc::EBUSY) if wanted.mac.is_some() => {
                error.details("the driver cannot change the MAC address of an interface that is up")
            }
            _ => error,
        }
    }
}

/// Sets the MTU of a link on the host.
pub(crate) fn set_mtu(host: &mut Netlink, link: &Link, mtu: u32) -> Result<()> {
    let change = LinkChange { mtu: Some(mtu), ..LinkChange::default() };
    host.apply(&[Change::set_link(link.index, &change)]).context(|| format!("set the MTU of host veth {:?}", link.name))
}

/// Makes the kernel announce the addresses of a link when its MAC address changes. Neighbours would otherwise send to
/// the former address until their entries expire. The settings are restored at the end.
struct Announcement(Vec<Sysctl>);

impl Announcement {
    fn start(link: &str) -> Announcement {
        let keys = [["net", "ipv4", "conf", link, "arp_notify"], ["net", "ipv6", "conf", link, "ndisc_notify"]];
        // The kernel may lack IPv6.
        let settings = keys.iter().filter_map(|key| Sysctl::open(key).ok());
        let mut changed = Vec::new();
        for setting in settings.filter(|setting| setting.value() == Some("0")) {
            match setting.write("1") {
                Ok(()) => changed.push(setting),
                Err(error) => warn!("the new MAC address of {link:?} is not announced: {error}"),
            }
        }
        Announcement(changed)
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        for setting in &self.0 {
            if let Err(error) = setting.restore() {
                warn!("a setting for announcements stays: {error}");
            }
        }
    }
}
