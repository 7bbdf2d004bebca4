//! IPv6 on the container's interface: the kernel follows router advertisements, adds the routes to routers, and makes
//! addresses (SLAAC). The plugin only lets it do so, and waits for the outcome.

use std::net::IpAddr;
use std::time::Duration;

use cni::{Attachment, Call, Code, Context, Error, Guest, IpConfig, Namespaces, Result};
use interface::container::{enable_ipv6, no_ipv6};
use linux::Deadline;
use linux::netlink::{Address, Change, Event, LinkChange, LinkIndex, Netlink, Watch};
use linux::sysctl::{self, Setting};

use crate::config::{Config, Ipv6};

/// How long an address may take: the kernel looks for a duplicate of its link-local address first, for up to two
/// seconds, and then solicits routers at once, after 4 and after 12 seconds.
const TIMEOUT: Duration = Duration::from_secs(20);
/// How long a router may take after a DHCPv6 server has answered. It has been solicited at the same time, and waits
/// half a second at most.
const ROUTER_TIMEOUT: Duration = Duration::from_secs(2);

/// The container's interface.
#[derive(Debug)]
pub(crate) struct Advertised<'a> {
    guest: Guest<'a>,
    index: LinkIndex,
    /// Receive a notification when an address or a route changes.
    addresses: Watch,
    routes: Watch,
    /// Whether the router becomes the gateway.
    has_gateway: bool,
}

impl<'a> Advertised<'a> {
    /// Opens the interface.
    pub(crate) fn open(call: &Call<'_>, at: &'a Attachment, config: &Config) -> Result<Advertised<'a>> {
        let namespaces = Namespaces::open(call, at)?;
        Advertised::open_in(&namespaces, at, config)
    }

    fn open_in(namespaces: &Namespaces, at: &'a Attachment, config: &Config) -> Result<Advertised<'a>> {
        let (mut guest, addresses, routes) = namespaces.in_guest(|| {
            Ok((Guest::open_here(at)?, Watch::open(Event::Ipv6Address)?, Watch::open(Event::Ipv6Route)?))
        })?;
        let link = guest.interface().map_err(|error| error.details("a plugin that creates it must call dhcp"))?;
        Ok(Advertised { guest, index: link.index, addresses, routes, has_gateway: !config.settings.ignore_gateway })
    }

    /// Makes the kernel follow router advertisements, and sets the interface up.
    pub(crate) fn start(call: &Call<'_>, at: &'a Attachment, config: &Config) -> Result<Advertised<'a>> {
        let namespaces = Namespaces::open(call, at)?;
        let mut interface = Advertised::open_in(&namespaces, at, config)?;
        let is_up = interface.guest.interface()?.up;
        let ifname = at.ifname.as_str();
        namespaces.in_guest(|| {
            let changed = [
                require(ifname, "accept_ra", &["2", "1"])?,
                config.ipv6 == Some(Ipv6::Slaac) && require(ifname, "autoconf", &["1"])?,
                !interface.has_gateway && require(ifname, "accept_ra_defrtr", &["0"])?,
            ];
            if is_up && changed.contains(&true) {
                // Otherwise the kernel would wait for the next advertisement, which may take minutes.
                sysctl::set(&["net", "ipv6", "conf", ifname, "disable_ipv6"], "1")?;
            }
            enable_ipv6(ifname)
        })?;
        if !is_up {
            let up = LinkChange { up: Some(true), ..LinkChange::default() };
            interface.guest.netlink.apply(&[Change::set_link(interface.index, &up)])?;
        }
        Ok(interface)
    }

    /// Waits until the kernel has made addresses, and returns them.
    pub(crate) fn await_addresses(&mut self) -> Result<Vec<IpConfig>> {
        let what = "an address from a router advertisement";
        let found = self.await_state(what, |addresses| {
            let made: Vec<Address> = addresses.into_iter().filter(is_advertised).collect();
            // One advertisement can have several prefixes.
            let is_complete = !made.iter().any(|address| address.tentative && !address.duplicate);
            (is_complete && made.iter().any(is_usable)).then_some(made)
        });
        let found = found.map_err(|error| {
            error.details_if(
                |error| error.code() == Code::TRY_LATER,
                "is there a router on this network that advertises a prefix for addresses (flag A)?",
            )
        })?;
        let gateway = self.gateway()?;
        let ip = |address: &Address| IpConfig { address: address.cidr, gateway, interface: None };
        Ok(found.iter().filter(|address| is_usable(address)).map(ip).collect())
    }

    /// Waits until the interface has a link-local address, which a DHCPv6 client needs.
    pub(crate) fn await_link_local(&mut self) -> Result<()> {
        let is_ready = |address: &Address| !address.global && is_usable(address);
        let found = self.await_state("a link-local address", |addresses| addresses.iter().any(is_ready).then_some(()));
        found.map_err(|error| error.details_if(|error| error.code() == Code::TRY_LATER, "has the interface a carrier?"))
    }

    /// Waits until `look` finds something in the IPv6 addresses of the interface.
    fn await_state<T>(&mut self, what: &str, look: impl Fn(Vec<Address>) -> Option<T>) -> Result<T> {
        let Advertised { guest: Guest { netlink, at }, index, addresses, .. } = self;
        let found = addresses.wait_for(what, Deadline::after(TIMEOUT), || Ok(look(netlink.ipv6_addresses(*index)?)));
        found.context(|| format!("configure IPv6 of {:?} in {:?}", at.ifname.as_str(), at.sandbox()))
    }

    /// Waits a moment for a router, and returns it if there is one.
    pub(crate) fn await_gateway(&mut self) -> Result<Option<IpAddr>> {
        if !self.has_gateway {
            return Ok(None);
        }
        let Advertised { guest: Guest { netlink, .. }, index, routes, .. } = self;
        let found = routes.wait_for("a router", Deadline::after(ROUTER_TIMEOUT), || router(netlink, *index));
        match found.map_err(Error::from) {
            Err(error) if error.code() == Code::TRY_LATER => Ok(None),
            found => found.map(Some),
        }
    }

    /// Returns the router by which the kernel leaves the network.
    fn gateway(&mut self) -> Result<Option<IpAddr>> {
        if !self.has_gateway {
            return Ok(None);
        }
        Ok(router(&mut self.guest.netlink, self.index)?)
    }

    /// CHECK: compares the interface with what ADD waited for. The address may be another one by now.
    pub(crate) fn check(&mut self) -> Result<()> {
        let Advertised { guest: Guest { netlink, at }, index, .. } = self;
        if netlink.ipv6_addresses(*index)?.iter().any(|address| is_advertised(address) && is_usable(address)) {
            return Ok(());
        }
        let what = format!("{:?} in {:?} has no address from a router", at.ifname.as_str(), at.sandbox());
        Err(Error::new(Code::INTERNAL, what).details("check whether the router still advertises its prefix"))
    }
}

/// Returns the router by which the kernel leaves the network of a link.
fn router(netlink: &mut Netlink, link: LinkIndex) -> linux::Result<Option<IpAddr>> {
    let mut routes = netlink.routes(link)?.into_iter();
    Ok(routes.find(|route| route.is_advertised && route.route.dst.is_default()).and_then(|route| route.route.gw))
}

/// Returns whether the kernel made the address: all others stay until they are deleted.
fn is_advertised(address: &Address) -> bool {
    address.global && !address.permanent
}

fn is_usable(address: &Address) -> bool {
    !address.tentative && !address.duplicate
}

/// Makes a setting of an interface one of these values, the first unless it has another one already. Returns whether it
/// changed.
fn require(ifname: &str, name: &str, values: &[&str]) -> Result<bool> {
    let key = ["net", "ipv6", "conf", ifname, name];
    let Some(&first) = values.first() else { return Ok(false) };
    match sysctl::set(&key, first)? {
        Setting::Kept => Ok(false),
        Setting::Changed => Ok(true),
        Setting::Missing => Err(no_ipv6()),
        Setting::ReadOnly if sysctl::read(&key)?.is_some_and(|value| values.contains(&value.as_str())) => Ok(false),
        Setting::ReadOnly => {
            let what = format!("set {name} of {ifname:?} to {first}: /proc/sys is read-only");
            Err(Error::new(Code::INTERNAL, what).details("remove \"ipam.ipv6\", or mount /proc/sys writable"))
        }
    }
}
