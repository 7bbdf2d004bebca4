//! The firewalld backend: binds container addresses to a zone of firewalld.
//!
//! A binding belongs to the runtime configuration of firewalld: it is lost when firewalld reloads or stops. It has no
//! owner, so that firewalld cannot say which attachment it belongs to: [`bindings`](crate::bindings) can.

use std::net::IpAddr;
use std::time::Duration;

use cni::json::invalid;
use cni::{Code, Error, Result};
use linux::log::{debug, warn};
use linux::{Deadline, Kind};

use crate::config::Zone;
use crate::dbus::{Bus, Method, RemoteError, Reply};

/// The time for all calls together. firewalld handles one call after the other, and none while it starts or reloads.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The name of firewalld on the bus.
const NAME: &str = "org.fedoraproject.FirewallD1";

/// A connection to a running firewalld.
#[derive(Debug)]
pub(crate) struct Firewalld {
    bus: Bus,
}

/// Where [`Firewalld::remove`] removes an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZoneScope {
    /// Only in the given zone.
    GivenZone,
    /// In every zone, except where the permanent configuration has it.
    AnyZone,
}

impl Firewalld {
    /// Connects to firewalld. `None` if it is not running.
    pub(crate) fn connect() -> Result<Option<Firewalld>> {
        Firewalld::on_bus(Bus::system(Deadline::after(TIMEOUT))?)
    }

    fn on_bus(bus: Option<Bus>) -> Result<Option<Firewalld>> {
        let Some(mut bus) = bus else { return Ok(None) };
        Ok(bus.has_owner(NAME)?.then_some(Firewalld { bus }))
    }

    /// Binds an address to a zone. Succeeds if it is bound to it already.
    pub(crate) fn add(&mut self, zone: &Zone, ip: IpAddr) -> Result<()> {
        let source = source(ip);
        let added = self.try_add(zone, &source);
        added.map_err(|failure| failure.into_error(zone).context(format!("add {source} to firewalld zone {zone}")))
    }

    fn try_add(&mut self, zone: &Zone, source: &str) -> Result<(), Failure> {
        match self.call("addSource", &[zone.as_str(), source]) {
            Err(Failure::Refusal(Reason::Bound, _)) => Ok(()),
            Err(Failure::Refusal(Reason::BoundElsewhere, _)) => self.move_to(zone, source),
            outcome => outcome.map(drop),
        }
    }

    /// Moves an address from another zone, where a lost DEL has left it. Unlike the reference, which fails.
    fn move_to(&mut self, zone: &Zone, source: &str) -> Result<(), Failure> {
        let permanent = self.permanent_zone_of(source)?;
        if !permanent.is_empty() && permanent != zone.as_str() {
            let what = format!("the permanent configuration of firewalld has it in zone {permanent:?}");
            let hint = format!(
                "set \"firewalldZone\" to that zone, or run firewall-cmd --permanent --zone={permanent} \
                 --remove-source={source} and firewall-cmd --reload"
            );
            return Err(Error::new(Code::INTERNAL, what).details(hint).into());
        }
        let other = self.zone_of(source)?;
        match self.call("changeZoneOfSource", &[zone.as_str(), source]) {
            Err(Failure::Refusal(Reason::Bound, _)) => Ok(()),
            outcome => {
                outcome?;
                warn!("moved {source} to firewalld zone {zone}; an earlier container had left it in {other:?}");
                Ok(())
            }
        }
    }

    /// Removes an address from `zone`, and with [`ZoneScope::AnyZone`] also from another zone: the configuration may
    /// have changed since ADD. Succeeds if the address is not bound, and if firewalld has stopped meanwhile.
    pub(crate) fn remove(&mut self, zone: &Zone, ip: IpAddr, scope: ZoneScope) -> Result<()> {
        let source = source(ip);
        match self.try_remove(zone, &source, scope) {
            Ok(()) | Err(Failure::Refusal(Reason::NotBound | Reason::NotRunning, _)) => Ok(()),
            Err(failure) => {
                Err(failure.into_error(zone).context(format!("remove {source} from firewalld zone {zone}")))
            }
        }
    }

    fn try_remove(&mut self, zone: &Zone, source: &str, scope: ZoneScope) -> Result<(), Failure> {
        if scope == ZoneScope::GivenZone {
            return match self.call("removeSource", &[zone.as_str(), source]) {
                // firewalld reports an unknown zone only if the address is bound to another.
                Err(Failure::Refusal(Reason::BoundElsewhere | Reason::NoSuchZone, _)) => Ok(()),
                outcome => outcome.map(drop),
            };
        }
        let other = self.zone_of(source)?;
        // An empty zone would mean any zone.
        if other.is_empty() || other == self.permanent_zone_of(source)? {
            debug!("{source} stays in firewalld zone {other:?}");
            return Ok(());
        }
        self.call("removeSource", &[&other, source]).map(drop)
    }

    /// Removes an address from `zone`, unless the permanent configuration has it there. Otherwise as
    /// [`remove`](Self::remove).
    pub(crate) fn remove_runtime(&mut self, zone: &Zone, ip: IpAddr) -> Result<()> {
        let source = source(ip);
        match self.permanent_zone_of(&source) {
            Ok(permanent) if permanent == zone.as_str() => {
                debug!("{source} stays in firewalld zone {zone}");
                Ok(())
            }
            Ok(_) => self.remove(zone, ip, ZoneScope::GivenZone),
            Err(Failure::Refusal(Reason::NotRunning, _)) => Ok(()),
            Err(failure) => {
                Err(failure.into_error(zone).context(format!("look for {source} in the configuration of firewalld")))
            }
        }
    }

    /// Returns whether an address is bound to `zone`.
    pub(crate) fn query(&mut self, zone: &Zone, ip: IpAddr) -> Result<bool> {
        let source = source(ip);
        let answer = match self.call("querySource", &[zone.as_str(), &source]) {
            Ok(Reply::Bool(answer)) => return Ok(answer),
            Ok(_) => unexpected(),
            Err(failure) => failure,
        };
        Err(answer.into_error(zone).context(format!("look for {source} in firewalld zone {zone}")))
    }

    /// Returns the zone to which an address is bound; empty if to none.
    fn zone_of(&mut self, source: &str) -> Result<String, Failure> {
        match self.call("getZoneOfSource", &[source])? {
            Reply::Text(zone) => Ok(zone),
            _ => Err(unexpected()),
        }
    }

    /// Returns the zone to which the permanent configuration binds an address; empty if to none.
    fn permanent_zone_of(&mut self, source: &str) -> Result<String, Failure> {
        let method = Method {
            destination: NAME,
            path: "/org/fedoraproject/FirewallD1/config",
            interface: "org.fedoraproject.FirewallD1.config",
            name: "getZoneOfSource",
        };
        match self.exchange(&method, &[source])? {
            Reply::Text(zone) => Ok(zone),
            _ => Err(unexpected()),
        }
    }

    /// Calls a method for the zones of the runtime configuration.
    fn call(&mut self, name: &str, arguments: &[&str]) -> Result<Reply, Failure> {
        let method = Method {
            destination: NAME,
            path: "/org/fedoraproject/FirewallD1",
            interface: "org.fedoraproject.FirewallD1.zone",
            name,
        };
        self.exchange(&method, arguments)
    }

    fn exchange(&mut self, method: &Method<'_>, arguments: &[&str]) -> Result<Reply, Failure> {
        debug!("call {} of firewalld with {arguments:?}", method.name);
        match self.bus.call(method, arguments)? {
            Reply::Error(error) => Err(Failure::Refusal(Reason::of(&error), error)),
            reply => Ok(reply),
        }
    }
}

/// Returns an address in the form in which firewalld keeps it, which is also that of the reference.
fn source(ip: IpAddr) -> String {
    match ip.to_canonical() {
        IpAddr::V4(ip) => format!("{ip}/32"),
        IpAddr::V6(ip) => format!("{ip}/128"),
    }
}

/// Returns the error for a backend that the configuration requires.
pub(crate) fn not_running() -> Error {
    let what = "firewalld is not running";
    Error::new(Code::TRY_LATER, what).details("start firewalld, or remove \"backend\" from the configuration")
}

fn unexpected() -> Failure {
    let what = "the reply of firewalld has an unexpected type";
    Failure::Other(linux::Error::new(Kind::Program, what).into())
}

/// Why a call failed.
#[derive(Debug)]
enum Failure {
    /// firewalld, or the bus in its place, returned an error.
    Refusal(Reason, RemoteError),
    Other(Error),
}

/// Why firewalld refused a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// The address is bound to the zone already.
    Bound,
    /// The address is bound to another zone.
    BoundElsewhere,
    /// The address is not bound to a zone.
    NotBound,
    NoSuchZone,
    /// firewalld drops all packets and accepts no changes.
    Panic,
    /// firewalld has stopped, before or during the call.
    NotRunning,
    Other,
}

impl Reason {
    fn of(error: &RemoteError) -> Reason {
        match error.name.as_str() {
            // The code of the error is the first word of its text.
            "org.fedoraproject.FirewallD1.Exception" => match error.text.split(':').next().unwrap_or_default() {
                "ALREADY_ENABLED" | "ZONE_ALREADY_SET" => Reason::Bound,
                "ZONE_CONFLICT" => Reason::BoundElsewhere,
                "NOT_ENABLED" | "UNKNOWN_SOURCE" => Reason::NotBound,
                "INVALID_ZONE" => Reason::NoSuchZone,
                "PANIC_MODE" => Reason::Panic,
                _ => Reason::Other,
            },
            "org.freedesktop.DBus.Error.ServiceUnknown"
            | "org.freedesktop.DBus.Error.NameHasNoOwner"
            | "org.freedesktop.DBus.Error.NoReply" => Reason::NotRunning,
            _ => Reason::Other,
        }
    }
}

impl Failure {
    fn into_error(self, zone: &Zone) -> Error {
        match self {
            Failure::Refusal(Reason::NoSuchZone, _) => {
                let what = format_args!("firewalld has no zone {zone}");
                let hint = "use a zone of firewall-cmd --get-zones, or create it with firewall-cmd --permanent --new-zone \
                            and firewall-cmd --reload";
                invalid("firewalldZone", what, hint)
            }
            Failure::Refusal(Reason::Panic, _) => {
                let what = "firewalld is in panic mode";
                Error::new(Code::TRY_LATER, what).details("firewall-cmd --panic-off ends it")
            }
            Failure::Refusal(Reason::NotRunning, _) => not_running(),
            Failure::Refusal(_, error) => error.into_error(),
            Failure::Other(error) => error,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Other(error)
    }
}

#[cfg(test)]
mod tests;
