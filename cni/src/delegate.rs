//! Calling another plugin: found in `CNI_PATH`, run in this process if its file is a copy of this program, else executed.
//!
//! Both ways give the same result, and the same error. Another build, the reference's file or a wrapper script is always
//! executed, so that a replacement is never bypassed. A [`Program`] is the second way alone, for a runtime.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use log::debug;
use serde::Deserialize;

use crate::build_id::is_this_program;
use crate::child::{converse, start};
use crate::error::{Answer, Code, Context, Error, Result};
use crate::ip::Cidr;
use crate::json;
use crate::plugin::{Attachment, Call, Plugin, Prepared};
use crate::result::AddResult;
use crate::version::Version;
use crate::wait::Deadline;

/// How long a plugin may take: longer than any runtime waits for us, and than a DHCP lease takes.
const TIMEOUT: Duration = Duration::from_secs(240);
/// The same for STATUS and VERSION, which change nothing and whose callers do not wait long.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

/// Another plugin, ready to be called with the configuration of the call at hand.
#[derive(Debug)]
pub struct Delegate<'a> {
    call: &'a Call<'a>,
    program: Program,
    /// The plugin of this process, if the program is a copy of the running one.
    builtin: Option<&'a dyn Plugin>,
    /// An ADD that was begun.
    prepared: Option<Box<dyn Prepared + 'a>>,
}

impl<'a> Delegate<'a> {
    /// Looks `name` up in `CNI_PATH`: the first executable file of that name.
    pub fn find(call: &'a Call<'a>, name: &str) -> Result<Delegate<'a>> {
        let program = Program::find(call.path, name)?;
        let builtin = call.builtin.iter().copied().find(|plugin| plugin.name() == name);
        let builtin = builtin.filter(|_| is_this_program(&program.path));
        Ok(Delegate { call, program, builtin, prepared: None })
    }

    /// Finds mistakes in the configuration that an ADD would find, and changes nothing. Of a program nobody knows them
    /// before it runs.
    pub fn prepare(&mut self) -> Result<()> {
        if let Some(plugin) = self.builtin {
            self.prepared = self.explain(plugin.prepare(self.call))?;
        }
        Ok(())
    }

    /// ADD
    pub fn add(&self, at: &Attachment) -> Result<AddResult, Failure> {
        let version = self.call.version;
        let result = match (&self.prepared, self.builtin) {
            (Some(prepared), _) => prepared.add(at),
            (None, Some(plugin)) => plugin.add(self.call, at),
            (None, None) => {
                return self.program.add(&variables(at), self.call.stdin, version).map_err(|error| {
                    match error.code() {
                        // The plugin refused the version of the configuration, before it did anything.
                        Code::VERSION => Failure::Refusal(error),
                        _ => Failure::Loss(error),
                    }
                });
            }
        };
        let result = self.explain(result).map_err(Failure::Refusal)?;
        self.explain(result.as_seen_in(version)).map_err(Failure::Loss)
    }

    /// DEL
    pub fn del(&self, at: &Attachment) -> Result<()> {
        self.run("DEL", Some(at), |plugin| plugin.del(self.call, at))
    }

    /// Returns the addresses that are leased to an attachment; `None` if this plugin cannot tell, as a program.
    pub fn leased_to(&self, at: &Attachment) -> Result<Option<Vec<IpAddr>>> {
        self.builtin.map_or(Ok(None), |plugin| plugin.leased_to(self.call, at))
    }

    /// CHECK
    pub fn check(&self, at: &Attachment) -> Result<()> {
        self.run("CHECK", Some(at), |plugin| plugin.check(self.call, at))
    }

    /// GC
    pub fn gc(&self) -> Result<()> {
        self.run("GC", None, |plugin| plugin.gc(self.call))
    }

    /// STATUS
    pub fn status(&self) -> Result<()> {
        self.run("STATUS", None, |plugin| plugin.status(self.call)).map_err(|error| match error.code() {
            // A timeout, for instance: an ADD would fail now, for which STATUS has a code of its own.
            Code::TRY_LATER => error.code_is(Code::NOT_AVAILABLE),
            _ => error,
        })
    }

    /// Explains an error of the plugin in this process as one of the program.
    fn explain<T>(&self, outcome: Result<T>) -> Result<T> {
        self.program.explain(outcome, || Some(Version::ALL.map(Version::as_str).join(", ")))
    }

    /// Returns whether an attachment may hold an address of `subnet`; `None` if the plugin does not know, as a program
    /// that is executed: the protocol has no such question.
    pub fn uses(&self, subnet: Cidr) -> Result<Option<bool>> {
        self.builtin.map_or(Ok(None), |plugin| plugin.uses(self.call, subnet))
    }

    /// A command that answers nothing.
    fn run(
        &self,
        command: &str,
        at: Option<&Attachment>,
        inside: impl FnOnce(&dyn Plugin) -> Result<()>,
    ) -> Result<()> {
        match self.builtin {
            Some(plugin) => self.explain(inside(plugin)),
            None => self.program.run(command, &at.map(variables).unwrap_or_default(), self.call.stdin),
        }
    }
}

/// How an ADD of another plugin failed.
#[derive(Debug)]
pub enum Failure {
    /// It was ours, which has taken back itself what it did. A DEL would take what an earlier ADD of the same attachment
    /// got, and may still use.
    Refusal(Error),
    /// Who knows how far it came: DEL must follow.
    Loss(Error),
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        let (Failure::Refusal(error) | Failure::Loss(error)) = failure;
        error
    }
}

/// The variables of an attachment; all others are inherited. Without a namespace `CNI_NETNS` is empty: the inherited
/// one may be the plugin's own.
fn variables(at: &Attachment) -> Vec<(&'static str, OsString)> {
    let Attachment { container, ifname, netns } = at;
    let netns = netns.as_ref().map_or_else(OsString::new, |path| path.clone().into());
    vec![("CNI_CONTAINERID", container.as_str().into()), ("CNI_IFNAME", ifname.as_str().into()), ("CNI_NETNS", netns)]
}

/// The program of a plugin, which is executed for each call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    name: String,
    path: PathBuf,
}

impl Program {
    /// Looks `name` up in `dirs`: the first executable file of that name.
    pub fn find(dirs: &[PathBuf], name: &str) -> Result<Program> {
        if name.is_empty() || name.contains('/') || name == "." || name == ".." {
            let error = Error::new(Code::CONFIG, format!("invalid plugin name {name:?}"));
            return Err(error.details("a \"type\" is the name of a file in CNI_PATH, without '/'"));
        }
        let mut unusable = Vec::new();
        for dir in dirs {
            let path = dir.join(name);
            match fs::metadata(&path) {
                Ok(file) if file.is_file() && file.permissions().mode() & 0o111 != 0 => {
                    return Ok(Program { name: name.to_owned(), path });
                }
                Ok(file) if file.is_file() => unusable.push(format!("{path:?} is not executable")),
                // Not there, or not to be looked at: the next directory may have it.
                _ => {}
            }
        }
        let dirs: Vec<_> = dirs.iter().map(|dir| dir.to_string_lossy()).collect();
        let what = format!("failed to find plugin {name:?} in path [{}]", dirs.join(" "));
        let error = unusable.into_iter().fold(Error::new(Code::INTERNAL, what), Error::details);
        Err(error.details("install the plugin there, or correct CNI_PATH or the \"type\""))
    }

    /// Its `type`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// ADD of a configuration in `version`.
    pub fn add(&self, env: &[(&str, OsString)], config: &[u8], version: Version) -> Result<AddResult> {
        let stdout = self.execute("ADD", env, config)?;
        let text = String::from_utf8_lossy(&stdout);
        AddResult::read_answer(&text, version).trying(|| format!("read the result of plugin {:?}", self.name))
    }

    /// A command that answers nothing.
    pub fn run(&self, command: &str, env: &[(&str, OsString)], config: &[u8]) -> Result<()> {
        self.execute(command, env, config).map(drop)
    }

    /// Runs the file with our environment and `env`, and returns what it printed.
    fn execute(&self, command: &str, env: &[(&str, OsString)], config: &[u8]) -> Result<Vec<u8>> {
        self.explain(self.exchange(command, env, config)?, || self.supported_versions())
    }

    /// Runs the file. The inner result is its answer: what it printed, or the error that it reported.
    fn exchange(&self, command: &str, env: &[(&str, OsString)], config: &[u8]) -> Result<Result<Vec<u8>>> {
        let path = &self.path;
        let deadline = Deadline::after(match command {
            "STATUS" | "VERSION" => STATUS_TIMEOUT,
            _ => TIMEOUT,
        });
        let mut process = Command::new(path);
        process.env("CNI_COMMAND", command).envs(env.iter().map(|(name, value)| (name, value)));
        let child = start(&mut process, path).trying(|| format!("execute plugin {path:?}"))?;
        debug!("execute {path:?} {command} as process {}", child.id());
        let (stderr, outcome) = converse(child, config, deadline);
        // Ours is free-form too, and whoever collects it wants to read this.
        let _ = io::stderr().write_all(&stderr);
        let (status, stdout) = outcome.trying(|| format!("call plugin {path:?}"))?;
        Ok(if status.success() { Ok(stdout) } else { Err(self.failure(status, &stdout, &stderr)) })
    }

    /// Adds to a refused version what the plugin's own error need not say: the plugin's file, and the versions that it
    /// supports. Other errors are passed on as they are.
    fn explain<T>(&self, outcome: Result<T>, supported: impl FnOnce() -> Option<String>) -> Result<T> {
        match outcome {
            Err(error) if error.code() == Code::VERSION => {
                let supported = supported().unwrap_or_else(|| "unknown versions".to_owned());
                let error = error.details(format!("plugin {:?} supports cniVersion {supported}", self.name));
                Err(error.details("use a version that all plugins of the network support"))
                    .trying(|| format!("call plugin {:?}", self.path))
            }
            outcome => outcome,
        }
    }

    /// Asks the program which versions it supports.
    #[cold]
    fn supported_versions(&self) -> Option<String> {
        #[derive(Deserialize)]
        struct Versions {
            #[serde(rename = "supportedVersions")]
            supported: Vec<String>,
        }
        let config = format!("{{\"cniVersion\":\"{}\"}}", Version::NEWEST);
        let answer = self.exchange("VERSION", &[], config.as_bytes()).ok()?.ok()?;
        let versions: Versions = json::parse(&String::from_utf8_lossy(&answer)).ok()?;
        Some(versions.supported.join(", "))
    }

    /// The child's own error object as it is; otherwise whatever can be told.
    #[cold]
    fn failure(&self, status: ExitStatus, stdout: &[u8], stderr: &[u8]) -> Error {
        let stdout = String::from_utf8_lossy(stdout);
        if let Some(error) = read_error(&stdout) {
            return error;
        }
        let said = [stdout.trim(), String::from_utf8_lossy(stderr).trim()].join(" ");
        let what = format!("plugin {:?} failed with {status} and no CNI error", self.name);
        let error = Error::new(Code::UNKNOWN, what).details(format!("file {:?}", self.path));
        match said.trim() {
            "" => error,
            said => error.details(format!("it printed: {said}")),
        }
    }
}

/// The error that a plugin printed; `None` if it is none, or says nothing.
pub(crate) fn read_error(stdout: &str) -> Option<Error> {
    let answer: Answer = json::parse(stdout).ok()?;
    (answer.code != Code::UNKNOWN || !answer.msg.is_empty()).then(|| answer.into())
}
