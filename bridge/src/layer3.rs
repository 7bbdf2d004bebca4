//! Layer 3: addresses and routes in the container, the gateway on the host.

use std::net::IpAddr;
use std::time::Duration;

use cni::ip::Cidr;
use cni::netlink::{Address, Change, DuplicateDetection, Event, Link, LinkChange, LinkIndex, Netlink, Watch};
use cni::sysctl::{self, Setting};
use cni::{Attachment, Code, Context, Deadline, Error, Result, key};

use crate::attach::{Pair, World, wish};
use crate::config::Config;
use crate::gateway::{self, Plan};

/// How long duplicate detection may take; the kernel's own takes one to two seconds.
const DETECTION: Duration = Duration::from_secs(10);
/// How often addresses are compared again because somebody changed them meanwhile.
const ATTEMPTS: u32 = 5;

/// The container's end, seen from inside.
#[derive(Debug)]
pub(crate) struct Guest<'a> {
    netlink: Netlink,
    link: LinkIndex,
    at: &'a Attachment,
}

impl<'a> Guest<'a> {
    /// Sets the container's end up. `prepare` runs inside the container before.
    pub(crate) fn bring_up(
        world: &World,
        pair: &Pair,
        at: &'a Attachment,
        change: &LinkChange<'_>,
        prepare: impl FnOnce(&str),
    ) -> Result<Guest<'a>> {
        let mut netlink = world.enter(|| prepare(at.ifname.as_str()))?;
        let link = pair.guest(&mut netlink, at)?;
        netlink.apply(&[Change::set_link(link, change)])?;
        Ok(Guest { netlink, link, at })
    }

    /// Gives the container its addresses and routes, and tells its neighbours.
    pub(crate) fn configure(&mut self, world: &World, pair: &Pair, plan: &Plan, config: &Config) -> Result<()> {
        let v6: Vec<_> = plan.ips.iter().map(|ip| ip.address.ip()).filter(IpAddr::is_ipv6).collect();
        let watch = match v6.as_slice() {
            [] => None,
            _ => Some(world.netns.run(&world.home, || {
                enable_ipv6(self.at.ifname.as_str())?;
                Watch::open(Event::Ipv6Address)
            })?),
        };
        let detection = match config.detect_duplicates {
            true => DuplicateDetection::Default,
            false => DuplicateDetection::Off,
        };
        let mut changes = Vec::new();
        for ip in &plan.ips {
            changes.push(Change::add_address(self.link, ip.address, detection));
        }
        for route in plan.kernel_routes() {
            changes.push(Change::add_route(self.link, &route));
        }
        // Saying the address again makes the kernel announce all of the link's addresses (arp_notify, ndisc_notify).
        // What it announced when the link came up was lost: then the port did not forward yet. Whoever remembers the
        // former owner of an address would miss the new one for as long as he believes himself.
        let announce = LinkChange { mac: Some(pair.mac), ..LinkChange::default() };
        changes.push(Change::set_link(self.link, &announce));
        let configured = || format!("configure {:?} in {:?}", self.at.ifname.as_str(), self.at.sandbox());
        let Some(mut watch) = watch else {
            return self.netlink.apply(&changes).trying(configured);
        };
        let have = self.netlink.apply_and_list(self.link, &changes).trying(configured)?;
        let deadline = Deadline::after(DETECTION);
        watch.await_addresses(self.link, v6, deadline)?;
        if !config.detect_duplicates && settled(&have)? {
            return Ok(());
        }
        watch.wait_for("IPv6 addresses to be free of duplicates", deadline, || {
            Ok(settled(&self.netlink.addresses(self.link)?)?.then_some(()))
        })
    }
}

/// Prepares IPv6 on an interface that is still down: no address is to be waited for, unless duplicates are looked for.
pub(crate) fn prepare_ipv6(ifname: &str, detect_duplicates: bool) {
    let key = |name| ["net", "ipv6", "conf", ifname, name];
    if detect_duplicates {
        wish(&key("enhanced_dad"), "1");
    }
    wish(&key("accept_dad"), if detect_duplicates { "1" } else { "0" });
}

/// Makes sure that IPv6 addresses can be given. Runs inside the container.
fn enable_ipv6(ifname: &str) -> Result<()> {
    for link in ["lo", ifname] {
        match sysctl::set(&["net", "ipv6", "conf", link, "disable_ipv6"], "0")? {
            Setting::ReadOnly => {
                let what = format!("IPv6 is disabled on {link:?}, and /proc/sys is read-only");
                let error = Error::new(Code::INTERNAL, what);
                return Err(error.details("set net.ipv6.conf.default.disable_ipv6=0 for the container"));
            }
            Setting::Missing if sysctl::read(&["net", "ipv6", "conf", "all", "disable_ipv6"])?.is_none() => {
                let error = Error::new(Code::INTERNAL, "this kernel has no IPv6");
                return Err(error.details("start it without ipv6.disable=1, or give the network IPv4 addresses only"));
            }
            Setting::Kept | Setting::Changed | Setting::Missing => {}
        }
    }
    // An address should outlive a link that goes down for a moment, as IPv4 ones do.
    wish(&["net", "ipv6", "conf", ifname, "keep_addr_on_down"], "1");
    wish(&["net", "ipv6", "conf", ifname, "ndisc_notify"], "1");
    Ok(())
}

/// Has duplicate detection finished?
fn settled(addresses: &[Address]) -> Result<bool> {
    if let Some(twice) = addresses.iter().find(|address| address.duplicate) {
        let what = format!("somebody else on the link has the address {}", twice.cidr);
        return Err(Error::new(Code::INTERNAL, what).details("free the address there, or leave \"enabledad\" out"));
    }
    Ok(!addresses.iter().any(|address| address.tentative))
}

/// Gives the host's side of the network its addresses. `have` are those it has of the families that matter.
pub(crate) fn ensure_gateways(
    host: &mut Netlink,
    link: &Link,
    mut have: Vec<Address>,
    plan: &Plan,
    config: &Config,
    network: &str,
) -> Result<()> {
    for _ in 0..ATTEMPTS {
        let wanted = gateway::compare(&link.name, &have, &plan.gateways, config.force_address)?;
        if wanted.missing.is_empty() && wanted.in_the_way.is_empty() {
            return Ok(());
        }
        let mut changes = Vec::new();
        for address in &wanted.in_the_way {
            changes.push(Change::delete_address(link.index, *address));
        }
        for address in &wanted.missing {
            // The network is ours: there is nobody to ask, and the container may talk to its gateway at once.
            let mark = key::address_mark(network);
            changes.push(Change::add_marked_address(link.index, *address, DuplicateDetection::Off, mark));
        }
        // Once it is a gateway, its hardware address must not follow those of its ports.
        changes.push(Change::set_link(link.index, &LinkChange { mac: link.mac, ..LinkChange::default() }));
        let mut watch = Watch::open(Event::Ipv6Address)?;
        match host.apply(&changes) {
            Ok(()) => {
                let v6 = wanted.missing.iter().map(Cidr::ip).filter(IpAddr::is_ipv6);
                return watch.await_addresses(link.index, v6, Deadline::after(DETECTION));
            }
            // Another ADD was faster, with one of them or with all.
            Err(error) if matches!(error.errno(), Some(libc::EEXIST | libc::EADDRNOTAVAIL)) => {}
            Err(error) => {
                let error = explain_refusal(&link.name, error);
                return Err(error).trying(|| format!("make {:?} the gateway", link.name));
            }
        }
        have = host.addresses(link.index)?;
    }
    let what = format!("the addresses of {:?} changed each of the {ATTEMPTS} times they were looked at", link.name);
    Err(Error::new(Code::TRY_LATER, what).details("does somebody else manage the bridge?"))
}

/// Adds to the kernel's refusal of an address how to enable IPv6 on the link, if it is disabled there.
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

/// The settings that let the host forward, per family.
const FORWARDING: [(&[&str], bool); 2] =
    [(&["net", "ipv4", "ip_forward"], true), (&["net", "ipv6", "conf", "all", "forwarding"], false)];

/// Lets the host forward packets of the families that have a gateway.
pub(crate) fn enable_forwarding(plan: &Plan) -> Result<()> {
    for (key, v4) in FORWARDING {
        if !plan.gateways.iter().any(|gateway| gateway.ip().is_ipv4() == v4) {
            continue;
        }
        match sysctl::set(key, "1")? {
            Setting::Kept | Setting::Changed => {}
            Setting::Missing | Setting::ReadOnly => return Err(cannot_forward(key)),
        }
    }
    Ok(())
}

/// STATUS: is forwarding on, or could it be? IPv6 may be missing as a whole.
pub(crate) fn forwarding_status() -> Result<()> {
    for (key, v4) in FORWARDING {
        match sysctl::read(key) {
            Ok(Some(value)) if value == "1" => {}
            Ok(None) | Err(_) if !v4 => {}
            _ => sysctl::can_be_set(key).map_err(|error| cannot_forward(key).details(error.to_string()))?,
        }
    }
    Ok(())
}

fn cannot_forward(key: &[&str]) -> Error {
    let key = key.join(".");
    Error::new(Code::INTERNAL, format!("{key} is not 1, and cannot be set"))
        .details(format!("`sysctl -w {key}=1` on the host, or give the plugin a writable /proc/sys"))
}
