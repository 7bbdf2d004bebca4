//! The command line of the daemon: the flags of the reference.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni::{Code, Error, Result};

use crate::client::Timing;
use crate::config::SOCKET;

/// The help.
pub(super) const HELP: &str = "\
Asks DHCP servers for addresses on behalf of the CNI plugin `dhcp`, and renews the leases.

Usage: dhcp daemon [FLAGS]

  -socketpath PATH         listen here (/run/cni/dhcp.sock)
  -hostprefix DIR          directory that has the root of the host: precedes the socket and the paths of namespaces
  -pidfile PATH            write the number of the process to this file
  -broadcast               ask servers to answer by broadcast, unless a network says otherwise
  -on-demand               detach, as a plugin does with \"startDaemon\": end when no lease needs to be renewed; log to /dev/log
  -timeout DURATION        longest wait for a server to confirm its offer (10s)
  -resendmax DURATION      longest pause before a message is repeated (62s)
  -resendtimeout DURATION  longest wait for an address, before an ADD fails (3m28s)

A service manager can pass the socket (LISTEN_FDS). CNI_LOG sets the level of the log: off, error, warn, info, debug.
";

/// What the command line asks for.
#[derive(Debug)]
pub(super) enum Invocation {
    /// Print the help.
    Help,
    /// Run.
    Run(Flags),
}

/// The flags.
#[derive(Clone, Debug)]
pub(crate) struct Flags {
    pub(crate) socket: PathBuf,
    pub(crate) prefix: PathBuf,
    pub(crate) pidfile: Option<PathBuf>,
    pub(crate) broadcast: bool,
    pub(crate) on_demand: bool,
    pub(crate) timing: Timing,
}

impl Flags {
    /// Returns where this process sees a file of the host.
    pub(crate) fn prefixed(&self, path: &Path) -> PathBuf {
        match self.prefix.as_os_str().is_empty() {
            true => path.to_owned(),
            false => self.prefix.join(path.strip_prefix("/").unwrap_or(path)),
        }
    }
}

/// Parses the arguments. As in Go, a flag begins with one hyphen or two, and its value follows it or an equals sign.
pub(super) fn parse<'a>(mut arguments: impl Iterator<Item = &'a OsStr>) -> Result<Invocation> {
    let timing =
        Timing { answer: Duration::from_secs(10), pause: Duration::from_secs(62), total: Duration::from_secs(208) };
    let mut flags = Flags {
        socket: PathBuf::from(SOCKET),
        prefix: PathBuf::new(),
        pidfile: None,
        broadcast: false,
        on_demand: false,
        timing,
    };
    while let Some(argument) = arguments.next() {
        let bytes = argument.as_bytes();
        let Some(bytes) = bytes.strip_prefix(b"--").or_else(|| bytes.strip_prefix(b"-")) else {
            return Err(usage(format!("unexpected argument {argument:?}")));
        };
        let mut parts = bytes.splitn(2, |byte| *byte == b'=');
        let name = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
        let inline = parts.next().map(OsStr::from_bytes);
        let mut value = || {
            let missing = || usage(format!("flag -{name} needs a value"));
            inline.or_else(|| arguments.next()).ok_or_else(missing)
        };
        match name.as_str() {
            "h" | "help" => return Ok(Invocation::Help),
            "broadcast" => flags.broadcast = boolean(&name, inline)?,
            "on-demand" => flags.on_demand = boolean(&name, inline)?,
            "socketpath" => flags.socket = value()?.into(),
            "hostprefix" => flags.prefix = value()?.into(),
            "pidfile" => flags.pidfile = Some(PathBuf::from(value()?)).filter(|path| !path.as_os_str().is_empty()),
            "timeout" => flags.timing.answer = duration(&name, value()?)?,
            "resendmax" => flags.timing.pause = duration(&name, value()?)?,
            "resendtimeout" => flags.timing.total = duration(&name, value()?)?,
            _ => return Err(usage(format!("unknown flag -{name}"))),
        }
    }
    Ok(Invocation::Run(flags))
}

fn usage(what: String) -> Error {
    Error::new(Code::CONFIG, what).details("see `dhcp daemon -help`")
}

/// Returns the value of a flag that needs none.
fn boolean(name: &str, value: Option<&OsStr>) -> Result<bool> {
    match value.map(OsStr::as_bytes) {
        None | Some(b"1" | b"t" | b"T" | b"true" | b"TRUE" | b"True") => Ok(true),
        Some(b"0" | b"f" | b"F" | b"false" | b"FALSE" | b"False") => Ok(false),
        Some(_) => Err(usage(format!("flag -{name} is true or false"))),
    }
}

/// Parses a duration as Go writes it, such as `1m30s` or `500ms`.
fn duration(name: &str, text: &OsStr) -> Result<Duration> {
    let invalid = || usage(format!("flag -{name}: {text:?} is not a duration such as 10s or 1m30s"));
    let mut rest = text.to_str().filter(|text| !text.is_empty()).ok_or_else(invalid)?;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(invalid)?;
        let (number, unit) = rest.split_at(end);
        let length = unit.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(unit.len());
        let (unit, next) = unit.split_at(length);
        let seconds = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(invalid()),
        };
        let number: f64 = number.parse().map_err(|_| invalid())?;
        let part = Duration::try_from_secs_f64(number * seconds).map_err(|_| invalid())?;
        total = total.checked_add(part).ok_or_else(invalid)?;
        rest = next;
    }
    // Zero would repeat a message without a pause, and a year is for ever.
    Ok(total.clamp(Duration::from_millis(100), Duration::from_secs(365 * 86_400)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(arguments: &[&str]) -> Result<Flags> {
        match parse(arguments.iter().map(OsStr::new))? {
            Invocation::Run(flags) => Ok(flags),
            Invocation::Help => panic!("help"),
        }
    }

    #[test]
    fn flags_are_written_as_in_go() {
        let flags = flags(&["-socketpath", "/a b", "--timeout=2s", "-resendmax", "1m2.5s", "-broadcast", "-pidfile="]);
        let flags = flags.unwrap();
        assert_eq!((flags.socket.to_str(), flags.broadcast, &flags.pidfile), (Some("/a b"), true, &None));
        assert_eq!(flags.timing.answer, Duration::from_secs(2));
        assert_eq!(flags.timing.pause, Duration::from_millis(62_500));
        assert_eq!(flags.timing.total, Duration::from_secs(208));
        assert!(matches!(parse([OsStr::new("-h")].into_iter()), Ok(Invocation::Help)));
    }

    #[test]
    fn mistakes_are_errors() {
        for bad in [
            &["x"][..],
            &["-x"],
            &["-timeout"],
            &["-timeout", "5"],
            &["-timeout", ""],
            &["-timeout", "5 s"],
            &["-timeout", "1e99999h"],
            &["-broadcast=maybe"],
            &["-"],
        ] {
            assert!(flags(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_prefix_precedes_absolute_paths() {
        let flags = flags(&["-hostprefix", "/host"]).unwrap();
        assert_eq!(flags.prefixed(&flags.socket), Path::new("/host/run/cni/dhcp.sock"));
        let none = Flags { prefix: PathBuf::new(), ..flags };
        assert_eq!(none.prefixed(Path::new("/a")), Path::new("/a"));
    }
}
