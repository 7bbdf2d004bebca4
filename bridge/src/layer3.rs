//! Layer 3 on the host: the gateway.

use std::net::IpAddr;

use cni::{Code, Context, Error, Result, key};
use interface::container::DETECTION_TIMEOUT;
use linux::Deadline;
use linux::ip::Cidr;
use linux::netlink::{Address, Change, DuplicateDetection, Event, Link, LinkChange, Netlink, Watch};
use linux::sysctl;

use crate::gateway;

/// Attempts to set the gateway addresses while other programs change the addresses of the link.
const ATTEMPTS: u32 = 5;

/// A link that gets gateway addresses: the bridge, or the interface of a VLAN.
pub(crate) struct Gateway<'a> {
    pub(crate) link: &'a Link,
    /// The addresses that the link should have.
    pub(crate) addresses: &'a [Cidr],
    /// Whether conflicting addresses are removed.
    pub(crate) replaces_others: bool,
    /// The network, which marks the addresses.
    pub(crate) network: &'a str,
}

impl Gateway<'_> {
    /// Adds the addresses. `have` are the current addresses of the link, of at least the families of the gateways.
    pub(crate) fn ensure_addresses(&self, host: &mut Netlink, mut have: Vec<Address>) -> Result<()> {
        let link = self.link;
        for _ in 0..ATTEMPTS {
            let needed = gateway::compare(&link.name, &have, self.addresses, self.replaces_others)?;
            if needed.missing.is_empty() && needed.conflicting.is_empty() {
                return Ok(());
            }
            let mut changes = Vec::new();
            for address in &needed.conflicting {
                changes.push(Change::delete_address(link.index, *address));
            }
            for address in &needed.missing {
                // No duplicate detection: the network belongs to this host, and the container may use its gateway at
                // once.
                let mark = key::address_mark(self.network);
                changes.push(Change::add_marked_address(link.index, *address, DuplicateDetection::Off, mark));
            }
            // The MAC address of a gateway must not change when ports come and go. Setting it makes it permanent.
            changes.push(Change::set_link(link.index, &LinkChange { mac: link.mac, ..LinkChange::default() }));
            let mut watch = Watch::open(Event::Ipv6Address)?;
            match host.apply(&changes) {
                Ok(()) => {
                    let v6 = needed.missing.iter().map(Cidr::ip).filter(IpAddr::is_ipv6);
                    watch.await_addresses(link.index, v6, Deadline::after(DETECTION_TIMEOUT))?;
                    return Ok(());
                }
                // Another ADD has changed one or all of the addresses meanwhile.
                Err(error) if matches!(error.errno(), Some(libc::EEXIST | libc::EADDRNOTAVAIL)) => {}
                Err(error) => {
                    let error = explain_refusal(&link.name, error.into());
                    return Err(error).context(|| format!("configure {:?} as the gateway", link.name));
                }
            }
            have = host.addresses(link.index)?;
        }
        let what = format!("the addresses of {:?} changed during each of {ATTEMPTS} attempts to set them", link.name);
        Err(Error::new(Code::TRY_LATER, what).details("check whether another program manages the bridge"))
    }
}

/// Adds the command that enables IPv6 to the kernel's error for an address, if IPv6 is disabled on the link.
fn explain_refusal(link: &str, error: Error) -> Error {
    let key = ["net", "ipv6", "conf", link, "disable_ipv6"];
    let is_disabled = || sysctl::read(&key).is_ok_and(|value| value.as_deref() == Some("1"));
    if error.errno() != Some(libc::EACCES) || !is_disabled() {
        return error;
    }
    // With slashes, because the name of a link may contain dots.
    let key = key.join("/");
    error.details(format!(
        "{key} is 1: run `sysctl -w {key}=0`, and set net.ipv6.conf.default.disable_ipv6=0 in /etc/sysctl.d for bridges \
         that are created later"
    ))
}
