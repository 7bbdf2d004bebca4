//! The `dhcp` plugin: addresses from a DHCP server. A daemon asks the server, renews the leases and gives them back;
//! the plugin only tells it what to do.
//!
//! - `config` validates the keys, and `settings` is what the client of a lease needs of them.
//! - `protocol` is what plugin and daemon say to each other, and `lease` the file of a lease.
//! - `client` decides what to send, whatever the family, and `terms` is what a server grants. `v4` and `v6` parse and
//!   write the messages, which `exchange` puts between them: all without I/O.
//! - `advertised` is IPv6 as routers advertise it. The kernel does that without the daemon.
//! - [`daemon`] has the loop, the namespaces and the sockets.
//! - `inspect` is for `cnitool`.

mod advertised;
mod client;
mod config;
pub mod daemon;
mod exchange;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod inspect;
mod lease;
mod protocol;
mod settings;
mod terms;
mod v4;
mod v6;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use cni::{
    AddResult, Attachment, Call, Code, Error, Ipam, Keep, Namespaces, Plugin, Prepared, Result, Rollback,
    ValidAttachment, report,
};
use linux::ip::Cidr;

use advertised::Advertised;
use config::{Config, Endpoint, Ipv6};
use lease::{Family, Key, Summary};
use protocol::{Command, Granted, Request, ask, is_ready};

/// Timeout of an ADD: longer than the daemon tries, and less than a plugin waits for its delegate.
const ADD_TIMEOUT: Duration = Duration::from_secs(235);
/// Timeout of a CHECK, for which the daemon may ask the server whether a lease that it does not know is valid.
const CHECK_TIMEOUT: Duration = Duration::from_secs(20);
/// Timeout of calls that the daemon answers at once.
const TIMEOUT: Duration = Duration::from_secs(4);

/// The `dhcp` plugin.
#[derive(Debug)]
pub struct Dhcp;

/// A validated ADD that has not changed anything yet.
#[derive(Debug)]
struct PreparedAdd<'a> {
    call: &'a Call<'a>,
    config: Config,
}

impl Prepared for PreparedAdd<'_> {
    fn add(&self, at: &Attachment) -> Result<AddResult> {
        let PreparedAdd { call, .. } = self;
        self.ask(at).map_err(|error| {
            // The daemon may have leased an address already: of one family, or without an answer that the plugin could
            // read. A delegating plugin calls no DEL. If the daemon was killed, the next one gives the address back.
            let daemon = Endpoint { starts_from: None, ..config::endpoint(call) };
            match ask(&daemon, &Request::new(Command::Del, Key::new(call, at)), TIMEOUT) {
                Err(stuck) if stuck.code() != Code::TRY_LATER => error.details(stuck.to_string()),
                _ => error,
            }
        })
    }
}

impl PreparedAdd<'_> {
    /// Asks for addresses: first of IPv4, while the kernel prepares the interface for IPv6.
    fn ask(&self, at: &Attachment) -> Result<AddResult> {
        let PreparedAdd { call, config } = self;
        let (begun, daemon) = (Instant::now(), config::endpoint(call));
        let lease = |family| {
            let (netns, settings) = (at.netns.clone(), config.settings.clone());
            let key = Key::new(call, at).of(family);
            let request = Request { netns, settings, ..Request::new(Command::Add, key) };
            let granted = ask(&daemon, &request, ADD_TIMEOUT.saturating_sub(begun.elapsed()))?;
            granted.ok_or_else(|| Error::bug("the daemon answered ADD without an address"))
        };
        // Before the daemon sets the interface up.
        let interface = config.ipv6.map(|_| Advertised::start(call, at, config)).transpose()?;
        let mut result = AddResult::default();
        if config.ipv4 {
            include(&mut result, lease(Family::V4)?);
        }
        match (interface, config.ipv6) {
            (Some(mut interface), Some(Ipv6::Dhcp)) => {
                interface.await_link_local()?;
                let mut granted = lease(Family::V6)?;
                granted.ip.gateway = interface.await_gateway()?;
                include(&mut result, granted);
            }
            (Some(mut interface), _) => result.ips.extend(interface.await_addresses()?),
            (None, _) => {}
        }
        Ok(result)
    }
}

/// Adds what a server has granted to a result.
fn include(result: &mut AddResult, Granted { ip, routes, dns }: Granted) {
    result.ips.push(ip);
    result.routes.extend(routes);
    let known = &mut result.dns;
    for (names, more) in [(&mut known.nameservers, dns.nameservers), (&mut known.search, dns.search)] {
        let new: Vec<String> = more.into_iter().filter(|name| !names.contains(name)).collect();
        names.extend(new);
    }
    if known.domain.is_empty() {
        known.domain = dns.domain;
    }
}

impl Plugin for Dhcp {
    fn name(&self) -> &'static str {
        "dhcp"
    }

    fn prepare<'a>(&self, call: &'a Call<'a>, at: &Attachment) -> Result<Option<Box<dyn Prepared + 'a>>> {
        Ok(Some(Box::new(PreparedAdd { call, config: Config::read(call, Some(at))? })))
    }

    fn add(&self, call: &Call<'_>, at: &Attachment) -> Result<AddResult> {
        PreparedAdd { call, config: Config::read(call, Some(at))? }.add(at)
    }

    /// The rollback does nothing: ADD may have returned the lease of an earlier ADD of the same attachment, whose
    /// address is in use. The delegating plugin calls DEL if it gets no result.
    fn add_with_rollback<'a>(&'a self, call: &'a Call<'_>, at: &'a Attachment) -> Result<(AddResult, Rollback<'a>)> {
        Ok((self.add(call, at)?, Box::new(|| Ok(()))))
    }

    /// Unlike the reference, succeeds without a daemon: a container must not wait for it. The server gets the address
    /// back when the lease ends.
    fn del(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        release(config::endpoint(call), Key::new(call, at))
    }

    fn check(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let config = Config::read(call, Some(at))?;
        if config.ipv6 == Some(Ipv6::Slaac) {
            Advertised::open(call, at, &config)?.check()?;
        }
        let verify = |family, address| {
            let (netns, settings) = (at.netns.clone(), config.settings.clone());
            let key = Key::new(call, at).of(family);
            let mut daemon = config::endpoint(call);
            let endless = lease::read(&key)?.filter(Summary::never_ends);
            if endless.is_some() {
                daemon.starts_from = None;
            }
            let request = Request { netns, settings, address, ..Request::new(Command::Check, key) };
            match (ask(&daemon, &request, CHECK_TIMEOUT), endless) {
                // No daemon is needed.
                (Err(error), Some(lease)) if error.code() == Code::TRY_LATER => compare(call, at, &lease),
                (outcome, _) => outcome.map(drop),
            }
        };
        if config.ipv6 == Some(Ipv6::Dhcp) {
            verify(Family::V6, None)?;
        }
        if !config.ipv4 {
            return Ok(());
        }
        let reported = call.prev_result()?.unwrap_or_default();
        let mut addresses = reported.ips.iter().filter_map(|ip| match ip.address.ip() {
            IpAddr::V4(ip) => Some(ip),
            IpAddr::V6(_) => None,
        });
        verify(Family::V4, addresses.next())
    }

    fn gc(&self, call: &Call<'_>) -> Result<()> {
        collect(call, &call.valid_attachments()?)
    }

    fn status(&self, call: &Call<'_>) -> Result<()> {
        let config = Config::read(call, None)?;
        if !config.needs_daemon() {
            return Ok(());
        }
        let ready = is_ready(&config::endpoint(call), call.network.as_str(), TIMEOUT);
        ready.map_err(|error| error.with_code(Code::NOT_AVAILABLE))
    }

    fn ipam(&self) -> Option<&dyn Ipam> {
        Some(self)
    }
}

/// Checks that the interface has the address of a lease.
fn compare(call: &Call<'_>, at: &Attachment, lease: &Summary) -> Result<()> {
    let mut guest = Namespaces::open(call, at)?.open_guest(at)?;
    let link = guest.interface()?;
    let leased = lease.address();
    if guest.netlink.addresses(link.index)?.iter().any(|have| Some(have.cidr.ip()) == leased) {
        return Ok(());
    }
    let leased = leased.map_or_else(String::new, |ip| ip.to_string());
    let what = format!("{:?} in {:?} does not have the address {leased} of its DHCP lease", link.name, at.sandbox());
    Err(Error::new(Code::INTERNAL, what).details("attach the container again"))
}

/// Tells the daemon to give the leases of an attachment back. Without a daemon, forgets them.
fn release(mut daemon: Endpoint<'_>, key: Key) -> Result<()> {
    if key.both().iter().all(|key| lease::read(key).is_ok_and(|lease| lease.is_none())) {
        // A daemon that does not run knows of no lease.
        daemon.starts_from = None;
    }
    match ask(&daemon, &Request::new(Command::Del, key.clone()), TIMEOUT) {
        Err(error) if error.code() == Code::TRY_LATER => {
            let [ipv4, ipv6] = key.both().map(|key| lease::remove(&key));
            if ipv4? | ipv6? {
                report(&error.context("give the lease back to the server"));
            }
            Ok(())
        }
        outcome => outcome.map(drop),
    }
}

/// Gives the leases of a network back whose attachments are not valid. Without a daemon, forgets them.
fn collect(call: &Call<'_>, valid: &[ValidAttachment]) -> Result<()> {
    let network = call.network.as_str();
    let keep = Keep::new(network, valid);
    let stale = || -> Result<Vec<Key>> {
        let leases = lease::list::<Summary>(&lease::directory(network))?.unwrap_or_default();
        Ok(leases.into_iter().map(|(lease, _)| lease.key).filter(|key| keep.is_stale(key.attachment())).collect())
    };
    let mut daemon = config::endpoint(call);
    if daemon.starts_from.is_some() && stale()?.is_empty() {
        daemon.starts_from = None;
    }
    match ask(&daemon, &Request::of_network(Command::Gc, network, valid), TIMEOUT) {
        Err(error) if error.code() == Code::TRY_LATER => {
            stale()?.iter().try_for_each(|key| lease::remove(key).map(drop))
        }
        outcome => outcome.map(drop),
    }
}

impl Ipam for Dhcp {
    fn leased_to(&self, call: &Call<'_>, at: &Attachment) -> Result<Vec<IpAddr>> {
        let mut leased = Vec::new();
        for key in Key::new(call, at).both() {
            leased.extend(lease::read(&key)?.and_then(|record| record.address()));
        }
        Ok(leased)
    }

    /// Returns true: other hosts have leases of the server, too.
    fn uses_subnet(&self, _: &Call<'_>, _: Cidr) -> Result<bool> {
        Ok(true)
    }
}
