//! The environment for black-box tests: real programs and real namespaces, isolated from the machine.
//!
//! A [`Lab`] gives the test's thread its own network and mount namespace, with empty `/run` and `/var/lib`. So tests
//! run in parallel and leave nothing behind: the kernel cleans up when the thread exits. Plugins come from
//! `$CNI0_TEST_BIN`, or from the directory where cargo builds them. A test of several hosts creates the others with
//! [`Lab::another`], and moves its thread there with [`Lab::within`].
//!
//! A [`Pod`] is a container on that host, for which tests call plugins: ours, or the reference's. [`Scripted`] is a
//! plugin that those delegate to, and [`suite`] has the tests of every plugin that creates an interface. [`fault`]
//! makes system calls fail, [`cost`] counts them, [`parallel`] runs many calls at the same time, and [`packets`] proves
//! their effect in a [`network`]. [`legacy`] and [`firewalld`] prepare hosts with other firewalls, [`dhcp`] and
//! [`dhcp6`] a network with servers of DHCP.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    reason = "a test whose setup fails should stop there"
)]

pub mod config;
pub mod cost;
pub mod dhcp;
pub mod dhcp6;
pub mod document;
pub mod fault;
pub mod firewalld;
pub mod kubernetes;
pub mod legacy;
pub mod network;
pub mod packets;
pub mod parallel;
mod pod;
mod process;
mod scripted;
pub mod suite;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use serde_json::Value;

use linux::Deadline;
use linux::Netns;
use linux::process::set;

pub use pod::Pod;
pub use process::{Outcome, Process};
pub use scripted::Scripted;

/// Returns the names of all plugins, from the list in `crates/cni0/Cargo.toml`. Reads its text, because this crate
/// cannot depend on plugins, whose tests depend on it.
pub fn plugins() -> Vec<String> {
    let list = include_str!("../../cni0/Cargo.toml").lines();
    list.filter_map(|line| Some(line.split_once(".path = ")?.0.to_owned())).collect()
}

/// The PATH of all programs that tests run.
pub const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// The directory of the reference's plugins in Debian's package.
pub const REFERENCE: &str = "/usr/lib/cni";

/// Returns the timeout for all waits in tests: a minute, or `$CNI0_TEST_TIMEOUT` seconds on a slow machine.
pub fn timeout() -> Duration {
    let seconds = std::env::var("CNI0_TEST_TIMEOUT").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(60))
}

/// Evaluates `condition` until it holds, with growing pauses, for events that the kernel does not report. Fails after
/// [`timeout`] and names `what`.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Deadline::after(timeout());
    let mut pause = Duration::from_millis(1);
    while !condition() {
        assert!(!deadline.has_passed(), "wait for {what}: not seen within {:?}", deadline.length());
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// The set of a program, to which a test can assign it. Programs of one set run each other in process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// No set, as after `cargo build`.
    None,
    /// The set of the plugins that [`Lab::new`] installs.
    One,
    /// Another set, as after an upgrade.
    Another,
}

/// An isolated host for one test.
#[derive(Debug)]
pub struct Lab {
    dir: PathBuf,
    namespaces: Namespaces,
}

/// The network namespace and the mount namespace of a thread.
#[derive(Debug)]
struct Namespaces {
    network: File,
    mount: File,
}

impl Namespaces {
    /// Returns the namespaces of the calling thread.
    fn current() -> Namespaces {
        let open = |name: &str| File::open(format!("/proc/thread-self/ns/{name}")).expect("open an own namespace");
        Namespaces { network: open("net"), mount: open("mnt") }
    }

    /// Moves the calling thread there. Its working directory is `/` then.
    fn enter(&self) {
        // A thread that was joined can still share the working directory; then the kernel refuses the next call.
        unshare(CloneFlags::CLONE_FS).expect("unshare the working directory");
        setns(&self.mount, CloneFlags::CLONE_NEWNS).expect("enter a mount namespace");
        setns(&self.network, CloneFlags::CLONE_NEWNET).expect("enter a network namespace");
    }
}

impl Lab {
    /// Moves this thread to a new host with plugins of one set, which run their delegates in process.
    pub fn new() -> Lab {
        Lab::with(Set::One)
    }

    /// Moves this thread to a new host with plugins.
    pub fn with(set: Set) -> Lab {
        let lab = Lab::without_plugins();
        for plugin in plugins() {
            let from = program_path(&plugin);
            assert!(from.exists(), "install {from:?}: it does not exist (cargo build --bins first)");
            copy_to_set(&from, &lab.bin().join(plugin), set);
        }
        lab
    }

    /// Moves this thread to a new host without plugins.
    pub fn without_plugins() -> Lab {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("cni0-lab-{}-{count}", std::process::id()));
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
            .expect("unshare (root, or `unshare -r`, is needed)");
        fs::create_dir_all(dir.join("bin")).expect("create the lab's directory");
        // From here on, dropping the value removes the directory.
        let lab = Lab { dir, namespaces: Namespaces::current() };
        let none: Option<&str> = None;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("keep mounts private");
        for empty in ["/run", "/var/lib"] {
            mount(Some("tmpfs"), empty, Some("tmpfs"), MsFlags::empty(), none).expect("mount an empty directory");
        }
        fs::create_dir("/run/netns").expect("create /run/netns");
        lab
    }

    /// Creates another host without plugins. This thread stays on its host.
    pub fn another(&self) -> Lab {
        let home = Namespaces::current();
        let other = Lab::without_plugins();
        home.enter();
        other
    }

    /// Moves this thread to this host while `work` runs, for tests of several hosts. Child processes, paths in `/run`
    /// and new sockets are then those of this host.
    pub fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        let home = Namespaces::current();
        self.namespaces.enter();
        let outcome = work();
        home.enter();
        outcome
    }

    /// Returns the path of this host's network namespace, for example for `ip link set eth0 netns PATH` on another
    /// host.
    pub fn network(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.namespaces.network.as_raw_fd()))
    }

    /// Runs `test` on a host whose plugins run their delegates in process, and on one whose plugins execute them.
    pub fn for_each_way_to_delegate(test: impl Fn(&Lab)) {
        for set in [Set::One, Set::None] {
            eprintln!("--- set: {set:?}");
            test(&Lab::with(set));
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

    /// Creates a namespace outside of the host, with 192.0.2.2 and 2001:db8::2 and without routes to containers. The
    /// host has 192.0.2.1, 192.0.2.9, 2001:db8::1 and 2001:db8::9 there.
    pub fn outside(&self) -> PathBuf {
        let path = self.netns("outside");
        self.sh("ip link set lo up
                 ip link add uplink type veth peer name eth0 netns outside
                 ip address add 192.0.2.1/24 dev uplink; ip address add 192.0.2.9/24 dev uplink
                 ip link set uplink up
                 ip -n outside address add 192.0.2.2/24 dev eth0
                 ip -n outside link set eth0 up
                 # Every packet to a closed port gets an answer.
                 sysctl -qw net.ipv4.icmp_ratemask=0
                 # On a busy machine it takes a while until both ends are ready, and ping fails when a neighbour is
                 # unreachable.
                 until ping -q -c 1 -W 5 192.0.2.2; do :; done
                 [ -e /proc/sys/net/ipv6 ] || exit 0
                 ip address add 2001:db8::9/64 dev uplink nodad; ip address add 2001:db8::1/64 dev uplink nodad
                 ip -n outside address add 2001:db8::2/64 dev eth0 nodad
                 sysctl -qw net.ipv6.icmp.ratemask=2
                 until ping -6 -q -c 1 -W 5 2001:db8::2; do :; done");
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

    /// Waits until the kernel's clock has advanced by some ticks, of at most 10 ms each. The kernel records in ticks
    /// when an address is added, and a subnet does not change faster.
    pub fn pass_ticks(&self) {
        let seconds = || fs::read_to_string("/proc/uptime").unwrap().split(' ').next().map(str::to_owned);
        for _ in 0..3 {
            let now = seconds();
            wait_until("a tick of the kernel's clock", || seconds() != now);
        }
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

/// Copies a program and assigns the copy to a set, in a child process like [`write_script`]. A script, which starts the
/// program under an emulator, has no set.
pub fn copy_to_set(from: &Path, to: &Path, set: Set) {
    let mut head = Vec::new();
    File::open(from).unwrap().take(4096).read_to_end(&mut head).unwrap();
    let Some(id) = set::find(&head) else { return copy_program(from, to) };
    let place = id.as_ptr().addr() - head.as_ptr().addr();
    let script = "cp --preserve=mode \"$0\" \"$1\"; dd of=\"$1\" oflag=seek_bytes seek=\"$2\" conv=notrunc status=none";
    let copy = Process::new("sh").arg("-ec").arg(script).arg(from).arg(to).arg(place.to_string());
    let outcome = copy.stdin([set as u8; set::ID_LENGTH]).run();
    assert_eq!(outcome.status, Some(0), "copy {from:?} to {to:?}: {}", outcome.stderr);
}

/// Returns whether the kernel can create a link with these arguments of `ip link add NAME`, on the host of the test.
pub fn can_create_link(arguments: &str) -> bool {
    let create = format!("ip link add probe {arguments} && ip link del probe");
    let outcome = Process::new("sh").arg("-c").arg(&create).run();
    let is_missing = |why| outcome.stderr.contains(why);
    let can = !is_missing("Unknown device type") && !is_missing("Operation not supported");
    assert!(!can || outcome.status == Some(0), "{create}: {}", outcome.stderr);
    can
}

/// As [`can_create_link`], and reports `test` as skipped if it cannot.
pub fn needs_link(test: &str, arguments: &str) -> bool {
    let can = can_create_link(arguments);
    if !can {
        skip(test, &format!("the kernel cannot create this link: {arguments}"));
    }
    can
}

/// Returns the names of the network cards that tests may take away from the machine, in its initial network namespace;
/// skips `test` if there are fewer than `wanted`. Only the guest of `ci/vm --cards` has such cards.
pub fn cards(test: &str, wanted: usize) -> Option<Vec<String>> {
    let number = std::env::var("CNI0_TEST_CARDS").ok().and_then(|number| number.parse().ok()).unwrap_or(0);
    if number < wanted {
        skip(test, &format!("needs {wanted} network cards that it may take away (ci/vm --cards {wanted})"));
        return None;
    }
    let links = Process::new("nsenter").arg("--net=/proc/1/ns/net").arg("ip").arg("-br").arg("link").run().stdout;
    let name = |line: &str| line.split(' ').next().filter(|name| name.starts_with("eth")).map(str::to_owned);
    let mut names: Vec<String> = links.lines().filter_map(name).collect();
    names.sort();
    assert!(names.len() >= wanted, "the guest has the links {links}");
    Some(names)
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
    if path.exists() {
        return Some(path);
    }
    match Path::new(REFERENCE).exists() {
        true => skip(test, &format!("the installed version of the reference has no {plugin}")),
        false => skip(test, "the reference is missing (apt-get install containernetworking-plugins)"),
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The links of the host of this thread.
    fn links(lab: &Lab) -> Vec<String> {
        let links = lab.ip("link");
        links.as_array().unwrap().iter().map(|link| link["ifname"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn another_host_has_its_own_links_and_files() {
        let lab = &Lab::without_plugins();
        let other = lab.another();
        lab.sh("ip link add here type veth peer name end; touch /run/here");
        other.within(|| {
            assert_eq!(links(lab), ["lo"]);
            assert!(!Path::new("/run/here").exists());
            lab.netns("there");
            lab.sh("ip link add there type bridge");
        });
        assert_eq!(links(lab), ["lo", "end", "here"]);
        assert!(!Path::new("/run/netns/there").exists());
        lab.sh(&format!("ip link set here netns {}", other.network().display()));
        other.within(|| assert_eq!(links(lab), ["lo", "there", "here"]));
    }
}
