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

use crate::build_id::is_this_program;
use crate::child::{converse, start};
use crate::error::{Answer, Code, Context, Error, Result};
use crate::json;
use crate::plugin::{Attachment, Call, Plugin, Prepared};
use crate::result::AddResult;
use crate::version::Version;
use crate::wait::Deadline;

/// Longer than any runtime waits for us, and than a DHCP lease takes.
const PATIENCE: Duration = Duration::from_secs(240);
/// How long a runtime waits for the answer to a mere question, such as STATUS, which others wait for as well.
const QUESTION_PATIENCE: Duration = Duration::from_secs(5);

/// Another plugin, ready to be called with the configuration of the call at hand.
#[derive(Debug)]
pub struct Delegate<'a> {
    call: &'a Call<'a>,
    way: Way<'a>,
    /// An ADD that was begun.
    prepared: Option<Box<dyn Prepared + 'a>>,
}

#[derive(Debug)]
enum Way<'a> {
    Builtin(&'a dyn Plugin),
    File(Program),
}

impl<'a> Delegate<'a> {
    /// Looks `name` up in `CNI_PATH`: the first executable file of that name.
    pub fn find(call: &'a Call<'a>, name: &str) -> Result<Delegate<'a>> {
        let program = Program::find(call.path, name)?;
        let builtin = call.builtin.iter().copied().find(|plugin| plugin.name() == name);
        let way = match builtin.filter(|_| is_this_program(&program.path)) {
            Some(plugin) => Way::Builtin(plugin),
            None => Way::File(program),
        };
        Ok(Delegate { call, way, prepared: None })
    }

    /// Finds mistakes in the configuration that an ADD would find, and changes nothing. Of a program nobody knows them
    /// before it runs.
    pub fn prepare(&mut self) -> Result<()> {
        if let Way::Builtin(plugin) = self.way {
            self.prepared = plugin.prepare(self.call)?;
        }
        Ok(())
    }

    /// ADD
    pub fn add(&self, at: &Attachment) -> Result<AddResult, Failure> {
        let version = self.call.version;
        let result = match (&self.way, &self.prepared) {
            (_, Some(prepared)) => prepared.add(at).map_err(Failure::Refusal)?,
            (Way::Builtin(plugin), None) => plugin.add(self.call, at).map_err(Failure::Refusal)?,
            (Way::File(program), None) => {
                return program.add(&variables(at), self.call.stdin, version).map_err(Failure::Loss);
            }
        };
        result.as_seen_in(version).map_err(Failure::Loss)
    }

    /// DEL
    pub fn del(&self, at: &Attachment) -> Result<()> {
        self.run("DEL", Some(at), |plugin| plugin.del(self.call, at))
    }

    /// Returns the addresses that are leased to an attachment; `None` if this plugin cannot tell, as a program.
    pub fn leased_to(&self, at: &Attachment) -> Result<Option<Vec<IpAddr>>> {
        match &self.way {
            Way::Builtin(plugin) => plugin.leased_to(self.call, at),
            Way::File(_) => Ok(None),
        }
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
        self.run("STATUS", None, |plugin| plugin.status(self.call))
    }

    /// A command that answers nothing.
    fn run(
        &self,
        command: &str,
        at: Option<&Attachment>,
        inside: impl FnOnce(&dyn Plugin) -> Result<()>,
    ) -> Result<()> {
        match &self.way {
            Way::Builtin(plugin) => inside(*plugin),
            Way::File(program) => {
                let variables = at.map(variables).unwrap_or_default();
                program.execute(command, &variables, self.call.stdin, PATIENCE).map(drop)
            }
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
        let stdout = self.execute("ADD", env, config, PATIENCE)?;
        let text = String::from_utf8_lossy(&stdout);
        AddResult::read_answer(&text, version).trying(|| format!("read the result of plugin {:?}", self.name))
    }

    /// A command that answers nothing.
    pub fn run(&self, command: &str, env: &[(&str, OsString)], config: &[u8]) -> Result<()> {
        let patience = if command == "STATUS" { QUESTION_PATIENCE } else { PATIENCE };
        self.execute(command, env, config, patience).map(drop)
    }

    /// Runs the file with our environment and `env`; what it printed.
    fn execute(&self, command: &str, env: &[(&str, OsString)], config: &[u8], patience: Duration) -> Result<Vec<u8>> {
        let path = &self.path;
        let deadline = Deadline::after(patience);
        let mut process = Command::new(path);
        process.env("CNI_COMMAND", command).envs(env.iter().map(|(name, value)| (name, value)));
        let child = start(&mut process, path).trying(|| format!("execute plugin {path:?}"))?;
        debug!("execute {path:?} {command} as process {}", child.id());
        let (stderr, outcome) = converse(child, config, deadline);
        // Ours is free-form too, and whoever collects it wants to read this.
        let _ = io::stderr().write_all(&stderr);
        let (status, stdout) = outcome.trying(|| format!("talk to plugin {path:?}"))?;
        if status.success() { Ok(stdout) } else { Err(self.failure(status, &stdout, &stderr)) }
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
