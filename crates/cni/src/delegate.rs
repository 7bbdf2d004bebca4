//! Calls another plugin. It is looked up in `CNI_PATH`; one that this program contains runs inside this process if its
//! file was built together with this program; any other file is executed.
//!
//! Both ways give the same result and the same errors. Other builds, files of the reference and wrapper scripts are
//! always executed, so that a replacement is never bypassed. A runtime uses [`Program`], which always executes.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use linux::Deadline;
use linux::child::{Interruption, run_interruptibly, run_to_end, start};
use linux::ip::Cidr;
use linux::log::debug;
use linux::process::set::is_of_this_set;
use serde::Deserialize;

use crate::error::{Code, Context, Error, ErrorAnswer, Result};
use crate::json;
use crate::plugin::{Attachment, Call, Ipam, Plugin, Prepared};
use crate::result::AddResult;
use crate::undo::Undo;
use crate::version::Version;

/// Timeout of a plugin call: longer than any runtime waits for us, and longer than a DHCP lease takes.
const TIMEOUT: Duration = Duration::from_secs(240);
/// Timeout for STATUS and VERSION, which change nothing and whose callers do not wait long.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a tool waits for CHECK of a program: enough for a busy node, where the plugin waits for locks, too.
const CHECK_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a call may take after the user has interrupted this process.
const INTERRUPTED_TIMEOUT: Duration = Duration::from_secs(5);
const EXECUTABLE_HINT: &str = "install the plugin for this architecture; a script needs a first line such as #!/bin/sh";

/// Another plugin, ready to be called with the configuration of a call: the current one, or one with a generated
/// configuration ([`Call::with_config`]).
#[derive(Debug)]
pub struct Delegate<'a> {
    call: &'a Call<'a>,
    program: Program,
    /// The plugin inside this process, if this program contains it and the file is of the same set.
    builtin: Option<&'a dyn Plugin>,
    /// An ADD that [`Delegate::prepare`] has validated.
    prepared: Option<Box<dyn Prepared + 'a>>,
}

impl<'a> Delegate<'a> {
    /// Finds the first executable file called `name` in `CNI_PATH`. An embedded plugin finds the delegate in this
    /// process, without a file.
    pub fn find(call: &'a Call<'a>, name: &str) -> Result<Delegate<'a>> {
        let builtin = call.builtin.iter().copied().find(|plugin| plugin.name() == name);
        if call.is_embedded && builtin.is_some() {
            let program = Program { name: name.to_owned(), path: PathBuf::from(name), interruption: None };
            return Ok(Delegate { call, program, builtin, prepared: None });
        }
        let program = Program::find(call.path, name)?;
        let builtin = builtin.filter(|_| is_of_this_set(&program.path));
        Ok(Delegate { call, program, builtin, prepared: None })
    }

    /// Returns the plugin's `type`.
    pub fn name(&self) -> &str {
        self.program.name()
    }

    /// Validates an ADD without side effects; [`Delegate::add`] then executes it for the same attachment. Does nothing
    /// for a plugin that has to be executed: CNI has no such command.
    pub fn prepare(&mut self, at: &Attachment) -> Result<()> {
        if let Some(plugin) = self.builtin {
            self.prepared = self.explain(plugin.prepare(self.call, at))?;
        }
        Ok(())
    }

    /// Returns whether the plugin has to be executed.
    pub fn is_executed(&self) -> bool {
        self.builtin.is_none()
    }

    /// Calls ADD.
    pub fn add(&self, at: &Attachment) -> Result<AddResult, DelegateError> {
        let version = self.call.version;
        let result = match (&self.prepared, self.builtin) {
            (Some(prepared), _) => prepared.add(at),
            (None, Some(plugin)) => plugin.add(self.call, at),
            (None, None) => {
                return self.program.add(&variables(at), self.call.stdin, version).map_err(|error| {
                    // A plugin refuses a version that it does not support before it does anything. If it does support
                    // it, the version cannot express the result of what it did.
                    match error.code() {
                        Code::VERSION if !self.program.supports(version) => DelegateError::CleanedUp(error),
                        _ => DelegateError::Unknown(error),
                    }
                });
            }
        };
        let result = self.explain(result).map_err(DelegateError::CleanedUp)?;
        self.explain(result.to_version(version)).map_err(DelegateError::Unknown)
    }

    /// Calls DEL.
    pub fn del(&self, at: &Attachment) -> Result<()> {
        self.run("DEL", Some(at), |plugin| plugin.del(self.call, at))
    }

    /// Returns the addresses that are leased to an attachment; `None` if the plugin cannot be queried.
    pub fn leased_to(&self, at: &Attachment) -> Result<Option<Vec<IpAddr>>> {
        self.ipam().map(|ipam| ipam.leased_to(self.call, at)).transpose()
    }

    /// Calls CHECK.
    pub fn check(&self, at: &Attachment) -> Result<()> {
        self.run("CHECK", Some(at), |plugin| plugin.check(self.call, at))
    }

    /// Calls GC.
    pub fn gc(&self) -> Result<()> {
        self.run("GC", None, |plugin| plugin.gc(self.call))
    }

    /// Calls STATUS.
    pub fn status(&self) -> Result<()> {
        self.run("STATUS", None, |plugin| plugin.status(self.call)).map_err(|error| match error.code() {
            // For example after a timeout. An ADD would fail now, which STATUS reports by a code of its own.
            Code::TRY_LATER => error.with_code(Code::NOT_AVAILABLE),
            _ => error,
        })
    }

    /// Adds details to an error of the plugin in this process, as for an executed one.
    fn explain<T>(&self, outcome: Result<T>) -> Result<T> {
        self.program.explain(outcome, || Some(Version::ALL.map(|version| version.as_str().to_owned()).into()))
    }

    /// Returns whether an attachment may hold an address of `subnet`; `None` if the plugin cannot be queried.
    pub fn uses_subnet(&self, subnet: Cidr) -> Result<Option<bool>> {
        self.ipam().map(|ipam| ipam.uses_subnet(self.call, subnet)).transpose()
    }

    /// Returns the IPAM plugin in this process. One that is executed cannot be queried: CNI has no such command.
    fn ipam(&self) -> Option<&'a dyn Ipam> {
        self.builtin?.ipam()
    }

    /// Runs a command that has no result.
    fn run(
        &self,
        command: &str,
        at: Option<&Attachment>,
        inside: impl FnOnce(&dyn Plugin) -> Result<()>,
    ) -> Result<()> {
        match self.builtin {
            Some(plugin) => self.explain(self.call.require(command).and_then(|()| inside(plugin))),
            None => self.program.run(command, &at.map(variables).unwrap_or_default(), self.call.stdin),
        }
    }
}

/// The failure of a delegate's ADD.
#[derive(Debug)]
pub enum DelegateError {
    /// The plugin ran in this process and has rolled back its changes. A DEL now would also remove what an earlier ADD
    /// of the same attachment created, which may still be in use.
    CleanedUp(Error),
    /// It is not known how far the plugin got, so DEL must follow.
    Unknown(Error),
}

impl DelegateError {
    /// Returns the error. If the delegate has already cleaned up, removes the newest step of `undo`, which is its DEL.
    pub fn without_del<C>(self, undo: &mut Undo<'_, C>) -> Error {
        if let DelegateError::CleanedUp(_) = self {
            undo.pop();
        }
        self.into()
    }
}

impl From<DelegateError> for Error {
    fn from(failure: DelegateError) -> Error {
        let (DelegateError::CleanedUp(error) | DelegateError::Unknown(error)) = failure;
        error
    }
}

/// Returns the environment variables of an attachment; all others are inherited. Without a namespace, `CNI_NETNS` is
/// set to empty because the inherited path may be the plugin's own namespace.
fn variables(at: &Attachment) -> Vec<(&'static str, OsString)> {
    let Attachment { container, ifname, netns } = at;
    let netns = netns.as_ref().map_or_else(OsString::new, |path| path.clone().into());
    vec![("CNI_CONTAINERID", container.as_str().into()), ("CNI_IFNAME", ifname.as_str().into()), ("CNI_NETNS", netns)]
}

/// A plugin as an executable file, which is run for each call.
#[derive(Clone, Debug)]
pub struct Program {
    name: String,
    path: PathBuf,
    /// What makes calls end soon when it becomes readable.
    interruption: Option<Arc<OwnedFd>>,
}

impl Program {
    /// Finds the first executable file called `name` in `dirs`.
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
                    return Ok(Program { name: name.to_owned(), path, interruption: None });
                }
                Ok(file) if file.is_file() => unusable.push(format!("{path:?} is not executable")),
                // Missing or not accessible: the next directory may have it.
                _ => {}
            }
        }
        let dirs: Vec<_> = dirs.iter().map(|dir| dir.to_string_lossy()).collect();
        let what = format!("failed to find plugin {name:?} in path [{}]", dirs.join(" "));
        let error = unusable.into_iter().fold(Error::new(Code::INTERNAL, what), Error::details);
        Err(error.details("install the plugin there, or correct CNI_PATH or the \"type\""))
    }

    /// Kills the plugin in calls that have not ended some seconds after `requests` has become readable.
    pub fn interrupt_on(&mut self, requests: &Arc<OwnedFd>) {
        self.interruption = Some(Arc::clone(requests));
    }

    /// Returns the plugin's `type`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the plugin's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Calls ADD with a configuration in `version`.
    pub fn add(&self, env: &[(&str, OsString)], config: &[u8], version: Version) -> Result<AddResult> {
        let stdout = self.execute("ADD", env, config)?;
        let text = String::from_utf8_lossy(&stdout);
        AddResult::read_answer(&text, version).context(|| format!("read the result of plugin {:?}", self.name))
    }

    /// Runs a command that has no result.
    pub fn run(&self, command: &str, env: &[(&str, OsString)], config: &[u8]) -> Result<()> {
        self.execute(command, env, config).map(drop)
    }

    /// Calls CHECK for a tool that reports on many attachments, which cannot wait as long as a runtime.
    pub fn check_soon(&self, env: &[(&str, OsString)], config: &[u8]) -> Result<()> {
        let answer = self.exchange("CHECK", env, config, CHECK_TIMEOUT)?;
        self.explain(answer, || self.supported_versions()).map(drop)
    }

    /// Calls DEL after an ADD that failed with the message `reported`. Does not pass on what repeats it on stderr: DEL
    /// warns of the same mistake in the configuration.
    pub fn roll_back(&self, env: &[(&str, OsString)], config: &[u8], reported: &str) -> Result<()> {
        let (stderr, answer) = self.call("DEL", env, config, TIMEOUT);
        for line in
            String::from_utf8_lossy(&stderr).lines().filter(|line| reported.is_empty() || !line.contains(reported))
        {
            let _ = writeln!(io::stderr(), "{line}");
        }
        self.explain(answer?, || self.supported_versions()).map(drop)
    }

    /// Calls VERSION. Returns the versions of the protocol that the plugin supports.
    #[cold]
    pub fn versions(&self) -> Result<Vec<String>> {
        #[derive(Deserialize)]
        struct Versions {
            #[serde(rename = "supportedVersions")]
            supported: Vec<String>,
        }
        let config = format!("{{\"cniVersion\":\"{}\"}}", Version::NEWEST);
        let answer = self.exchange("VERSION", &[], config.as_bytes(), STATUS_TIMEOUT)??;
        let versions: Versions = json::parse(&String::from_utf8_lossy(&answer))
            .context(|| format!("read the answer of plugin {:?} to VERSION", self.path))?;
        Ok(versions.supported)
    }

    /// Starts the plugin without a command. Returns what it prints about itself; empty if it prints nothing.
    pub fn about(&self) -> Result<String> {
        let path = &self.path;
        let mut process = Command::new(path);
        process.env_remove("CNI_COMMAND");
        let child = self.start(&mut process)?;
        let (stderr, outcome) = run_to_end(child, &[], Deadline::after(STATUS_TIMEOUT));
        outcome.context(|| format!("call plugin {path:?}"))?;
        Ok(String::from_utf8_lossy(&stderr).into_owned())
    }

    /// Runs the file with the inherited environment plus `env`, and returns its output.
    fn execute(&self, command: &str, env: &[(&str, OsString)], config: &[u8]) -> Result<Vec<u8>> {
        let timeout = if command == "STATUS" { STATUS_TIMEOUT } else { TIMEOUT };
        self.explain(self.exchange(command, env, config, timeout)?, || self.supported_versions())
    }

    /// Runs the file. The inner result is its answer: its output, or the error that it reported.
    fn exchange(
        &self,
        command: &str,
        env: &[(&str, OsString)],
        config: &[u8],
        timeout: Duration,
    ) -> Result<Result<Vec<u8>>> {
        let (stderr, answer) = self.call(command, env, config, timeout);
        // stderr is free-form for plugins, so the delegate's messages are passed on there.
        let _ = io::stderr().write_all(&stderr);
        answer
    }

    /// Runs the file. Returns what it printed on stderr, and its answer.
    fn call(
        &self,
        command: &str,
        env: &[(&str, OsString)],
        config: &[u8],
        timeout: Duration,
    ) -> (Vec<u8>, Result<Result<Vec<u8>>>) {
        let path = &self.path;
        let deadline = Deadline::after(timeout);
        let mut process = Command::new(path);
        process.env("CNI_COMMAND", command).envs(env.iter().map(|(name, value)| (name, value)));
        let child = match self.start(&mut process) {
            Ok(child) => child,
            Err(error) => return (Vec::new(), Err(error)),
        };
        debug!("execute {path:?} {command} as process {}", child.id());
        let interruption = self.interruption.as_deref();
        let interruption = interruption.map(|fd| Interruption { fd: fd.as_fd(), grace: INTERRUPTED_TIMEOUT });
        let (stderr, outcome) = run_interruptibly(child, config, deadline, interruption);
        let answer = outcome.context(|| format!("call plugin {path:?}")).map(|(status, stdout)| {
            if status.success() { Ok(stdout) } else { Err(self.failure(status, &stdout, &stderr)) }
        });
        (stderr, answer)
    }

    fn start(&self, process: &mut Command) -> Result<Child> {
        start(process, &self.path).context(|| format!("execute plugin {:?}", self.path)).map_err(|error| {
            match error.errno() {
                Some(libc::ENOEXEC) => error.details(EXECUTABLE_HINT),
                _ => error,
            }
        })
    }

    /// Adds details to an unsupported version error: the plugin's file, and the versions that it supports. Other errors
    /// are returned unchanged.
    fn explain<T>(&self, outcome: Result<T>, supported: impl FnOnce() -> Option<Vec<String>>) -> Result<T> {
        match outcome {
            Err(error) if error.code() == Code::VERSION => {
                let supported = supported().map_or_else(|| "unknown versions".to_owned(), |all| all.join(", "));
                let error = error.details(format!("plugin {:?} supports cniVersion {supported}", self.name));
                Err(error.details("use a version that all plugins of the network support"))
                    .context(|| format!("call plugin {:?}", self.path))
            }
            outcome => outcome,
        }
    }

    #[cold]
    fn supported_versions(&self) -> Option<Vec<String>> {
        self.versions().ok()
    }

    /// Returns whether the plugin lists `version` in its answer to VERSION.
    #[cold]
    fn supports(&self, version: Version) -> bool {
        self.supported_versions().is_some_and(|all| all.iter().any(|text| text == version.as_str()))
    }

    /// Returns the error object that the child printed, or else an error with its exit status and output.
    #[cold]
    fn failure(&self, status: ExitStatus, stdout: &[u8], stderr: &[u8]) -> Error {
        let stdout = String::from_utf8_lossy(stdout);
        if let Some(error) = read_error(&stdout) {
            return error;
        }
        let output = [stdout.trim(), String::from_utf8_lossy(stderr).trim()].join(" ");
        let what = format!("plugin {:?} failed with {status} and no CNI error", self.name);
        let error = Error::new(Code::UNKNOWN, what).details(format!("file {:?}", self.path));
        match output.trim() {
            "" => error,
            output => error.details(format!("it printed: {output}")),
        }
    }
}

/// Parses the error that a plugin printed; `None` if the text is not a CNI error, or is an empty one.
pub(crate) fn read_error(stdout: &str) -> Option<Error> {
    let answer: ErrorAnswer = json::parse(stdout).ok()?;
    (answer.code != Code::UNKNOWN || !answer.msg.is_empty()).then(|| answer.into())
}
