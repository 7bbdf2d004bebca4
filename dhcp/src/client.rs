//! The client of a lease: the state machine of RFC 2131. Pure: it is called when a message arrives or its time has come, and returns
//! what to do. It never reads a clock.

mod outgoing;

use std::net::Ipv4Addr;
use std::time::Duration;

use linux::ip::MacAddr;
use serde::{Deserialize, Serialize};

use crate::message::{Kind, Message, option};
use crate::settings::Settings;
use crate::terms::Terms;

/// A point in time, since the boot.
pub(crate) type Moment = Duration;

/// The first pause before a message is repeated. Each one doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause in RFC 2131 before a REQUEST for more time is repeated, if there is enough of it left.
const RENEWAL_PAUSE: Duration = Duration::from_secs(60);
/// How often the client asks whether it may keep an address that it had.
const REBOOT_ATTEMPTS: u32 = 4;
/// The largest message that the client accepts.
const MAX_SIZE: u16 = 1500;

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
    /// Where the messages of the server come from: the server, or a router before it.
    pub(crate) via: [u8; 6],
    /// When the client asked for it, in milliseconds since the boot. The times of the terms count from then.
    pub(crate) since: u64,
}

impl Grant {
    fn new(terms: Terms, from: MacAddr, asked: Moment) -> Grant {
        Grant { terms, via: from.0, since: u64::try_from(asked.as_millis()).unwrap_or(u64::MAX) }
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

/// A message to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outgoing {
    pub(crate) message: Message,
    pub(crate) from: Ipv4Addr,
    pub(crate) to: Ipv4Addr,
    pub(crate) mac: MacAddr,
}

/// What the client is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Nothing.
    Idle,
    /// It looks for servers.
    Selecting,
    /// It has chosen an offer, and waits for the confirmation up to a time.
    Requesting(Ipv4Addr, Ipv4Addr, Moment),
    /// It asks whether it may keep an address.
    Rebooting(Ipv4Addr),
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
    mac: MacAddr,
    settings: Settings,
    broadcast: bool,
    timing: Timing,
    state: State,
    grant: Option<Grant>,
    /// What the client has asked for, unless the server has refused it.
    offer: Option<Grant>,
    /// The address that the client had before it lost its lease, which it would like to have again.
    former: Option<Ipv4Addr>,
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
    pub(crate) fn new(mac: MacAddr, settings: Settings, broadcast: bool, timing: Timing, random: u64) -> Client {
        Client {
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
    pub(crate) fn reboot(&mut self, now: Moment, address: Ipv4Addr) -> Vec<Action> {
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
            State::Requesting(.., until) if *until <= now => {
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

    /// Handles a message that came from a MAC address.
    pub(crate) fn on_message(&mut self, now: Moment, message: &Message, from: MacAddr) -> Vec<Action> {
        if !message.is_reply || message.xid != self.xid || message.mac != self.mac {
            return Vec::new();
        }
        let server = message.address(option::SERVER);
        let own = self.terms().map(|terms| terms.server);
        match (&self.state, message.kind) {
            (State::Selecting, Kind::Offer) => self.on_offer(message, from, now),
            (State::Requesting(by, ..), Kind::Ack | Kind::Nak) if server != Some(*by) => Vec::new(),
            (State::Renewing, Kind::Ack | Kind::Nak) if server.is_some() && server != own => Vec::new(),
            (State::Requesting(..) | State::Rebooting(_) | State::Renewing | State::Rebinding, Kind::Ack) => {
                self.on_ack(message, from, now)
            }
            (State::Requesting(..), Kind::Nak) => {
                (self.last, self.offer) = (refusal(message), None);
                // At once, the server would refuse again.
                self.begin(State::Selecting, now);
                self.pause(now);
                Vec::new()
            }
            (State::Rebooting(_) | State::Renewing | State::Rebinding, Kind::Nak) => {
                self.last = refusal(message);
                match self.grant {
                    Some(_) => self.lose(now, self.last.clone()),
                    None => self.fail(),
                }
            }
            _ => Vec::new(),
        }
    }

    fn on_offer(&mut self, message: &Message, from: MacAddr, now: Moment) -> Vec<Action> {
        match Terms::read(message, &self.settings) {
            Ok(terms) => {
                self.last = format!("server {} has offered {}", terms.server, terms.address);
                let until = now + self.timing.answer;
                let xid = self.xid;
                self.begin(State::Requesting(terms.server, message.yours, until), now);
                // The same exchange: the server compares its number.
                self.xid = xid;
                self.offer = Some(Grant::new(terms, from, now));
                [vec![Action::Chosen], self.act(now)].concat()
            }
            Err(why) => {
                self.last = unusable("the offer", message, &why);
                Vec::new()
            }
        }
    }

    fn on_ack(&mut self, message: &Message, from: MacAddr, now: Moment) -> Vec<Action> {
        let former = self.terms().filter(|_| self.state == State::Renewing).map(|terms| terms.server);
        let mut message = message.clone();
        if let Some(server) = former {
            // A server may leave out what the client knows.
            message.options.entry(option::SERVER).or_insert_with(|| server.octets().to_vec());
        }
        let terms = match Terms::read(&message, &self.settings) {
            Ok(terms) => terms,
            Err(why) => {
                self.last = unusable("the lease", &message, &why);
                if let State::Requesting(..) = self.state {
                    self.begin(State::Selecting, now);
                    self.pause(now);
                }
                return Vec::new();
            }
        };
        let grant = Grant::new(terms, from, self.sent);
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

    /// Sets the timer for the repetition of a message, to a little more or less than the pause, so that clients that start
    /// together do not stay together.
    fn pause(&mut self, now: Moment) {
        let doubled = FIRST_PAUSE.saturating_mul(1 << self.count.min(16)).min(self.timing.pause);
        self.count = self.count.saturating_add(1);
        let eighth = doubled / 8;
        let share = u32::try_from(self.draw() >> 56).unwrap_or_default();
        let next = now + doubled - eighth + eighth * 2 * share / 256;
        let limit = match self.state {
            State::Requesting(.., until) => Some(until),
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
                let server = grant.terms.server;
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

    /// Returns a random number (xorshift64*). It only keeps clients apart: no secret depends on it.
    fn draw(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

fn refusal(message: &Message) -> String {
    let server = message.address(option::SERVER).map_or_else(|| "a server".to_owned(), |ip| format!("server {ip}"));
    match message.text(option::TEXT).as_str() {
        "" => format!("{server} has refused the address"),
        text => format!("{server} has refused the address: {text}"),
    }
}

fn unusable(what: &str, message: &Message, why: &str) -> String {
    let server = message.address(option::SERVER).map_or_else(|| "a server".to_owned(), |ip| format!("server {ip}"));
    format!("{what} of {server} cannot be used: {why}")
}

#[cfg(test)]
mod tests;
