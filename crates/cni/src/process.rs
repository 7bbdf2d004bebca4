//! Runs a plugin as a process: validates the call, executes it and prints the answer. The only code
//! that writes to stdout, except the abort handler in `sys`.

mod help;

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::time::Instant;

use linux::process::{self as host, Stdin};

use crate::calls;
use crate::config::{self, Head};
use crate::error::{Code, Context, Error, Result};
use crate::json;
use crate::logging::{LoggedCall, Summary, Trace};
use crate::misspelt::ReadKeys;
use crate::plugin::{Call, Plugin};
use crate::request::{Env, NetworkVerb, Request, Verb};
use crate::version::Version;

/// The version of the reference whose behaviour these plugins implement.
const REFERENCE_LEVEL: &str = "1.9.1";

/// The answer of a process that aborts.
const ABORTED: &[u8] = br#"{
    "code": 999,
    "msg": "the plugin aborted",
    "details": "out of memory, or a bug in cni0: see stderr; DEL reverts the changes"
}"#;

/// Defines the entry point of a program, in a file that begins with `#![no_main]`: `cni::main!(Loopback);`. Delegates
/// follow the plugin, as in `cni::main!(Bridge, HostLocal);`: they can run in its process. A plugin that is also
/// another program names the first argument of that, and its function: `cni::main!(Dhcp, "daemon" => dhcp::daemon);`.
#[macro_export]
macro_rules! main {
    ($plugin:expr, $word:literal => $other:expr $(,)?) => {
        $crate::linux::main!(|mut arguments| match arguments.next() {
            Some(word) if word == $word => $other(arguments),
            argument => $crate::run(&$plugin, &[], argument),
        });
    };
    ($plugin:expr $(, $delegate:expr)* $(,)?) => {
        $crate::linux::main!(|mut arguments| $crate::run(&$plugin, &[$(&$delegate),*], arguments.next()));
    };
}

/// The output and the outcome of the process.
#[derive(Debug, PartialEq, Eq)]
struct ProcessOutput {
    stdout: Vec<u8>,
    stderr: String,
    success: bool,
}

/// Runs a program; returns `false` on failure.
#[doc(hidden)]
pub fn run(plugin: &dyn Plugin, delegates: &[&dyn Plugin], argument: Option<&OsStr>) -> bool {
    answer_panics(ABORTED, |error| refusal(error).stdout);
    let answer = answer(plugin, delegates, argument, &host::env, &mut Stdin, &host::answer);
    // If stderr cannot be written, there is nowhere to report it.
    let _ = io::stderr().write_all(answer.stderr.as_bytes());
    let written = host::answer(&answer.stdout);
    if let Err(error) = &written {
        let _ = writeln!(io::stderr(), "write the answer to stdout: {error}");
    }
    answer.success && written.is_ok()
}

/// Writes an answer to the caller.
type Print<'a> = &'a dyn Fn(&[u8]) -> io::Result<()>;

/// Makes panics print an error, and aborts print `aborted`, unless an answer was already printed.
#[doc(hidden)]
pub fn answer_panics(aborted: &'static [u8], print: fn(&Error) -> Vec<u8>) {
    // An allocation failure aborts the process without running the hook. A stack overflow ends the process by SIGSEGV
    // without an answer: a handler would need its own stack, which costs three system calls per call. No input makes a
    // plugin recurse, so only a bug could cause one.
    let _ = host::answer_aborts(aborted);
    std::panic::set_hook(Box::new(move |panic| {
        let error = Error::bug(panic).details("please report this, with the configuration");
        if !host::has_answered() {
            let _ = host::answer(&print(&error));
        }
        #[expect(
            clippy::exit,
            clippy::disallowed_methods,
            reason = "the process cannot continue; panics do not unwind"
        )]
        std::process::exit(1);
    }));
}

fn answer(
    plugin: &dyn Plugin,
    delegates: &[&dyn Plugin],
    argument: Option<&OsStr>,
    env: Env<'_>,
    stdin: &mut dyn Read,
    print: Print<'_>,
) -> ProcessOutput {
    let outcome = Request::read(env).and_then(|request| match request {
        Request::About => Ok(about(plugin, argument)),
        Request::Version => Ok(success(versions())),
        request => {
            let (command, began) = (request.command().to_owned(), Instant::now());
            let outcome = serve(plugin, delegates, request, env, stdin, print);
            calls::count(plugin.name(), &command, began.elapsed(), outcome.as_ref().err().map(Error::code));
            outcome.map(|()| success(Vec::new()))
        }
    });
    outcome.unwrap_or_else(|error| refusal(&error))
}

fn success(stdout: Vec<u8>) -> ProcessOutput {
    ProcessOutput { stdout, stderr: String::new(), success: true }
}

fn refusal(error: &Error) -> ProcessOutput {
    // Printing an error object cannot fail. If it did, this text is still a valid CNI error.
    let stdout = json::print(&error.answer()).unwrap_or_else(|_| br#"{"code": 999, "msg": "bug in cni0"}"#.to_vec());
    ProcessOutput { stdout, stderr: String::new(), success: false }
}

/// Answers a call without a command: describes the program, or explains how to call it.
#[cold]
fn about(plugin: &dyn Plugin, argument: Option<&OsStr>) -> ProcessOutput {
    let description = description(plugin);
    match argument.and_then(OsStr::to_str) {
        Some("--help" | "-h" | "help") => success((description + &help::text(plugin)).into_bytes()),
        // The reference ignores arguments, and prints this to stderr.
        _ => ProcessOutput { stdout: Vec::new(), stderr: description, success: true },
    }
}

fn description(plugin: &dyn Plugin) -> String {
    let supported = Version::ALL.map(Version::as_str).join(", ");
    // Runtimes compare this version with the oldest reference that they accept; they ignore what follows '+'.
    let build = format!("v{REFERENCE_LEVEL}+cni0.{}", env!("CARGO_PKG_VERSION"));
    format!("CNI {} plugin {build}\nCNI protocol versions supported: {supported}\n", plugin.name())
}

/// Returns the answer to VERSION, which, unlike all others, is one line.
fn versions() -> Vec<u8> {
    let quoted = Version::ALL.map(|version| format!("\"{version}\"")).join(",");
    format!("{{\"cniVersion\":\"{}\",\"supportedVersions\":[{quoted}]}}\n", Version::NEWEST).into_bytes()
}

/// Validates the configuration and executes the command.
fn serve(
    plugin: &dyn Plugin,
    delegates: &[&dyn Plugin],
    mut request: Request,
    env: Env<'_>,
    stdin: &mut dyn Read,
    print: Print<'_>,
) -> Result<()> {
    let stdin = request.read_stdin(stdin)?;
    let config = config::text(&stdin);
    let head = Head::parse(&config)
        .map_err(|error| error.details("stdin must hold one network configuration, a JSON object"))
        .context(|| "read the network configuration on stdin")?;
    let network = head.network()?;
    let mut summary = head.log(env("CNI_LOG")).start(|| subject(plugin.name(), &request, network.as_str(), env));
    let outcome = (|| {
        if let Request::Unknown(command) = &request {
            // Runtimes compare this text.
            let error = Error::new(Code::ENVIRONMENT, format!("unknown CNI_COMMAND: {command}"));
            return Err(error.details("use ADD, DEL, CHECK, GC, STATUS or VERSION, in capitals"));
        }
        let version = head.version(request.command())?;
        let home = if plugin.uses_netns() { request.exclude_own_netns()? } else { None };
        let (Request::Attachment(_, _, variables) | Request::Network(_, variables)) = &request else {
            return Err(Error::bug("a command without variables"));
        };
        let call = Call {
            network,
            version,
            args: &variables.args,
            path: &variables.path,
            config: &config,
            stdin: &stdin,
            any_netns: variables.any_netns,
            builtin: delegates,
            is_embedded: false,
            keys: ReadKeys::default(),
            home: home.into(),
        };
        let outcome = execute(plugin, &request, &call, print, &mut summary);
        if let Request::Attachment(Verb::Add, ..) = request {
            call.keys.warn_of_others(&config);
        }
        outcome
    })();
    summary.log(&outcome);
    outcome
}

/// Executes the command, and prints the result of an ADD.
fn execute(
    plugin: &dyn Plugin,
    request: &Request,
    call: &Call<'_>,
    print: Print<'_>,
    summary: &mut Summary,
) -> Result<()> {
    if let Request::Attachment(..) = request {
        // DEL and CHECK have no other result, and an ADD that succeeds replaces it.
        summary.record(|| call.prev_result().ok().flatten());
    }
    match request {
        Request::Attachment(Verb::Add, at, _) => plugin.add_with_rollback(call, at).and_then(|(result, roll_back)| {
            summary.record(|| Some(result.clone()));
            let printed = result.print(call.version);
            let delivered = printed.and_then(|answer| print(&answer).context(|| "write the answer to stdout"));
            // An ADD whose result does not reach the runtime has failed and must leave nothing behind.
            delivered.map_err(|error| match roll_back() {
                Ok(()) => error,
                Err(left) => error.details(format!("not undone: {left}")),
            })
        }),
        Request::Attachment(Verb::Del, at, _) => plugin.del(call, at),
        Request::Attachment(Verb::Check, at, _) => plugin.check(call, at),
        Request::Network(NetworkVerb::Gc, _) => plugin.gc(call),
        Request::Network(NetworkVerb::Status, _) => plugin.status(call),
        Request::About | Request::Version | Request::Unknown(_) => Err(Error::bug("a command without a plugin")),
    }
}

/// Returns what the log of the call is about.
fn subject(plugin: &'static str, request: &Request, network: &str, env: Env<'_>) -> LoggedCall {
    let attachment = match request {
        Request::Attachment(_, at, _) => Some((at.container.to_string(), at.ifname.to_string())),
        _ => None,
    };
    let trace = Trace::of_caller(env);
    LoggedCall { plugin, command: request.command().to_owned(), network: network.to_owned(), attachment, trace }
}

#[cfg(test)]
mod tests;
