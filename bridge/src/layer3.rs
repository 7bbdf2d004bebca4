//! Layer 3: addresses and routes in the container, the gateway and IP forwarding on the host.

use std::net::IpAddr;
use std::time::Duration;

use cni::{Code, Context, Error, Guest, Namespaces, Result, key};
use linux::ip::Cidr;
use linux::netlink::{Address, Change, DuplicateDetection, Event, Link, LinkChange, Netlink, Watch};
use linux::sysctl::{self, Setting, set_best_effort};
use linux::{Deadline, Kind};

use crate::attach::ContainerVeth;
use crate::config::Config;
use crate::gateway::{self, Plan};

/// How long duplicate address detection may take. It usually takes one to two seconds.
const DETECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Attempts to set the gateway addresses while other programs change the addresses of the link.
const ATTEMPTS: u32 = 5;

/// Adds the addresses and routes of the container, and announces the addresses to its neighbours.
pub(crate) fn configure_container(
    container: &mut ContainerVeth<'_>,
    namespaces: &Namespaces,
    plan: &Plan,
    config: &Config,
) -> Result<()> {
    let ContainerVeth { guest: Guest { netlink, at }, index, mac } = container;
    let (index, ifname) = (*index, at.ifname.as_str());
    let v6: Vec<_> = plan.ips.iter().map(|ip| ip.address.ip()).filter(IpAddr::is_ipv6).collect();
    let watch = match v6.as_slice() {
        [] => None,
        _ => Some(namespaces.in_guest(|| {
            enable_ipv6(ifname)?;
            Ok(Watch::open(Event::Ipv6Address)?)
        })?),
    };
    let detection = match config.detect_duplicates {
        true => DuplicateDetection::Default,
        false => DuplicateDetection::Off,
    };
    let mut changes = Vec::new();
    for ip in &plan.ips {
        changes.push(Change::add_address(index, ip.address, detection));
    }
    for route in plan.kernel_routes() {
        changes.push(Change::add_route(index, &(&route).into()));
    }
    // Setting the MAC address again makes the kernel announce all addresses of the link (arp_notify, ndisc_notify).
    // Its announcements when the link came up were lost, because the port did not forward yet. A neighbour that
    // remembers the former owner of an address would send to that one until its entry expires.
    let announce = LinkChange { mac: Some(*mac), ..LinkChange::default() };
    changes.push(Change::set_link(index, &announce));
    let configured = || format!("configure {ifname:?} in {:?}", at.sandbox());
    let Some(mut watch) = watch else {
        return netlink.apply(&changes).context(configured);
    };
    let have = netlink.apply_and_list(index, &changes).context(configured)?;
    let deadline = Deadline::after(DETECTION_TIMEOUT);
    watch.await_addresses(index, v6, deadline)?;
    if !config.detect_duplicates && detection_finished(&have)? {
        return Ok(());
    }
    watch.wait_for("IPv6 addresses to be free of duplicates", deadline, || {
        Ok(detection_finished(&netlink.addresses(index)?)?.then_some(()))
    })?;
    Ok(())
}

/// Enables or disables duplicate address detection on an interface that is still down.
pub(crate) fn prepare_ipv6(ifname: &str, detect_duplicates: bool) {
    let key = |name| ["net", "ipv6", "conf", ifname, name];
    if detect_duplicates {
        set_best_effort(&key("enhanced_dad"), "1");
    }
    set_best_effort(&key("accept_dad"), if detect_duplicates { "1" } else { "0" });
}

/// Enables IPv6 on `lo` and the container veth, so that addresses can be added. Runs in the container namespace.
fn enable_ipv6(ifname: &str) -> Result<()> {
    for link in ["lo", ifname] {
        match sysctl::set(&["net", "ipv6", "conf", link, "disable_ipv6"], "0")? {
            Setting::ReadOnly => {
                let what = format!("IPv6 is disabled on {link:?}, and /proc/sys is read-only");
                let error = Error::new(Code::INTERNAL, what);
                return Err(error.details("set net.ipv6.conf.default.disable_ipv6=0 for the container"));
            }
            Setting::Missing if sysctl::read(&["net", "ipv6", "conf", "all", "disable_ipv6"])?.is_none() => {
                return Err(no_ipv6());
            }
            Setting::Kept | Setting::Changed | Setting::Missing => {}
        }
    }
    // IPv6 addresses should stay when the link goes down for a moment, as IPv4 addresses do.
    set_best_effort(&["net", "ipv6", "conf", ifname, "keep_addr_on_down"], "1");
    set_best_effort(&["net", "ipv6", "conf", ifname, "ndisc_notify"], "1");
    Ok(())
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

/// The sysctls that enable IP forwarding, and whether they are for IPv4.
const FORWARDING: [(&[&str], bool); 2] =
    [(&["net", "ipv4", "ip_forward"], true), (&["net", "ipv6", "conf", "all", "forwarding"], false)];

/// Enables IP forwarding for the families that have a gateway.
pub(crate) fn enable_forwarding(plan: &Plan) -> Result<()> {
    for (key, v4) in FORWARDING {
        if !plan.gateways.iter().any(|gateway| gateway.ip().is_ipv4() == v4) {
            continue;
        }
        match sysctl::set(key, "1")? {
            Setting::Kept | Setting::Changed => {}
            Setting::Missing if !v4 => return Err(no_ipv6()),
            Setting::Missing | Setting::ReadOnly => return Err(cannot_forward(key)),
        }
    }
    Ok(())
}

/// STATUS: returns an error if IP forwarding is off and cannot be enabled. The kernel may lack IPv6.
pub(crate) fn forwarding_status() -> Result<()> {
    for (key, v4) in FORWARDING {
        match sysctl::read(key) {
            Ok(Some(value)) if value == "1" => {}
            Ok(None) | Err(_) if !v4 => {}
            _ => sysctl::check_writable(key).map_err(|error| cannot_forward(key).details(error.to_string()))?,
        }
    }
    Ok(())
}

/// Returns the error for an IPv6 address on a kernel without IPv6.
fn no_ipv6() -> Error {
    let remedy = "boot it without ipv6.disable=1, or use only IPv4 addresses in the network";
    Error::new(Code::INTERNAL, "this kernel has no IPv6").details(remedy)
}

/// Returns the error for a sysctl that cannot be set.
fn cannot_forward(key: &[&str]) -> Error {
    let key = key.join(".");
    Error::new(Code::INTERNAL, format!("{key} is not 1, and cannot be set"))
        .details(format!("run `sysctl -w {key}=1` on the host, or give the plugin a writable /proc/sys"))
}
