//! The loop of the daemon: connections, sessions, and the times at which they must do something.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni::{Code, Error, Result};
use linux::Netns;
use linux::event::{Alarm, EndRequests, Events, Ready, now};
use linux::log::{debug, info, warn};
use linux::unix::Listener;

use super::connection::{Connection, Received};
use super::flags::Flags;
use super::session::{LINKS, PACKETS, Session, Shared, Verdict};
use crate::client::Moment;
use crate::lease::{self, Key, Record};
use crate::protocol::{Answer, Command, Request};
use crate::terms::Terms;

/// The numbers of the descriptors that are not those of a connection or a session.
const LISTENER: u64 = 0;
const ALARM: u64 = 1;
const END: u64 = 2;
/// A daemon that was started on demand waits for the plugin that has started it.
const START: u64 = 3;
/// The first number of a connection or a session.
const FIRST: u64 = 16;
/// How long a plugin may take to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// When connections are accepted again after there was no descriptor for one.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// By how much the first messages of a daemon that continues many leases are apart, on average.
const CONFIRM_PACE: Duration = Duration::from_millis(5);

/// The daemon.
#[derive(Debug)]
pub(super) struct Daemon {
    shared: Shared,
    alarm: Alarm,
    _end: EndRequests,
    listener: Listener,
    connections: BTreeMap<u64, Connection>,
    sessions: BTreeMap<u64, Session>,
    by_key: BTreeMap<Key, u64>,
    /// When a connection or a session must do something.
    timers: BTreeSet<(Moment, u64)>,
    next: u64,
    /// Until when a daemon that was started on demand waits for a plugin, even if it follows no lease.
    start: Option<Moment>,
}

impl Daemon {
    pub(super) fn new(flags: &Flags, listener: Listener, socket: PathBuf) -> Result<Daemon> {
        let (events, alarm, end) = (Events::new()?, Alarm::new()?, EndRequests::open()?);
        events.add(&listener, LISTENER)?;
        events.add(&alarm, ALARM)?;
        events.add(&end, END)?;
        Ok(Daemon {
            shared: Shared { home: Netns::current()?, flags: flags.clone(), events, socket },
            alarm,
            _end: end,
            listener,
            connections: BTreeMap::new(),
            sessions: BTreeMap::new(),
            by_key: BTreeMap::new(),
            timers: BTreeSet::new(),
            next: FIRST,
            start: None,
        })
    }

    pub(super) fn socket(&self) -> &Path {
        &self.shared.socket
    }

    /// Continues the leases that an earlier daemon recorded.
    pub(super) fn load(&mut self) -> Result<()> {
        let mut records = Vec::new();
        for directory in lease::directories()? {
            let found = lease::list::<Record>(&directory)?.unwrap_or_default();
            records.extend(found.into_iter().map(|(record, _)| record));
        }
        records.retain(|record| record.socket == self.shared.socket);
        if !records.is_empty() {
            info!("continuing {} leases", records.len());
        }
        let now = now()?;
        for (count, record) in (0..).zip(records) {
            let id = self.number();
            let start = now + CONFIRM_PACE * count;
            let was_answered = record.offer.is_none();
            let mut session = Session::load(id, record, &self.shared, now, start)?;
            if !was_answered {
                session.withdraw(now, &self.shared);
                continue;
            }
            self.insert(session);
            self.schedule(id);
        }
        Ok(())
    }

    /// Serves until a signal ends it, or until nothing is left to do if it was started on demand.
    pub(super) fn run(&mut self) -> Result<()> {
        if self.shared.flags.on_demand {
            let until = now()? + REQUEST_TIMEOUT;
            self.start = Some(until);
            self.timers.insert((until, START));
        }
        loop {
            if self.is_done()? {
                return Ok(());
            }
            self.alarm.set(self.timers.first().map(|(at, _)| *at))?;
            let ready = self.shared.events.wait()?;
            let now = now()?;
            for Ready { id, closed } in ready {
                match id {
                    LISTENER => self.accept(now),
                    ALARM => {}
                    END => return Ok(()),
                    id => self.on_ready(id, closed, now),
                }
            }
            self.on_time(now);
        }
    }

    /// Returns whether a daemon that was started on demand ends. It is still needed if a lease has a time, if a plugin
    /// is connected, or if one has connected meanwhile. Later ones start another daemon, which waits for the lock of
    /// this one.
    fn is_done(&mut self) -> Result<bool> {
        let is_idle = |daemon: &Daemon| daemon.timers.is_empty() && daemon.connections.is_empty();
        if !self.shared.flags.on_demand || !is_idle(self) {
            return Ok(false);
        }
        self.listener.unpublish();
        self.accept(now()?);
        Ok(is_idle(self))
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn insert(&mut self, session: Session) {
        self.by_key.insert(session.key.clone(), session.id);
        self.sessions.insert(session.id, session);
    }

    fn accept(&mut self, now: Moment) {
        match self.listener.accept() {
            Ok(None) => {}
            Ok(Some(peer)) => {
                self.start.take().map(|until| self.timers.remove(&(until, START)));
                let (id, until) = (self.number(), now + REQUEST_TIMEOUT);
                match self.shared.events.add(&peer, id << 2) {
                    Ok(()) => {
                        self.connections.insert(id, Connection::new(peer, until));
                        self.timers.insert((until, id));
                    }
                    Err(error) => warn!("accept a connection: {error}"),
                }
            }
            Err(error) => {
                warn!("accept a connection: {error}");
                // Otherwise the loop would try again at once, and for ever.
                if self.shared.events.remove(&self.listener).is_ok() {
                    self.timers.insert((now + ACCEPT_PAUSE, LISTENER));
                }
            }
        }
    }

    fn on_ready(&mut self, id: u64, closed: bool, now: Moment) {
        let (id, what) = (id >> 2, id & 3);
        match what {
            PACKETS | LINKS => {
                let Some(session) = self.sessions.get_mut(&id) else { return };
                let verdict = match what {
                    PACKETS => session.on_packets(now, &self.shared),
                    _ => session.on_links(now, &self.shared),
                };
                self.settle(id, verdict);
            }
            _ => self.on_connection(id, closed, now),
        }
    }

    fn on_connection(&mut self, id: u64, closed: bool, now: Moment) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match connection.receive() {
            Ok(Received::Part) if closed && connection.until.is_none() => self.hang_up(id, now),
            Ok(Received::Part) => {}
            Ok(Received::Whole(request)) => {
                if let Some(until) = connection.until.take() {
                    self.timers.remove(&(until, id));
                }
                match *request {
                    Ok(request) => self.handle(id, request, now),
                    Err(error) => self.answer(id, Err(error)),
                }
            }
            Ok(Received::End) => self.hang_up(id, now),
            Err(error) => {
                debug!("read a request: {error}");
                self.hang_up(id, now);
            }
        }
    }

    /// Closes a connection. A session without an address, for which no plugin waits any more, is over.
    fn hang_up(&mut self, id: u64, now: Moment) {
        if let Some(connection) = self.connections.remove(&id)
            && let Some(until) = connection.until
        {
            self.timers.remove(&(until, id));
        }
        let waited = self.sessions.values_mut().find(|session| session.waiters.contains(&id));
        let Some(session) = waited else { return };
        session.waiters.retain(|waiter| *waiter != id);
        if session.waiters.is_empty() && session.terms().is_none() {
            let id = session.id;
            debug!("a plugin ended before its container had an address");
            session.withdraw(now, &self.shared);
            self.remove(id);
        }
    }

    fn handle(&mut self, connection: u64, request: Request, now: Moment) {
        debug!("{:?} of {:?}", request.command, request.key);
        let outcome = match request.command {
            Command::Status => Ok(Some(Ok(None))),
            Command::Gc => Ok(Some(self.collect(&request, now).map(|()| None))),
            Command::Del => {
                let [ipv4, ipv6] = request.key.both().map(|key| self.delete(&key, now));
                Ok(Some(ipv4.and(ipv6).map(|()| None)))
            }
            Command::Check => self.check(connection, request, now),
            Command::Add => self.add(connection, request, now),
        };
        match outcome {
            Ok(Some(answer)) => self.answer(connection, answer),
            Ok(None) => {}
            Err(error) => self.answer(connection, Err(error)),
        }
    }

    fn answer(&mut self, connection: u64, answer: Result<Option<Terms>>) {
        if let Some(mut connection) = self.connections.remove(&connection)
            && !connection.answer(&Answer::from(answer))
        {
            debug!("a plugin ended before it got its answer");
        }
    }

    /// Leases an address. Returns the answer; `None` if it follows later.
    fn add(&mut self, connection: u64, request: Request, now: Moment) -> Result<Option<Result<Option<Terms>>>> {
        if let Some(session) = self.by_key.get(&request.key).and_then(|id| self.sessions.get_mut(id)) {
            let id = session.id;
            if session.is_at(&request, &self.shared)? {
                if let Some(terms) = session.terms() {
                    return Ok(Some(Ok(Some(terms.clone()))));
                }
                if session.waits() {
                    session.waiters.push(connection);
                    return Ok(None);
                }
            }
            // A new interface gets a new lease.
            self.remove(id);
        }
        self.open(connection, request, None, now)
    }

    /// Verifies a lease. One of the reference's daemon, which kept none, is taken over.
    fn check(&mut self, connection: u64, request: Request, now: Moment) -> Result<Option<Result<Option<Terms>>>> {
        if let Some(session) = self.by_key.get(&request.key).and_then(|id| self.sessions.get_mut(id)) {
            return Ok(Some(session.check(&self.shared).map(|()| None)));
        }
        let Some(address) = request.address.map(IpAddr::from) else {
            let what = format!("there is no DHCP lease of {}", request.key.attachment().alias());
            return Err(Error::new(Code::INTERNAL, what).details("attach the container again"));
        };
        self.open(connection, request, Some(address), now)
    }

    fn open(
        &mut self,
        connection: u64,
        request: Request,
        adopts: Option<IpAddr>,
        now: Moment,
    ) -> Result<Option<Result<Option<Terms>>>> {
        let id = self.number();
        let mut session = Session::open(id, request, &self.shared, adopts)?;
        session.waiters.push(connection);
        let verdict = session.try_launch(now, &self.shared);
        self.insert(session);
        self.settle(id, verdict);
        Ok(None)
    }

    /// Gives a lease back.
    fn delete(&mut self, key: &Key, now: Moment) -> Result<()> {
        let Some(id) = self.by_key.get(key).copied() else { return lease::remove(key).map(drop) };
        let outcome = match self.sessions.get_mut(&id) {
            Some(session) => session.release(now, &self.shared),
            None => Ok(()),
        };
        self.remove(id);
        outcome
    }

    /// Gives the leases of a network back whose attachments are not valid.
    fn collect(&mut self, request: &Request, now: Moment) -> Result<()> {
        let network = &request.key.network;
        let valid: BTreeSet<&(String, String)> = request.valid.iter().collect();
        let is_stale =
            |key: &Key| key.network == *network && !valid.contains(&(key.container.clone(), key.ifname.clone()));
        let stale: Vec<Key> = self.by_key.keys().filter(|key| is_stale(key)).cloned().collect();
        let recorded = lease::list::<Record>(&lease::directory(network))?.unwrap_or_default();
        let recorded = recorded.into_iter().map(|(record, _)| record).filter(|record| {
            record.socket == self.shared.socket && is_stale(&record.key) && !self.by_key.contains_key(&record.key)
        });
        for key in stale.into_iter().chain(recorded.map(|record| record.key).collect::<Vec<_>>()) {
            self.delete(&key, now)?;
        }
        Ok(())
    }

    fn on_time(&mut self, now: Moment) {
        while let Some((at, id)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, id));
            if id == LISTENER {
                if let Err(error) = self.shared.events.add(&self.listener, LISTENER) {
                    warn!("accept connections again: {error}");
                    self.timers.insert((now + ACCEPT_PAUSE, LISTENER));
                }
            } else if let Some(session) = self.sessions.get_mut(&id) {
                session.due = None;
                let verdict = session.on_time(now, &self.shared);
                self.settle(id, verdict);
            } else {
                // The daemon may have been delayed, and have had more to read than it reads at once.
                self.on_connection(id, false, now);
                if self.connections.get(&id).is_some_and(|connection| connection.until.is_some()) {
                    self.hang_up(id, now);
                }
            }
        }
    }

    /// Does what follows from a step of a session.
    fn settle(&mut self, id: u64, verdict: Verdict) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if let Some(answer) = verdict.answer {
            for waiter in std::mem::take(&mut session.waiters) {
                self.answer(waiter, answer.clone());
            }
        }
        match verdict.ends {
            true => self.remove(id),
            false => self.schedule(id),
        }
    }

    /// Sets the timer of a session.
    fn schedule(&mut self, id: u64) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let next = session.next();
        if next != session.due {
            session.due.take().map(|due| self.timers.remove(&(due, id)));
            session.due = next;
            next.map(|next| self.timers.insert((next, id)));
        }
    }

    /// Forgets a session. Plugins that wait for it get no address.
    fn remove(&mut self, id: u64) {
        let Some(mut session) = self.sessions.remove(&id) else { return };
        session.close(&self.shared);
        session.due.map(|due| self.timers.remove(&(due, id)));
        self.by_key.remove(&session.key);
        let what = format!("the lease of {} was given back meanwhile", session.key.attachment().alias());
        for waiter in session.waiters {
            self.answer(waiter, Err(Error::new(Code::TRY_LATER, what.clone()).details("attach the container again")));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::{env, fs, iter, process};

    use super::super::flags::{self, Invocation};
    use super::*;
    use crate::protocol::line;

    /// The daemon reads a limited number of messages before it looks at the time.
    #[test]
    #[cfg_attr(miri, ignore = "miri has no sockets in the file system")]
    fn a_request_that_arrived_in_time_is_answered_even_if_it_is_read_later() {
        let directory = env::temp_dir().join(format!("cni0-daemon-{}", process::id()));
        let path = directory.join("socket");
        let Invocation::Run(flags) = flags::parse(iter::empty()).unwrap() else { panic!("help") };
        let mut daemon = Daemon::new(&flags, Listener::bind(&path).unwrap(), path.clone()).unwrap();
        let begun = now().unwrap();
        let mut answer_after_timeout = |request: &[u8]| {
            let mut plugin = UnixStream::connect(&path).unwrap();
            plugin.write_all(request).unwrap();
            daemon.accept(begun);
            daemon.on_time(begun + REQUEST_TIMEOUT);
            let mut answer = String::new();
            plugin.read_to_string(&mut answer).unwrap();
            answer
        };
        let request = line(&Request::of_network(Command::Status, "lan", &[])).unwrap();
        assert_eq!(answer_after_timeout(&request), "{}\n");
        assert_eq!(answer_after_timeout(&request[..9]), "", "of a request that is not complete");
        fs::remove_dir_all(directory).unwrap();
    }
}
