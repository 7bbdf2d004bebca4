//! The validated request: environment and stdin. The only code that reads the CNI variables of a request.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use linux::Netns;
use linux::log::warn;

use crate::error::{Code, Context, Error, Result};
use crate::name::{ContainerId, IfName};
use crate::plugin::{Attachment, Home};

/// The request in the environment.
#[derive(Debug)]
pub(crate) enum Request {
    /// No `CNI_COMMAND`: the program was started by hand.
    About,
    /// VERSION, which needs no other variables.
    Version,
    /// ADD, DEL or CHECK of one interface.
    Attachment(Verb, Attachment, Variables),
    /// GC or STATUS of a network.
    Network(NetworkVerb, Variables),
    /// Any other command. It is rejected after the configuration was validated, as in the reference.
    Unknown(String),
}

/// A command for one attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Add,
    Del,
    Check,
}

/// A command for a whole network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NetworkVerb {
    Gc,
    Status,
}

/// Variables of all commands except VERSION.
#[derive(Debug, Default)]
pub(crate) struct Variables {
    pub(crate) args: String,
    pub(crate) path: Vec<PathBuf>,
    /// `CNI_NETNS_OVERRIDE`: ADD may use the plugin's own namespace.
    pub(crate) any_netns: bool,
}

/// The source of environment variables: the process, or a test.
pub(crate) type Env<'a> = &'a dyn Fn(&str) -> Option<OsString>;

impl Request {
    /// Reads the environment in the reference's order: an invalid value is reported at once, missing ones together.
    pub(crate) fn read(env: Env<'_>) -> Result<Request> {
        let optional = |name: &str| env(name).filter(|value| !value.is_empty());
        let Some(command) = optional("CNI_COMMAND") else { return Ok(Request::About) };
        let mut missing = Vec::new();
        let mut required = |name: &'static str| {
            let value = optional(name);
            if value.is_none() {
                missing.push(name);
            }
            value
        };
        let variables = |path: OsString| Variables {
            args: optional("CNI_ARGS").unwrap_or_default().to_string_lossy().into_owned(),
            path: std::env::split_paths(&path).filter(|dir| !dir.as_os_str().is_empty()).collect(),
            any_netns: optional("CNI_NETNS_OVERRIDE").is_some_and(|v| v == "1" || v.eq_ignore_ascii_case("true")),
        };
        let request = match command.to_str() {
            Some("VERSION") => Some(Request::Version),
            Some("GC") => required("CNI_PATH").map(|path| Request::Network(NetworkVerb::Gc, variables(path))),
            Some("STATUS") => required("CNI_PATH").map(|path| Request::Network(NetworkVerb::Status, variables(path))),
            Some(name @ ("ADD" | "DEL" | "CHECK")) => {
                let verb = match name {
                    "ADD" => Verb::Add,
                    "DEL" => Verb::Del,
                    _ => Verb::Check,
                };
                let container = required("CNI_CONTAINERID").map(|id| ContainerId::parse(&id)).transpose()?;
                let netns = if verb == Verb::Del { optional("CNI_NETNS") } else { required("CNI_NETNS") };
                let ifname = required("CNI_IFNAME").map(|name| IfName::parse(&name)).transpose()?;
                let path = required("CNI_PATH");
                match (container, ifname, path) {
                    (Some(container), Some(ifname), Some(path)) => {
                        let attachment = Attachment { container, ifname, netns: netns.map(PathBuf::from) };
                        Some(Request::Attachment(verb, attachment, variables(path)))
                    }
                    _ => None,
                }
            }
            _ => Some(Request::Unknown(command.to_string_lossy().into_owned())),
        };
        match request {
            Some(request) if missing.is_empty() => Ok(request),
            _ => {
                let names = missing.join(",");
                let error = Error::new(Code::ENVIRONMENT, format!("required env variables [{names}] missing"));
                Err(error.details(format!("the caller must set them for {}", command.to_string_lossy())))
            }
        }
    }

    /// Returns the command.
    pub(crate) fn command(&self) -> &str {
        match self {
            Request::About => "",
            Request::Version => "VERSION",
            Request::Attachment(Verb::Add, ..) => "ADD",
            Request::Attachment(Verb::Del, ..) => "DEL",
            Request::Attachment(Verb::Check, ..) => "CHECK",
            Request::Network(NetworkVerb::Gc, _) => "GC",
            Request::Network(NetworkVerb::Status, _) => "STATUS",
            Request::Unknown(command) => command,
        }
    }

    /// Returns the maximum size of stdin. DEL and GC have none: what exists must be removable.
    fn limit(&self) -> u64 {
        match self {
            Request::Attachment(Verb::Del, ..) | Request::Network(NetworkVerb::Gc, _) => u64::MAX,
            _ => 16 << 20,
        }
    }

    /// Reads stdin up to the maximum size.
    pub(crate) fn read_stdin(&self, stdin: &mut dyn Read) -> Result<Vec<u8>> {
        let limit = self.limit();
        let mut bytes = Vec::with_capacity(1 << 10); // fits most configurations, which are read at once
        let mut stdin = stdin.take(limit.saturating_add(1));
        stdin.read_to_end(&mut bytes).context(|| "read the network configuration on stdin")?;
        if bytes.trim_ascii().is_empty() {
            let error = Error::new(Code::DECODE, "the network configuration on stdin is empty");
            return Err(error.details("stdin must hold one network configuration, a JSON object"));
        }
        if bytes.len() as u64 > limit {
            let what = format!("the network configuration on stdin is larger than {} MiB", limit >> 20);
            return Err(Error::new(Code::DECODE, what).details("stdin must hold one network configuration"));
        }
        Ok(bytes)
    }

    /// Prevents ADD and DEL in the plugin's own namespace. Returns the namespace and socket that were opened for the
    /// comparison.
    pub(crate) fn exclude_own_netns(&mut self) -> Result<Option<Home>> {
        match self {
            Request::Attachment(Verb::Add, _, Variables { any_netns: true, .. }) => Ok(None),
            Request::Attachment(verb @ (Verb::Add | Verb::Del), at, _) => exclude_own_netns(*verb, at),
            _ => Ok(None),
        }
    }
}

/// Prevents ADD and DEL in the plugin's own namespace before anything is changed. Unlike the reference, which checks
/// afterwards. Returns the namespace and socket that were opened for the comparison.
///
/// ADD fails. For DEL, the container's namespace is gone: a path such as `/proc/PID/ns/net` leads to the host once the
/// process ID is reused. So DEL continues without a namespace.
pub(crate) fn exclude_own_netns(verb: Verb, at: &mut Attachment) -> Result<Option<Home>> {
    let Some(path) = &at.netns else { return Ok(None) };
    // A path that cannot be examined is not the plugin's own; opening it later reports the reason.
    let Ok(theirs) = fs::metadata(path) else { return Ok(None) };
    // Not every plugin needs a socket; the own namespace can be opened without one.
    let home = Home::open().ok();
    let is_own = match &home {
        Some(home) => home.netns.is(&theirs)?,
        None => Netns::current()?.is(&theirs)?,
    };
    if !is_own {
        return Ok(home);
    }
    if verb == Verb::Del {
        warn_of_own_netns(path);
        at.netns = None;
        return Ok(home);
    }
    Err(own_netns(path))
}

/// Returns the error for an ADD in the plugin's own namespace.
pub(crate) fn own_netns(path: &Path) -> Error {
    let error = Error::new(Code::NETNS, format!("CNI_NETNS {path:?} is the plugin's own network namespace"));
    error.details("set CNI_NETNS to the container's namespace, or CNI_NETNS_OVERRIDE=1 to use this one")
}

/// Logs that a DEL continues without a namespace.
pub(crate) fn warn_of_own_netns(path: &Path) {
    warn!("CNI_NETNS {path:?} is the plugin's own network namespace: the container's is gone");
}
