//! The log daemons of the host: journald by its native protocol, and any other by that of syslog.
//!
//! Datagrams are sent without waiting, so that a slow daemon cannot delay a call. What it does not accept is lost, and
//! reported once on stderr.

use std::io::{self, Write};
use std::path::Path;

use linux::unix::Datagrams;
use log::{Level, Record};

use super::LoggedCall;
use crate::error::{Context, Result};

/// The largest datagram for syslog. Longer ones are cut, as daemons would do.
const SYSLOG_LIMIT: usize = 8 << 10;
/// The facility of system daemons, in the position of the priority byte.
const DAEMON_FACILITY: u8 = 3 << 3;

/// A log daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Daemon {
    Journal,
    Syslog,
}

impl Daemon {
    /// Returns the daemon that `logFile` names.
    pub(super) fn named(name: &str) -> Option<Daemon> {
        match name {
            "journal" => Some(Daemon::Journal),
            "syslog" => Some(Daemon::Syslog),
            _ => None,
        }
    }

    fn path(self) -> &'static str {
        match self {
            Daemon::Journal => "/run/systemd/journal/socket",
            Daemon::Syslog => "/dev/log",
        }
    }

    /// Formats a record as a datagram.
    pub(super) fn datagram(self, subject: &LoggedCall, record: &Record<'_>) -> Vec<u8> {
        let message = format!("{subject}: {}", record.args());
        match self {
            Daemon::Journal => journal(subject, record.level(), &message),
            Daemon::Syslog => syslog(subject, record.level(), &message),
        }
    }
}

/// Returns the severity of syslog, which journald uses as well.
fn severity(level: Level) -> u8 {
    match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    }
}

/// Formats a message in the native protocol of journald: a field per line.
fn journal(subject: &LoggedCall, level: Level, message: &str) -> Vec<u8> {
    let priority = severity(level).to_string();
    let (container, ifname) = subject.attachment.as_ref().map_or(("", ""), |(container, ifname)| (container, ifname));
    let (trace, span) = subject.trace.as_ref().map_or(("", ""), |trace| (&trace.trace_id, &trace.span_id));
    let fields = [
        ("MESSAGE", message),
        ("PRIORITY", &priority),
        ("SYSLOG_IDENTIFIER", subject.plugin),
        ("CNI_COMMAND", &subject.command),
        ("CNI_NETWORK", &subject.network),
        ("CNI_CONTAINERID", container),
        ("CNI_IFNAME", ifname),
        ("TRACE_ID", trace),
        ("SPAN_ID", span),
    ];
    let mut bytes = Vec::new();
    for (name, value) in fields.into_iter().filter(|(_, value)| !value.is_empty()) {
        bytes.extend_from_slice(name.as_bytes());
        match value.contains('\n') {
            false => bytes.push(b'='),
            // A value of several lines follows its length.
            true => {
                bytes.push(b'\n');
                bytes.extend_from_slice(&(value.len() as u64).to_le_bytes());
            }
        }
        bytes.extend_from_slice(value.as_bytes());
        bytes.push(b'\n');
    }
    bytes
}

/// Formats a message without a time: the daemon adds it, in its own time zone.
fn syslog(subject: &LoggedCall, level: Level, message: &str) -> Vec<u8> {
    let priority = DAEMON_FACILITY | severity(level);
    let mut text = format!("<{priority}>{}[{}]: {message}", subject.plugin, std::process::id());
    let end = (0..=SYSLOG_LIMIT).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    text.truncate(end);
    text.into_bytes()
}

/// A connection to a log daemon. Each write is a datagram.
#[derive(Debug)]
pub(super) struct Sender {
    daemon: Daemon,
    socket: Datagrams,
    /// Whether a message was lost.
    has_lost: bool,
}

impl Sender {
    /// Connects to the daemon.
    pub(super) fn connect(daemon: Daemon) -> Result<Sender> {
        let path = daemon.path();
        let socket = Datagrams::connect(Path::new(path)).context(|| format!("connect to the log daemon at {path}"))?;
        Ok(Sender { daemon, socket, has_lost: false })
    }

    fn send(&self, message: &[u8]) -> Result<()> {
        match self.socket.send(message) {
            // journald accepts a file in place of a large datagram.
            Err(error) if error.errno() == Some(libc::EMSGSIZE) && self.daemon == Daemon::Journal => {
                Ok(self.socket.send_as_file(message)?)
            }
            outcome => Ok(outcome?),
        }
    }
}

impl Write for Sender {
    /// Reports the first lost message on stderr. The next ones are probably lost for the same reason.
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        if let Err(error) = self.send(message)
            && !std::mem::replace(&mut self.has_lost, true)
        {
            let _ = writeln!(io::stderr(), "warning: send to the log daemon at {}: {error}", self.daemon.path());
        }
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logging::Trace;

    fn subject(attachment: Option<(&str, &str)>) -> LoggedCall {
        let attachment = attachment.map(|(container, ifname)| (container.to_owned(), ifname.to_owned()));
        LoggedCall { plugin: "bridge", command: "ADD".to_owned(), network: "net1".to_owned(), attachment, trace: None }
    }

    #[test]
    fn journald_gets_fields() {
        let bytes = journal(&subject(Some(("c1", "eth0"))), Level::Error, "one\ntwo");
        let wanted = b"MESSAGE\n\x07\0\0\0\0\0\0\0one\ntwo\nPRIORITY=3\nSYSLOG_IDENTIFIER=bridge\nCNI_COMMAND=ADD\n\
            CNI_NETWORK=net1\nCNI_CONTAINERID=c1\nCNI_IFNAME=eth0\n";
        assert_eq!(bytes, wanted);
        let trace = Trace { trace_id: "0af7".to_owned(), span_id: "b7ad".to_owned() };
        let bytes = journal(&LoggedCall { trace: Some(trace), ..subject(None) }, Level::Info, "x");
        assert!(bytes.ends_with(b"CNI_NETWORK=net1\nTRACE_ID=0af7\nSPAN_ID=b7ad\n"));
        let bytes = journal(&subject(None), Level::Info, "x=y");
        let wanted = b"MESSAGE=x=y\nPRIORITY=6\nSYSLOG_IDENTIFIER=bridge\nCNI_COMMAND=ADD\nCNI_NETWORK=net1\n";
        assert_eq!(bytes, wanted);
    }

    #[test]
    fn a_message_for_syslog_is_cut_between_characters() {
        let text = String::from_utf8(syslog(&subject(None), Level::Warn, "short")).unwrap();
        assert_eq!(text, format!("<28>bridge[{}]: short", std::process::id()));
        let text = String::from_utf8(syslog(&subject(None), Level::Debug, &"\u{fc}".repeat(SYSLOG_LIMIT))).unwrap();
        assert!(text.starts_with("<31>") && text.len() <= SYSLOG_LIMIT && text.len() > SYSLOG_LIMIT - 2);
    }
}
