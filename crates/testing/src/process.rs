//! Programs that a test runs, and what they print.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use linux::Deadline;
use linux::child::run_to_end;
use serde_json::Value;

use crate::{Lab, PATH, timeout};

/// A program to be run, with a clean environment.
#[derive(Debug)]
pub struct Process {
    command: Command,
    stdin: Vec<u8>,
}

/// The outcome of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The output on stdout.
    pub stdout: String,
    /// The output on stderr.
    pub stderr: String,
    /// The exit status; `None` if the program was killed.
    pub status: Option<i32>,
}

impl Process {
    /// Prepares a call of the plugin at `path`, with only `CNI_COMMAND` set.
    pub fn plugin(path: &Path, command: &str) -> Process {
        Process::new(path).env("CNI_COMMAND", command)
    }

    /// Prepares a call of any program.
    pub fn new(path: impl AsRef<OsStr>) -> Process {
        let mut command = Command::new(path);
        command.env_clear().env("PATH", PATH).env("LC_ALL", "C");
        Process { command, stdin: Vec::new() }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Process {
        self.command.arg(argument);
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Process {
        self.command.env(name, value);
        self
    }

    /// Removes an environment variable.
    #[must_use]
    pub fn without(mut self, name: &str) -> Process {
        self.command.env_remove(name);
        self
    }

    /// Sets the variables of an attachment.
    #[must_use]
    pub fn attachment(self, container: &str, ifname: &str, netns: impl AsRef<OsStr>) -> Process {
        self.env("CNI_CONTAINERID", container).env("CNI_IFNAME", ifname).env("CNI_NETNS", netns)
    }

    /// Sets the input.
    #[must_use]
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Process {
        self.stdin = bytes.into();
        self
    }

    /// Runs the call under `strace OPTIONS`.
    #[must_use]
    pub fn strace(self, options: &[&str]) -> Process {
        self.under("strace", &[options, &["--"]].concat())
    }

    /// Runs the call under `strace OPTIONS` until it exits, and returns the log of strace too.
    pub fn trace(self, lab: &Lab, options: &[&str]) -> (Outcome, String) {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let log = lab.dir().join(format!("trace.{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        let outcome = self.strace(&[&["-qq", "-o", log.to_str().unwrap()], options].concat()).run();
        let text = fs::read_to_string(&log).unwrap();
        fs::remove_file(log).unwrap();
        (outcome, text)
    }

    /// Runs the call through a shell script, in which `$0` is the program.
    #[must_use]
    pub fn via_shell(self, script: &str) -> Process {
        self.under("sh", &["-ec", script])
    }

    /// Runs the call through another program, whose arguments are `options` and the call.
    fn under(self, program: &str, options: &[&str]) -> Process {
        let mut outer = Command::new(program);
        outer.args(options).arg(self.command.get_program()).args(self.command.get_args()).env_clear();
        let set: Vec<(OsString, OsString)> =
            self.command.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))).collect();
        outer.envs(set);
        Process { command: outer, stdin: self.stdin }
    }

    /// Runs the program until it exits.
    pub fn run(mut self) -> Outcome {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = self.command.spawn().unwrap_or_else(|error| panic!("start {:?}: {error}", self.command));
        let (stderr, outcome) = run_to_end(child, &self.stdin, Deadline::after(timeout()));
        let (status, stdout) = outcome.unwrap_or_else(|error| panic!("{:?}: {error:?}", self.command));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Outcome { stdout: text(&stdout), stderr: text(&stderr), status: status.code() }
    }
}

impl Outcome {
    /// Returns the result of a call, which must have succeeded.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, Some(0), "{}{}", self.stdout, self.stderr);
        if self.stdout.is_empty() { Value::Null } else { serde_json::from_str(&self.stdout).unwrap() }
    }

    /// Asserts that the call succeeded and printed nothing.
    #[track_caller]
    pub fn silent(&self) {
        assert_eq!((self.status, self.stdout.as_str(), self.stderr.as_str()), (Some(0), "", ""));
    }

    /// Returns the error of a call, which must have failed with exactly one JSON object with this code.
    #[track_caller]
    pub fn error(&self, code: u32) -> Value {
        assert_eq!(self.status, Some(1), "{}{}", self.stdout, self.stderr);
        let error: Value = serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {:?}", self.stdout));
        assert_eq!(error["code"], code, "{}", self.stdout);
        assert!(error["msg"].as_str().is_some_and(|msg| !msg.is_empty()), "{}", self.stdout);
        error
    }
}
