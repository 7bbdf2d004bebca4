//! One lease: its client, and its interface while they exchange messages with a server.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use cni::{Code, Error, Result};
use linux::Netns;
use linux::event::Events;
use linux::log::{debug, info, warn};

use super::flags::Flags;
use super::interface::{Interface, Received, is_transient};
use crate::client::{Action, Client, Grant, Moment};
use crate::exchange::Outgoing;
use crate::lease::{self, Family, Key, Place, Record};
use crate::protocol::Request;
use crate::settings::Settings;
use crate::terms::Terms;

/// How long the first message waits for a carrier. Some links never say that they have one.
const CARRIER_TIMEOUT: Duration = Duration::from_secs(10);
/// When something is tried again for which there was no memory or descriptor.
const RETRY: Duration = Duration::from_secs(5);
/// When an interface is opened again that could not be opened for another reason.
const LATER: Duration = Duration::from_secs(60);
/// The most packets that are read at once, so that a flood on one interface does not delay others.
const BATCH: usize = 64;
/// The descriptors of a session, in the last bits of their numbers.
pub(super) const PACKETS: u64 = 1;
pub(super) const LINKS: u64 = 2;

/// What all sessions share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) home: Netns,
    pub(super) flags: Flags,
    pub(super) events: Events,
    pub(super) socket: PathBuf,
}

/// What a session does once its interface has a carrier.
#[derive(Clone, Copy, Debug)]
enum Launch {
    /// Asks for an address.
    Acquire,
    /// Asks whether the address that the interface has is leased to it.
    Adopt(IpAddr),
    /// Asks whether a recorded lease is still valid, not before a time.
    Confirm(Moment),
}

/// What the daemon has to do after a step of a session.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// The answer to those who wait for an address.
    pub(super) answer: Option<Result<Option<Terms>>>,
    /// Whether the session is over.
    pub(super) ends: bool,
}

impl Verdict {
    fn end(answer: Error) -> Verdict {
        Verdict { answer: Some(Err(answer)), ends: true }
    }
}

/// One lease.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) key: Key,
    place: Place,
    settings: Settings,
    client: Client,
    interface: Option<Interface>,
    launch: Option<Launch>,
    /// Until when the first message waits for a carrier.
    carrier: Option<Moment>,
    /// When a step is tried again that lacked resources.
    retry: Option<Moment>,
    /// What the interface has, or gets from the plugin.
    applied: Option<Terms>,
    /// Whether the plugin configures the interface, because it waits for the first address.
    is_new: bool,
    /// The connections that wait for an address.
    pub(super) waiters: Vec<u64>,
    /// The time for which the daemon has a timer.
    pub(super) due: Option<Moment>,
}

impl Session {
    /// Returns a session for an ADD, or for a CHECK of a lease that the daemon does not know.
    pub(super) fn open(id: u64, request: Request, shared: &Shared, adopts: Option<IpAddr>) -> Result<Session> {
        let (place, interface) = find(&request, shared)?;
        let launch = adopts.map_or(Launch::Acquire, Launch::Adopt);
        let mut session = Session::new(id, request.key, place, request.settings, shared, launch)?;
        session.register(interface, shared)?;
        Ok(session)
    }

    /// Returns a session for a recorded lease. It asks the server at `start`, or at once if the lease has ended.
    pub(super) fn load(id: u64, record: Record, shared: &Shared, now: Moment, start: Moment) -> Result<Session> {
        let Record { key, place, settings, grant, offer, .. } = record;
        let mut session = Session::new(id, key, place, settings, shared, Launch::Confirm(start))?;
        session.is_new = false;
        session.applied = grant.as_ref().map(|grant| grant.terms.clone());
        if let Some(offer) = offer {
            session.client.resume_asked(offer);
            return Ok(session);
        }
        match grant {
            Some(grant) => {
                let has_ended = grant.end().is_some_and(|end| end <= now);
                session.client.resume(grant, now);
                if has_ended {
                    session.launch = None;
                }
            }
            None => {
                session.client.resume_without(start);
                session.launch = None;
            }
        }
        Ok(session)
    }

    fn new(id: u64, key: Key, place: Place, settings: Settings, shared: &Shared, launch: Launch) -> Result<Session> {
        let broadcast = settings.broadcast.unwrap_or(shared.flags.broadcast || place.broadcast);
        let random = u64::from_ne_bytes(linux::random()?);
        let mac = linux::ip::MacAddr(place.mac);
        Ok(Session {
            id,
            client: Client::new(key.family, mac, settings.clone(), broadcast, shared.flags.timing, random),
            key,
            place,
            settings,
            interface: None,
            launch: Some(launch),
            carrier: None,
            retry: None,
            applied: None,
            is_new: true,
            waiters: Vec::new(),
            due: None,
        })
    }

    /// Returns the terms of the lease.
    pub(super) fn terms(&self) -> Option<&Terms> {
        self.client.terms()
    }

    /// Returns whether plugins can wait for the first address.
    pub(super) fn waits(&self) -> bool {
        self.is_new
    }

    /// Returns whether the session is for the interface that a request names.
    pub(super) fn is_at(&self, request: &Request, shared: &Shared) -> Result<bool> {
        let (place, _) = find(request, shared)?;
        let same = |place: &Place| (place.namespace, place.link, place.mac);
        Ok(same(&place) == same(&self.place))
    }

    /// Returns when [`Session::on_time`] must be called.
    pub(super) fn next(&self) -> Option<Moment> {
        if self.retry.is_some() {
            return self.retry;
        }
        if let Some(launch) = self.launch {
            let start = match launch {
                Launch::Confirm(start) => start,
                Launch::Acquire | Launch::Adopt(_) => Moment::ZERO,
            };
            return Some(self.carrier.unwrap_or(start));
        }
        let closes = self.interface.as_ref().and_then(|_| self.client.listens_until());
        [self.client.timer(), closes].into_iter().flatten().min()
    }

    /// Does what is due.
    pub(super) fn on_time(&mut self, now: Moment, shared: &Shared) -> Verdict {
        self.retry = None;
        if self.launch.is_none() && self.client.timer().is_none_or(|timer| timer > now) {
            self.close_if_unused(now, shared);
            return Verdict::default();
        }
        match self.reach(shared) {
            Ok(true) => {}
            Ok(false) => return self.vanish(),
            Err(error) => return self.postpone(error, now),
        }
        if self.launch.is_some() {
            return self.try_launch(now, shared);
        }
        let actions = self.client.on_time(now);
        self.perform(actions, now, shared)
    }

    /// Sends the first message if the interface has a carrier, or if the time to wait for one is over.
    pub(super) fn try_launch(&mut self, now: Moment, shared: &Shared) -> Verdict {
        let (Some(launch), Some(interface)) = (self.launch, &mut self.interface) else { return Verdict::default() };
        let is_late = self.carrier.is_some_and(|until| until <= now);
        match interface.has_carrier() {
            Ok(Some(false)) if !is_late => {
                self.carrier.get_or_insert(now + CARRIER_TIMEOUT);
                return Verdict::default();
            }
            Ok(Some(_)) => {}
            Ok(None) => return self.vanish(),
            Err(error) => return self.postpone(error, now),
        }
        (self.launch, self.carrier) = (None, None);
        let actions = match (launch, self.client.terms().map(|terms| terms.address)) {
            (Launch::Acquire, _) => self.client.acquire(now),
            (Launch::Adopt(address), _) | (Launch::Confirm(_), Some(address)) => self.client.reboot(now, address),
            (Launch::Confirm(_), None) => self.client.on_time(now),
        };
        self.perform(actions, now, shared)
    }

    /// Tries a step again later, unless it failed for a plugin that waits for its first address.
    fn postpone(&mut self, error: Error, now: Moment) -> Verdict {
        if self.is_new && !is_transient(&error) {
            return Verdict::end(error);
        }
        warn!("{}: {error}", self.name());
        self.retry = Some(now + if is_transient(&error) { RETRY } else { LATER });
        Verdict::default()
    }

    /// Looks at a change of a link in the namespace.
    pub(super) fn on_links(&mut self, now: Moment, shared: &Shared) -> Verdict {
        if let Some(interface) = &mut self.interface
            && let Err(error) = interface.watch.discard()
        {
            debug!("{}: {error}", self.name());
        }
        self.try_launch(now, shared)
    }

    /// Handles the packets that have arrived.
    pub(super) fn on_packets(&mut self, now: Moment, shared: &Shared) -> Verdict {
        for _ in 0..BATCH {
            let Some(interface) = &self.interface else { return Verdict::default() };
            let incoming = match interface.receive() {
                Ok(Received::Message(incoming)) => incoming,
                Ok(Received::Other) => continue,
                // The link went down, or there are no more messages.
                Ok(Received::Nothing) | Err(_) => return Verdict::default(),
            };
            let actions = self.client.on_message(now, &incoming);
            if !actions.is_empty() {
                return self.perform(actions, now, shared);
            }
        }
        Verdict::default()
    }

    /// Gives the lease back, as far as the interface still exists.
    pub(super) fn release(&mut self, now: Moment, shared: &Shared) -> Result<()> {
        let reached = self.reach(shared);
        let terms = self.client.grant().or_else(|| self.client.offer()).map(|grant| grant.terms.clone());
        let release = self.client.release(now);
        match (reached, release.zip(terms)) {
            (Ok(true), Some((release, terms))) => {
                self.send(&release);
                info!("{}: gave {} back to server {}", self.name(), terms.address, terms.server);
            }
            (Ok(true), None) => info!("{}: stopped looking for an address", self.name()),
            (Ok(false), _) => info!("{}: forgot the lease of an interface that is gone", self.name()),
            (Err(error), _) => warn!("{}: forgot the lease: {error}", self.name()),
        }
        self.close(shared);
        lease::remove(&self.key).map(drop)
    }

    /// Gives back what the client has asked for, for a plugin that does not get it.
    pub(super) fn withdraw(&mut self, now: Moment, shared: &Shared) {
        if let Err(error) = self.release(now, shared) {
            warn!("{error}");
        }
    }

    /// Compares the interface with the lease.
    pub(super) fn check(&mut self, shared: &Shared) -> Result<()> {
        let Some(terms) = self.client.terms().cloned() else {
            let what = format!("{} has lost its DHCP lease, and no server has given another one", self.name());
            return Err(Error::new(Code::INTERNAL, what).details("see the log of the daemon"));
        };
        let was_open = self.interface.is_some();
        let has = match self.reach(shared)? {
            true => self.interface.as_mut().map_or(Ok(false), |interface| interface.has(&terms))?,
            false => false,
        };
        if !was_open {
            self.close(shared);
        }
        if has {
            return Ok(());
        }
        let what = format!("{} does not have the address {} of its DHCP lease", self.name(), terms.address);
        Err(Error::new(Code::INTERNAL, what).details("attach the container again"))
    }

    /// Closes the interface.
    pub(super) fn close(&mut self, shared: &Shared) {
        if let Some(interface) = self.interface.take() {
            for outcome in [shared.events.remove(&interface.messages), shared.events.remove(&interface.watch)] {
                debug_assert!(outcome.is_ok(), "{outcome:?}");
            }
        }
    }

    /// Closes the interface if no answer can arrive any more.
    pub(super) fn close_if_unused(&mut self, now: Moment, shared: &Shared) {
        if self.launch.is_none() && self.client.listens_until().is_none_or(|until| until <= now) {
            self.close(shared);
        }
    }

    fn name(&self) -> String {
        let Key { network, container, ifname, family } = &self.key;
        let family = match family {
            Family::V4 => "",
            Family::V6 => ", IPv6",
        };
        format!("network {network}, container {container}, interface {ifname}{family}")
    }

    /// Opens the interface unless it is open. Returns `false` if it is gone.
    fn reach(&mut self, shared: &Shared) -> Result<bool> {
        if self.interface.is_some() {
            return Ok(true);
        }
        let path = shared.flags.prefixed(&self.place.netns);
        match Interface::open(&shared.home, &path, &self.place, &self.key)? {
            Some(interface) => self.register(interface, shared).map(|()| true),
            None => Ok(false),
        }
    }

    fn register(&mut self, interface: Interface, shared: &Shared) -> Result<()> {
        shared.events.add(&interface.messages, self.id << 2 | PACKETS)?;
        shared.events.add(&interface.watch, self.id << 2 | LINKS)?;
        self.interface = Some(interface);
        Ok(())
    }

    /// Forgets a lease whose interface is gone. The server gets it back when it ends.
    fn vanish(&mut self) -> Verdict {
        info!("{}: the interface is gone, so its lease is forgotten", self.name());
        if let Err(error) = lease::remove(&self.key) {
            warn!("{error}");
        }
        let what = format!("{} is gone", self.name());
        Verdict::end(Error::new(Code::INTERNAL, what).details("attach the container again"))
    }

    fn perform(&mut self, actions: Vec<Action>, now: Moment, shared: &Shared) -> Verdict {
        let mut verdict = Verdict::default();
        for action in actions {
            match action {
                // A daemon that is killed before the answer of the server leaves an address that nothing else knows.
                Action::Chosen if self.is_new => {
                    if let Err(error) = self.record(shared) {
                        return Verdict::end(error);
                    }
                }
                Action::Chosen => {}
                Action::Send(outgoing) => self.send(&outgoing),
                Action::Bound(grant) => verdict = self.bound(grant, now, shared),
                Action::Lost(why) => self.lost(&why, shared),
                Action::Failed(why) => {
                    let sent = self.client.sent_text();
                    let what = format!("{} gets no address by DHCP: {why}", self.name());
                    self.withdraw(now, shared);
                    verdict = Verdict::end(Error::new(Code::TRY_LATER, what).details(sent));
                }
            }
        }
        self.close_if_unused(now, shared);
        verdict
    }

    fn send(&self, outgoing: &Outgoing) {
        match outgoing {
            Outgoing::V4(sent) => {
                debug!("{}: send {:?} from {} to {}", self.name(), sent.message.kind, sent.from, sent.to)
            }
            Outgoing::V6(sent) => debug!("{}: send {:?}", self.name(), sent.kind),
        }
        if let Some(interface) = &self.interface {
            interface.send(outgoing);
        }
    }

    /// Records a lease, and makes the interface follow it, unless the plugin does so.
    fn bound(&mut self, grant: Grant, now: Moment, shared: &Shared) -> Verdict {
        let terms = grant.terms.clone();
        let time = terms.times.map_or_else(|| "for ever".to_owned(), |times| format!("for {} s", times.end));
        let line = format!("{} from server {} {time}", terms.cidr(), terms.server);
        if self.is_new {
            info!("{}: leased {line}", self.name());
            let mtu = self.interface.as_mut().map(|interface| interface.set_mtu(&terms));
            if let Err(error) = mtu.unwrap_or(Ok(())).and_then(|()| self.record(shared)) {
                self.withdraw(now, shared);
                return Verdict::end(error);
            }
        } else {
            self.follow(Some(&terms), &line);
            if let Err(error) = self.record(shared) {
                warn!("{error}");
            }
        }
        self.is_new = false;
        self.applied = Some(terms.clone());
        Verdict { answer: Some(Ok(Some(terms))), ends: false }
    }

    fn lost(&mut self, why: &str, shared: &Shared) {
        let address = self.applied.as_ref().map_or_else(|| "no address".to_owned(), |terms| terms.cidr().to_string());
        warn!("{}: lost {address}: {why}", self.name());
        self.follow(None, "none");
        if let Err(error) = self.record(shared) {
            warn!("{error}");
        }
    }

    /// Changes the interface from the terms that it has to new ones.
    fn follow(&mut self, new: Option<&Terms>, line: &str) {
        let old = self.applied.take();
        let is_same = |old: &Terms| {
            new.is_some_and(|new| (old.cidr(), &old.routes, old.mtu) == (new.cidr(), &new.routes, new.mtu))
        };
        if old.as_ref().is_some_and(is_same) {
            debug!("{}: renewed {line}", self.name());
        } else {
            info!("{}: the interface gets {line}", self.name());
            let outcome = self.interface.as_mut().map(|interface| interface.follow(old.as_ref(), new));
            if let Some(Err(error)) = outcome {
                warn!("{}: {error}", self.name());
            }
        }
        self.applied = new.cloned();
    }

    fn record(&self, shared: &Shared) -> Result<()> {
        lease::write(&Record {
            key: self.key.clone(),
            socket: shared.socket.clone(),
            place: self.place.clone(),
            settings: self.settings.clone(),
            grant: self.client.grant().cloned(),
            offer: self.client.offer().filter(|_| self.is_new).cloned(),
        })
    }
}

/// Finds the interface that a request names.
fn find(request: &Request, shared: &Shared) -> Result<(Place, Interface)> {
    let Some(netns) = &request.netns else { return Err(Error::bug("a request without a namespace")) };
    let (place, interface) = Interface::find(&shared.home, &shared.flags.prefixed(netns), &request.key)?;
    Ok((Place { netns: netns.clone(), ..place }, interface))
}
