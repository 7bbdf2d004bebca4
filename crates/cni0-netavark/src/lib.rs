//! A plugin of netavark, the network backend of podman: podman 5, which no longer supports CNI, uses it as the driver
//! `cni0` of a network. It implements version 1.0.0 of netavark's plugin API, and does the work of a list of `bridge`,
//! `portmap`, `firewall` and `tuning` in one process. podman chooses the addresses.
//!
//! - `create` completes and validates a network for `podman network create`.
//! - `setup` attaches and detaches containers.
//! - `input` is what podman passes, `options` what users set with `-o`, and `list` derives the configurations of the
//!   plugins from both.
//! - `shared` is the bridge, which is removed with the last container of its network.

mod create;
mod input;
mod list;
mod options;
mod setup;
mod shared;

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::path::Path;

use cni::{Code, Context, Error, Result};
use linux::process::{self, Stdin};
use serde_json::json;

/// The version of netavark's plugin API.
const API: &str = "1.0.0";

/// The answer of a process that aborts.
const ABORTED: &[u8] = br#"{"error":"the plugin aborted: out of memory, or a bug in cni0: see stderr"}"#;

const HELP: &str = "\
Attaches containers of podman to bridges, as a plugin of netavark.

Install it under the name `cni0` where netavark looks for plugins, such as
/usr/libexec/netavark. Then, as root or as the user of the containers:

  podman network create --driver cni0 NAME

Netavark calls it with JSON on stdin:

  create            completes the configuration of a network
  setup NETNS       attaches a container
  teardown NETNS    detaches it
  info              prints the versions of this plugin and of the plugin API
";

/// Runs the program; returns `false` on failure.
pub fn run(mut arguments: impl Iterator<Item = &'static OsStr>) -> bool {
    cni::answer_panics(ABORTED, refusal);
    let (command, netns) = (arguments.next(), arguments.next());
    serve(command.and_then(OsStr::to_str).unwrap_or_default(), netns).map_or_else(
        |error| {
            if let Err(unwritten) = process::answer(&refusal(&error)) {
                let _ = writeln!(io::stderr(), "write the answer to stdout: {unwritten}");
            }
            false
        },
        |()| true,
    )
}

fn serve(command: &str, netns: Option<&OsStr>) -> Result<()> {
    let netns = || {
        let what = || Error::new(Code::ENVIRONMENT, format!("{command}: the path of the namespace is missing"));
        netns.filter(|path| !path.is_empty()).map(Path::new).ok_or_else(what)
    };
    match command {
        "create" => answer(&create::run(&stdin()?)?),
        "setup" => setup::set_up(netns()?, &stdin()?, &|status| answer(&status.to_string())),
        "teardown" => setup::tear_down(netns()?, &stdin()?),
        "" | "info" => answer(&json!({"version": env!("CARGO_PKG_VERSION"), "api_version": API}).to_string()),
        "--help" | "-h" | "help" => answer(HELP),
        "--version" => answer(concat!("cni0-netavark ", env!("CARGO_PKG_VERSION"), "\n")),
        unknown => {
            let error = Error::new(Code::ENVIRONMENT, format!("unknown command {unknown:?}"));
            Err(error.details("use create, setup, teardown or info"))
        }
    }
}

fn stdin() -> Result<String> {
    let mut text = String::new();
    Stdin.read_to_string(&mut text).context(|| "read stdin")?;
    Ok(text)
}

fn answer(text: &str) -> Result<()> {
    process::answer(text.as_bytes()).context(|| "write the answer to stdout")
}

/// Returns an error as netavark expects it: podman shows this one text.
fn refusal(error: &Error) -> Vec<u8> {
    let text = match error.details_text() {
        "" => error.to_string(),
        details => format!("{error} ({details})"),
    };
    json!({ "error": text }).to_string().into_bytes()
}
