//! The `dhcp` plugin: addresses from a DHCP server. A daemon asks the server, renews the leases and gives them back; the plugin only
//! tells it what to do.
//!
//! - `config` validates the keys, and `settings` is what the client of a lease needs of them.
//! - `protocol` is what plugin and daemon say to each other, and `lease` the file of a lease.
//! - `message` parses and writes messages, `terms` validates what a server grants, and `client` decides what to send: all three
//!   without I/O.
//! - `advertised` is IPv6 as routers advertise it. The kernel does that without the daemon.
//! - [`daemon`] has the loop, the namespaces and the sockets.
//! - `inspect` is for `cnitool`.

mod advertised;
mod client;
mod config;
pub mod daemon;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod inspect;
mod lease;
mod message;
mod protocol;
mod settings;
mod terms;

use std::net::IpAddr;
use std::time::Duration;

use cni::{
    AddResult, Attachment, Call, Code, Error, Ipam, Keep, Plugin, Prepared, Result, Rollback, ValidAttachment, report,
};
use linux::ip::Cidr;

use advertised::Advertised;
use config::{Config, Endpoint, Ipv6};
use lease::{Key, Summary};
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
        let PreparedAdd { call, config } = self;
        // Before the daemon sets the interface up.
        let advertised = config.ipv6.map(|Ipv6::Slaac| Advertised::start(call, at, &config.settings)).transpose()?;
        let mut result = if config.ipv4 { lease(call, at, config)? } else { AddResult::default() };
        if let Some(mut interface) = advertised {
            result.ips.extend(interface.await_addresses()?);
        }
        Ok(result)
    }
}

/// Leases an IPv4 address.
fn lease(call: &Call<'_>, at: &Attachment, config: &Config) -> Result<AddResult> {
    let request = Request {
        netns: at.netns.clone(),
        settings: config.settings.clone(),
        ..Request::new(Command::Add, Key::new(call, at))
    };
    let granted = ask(&config::endpoint(call), &request, ADD_TIMEOUT)?;
    let Granted { ip, routes, dns } =
        granted.ok_or_else(|| Error::bug("the daemon answered ADD without an address"))?;
    Ok(AddResult { ips: vec![ip], routes, dns, ..AddResult::default() })
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

    /// The rollback does nothing: ADD may have returned the lease of an earlier ADD of the same attachment, whose address is in use.
    /// The delegating plugin calls DEL if it gets no result.
    fn add_with_rollback<'a>(&'a self, call: &'a Call<'_>, at: &'a Attachment) -> Result<(AddResult, Rollback<'a>)> {
        Ok((self.add(call, at)?, Box::new(|| Ok(()))))
    }

    /// Unlike the reference, succeeds without a daemon: a container must not wait for it. The server gets the address back when the
    /// lease ends.
    fn del(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        release(config::endpoint(call), Key::new(call, at))
    }

    fn check(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let config = Config::read(call, Some(at))?;
        if config.ipv6 == Some(Ipv6::Slaac) {
            Advertised::open(call, at, &config.settings)?.check()?;
        }
        if !config.ipv4 {
            return Ok(());
        }
        let reported = call.prev_result()?.unwrap_or_default();
        let mut addresses = reported.ips.iter().filter_map(|ip| match ip.address.ip() {
            IpAddr::V4(ip) => Some(ip),
            IpAddr::V6(_) => None,
        });
        let request = Request {
            netns: at.netns.clone(),
            settings: config.settings,
            address: addresses.next(),
            ..Request::new(Command::Check, Key::new(call, at))
        };
        let mut daemon = config::endpoint(call);
        if lease::read(&request.key)?.is_some_and(|lease| lease.never_ends()) {
            // The lease needs no daemon. The interface is compared with the result by the plugin that has created it.
            daemon.starts_from = None;
            return match ask(&daemon, &request, CHECK_TIMEOUT) {
                Err(error) if error.code() == Code::TRY_LATER => Ok(()),
                outcome => outcome.map(drop),
            };
        }
        ask(&daemon, &request, CHECK_TIMEOUT).map(drop)
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

/// Tells the daemon to give a lease back. Without a daemon, forgets the lease.
fn release(mut daemon: Endpoint<'_>, key: Key) -> Result<()> {
    if lease::read(&key).is_ok_and(|lease| lease.is_none()) {
        // A daemon that does not run knows of no lease.
        daemon.starts_from = None;
    }
    match ask(&daemon, &Request::new(Command::Del, key.clone()), TIMEOUT) {
        Err(error) if error.code() == Code::TRY_LATER => {
            if lease::remove(&key)? {
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
        let record = lease::read(&Key::new(call, at))?;
        Ok(record.and_then(|record| record.address()).into_iter().collect())
    }

    /// Returns true: other hosts have leases of the server, too.
    fn uses_subnet(&self, _: &Call<'_>, _: Cidr) -> Result<bool> {
        Ok(true)
    }
}
