//! The messages of the client.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use linux::ip::MacAddr;

use super::{Client, MAX_SIZE, Moment, Outgoing, State};
use crate::message::{Kind, Message, option};
use crate::terms::Terms;

impl Client {
    /// Returns the message that gives the lease back, or the address that the client has asked for: the server may have granted it.
    pub(crate) fn release(&mut self, now: Moment) -> Option<Outgoing> {
        let grant = self.grant.take().or_else(|| self.offer.take())?;
        self.begin(State::Idle, now);
        let Terms { server, address, .. } = grant.terms;
        let mut message = self.message(Kind::Release, now);
        message.broadcast = false;
        message.client = address;
        message.options = BTreeMap::from([
            (option::SERVER, server.octets().to_vec()),
            (option::CLIENT, self.settings.identifier(self.mac)),
        ]);
        Some(Outgoing { message, from: address, to: server, mac: MacAddr(grant.via) })
    }

    /// Returns the message of the state.
    pub(super) fn outgoing(&self, now: Moment) -> Option<Outgoing> {
        let everybody = |message| Outgoing {
            message,
            from: Ipv4Addr::UNSPECIFIED,
            to: Ipv4Addr::BROADCAST,
            mac: MacAddr([0xff; 6]),
        };
        let asking = |address: Ipv4Addr| (option::REQUESTED_ADDRESS, address.octets().to_vec());
        Some(match self.state {
            State::Idle | State::Bound => return None,
            State::Selecting => {
                let mut message = self.message(Kind::Discover, now);
                message.options.extend(self.former.map(asking));
                everybody(message)
            }
            State::Requesting(server, address, _) => {
                let mut message = self.message(Kind::Request, now);
                message.options.extend([asking(address), (option::SERVER, server.octets().to_vec())]);
                everybody(message)
            }
            State::Rebooting(address) => {
                let mut message = self.message(Kind::Request, now);
                message.options.extend([asking(address)]);
                everybody(message)
            }
            State::Renewing | State::Rebinding => {
                let grant = self.grant.as_ref()?;
                let address = grant.terms.address;
                let mut message = self.message(Kind::Request, now);
                (message.client, message.broadcast) = (address, false);
                match self.state {
                    State::Renewing => {
                        Outgoing { message, from: address, to: grant.terms.server, mac: MacAddr(grant.via) }
                    }
                    _ => Outgoing { from: address, ..everybody(message) },
                }
            }
        })
    }

    /// Returns a message with the options that the configuration requests and provides.
    fn message(&self, kind: Kind, now: Moment) -> Message {
        let mut options = BTreeMap::from([
            (option::CLIENT, self.settings.identifier(self.mac)),
            (option::MAX_SIZE, MAX_SIZE.to_be_bytes().to_vec()),
        ]);
        if !self.settings.requests.is_empty() {
            options.insert(option::REQUESTS, self.settings.requests.clone());
        }
        options.extend(self.settings.options.iter().cloned());
        Message {
            is_reply: false,
            kind,
            xid: self.xid,
            seconds: u16::try_from(now.saturating_sub(self.began).as_secs()).unwrap_or(u16::MAX),
            broadcast: self.broadcast,
            client: Ipv4Addr::UNSPECIFIED,
            yours: Ipv4Addr::UNSPECIFIED,
            mac: self.mac,
            options,
        }
    }
}
