//! The environment for black-box tests: real programs and real namespaces, isolated from the machine.
//!
//! A [`Lab`] gives the test's thread its own network and mount namespace, with empty `/run` and `/var/lib`. So tests
//! run in parallel and leave nothing behind: the kernel cleans up when the thread exits. Plugins come from
//! `$CNI0_TEST_BIN`, or from the directory where cargo builds them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    reason = "a test whose setup fails should stop there"
)]

pub mod document;
pub mod keys;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde_json::Value;

use linux::Deadline;
use linux::Netns;
use linux::child::run_to_end;
use linux::process::build_id;

/// Returns the names of all plugins, which are those of the crates in the table of `cni0`. Reads the table's text, because
/// this crate cannot depend on plugins, whose tests depend on it.
pub fn plugins() -> Vec<String> {
    let (_, table) = include_str!("../../cni0/src/lib.rs").split_once("\ntables! {\n").unwrap();
    table.lines().filter_map(|line| Some(line.trim().split_once("::")?.0.replace('_', "-"))).collect()
}

/// The directory of the reference's plugins in Debian's package.
pub const REFERENCE: &str = "/usr/lib/cni";

/// Returns the timeout for all waits in tests: a minute, or `$CNI0_TEST_TIMEOUT` seconds on a slow machine.
pub fn timeout() -> Duration {
    let seconds = std::env::var("CNI0_TEST_TIMEOUT").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(60))
}

/// Polls `condition` until it holds, for events that the kernel does not report. Fails after [`timeout`] and names
/// `what`.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Deadline::after(timeout());
    while !condition() {
        assert!(!deadline.has_passed(), "wait for {what}: not seen within {:?}", deadline.length());
        std::thread::yield_now();
    }
}

/// The two ways to install plugins, which must behave the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Copies of one program under all names: delegates run in the same process.
    Shared,
    /// One program per plugin: delegates are executed.
    Separate,
}

/// An isolated host for one test.
#[derive(Debug)]
pub struct Lab {
    dir: PathBuf,
}

impl Lab {
    /// Moves this thread to a new host with shared plugins.
    pub fn new() -> Lab {
        Lab::with(Layout::Shared)
    }

    /// Moves this thread to a new host with plugins.
    pub fn with(layout: Layout) -> Lab {
        let lab = Lab::without_plugins();
        lab.install(layout);
        lab
    }

    /// Moves this thread to a new host without plugins.
    pub fn without_plugins() -> Lab {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("cni0-lab-{}-{count}", std::process::id()));
        fs::create_dir_all(dir.join("bin")).expect("create the lab's directory");
        // From here on, dropping the value removes the directory.
        let lab = Lab { dir };
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
            .expect("unshare (root, or `unshare -r`, is needed)");
        let none: Option<&str> = None;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("keep mounts private");
        for empty in ["/run", "/var/lib"] {
            mount(Some("tmpfs"), empty, Some("tmpfs"), MsFlags::empty(), none).expect("mount an empty directory");
        }
        fs::create_dir("/run/netns").expect("create /run/netns");
        lab
    }

    /// Runs `test` on a host with shared plugins, and on one with separate plugins.
    pub fn for_each_layout(test: impl Fn(&Lab)) {
        for layout in [Layout::Shared, Layout::Separate] {
            eprintln!("--- {layout:?}");
            test(&Lab::with(layout));
        }
    }

    fn install(&self, layout: Layout) {
        let copy = |from: &str, to: &str| {
            let from = program_path(from);
            let to = self.bin().join(to);
            assert!(from.exists(), "install {from:?}: it does not exist (cargo build --bins first)");
            copy_program(&from, &to);
        };
        match layout {
            Layout::Shared => {
                copy("cni0", "cni0");
                plugins().iter().for_each(|plugin| copy("cni0", plugin));
            }
            Layout::Separate => plugins().iter().for_each(|plugin| copy(plugin, plugin)),
        }
    }

    /// Installs a shell script beside the plugins; returns its path.
    pub fn script(&self, name: &str, body: &str) -> PathBuf {
        let path = self.bin().join(name);
        write_script(&path, body);
        path
    }

    /// Returns a directory that is removed after the test.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the directory of the plugins.
    pub fn bin(&self) -> PathBuf {
        self.dir.join("bin")
    }

    /// Creates a network namespace at `/run/netns/NAME`, as `ip netns add` does.
    pub fn netns(&self, name: &str) -> PathBuf {
        let path = Path::new("/run/netns").join(name);
        Netns::create(&path).unwrap();
        path
    }

    /// Prepares a call of one of our plugins, with only `CNI_COMMAND` and `CNI_PATH` set.
    pub fn plugin(&self, name: &str, command: &str) -> Process {
        Process::plugin(&self.bin().join(name), command).env("CNI_PATH", self.bin())
    }

    /// Prepares a call for an attachment: container `c1` with `eth0` in `netns`.
    pub fn attach(&self, name: &str, command: &str, netns: impl AsRef<OsStr>) -> Process {
        self.plugin(name, command).attachment("c1", "eth0", netns)
    }

    /// Runs a shell command, which must succeed, and returns its output.
    pub fn sh(&self, command: &str) -> String {
        let outcome = Process::new("sh").arg("-ec").arg(command).run();
        assert_eq!(outcome.status, Some(0), "{command}\n{}{}", outcome.stdout, outcome.stderr);
        outcome.stdout
    }

    /// Returns the output of `ip -j -d ARGUMENTS` on this host as JSON.
    pub fn ip(&self, arguments: &str) -> Value {
        serde_json::from_str(&self.sh(&format!("ip -j -d {arguments}"))).unwrap_or(Value::Null)
    }
}

impl Default for Lab {
    fn default() -> Lab {
        Lab::new()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Returns the path of a program of this workspace.
pub fn program_path(name: &str) -> PathBuf {
    let dir = match std::env::var_os("CNI0_TEST_BIN") {
        Some(dir) => PathBuf::from(dir),
        // Tests are in target/PROFILE/deps, programs in its parent.
        None => std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned(),
    };
    dir.join(name)
}

/// Writes `body` as an executable shell script, in a child process.
///
/// The test process must never open an executable file for writing. A child of another test has a copy of that
/// descriptor between its fork and its exec. As long as it is open, the kernel refuses to execute the file (ETXTBSY).
pub fn write_script(path: &Path, body: &str) {
    let write = Process::new("sh").arg("-ec").arg("cat >\"$0\"; chmod 755 \"$0\"").arg(path);
    let outcome = write.stdin(format!("#!/bin/sh\n{body}\n")).run();
    assert_eq!(outcome.status, Some(0), "write {path:?}: {}", outcome.stderr);
}

/// Copies a program, in a child process like [`write_script`].
pub fn copy_program(from: &Path, to: &Path) {
    let outcome = Process::new("cp").arg("--preserve=mode").arg(from).arg(to).run();
    assert_eq!(outcome.status, Some(0), "copy {from:?} to {to:?}: {}", outcome.stderr);
}

/// Copies a program with another build ID, as an upgrade would install it.
pub fn copy_as_another_build(from: &Path, to: &Path) {
    let mut content = fs::read(from).unwrap();
    let id = build_id::find(&content).unwrap_or_else(|| panic!("{from:?} is linked without a build ID")).to_vec();
    let place = content.windows(id.len()).position(|bytes| bytes == id).unwrap();
    content[place] ^= 1;
    let draft = to.with_extension("draft");
    fs::write(&draft, content).unwrap();
    fs::set_permissions(&draft, fs::metadata(from).unwrap().permissions()).unwrap();
    copy_program(&draft, to);
    fs::remove_file(draft).unwrap();
}

/// Reports that a test cannot run here. `ci/test` counts it.
pub fn skip(test: &str, why: &str) {
    eprintln!("SKIPPED {test}: {why}");
    if let Some(file) = std::env::var_os("CNI0_TEST_SKIPS") {
        let line = format!("{test}: {why}\n");
        let mut file = fs::OpenOptions::new().append(true).create(true).open(file).unwrap();
        file.write_all(line.as_bytes()).unwrap();
    }
}

/// Returns a plugin of the reference; skips the test if it is not installed.
pub fn reference(plugin: &str, test: &str) -> Option<PathBuf> {
    let path = Path::new(REFERENCE).join(plugin);
    if !path.exists() {
        skip(test, "the reference is missing (apt-get install containernetworking-plugins)");
        return None;
    }
    Some(path)
}

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
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C");
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
