//! The client of a lease: the state machine that RFC 2131 and RFC 8415 have in common. Pure: it is called when a
//! message arrives or its time has come, and returns what to do. It never reads a clock. What the messages of a family
//! look like, `v4` and `v6` know.

use std::net::IpAddr;
use std::time::Duration;

use linux::ip::MacAddr;
use serde::{Deserialize, Serialize};

use crate::exchange::{Ask, Content, Exchange, Incoming, Outgoing, Received};
use crate::lease::Family;
use crate::settings::Settings;
use crate::terms::{Server, Terms};
use crate::{v4, v6};

/// A point in time, since the boot.
pub(crate) type Moment = Duration;

/// The first pause before a message is repeated. Each one doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause in RFC 2131 before a REQUEST for more time is repeated, if there is enough of it left.
const RENEWAL_PAUSE: Duration = Duration::from_secs(60);
/// How often the client asks whether it may keep an address that it had.
const REBOOT_ATTEMPTS: u32 = 4;

/// How long the client waits, as the flags of the daemon say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// For the answer to a REQUEST for an address that a server has offered.
    pub(crate) answer: Duration,
    /// At most, before a message is repeated.
    pub(crate) pause: Duration,
    /// For an address, before an ADD fails.
    pub(crate) total: Duration,
}

/// A lease that a server has granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Grant {
    pub(crate) terms: Terms,
    /// When the client asked for it, in milliseconds since the boot. The times of the terms count from then.
    pub(crate) since: u64,
}

impl Grant {
    fn new(terms: Terms, asked: Moment) -> Grant {
        Grant { terms, since: u64::try_from(asked.as_millis()).unwrap_or(u64::MAX) }
    }

    fn after(&self, seconds: u32) -> Moment {
        Duration::from_millis(self.since) + Duration::from_secs(seconds.into())
    }

    /// Returns when the lease ends; `None` if it does not.
    pub(crate) fn end(&self) -> Option<Moment> {
        self.terms.times.map(|times| self.after(times.end))
    }
}

/// What the daemon has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Record the offer that the client is about to ask for.
    Chosen,
    /// Send a message.
    Send(Outgoing),
    /// Keep the lease, and make the interface follow it.
    Bound(Grant),
    /// Remove the address from the interface.
    Lost(String),
    /// Report that there is no address. The client does nothing more.
    Failed(String),
}

/// What the client is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Nothing.
    Idle,
    /// It looks for servers.
    Selecting,
    /// It has chosen an offer, and waits for the confirmation up to a time.
    Requesting(Box<Terms>, Moment),
    /// It asks whether it may keep an address.
    Rebooting(IpAddr),
    /// It has a lease, and waits.
    Bound,
    /// It asks its server for more time.
    Renewing,
    /// It asks any server for more time.
    Rebinding,
}

/// The client of one interface.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    family: Family,
    mac: MacAddr,
    settings: Settings,
    broadcast: bool,
    timing: Timing,
    state: State,
    grant: Option<Grant>,
    /// What the client has asked for, unless the server has refused it.
    offer: Option<Grant>,
    /// The address that the client had before it lost its lease, which it would like to have again.
    former: Option<IpAddr>,
    xid: u32,
    random: u64,
    /// When the exchange began, and the last message was sent.
    began: Moment,
    sent: Moment,
    /// The number of messages in this state, and since the exchange began.
    count: u32,
    total: u32,
    /// When the exchange fails; `None` if it goes on for ever.
    until: Option<Moment>,
    timer: Option<Moment>,
    /// What happened last, for an error.
    last: String,
}

impl Client {
    /// Returns a client that does nothing yet. `random` is different for each client.
    pub(crate) fn new(
        family: Family,
        mac: MacAddr,
        settings: Settings,
        broadcast: bool,
        timing: Timing,
        random: u64,
    ) -> Client {
        Client {
            family,
            mac,
            settings,
            broadcast,
            timing,
            state: State::Idle,
            grant: None,
            offer: None,
            former: None,
            xid: 0,
            random: random | 1,
            began: Moment::ZERO,
            sent: Moment::ZERO,
            count: 0,
            total: 0,
            until: None,
            timer: None,
            last: "no server has answered".to_owned(),
        }
    }

    /// Returns the lease.
    pub(crate) fn grant(&self) -> Option<&Grant> {
        self.grant.as_ref()
    }

    /// Returns the offer that the client has asked for, without a confirmation so far.
    pub(crate) fn offer(&self) -> Option<&Grant> {
        self.offer.as_ref()
    }

    /// Returns the terms of the lease that the interface can use.
    pub(crate) fn terms(&self) -> Option<&Terms> {
        self.grant().map(|grant| &grant.terms)
    }

    /// Returns when [`Client::on_time`] must be called.
    pub(crate) fn timer(&self) -> Option<Moment> {
        self.timer
    }

    /// Returns until when an answer can arrive; `None` if the client waits for none.
    pub(crate) fn listens_until(&self) -> Option<Moment> {
        match self.state {
            State::Idle | State::Bound => None,
            _ => Some(self.sent + self.timing.answer),
        }
    }

    /// Returns how often the client has asked, for an error.
    pub(crate) fn sent_text(&self) -> String {
        let seconds = self.sent.saturating_sub(self.began).as_secs();
        format!(
            "the client, {}, asked {} times within {seconds} s: is there a server on this network?",
            self.mac, self.total
        )
    }

    /// Asks for an address, for an ADD that fails after the time for that.
    pub(crate) fn acquire(&mut self, now: Moment) -> Vec<Action> {
        self.until = Some(now + self.timing.total);
        self.discover(now)
    }

    /// Asks whether the client may keep an address. Without a lease, it fails if not.
    pub(crate) fn reboot(&mut self, now: Moment, address: IpAddr) -> Vec<Action> {
        self.until = None;
        self.begin(State::Rebooting(address), now);
        self.act(now)
    }

    /// Continues a lease that was recorded.
    pub(crate) fn resume(&mut self, grant: Grant, at: Moment) {
        self.state = State::Bound;
        self.grant = Some(grant);
        self.timer = Some(at);
    }

    /// Continues after it asked for an offer, to give it back.
    pub(crate) fn resume_asked(&mut self, offer: Grant) {
        self.offer = Some(offer);
    }

    /// Continues without a lease that it had: looks for servers, and never ends.
    pub(crate) fn resume_without(&mut self, at: Moment) {
        self.until = None;
        self.begin(State::Selecting, at);
        self.timer = Some(at);
    }

    /// Returns the message that gives the lease back, or the address that the client has asked for: the server may have
    /// granted it.
    pub(crate) fn release(&mut self, now: Moment) -> Option<Outgoing> {
        let grant = self.grant.take().or_else(|| self.offer.take())?;
        self.begin(State::Idle, now);
        self.message(Ask::Release(&grant.terms), now)
    }

    /// Does what is due.
    pub(crate) fn on_time(&mut self, now: Moment) -> Vec<Action> {
        if self.timer.is_none_or(|timer| timer > now) {
            return Vec::new();
        }
        match &self.state {
            State::Idle => {
                self.timer = None;
                Vec::new()
            }
            State::Selecting if self.until.is_some_and(|until| until <= now) => self.fail(),
            State::Requesting(_, until) if *until <= now => {
                self.last = format!("{}, but did not confirm it", self.last);
                self.discover(now)
            }
            State::Rebooting(_) if self.count >= REBOOT_ATTEMPTS => match &self.grant {
                // The lease is valid even if no server answers.
                Some(_) => {
                    self.state = State::Bound;
                    self.keep(now)
                }
                None => self.fail(),
            },
            State::Bound | State::Renewing | State::Rebinding => self.keep(now),
            State::Selecting | State::Requesting(..) | State::Rebooting(_) => self.act(now),
        }
    }

    /// Handles a message.
    pub(crate) fn on_message(&mut self, now: Moment, incoming: &Incoming) -> Vec<Action> {
        let own = self.terms().map(|terms| &terms.server);
        let exchange = self.exchange(now);
        let answer = match incoming {
            Incoming::V4(message, from) => {
                v4::read(message, *from, own.filter(|_| self.state == State::Renewing), &exchange)
            }
            Incoming::V6(message, from) => v6::read(message, *from, self.terms(), &exchange),
        };
        let Some(Received { server, content }) = answer else { return Vec::new() };
        let is_of = |wanted: &Server| server.as_ref().is_some_and(|server| server.is(wanted));
        match (&self.state, content) {
            (State::Selecting, Content::Offer(terms)) => self.on_offer(now, server.as_ref(), terms),
            (State::Requesting(offer, _), _) if !is_of(&offer.server) => Vec::new(),
            (State::Renewing, _) if server.is_some() && !own.is_some_and(is_of) => Vec::new(),
            (
                State::Requesting(..) | State::Rebooting(_) | State::Renewing | State::Rebinding,
                Content::Grant(terms),
            ) => self.on_grant(now, server.as_ref(), terms),
            (State::Rebooting(_), Content::Confirmation) => {
                self.state = State::Bound;
                self.keep(now)
            }
            (State::Requesting(..), Content::Refusal(why)) => {
                (self.last, self.offer) = (refusal(server.as_ref(), &why), None);
                // At once, the server would refuse again.
                self.begin(State::Selecting, now);
                self.pause(now);
                Vec::new()
            }
            (State::Rebooting(_) | State::Renewing | State::Rebinding, Content::Refusal(why)) => {
                self.last = refusal(server.as_ref(), &why);
                match self.grant {
                    Some(_) => self.lose(now, self.last.clone()),
                    None => self.fail(),
                }
            }
            _ => Vec::new(),
        }
    }

    fn on_offer(&mut self, now: Moment, server: Option<&Server>, offer: Result<Terms, String>) -> Vec<Action> {
        match offer {
            Ok(terms) => {
                self.last = format!("server {} has offered {}", terms.server, terms.address);
                let until = now + self.timing.answer;
                let xid = self.xid;
                self.begin(State::Requesting(Box::new(terms.clone()), until), now);
                // The same exchange: the server compares its number.
                self.xid = xid;
                self.offer = Some(Grant::new(terms, now));
                [vec![Action::Chosen], self.act(now)].concat()
            }
            Err(why) => {
                self.last = unusable("the offer", server, &why);
                Vec::new()
            }
        }
    }

    fn on_grant(&mut self, now: Moment, server: Option<&Server>, granted: Result<Terms, String>) -> Vec<Action> {
        let terms = match granted {
            Ok(terms) => terms,
            Err(why) => {
                self.last = unusable("the lease", server, &why);
                if let State::Requesting(..) = self.state {
                    self.begin(State::Selecting, now);
                    self.pause(now);
                }
                return Vec::new();
            }
        };
        let grant = Grant::new(terms, self.sent);
        self.timer = grant.terms.times.map(|times| grant.after(times.renew));
        self.state = State::Bound;
        (self.until, self.offer) = (None, None);
        self.grant = Some(grant.clone());
        vec![Action::Bound(grant)]
    }

    /// Begins to look for servers.
    fn discover(&mut self, now: Moment) -> Vec<Action> {
        self.begin(State::Selecting, now);
        self.act(now)
    }

    /// Begins a state, with a new exchange.
    fn begin(&mut self, state: State, now: Moment) {
        if !matches!((&self.state, &state), (State::Requesting(..), State::Selecting)) {
            self.began = now;
            if !matches!(state, State::Requesting(..)) {
                self.total = 0;
            }
        }
        self.state = state;
        self.count = 0;
        self.timer = None;
        self.xid = u32::try_from(self.draw() >> 32).unwrap_or_default();
    }

    /// Sends the message of the state, and sets the timer for its repetition.
    fn act(&mut self, now: Moment) -> Vec<Action> {
        let outgoing = self.outgoing(now);
        self.sent = now;
        self.total = self.total.saturating_add(1);
        self.pause(now);
        outgoing.map(Action::Send).into_iter().collect()
    }

    /// Sets the timer for the repetition of a message, to a little more or less than the pause, so that clients that
    /// start together do not stay together.
    fn pause(&mut self, now: Moment) {
        let doubled = FIRST_PAUSE.saturating_mul(1 << self.count.min(16)).min(self.timing.pause);
        self.count = self.count.saturating_add(1);
        let eighth = doubled / 8;
        let share = u32::try_from(self.draw() >> 56).unwrap_or_default();
        let next = now + doubled - eighth + eighth * 2 * share / 256;
        let limit = match self.state {
            State::Requesting(_, until) => Some(until),
            _ => self.until,
        };
        self.timer = Some(limit.map_or(next, |limit| next.min(limit.max(now))));
    }

    /// Does what a lease needs: asks for more time, or gives it up.
    fn keep(&mut self, now: Moment) -> Vec<Action> {
        let Some(grant) = &self.grant else { return Vec::new() };
        let Some(times) = grant.terms.times else {
            self.timer = None;
            return Vec::new();
        };
        let (renew, rebind, end) = (grant.after(times.renew), grant.after(times.rebind), grant.after(times.end));
        let (state, limit) = match now {
            _ if now >= end => {
                let server = grant.terms.server.clone();
                return self.lose(now, format!("the lease has ended, and server {server} has not renewed it"));
            }
            _ if now >= rebind => (State::Rebinding, end),
            _ if now >= renew => (State::Renewing, rebind),
            _ => {
                self.timer = Some(renew);
                return Vec::new();
            }
        };
        if self.state != state {
            self.begin(state, now);
        }
        let outgoing = self.outgoing(now);
        self.sent = now;
        // Half of what is left, but not less than a minute, or a sixteenth of a short lease.
        let least = RENEWAL_PAUSE.min(Duration::from_secs(times.end.into()) / 16);
        self.timer = Some(limit.min(now + ((limit - now) / 2).max(least)));
        outgoing.map(Action::Send).into_iter().collect()
    }

    fn lose(&mut self, now: Moment, why: String) -> Vec<Action> {
        self.former = self.grant.take().map(|grant| grant.terms.address);
        self.until = None;
        let mut actions = vec![Action::Lost(why)];
        actions.extend(self.discover(now));
        actions
    }

    fn fail(&mut self) -> Vec<Action> {
        (self.state, self.timer) = (State::Idle, None);
        vec![Action::Failed(self.last.clone())]
    }

    /// Returns the message of the state.
    fn outgoing(&self, now: Moment) -> Option<Outgoing> {
        let terms = || self.grant.as_ref().map(|grant| &grant.terms);
        let ask = match &self.state {
            State::Idle | State::Bound => return None,
            State::Selecting => Ask::Search(self.former),
            State::Requesting(terms, _) => Ask::Request(terms),
            State::Rebooting(address) => Ask::Confirm(*address),
            State::Renewing => Ask::Renew(terms()?),
            State::Rebinding => Ask::Rebind(terms()?),
        };
        self.message(ask, now)
    }

    fn message(&self, ask: Ask<'_>, now: Moment) -> Option<Outgoing> {
        let exchange = self.exchange(now);
        match self.family {
            Family::V4 => v4::outgoing(ask, &exchange, self.broadcast).map(Outgoing::V4),
            Family::V6 => Some(Outgoing::V6(v6::message(ask, &exchange))),
        }
    }

    fn exchange(&self, now: Moment) -> Exchange<'_> {
        let elapsed = now.saturating_sub(self.began);
        Exchange { xid: self.xid, elapsed, mac: self.mac, settings: &self.settings }
    }

    /// Returns a random number (xorshift64*). It only keeps clients apart: no secret depends on it.
    fn draw(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

fn named(server: Option<&Server>) -> String {
    server.map_or_else(|| "a server".to_owned(), |server| format!("server {server}"))
}

fn refusal(server: Option<&Server>, why: &str) -> String {
    let server = named(server);
    match why {
        "" => format!("{server} has refused the address"),
        why => format!("{server} has refused the address: {why}"),
    }
}

fn unusable(what: &str, server: Option<&Server>, why: &str) -> String {
    format!("{what} of {} cannot be used: {why}", named(server))
}

#[cfg(test)]
mod tests;
