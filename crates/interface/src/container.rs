//! The interface in the container: addresses, routes, IPv6 settings, and their announcement.

use std::net::IpAddr;
use std::time::Duration;

use cni::{Code, Context, Error, Guest, Namespaces, Result};
use linux::ip::{Cidr, MacAddr};
use linux::netlink::{Address, Change, DuplicateDetection, Event, LinkChange, LinkIndex, Watch};
use linux::sysctl::{self, Setting, set_best_effort};
use linux::{Deadline, Kind};

use crate::plan::AddressPlan;

/// How long duplicate address detection may take. It usually takes one to two seconds.
pub const DETECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// The interface in the container, with a netlink socket in its namespace.
#[derive(Debug)]
pub struct ContainerInterface<'a> {
    /// The socket.
    pub guest: Guest<'a>,
    /// The interface.
    pub index: LinkIndex,
    /// The MAC address; `None` if the interface has no neighbours that it must announce its addresses to.
    pub mac: Option<MacAddr>,
    /// Whether IPv6 addresses are used only after duplicate address detection.
    pub detects_duplicates: bool,
    /// Whether the interface is up already.
    pub state: State,
}

/// The state of an interface before it is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is up.
    Up,
    /// It is down. It is set up when it has its addresses: then the kernel announces them.
    Down {
        /// Whether it will be able to send then. Without a carrier, IPv6 addresses are not ready before it has one.
        has_carrier: bool,
    },
}

impl ContainerInterface<'_> {
    /// Changes properties of the link.
    pub fn set(&mut self, change: &LinkChange<'_>) -> Result<()> {
        Ok(self.guest.netlink.apply(&[Change::set_link(self.index, change)])?)
    }

    /// Adds the addresses and routes, and announces the addresses to the neighbours.
    pub fn configure(&mut self, namespaces: &Namespaces, plan: &AddressPlan) -> Result<()> {
        let (index, mac, state) = (self.index, self.mac, self.state);
        let detection = match self.detects_duplicates {
            true => DuplicateDetection::Default,
            false => DuplicateDetection::Off,
        };
        let missing = self.missing_addresses(plan)?;
        let mut changes = Vec::new();
        for address in &missing {
            changes.push(Change::add_address(index, *address, detection));
        }
        if state != State::Up {
            changes.push(Change::set_link(index, &LinkChange { up: Some(true), ..LinkChange::default() }));
        }
        for route in plan.kernel_routes() {
            changes.push(Change::add_route(index, &(&route).into()));
        }
        // Setting the MAC address again makes the kernel announce all addresses of the link (arp_notify, ndisc_notify).
        // Its announcements when the link came up were lost, because the link had no addresses or its port did not
        // forward yet. A neighbour that remembers the former owner of an address would send to that one until its entry
        // expires.
        if mac.is_some() {
            changes.push(Change::set_link(index, &LinkChange { mac, ..LinkChange::default() }));
        }
        self.apply(namespaces, &missing, &changes)
    }

    /// Returns the addresses of the plan that the interface lacks. One that the kernel made from a router advertisement
    /// keeps its lifetime: it must go when the router says so.
    fn missing_addresses(&mut self, plan: &AddressPlan) -> Result<Vec<Cidr>> {
        let mut addresses = plan.addresses();
        if plan.is_advertised && addresses.iter().any(|address| address.ip().is_ipv6()) {
            let have = self.guest.netlink.ipv6_addresses(self.index)?;
            addresses.retain(|address| !have.iter().any(|have| have.cidr == *address && !have.permanent));
        }
        Ok(addresses)
    }

    /// Applies changes that add addresses, and waits until the addresses are ready.
    pub fn apply(&mut self, namespaces: &Namespaces, addresses: &[Cidr], changes: &[Change<'_>]) -> Result<()> {
        let ContainerInterface { guest: Guest { netlink, at }, index, detects_duplicates, state, .. } = self;
        let (index, ifname) = (*index, at.ifname.as_str());
        let v6: Vec<_> = addresses.iter().map(Cidr::ip).filter(IpAddr::is_ipv6).collect();
        let watch = match v6.as_slice() {
            [] => None,
            _ => Some(namespaces.in_guest(|| {
                enable_ipv6("lo")?;
                enable_ipv6(ifname)?;
                // IPv6 addresses should stay when the link goes down for a moment, as IPv4 addresses do.
                set_best_effort(&["net", "ipv6", "conf", ifname, "keep_addr_on_down"], "1");
                set_best_effort(&["net", "ipv6", "conf", ifname, "ndisc_notify"], "1");
                Ok(Watch::open(Event::Ipv6Address)?)
            })?),
        };
        let configured = || format!("configure {ifname:?} in {:?}", at.sandbox());
        let Some(mut watch) = watch.filter(|_| *state != State::Down { has_carrier: false }) else {
            return netlink.apply(changes).context(configured);
        };
        netlink.apply(changes).context(configured)?;
        let deadline = Deadline::after(DETECTION_TIMEOUT);
        watch.await_addresses(index, v6, deadline)?;
        // The kernel may still look for a duplicate of the link-local address, which no packet of the container waits
        // for.
        if !*detects_duplicates {
            return Ok(());
        }
        watch.wait_for("IPv6 addresses to be free of duplicates", deadline, || {
            Ok(detection_finished(&netlink.addresses(index)?)?.then_some(()))
        })?;
        Ok(())
    }
}

/// Enables or disables duplicate address detection on an interface that is still down.
pub fn prepare_ipv6(ifname: &str, detect_duplicates: bool) {
    let key = |name| ["net", "ipv6", "conf", ifname, name];
    if detect_duplicates {
        set_best_effort(&key("enhanced_dad"), "1");
    }
    set_best_effort(&key("accept_dad"), if detect_duplicates { "1" } else { "0" });
}

/// Enables IPv6 on a link, so that addresses can be added. Runs in the namespace of the link.
pub fn enable_ipv6(link: &str) -> Result<()> {
    match sysctl::set(&["net", "ipv6", "conf", link, "disable_ipv6"], "0")? {
        Setting::ReadOnly => {
            let what = format!("IPv6 is disabled on {link:?}, and /proc/sys is read-only");
            let error = Error::new(Code::INTERNAL, what);
            Err(error.details("set net.ipv6.conf.default.disable_ipv6=0 for the container"))
        }
        Setting::Missing if sysctl::read(&["net", "ipv6", "conf", "all", "disable_ipv6"])?.is_none() => Err(no_ipv6()),
        Setting::Kept | Setting::Changed | Setting::Missing => Ok(()),
    }
}

/// Makes the container follow router advertisements, also if it forwards packets, or ignore them. Runs in the namespace
/// of a link that is still down.
pub fn accept_ra(link: &str, accept: bool) -> Result<()> {
    let setting = sysctl::set(&["net", "ipv6", "conf", link, "accept_ra"], if accept { "2" } else { "0" })?;
    match setting {
        Setting::ReadOnly => {
            let what = format!("set \"acceptRa\": /proc/sys is read-only, and accept_ra of {link:?} has another value");
            Err(Error::new(Code::INTERNAL, what).details("remove \"acceptRa\", or mount /proc/sys writable"))
        }
        Setting::Missing if accept => Err(no_ipv6()),
        Setting::Kept | Setting::Changed | Setting::Missing => Ok(()),
    }
}

/// Returns whether duplicate address detection has finished, or an error if it found a duplicate.
fn detection_finished(addresses: &[Address]) -> linux::Result<bool> {
    if let Some(duplicate) = addresses.iter().find(|address| address.duplicate) {
        let what = format!("another interface on the link has the address {}", duplicate.cidr);
        let error = linux::Error::new(Kind::Other, what);
        return Err(error.details("remove the address there, or remove \"enabledad\""));
    }
    Ok(!addresses.iter().any(|address| address.tentative))
}

/// Returns the error for an IPv6 address on a kernel without IPv6.
pub fn no_ipv6() -> Error {
    let remedy = "boot it without ipv6.disable=1, or use only IPv4 addresses in the network";
    Error::new(Code::INTERNAL, "this kernel has no IPv6").details(remedy)
}
