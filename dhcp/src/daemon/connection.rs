//! A connection of a plugin: one request, and its answer.

use std::io;

use cni::{Error, Result, json};
use linux::unix::Peer;

use crate::client::Moment;
use crate::protocol::{Answer, MAX_LINE, Request, line};

/// The answer to a plugin of the reference, which speaks another protocol. It reports the text.
const TO_REFERENCE: &[u8] = b"HTTP/1.0 501 the DHCP daemon of cni0 needs the plugin dhcp of cni0\r\n\r\n";

/// What has arrived on a connection.
#[derive(Debug)]
pub(super) enum Received {
    /// Not all yet.
    Part,
    /// A request, or why it cannot be read.
    Whole(Box<Result<Request>>),
    /// Something else, or the end. The connection must be closed.
    End,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) peer: Peer,
    received: Vec<u8>,
    /// When the connection is closed, unless the request has arrived.
    pub(super) until: Option<Moment>,
}

impl Connection {
    pub(super) fn new(peer: Peer, until: Moment) -> Connection {
        Connection { peer, received: Vec::new(), until: Some(until) }
    }

    /// Reads what has arrived.
    pub(super) fn receive(&mut self) -> io::Result<Received> {
        let before = self.received.len();
        let is_open = self.peer.receive(&mut self.received)?;
        if self.until.is_none() {
            // The plugin waits for its answer, unless it has ended.
            return Ok(if is_open { Received::Part } else { Received::End });
        }
        if self.received.starts_with(b"CONNECT ") {
            let _ = self.peer.send(TO_REFERENCE);
            return Ok(Received::End);
        }
        let end = self.received.get(before..).and_then(|new| new.iter().position(|byte| *byte == b'\n'));
        match end {
            Some(end) => {
                let line = self.received.get(..before + end).unwrap_or_default();
                let request = json::parse(&String::from_utf8_lossy(line));
                self.received = Vec::new();
                Ok(Received::Whole(Box::new(request.map_err(|fault| {
                    Error::from(fault).context("read a request").details("use plugin and daemon of the same version")
                }))))
            }
            None if is_open && self.received.len() < MAX_LINE => Ok(Received::Part),
            None => Ok(Received::End),
        }
    }

    /// Sends the answer. A plugin that has ended gets none.
    pub(super) fn answer(&mut self, answer: &Answer) -> bool {
        line(answer).is_ok_and(|line| self.peer.send(&line).is_ok())
    }
}
