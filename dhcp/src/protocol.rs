//! What plugin and daemon say to each other: one request and one answer on a connection, each a line of JSON.

use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::time::Duration;

use cni::{Code, Context, Dns, Error, IpConfig, Program, Result, Route, ValidAttachment, json};
use linux::child::{run_to_end, start};
use linux::unix::{Address, Connection};
use linux::{Deadline, process};
use serde::{Deserialize, Serialize};

use crate::config::Endpoint;
use crate::lease::{Family, Key};
use crate::settings::Settings;
use crate::terms::Terms;

/// The name of the program.
const NAME: &str = "dhcp";
/// The longest line.
pub(crate) const MAX_LINE: usize = 16 << 20;
/// How a server of HTTP begins its answer to a line that it does not understand: the daemon of the reference is one.
const HTTP: &[u8] = b"HTTP/";
/// How long a daemon may take to listen. It may wait for one that is about to end.
const START_TIMEOUT: Duration = Duration::from_secs(8);
/// How often a plugin starts a daemon: each time, it can connect to one that is about to end.
const STARTS: usize = 3;
/// What to do about a daemon that does not answer.
const START_HINT: &str =
    "start it with `systemctl enable --now cni-dhcp.socket` or `dhcp daemon`, or set \"startDaemon\": true in \"ipam\"";

/// What the plugin asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Command {
    Add,
    Del,
    Check,
    Gc,
    Status,
}

/// A request. Commands of a network have no attachment.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) command: Command,
    pub(crate) key: Key,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) netns: Option<PathBuf>,
    #[serde(default)]
    pub(crate) settings: Settings,
    /// CHECK: the address in the result of ADD, for a lease that the daemon does not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) address: Option<std::net::Ipv4Addr>,
    /// GC: the container and the interface of each attachment that is valid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) valid: Vec<(String, String)>,
}

impl Request {
    /// Returns a request for an attachment.
    pub(crate) fn new(command: Command, key: Key) -> Request {
        Request { command, key, netns: None, settings: Settings::default(), address: None, valid: Vec::new() }
    }

    /// Returns a request for a network.
    pub(crate) fn of_network(command: Command, network: &str, valid: &[ValidAttachment]) -> Request {
        let network = network.to_owned();
        let key = Key { network, container: String::new(), ifname: String::new(), family: Family::V4 };
        let valid = valid.iter().map(|at| (at.container.clone(), at.ifname.clone())).collect();
        Request { valid, ..Request::new(command, key) }
    }
}

/// An answer.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// The failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<Failure>,
    /// ADD: what the server has granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    granted: Option<Granted>,
}

/// The part of the terms that a result has. The plugin reads nothing else: it is part of many programs.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Granted {
    pub(crate) ip: IpConfig,
    #[serde(default)]
    pub(crate) routes: Vec<Route>,
    #[serde(default)]
    pub(crate) dns: Dns,
}

#[derive(Debug, Serialize, Deserialize)]
struct Failure {
    code: Code,
    message: String,
    #[serde(default)]
    details: String,
}

impl From<Result<Option<Terms>>> for Answer {
    fn from(outcome: Result<Option<Terms>>) -> Answer {
        match outcome {
            Ok(terms) => {
                let granted = terms.map(|terms| Granted { ip: terms.ip(), routes: terms.routes, dns: terms.dns });
                Answer { granted, error: None }
            }
            Err(error) => {
                let (code, message, details) = (error.code(), error.to_string(), error.details_text().to_owned());
                Answer { error: Some(Failure { code, message, details }), granted: None }
            }
        }
    }
}

impl Answer {
    fn outcome(self) -> Result<Option<Granted>> {
        match self.error {
            Some(Failure { code, message, details }) if details.is_empty() => Err(Error::new(code, message)),
            Some(Failure { code, message, details }) => Err(Error::new(code, message).details(details)),
            None => Ok(self.granted),
        }
    }
}

/// Returns the line for a request or an answer.
pub(crate) fn line<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    let mut line = json::compact(value)?;
    line.push(b'\n');
    Ok(line)
}

/// Asks the daemon. Fails if none answers in time. Starts it if the configuration says so.
pub(crate) fn ask(daemon: &Endpoint<'_>, request: &Request, timeout: Duration) -> Result<Option<Granted>> {
    let socket = &daemon.socket;
    let line = line(request)?;
    let mut answer = attempt(socket, &line, timeout);
    if let Some(dirs) = daemon.starts_from {
        for left in (0..STARTS).rev() {
            if answer.is_ok() {
                break;
            }
            let started = start_daemon(dirs, socket);
            answer = attempt(socket, &line, timeout);
            // A daemon that is about to end keeps another one from starting, and does not answer any more.
            if let (Err(_), Err(error), 0) = (&answer, started, left) {
                return Err(error.with_code(Code::TRY_LATER));
            }
        }
    }
    answer?
}

/// Returns whether the daemon answers, or can be started.
pub(crate) fn is_ready(daemon: &Endpoint<'_>, network: &str, timeout: Duration) -> Result<()> {
    let line = line(&Request::of_network(Command::Status, network, &[]))?;
    match (attempt(&daemon.socket, &line, timeout), daemon.starts_from) {
        (Err(_), Some(dirs)) => Program::find(dirs, NAME).map(drop),
        (answer, _) => answer?.map(drop),
    }
}

/// Asks once. The outer error means that no daemon has answered.
fn attempt(socket: &Path, line: &[u8], timeout: Duration) -> Result<Result<Option<Granted>>> {
    let deadline = Deadline::after(timeout);
    let address = Address::Path(socket.to_owned());
    let mut connection = Connection::open(&address, deadline).map_err(|error| absent(socket, error.into()))?;
    let answer = match exchange(&mut connection, line) {
        Err(error) if [Some(libc::EPIPE), Some(libc::ECONNRESET)].contains(&error.errno()) => Vec::new(),
        Err(error) => return Ok(Err(Error::from(error).context(format!("ask the DHCP daemon at {socket:?}")))),
        Ok(answer) => answer,
    };
    if answer.starts_with(HTTP) {
        let what = format!("the DHCP daemon of the reference listens at {socket:?}");
        return Ok(Err(Error::new(Code::TRY_LATER, what).details("stop it, and start `dhcp daemon` of cni0")));
    }
    let Some(answer) = answer.strip_suffix(b"\n") else {
        let what = format!("the DHCP daemon at {socket:?} has closed the connection without an answer");
        return Err(Error::new(Code::TRY_LATER, what).details("it may have been restarted: try again, and see its log"));
    };
    let answer: Result<Answer> = json::parse(&String::from_utf8_lossy(answer))
        .context(|| format!("read the answer of the DHCP daemon at {socket:?}"));
    Ok(answer.and_then(Answer::outcome))
}

/// Starts a daemon. Its program ends once it listens.
fn start_daemon(dirs: &[PathBuf], socket: &Path) -> Result<()> {
    let what = || format!("start the DHCP daemon at {socket:?}");
    let program = Program::find(dirs, NAME).context(what)?;
    let mut process = Process::new(program.path());
    process.args(["daemon", "-on-demand", "-socketpath"]).arg(socket).env_clear();
    process.envs(process::env("CNI_LOG").map(|level| ("CNI_LOG", level)));
    let child = start(&mut process, program.path()).context(what)?;
    let (stderr, outcome) = run_to_end(child, b"", Deadline::after(START_TIMEOUT));
    let (status, _) = outcome.context(what)?;
    match status.success() {
        true => Ok(()),
        false => {
            let text = String::from_utf8_lossy(&stderr);
            let what = format!("start the DHCP daemon at {socket:?}: {}", text.trim_end());
            Err(Error::new(Code::TRY_LATER, what)
                .details("correct what the text says, or start `dhcp daemon` in another way"))
        }
    }
}

fn absent(socket: &Path, error: Error) -> Error {
    let what = format!("no DHCP daemon listens at {socket:?}: {error}");
    Error::new(Code::TRY_LATER, what).details(START_HINT)
}

/// Sends a line, and receives what the daemon sends up to its end, or to the end of a line.
fn exchange(connection: &mut Connection, line: &[u8]) -> linux::Result<Vec<u8>> {
    connection.send(line)?;
    let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
    while answer.last() != Some(&b'\n') && answer.len() < MAX_LINE {
        match connection.receive(&mut buffer)? {
            0 => break,
            count => answer.extend_from_slice(buffer.get(..count).unwrap_or_default()),
        }
        if answer.starts_with(HTTP) {
            break;
        }
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_as_it_was_written() {
        let error = Error::new(Code::TRY_LATER, "no server has answered").details("see the log");
        let text = line(&Answer::from(Err(error.clone()))).unwrap();
        let answer: Answer = serde_json::from_slice(&text).unwrap();
        let read = answer.outcome().unwrap_err();
        assert_eq!((read.code(), read.to_string()), (error.code(), error.to_string()));
        assert_eq!(read.details_text(), "see the log");
        let answer: Answer = serde_json::from_slice(&line(&Answer::from(Ok(None))).unwrap()).unwrap();
        assert_eq!(answer.outcome(), Ok(None));
    }
}
