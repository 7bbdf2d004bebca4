//! `cnitool leases --watch`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};

use linux::Deadline;
use linux::child::run_to_end;
use serde_json::Value;
use testing::{program_path, timeout};

use crate::node::{attach, host};
use crate::support::Host;

/// A running `leases --watch`.
struct Watch {
    child: Child,
    stdout: BufReader<ChildStdout>,
    _stderr: BufReader<ChildStderr>,
}

impl Watch {
    /// Starts it, and waits until it watches. It is killed when the test has taken too long.
    fn start(host: &Host, words: &[&str]) -> Watch {
        let mut command = Command::new("timeout");
        command.args(["--foreground", "-s", "KILL", &timeout().as_secs().to_string()]).arg(program_path("cnitool"));
        command.args(["leases", "--watch"]).args(words).env("NETCONFPATH", host.conf_dir());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let mut stderr = BufReader::new(stderr);
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        assert_eq!(line, "cnitool: watching the leases\n");
        Watch { child, stdout: BufReader::new(stdout), _stderr: stderr }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Returns the next line without its time.
    #[track_caller]
    fn change(&mut self) -> String {
        let line = self.line();
        let (time, change) = line.split_once(' ').unwrap_or_else(|| panic!("{line:?}"));
        assert!(time.starts_with("20") && time.ends_with('Z'), "{line}");
        change.to_owned()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn changes_are_printed_as_they_happen() {
    let host = host("10.216.0.0/24");
    // The directory of the leases does not exist yet.
    let mut watch = Watch::start(&host, &[]);
    let blue = attach(&host, "blue");
    assert_eq!(watch.change(), format!("+ pods 10.216.0.2 {blue} eth0"));
    let green = attach(&host, "green");
    assert_eq!(watch.change(), format!("+ pods 10.216.0.3 {green} eth0"));
    host.run("del pods blue").silent();
    assert_eq!(watch.change(), format!("- pods 10.216.0.2 {blue} eth0"));
    // The directories vanish, and appear again.
    fs::remove_dir_all("/var/lib/cni/networks").unwrap();
    assert_eq!(watch.change(), format!("- pods 10.216.0.3 {green} eth0"));
    fs::create_dir_all("/var/lib/cni/networks/other").unwrap();
    fs::write("/var/lib/cni/networks/other/10.1.0.9", "c9\r\neth1").unwrap();
    assert_eq!(watch.change(), "+ other 10.1.0.9 c9 eth1");
    fs::write("/var/lib/cni/networks/other/10.1.0.9", "c10\r\neth1").unwrap();
    let changes = [watch.change(), watch.change()];
    assert_eq!(changes, ["- other 10.1.0.9 c9 eth1", "+ other 10.1.0.9 c10 eth1"], "another owner");
}

#[test]
fn one_network_as_json() {
    let host = host("10.217.0.0/24");
    let mut watch = Watch::start(&host, &["--json", "pods"]);
    fs::create_dir_all("/var/lib/cni/networks/other").unwrap();
    fs::write("/var/lib/cni/networks/other/10.1.0.9", "c9\r\neth1").unwrap();
    let blue = attach(&host, "blue");
    let line: Value = serde_json::from_str(&watch.line()).unwrap();
    let members = ["change", "network", "address", "container", "interface"].map(|key| line[key].as_str().unwrap());
    assert_eq!(members, ["+", "pods", "10.217.0.2", &blue, "eth0"]);
    assert!(line["time"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn it_ends_by_a_signal_or_when_its_reader_is_gone() {
    let host = host("10.203.0.0/24");
    let start = || {
        let mut command = Command::new(program_path("cnitool"));
        command.args(["leases", "--watch"]).env("NETCONFPATH", host.conf_dir());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let stderr = child.stderr.as_mut().unwrap();
        while !line.ends_with('\n') {
            let mut byte = [0];
            std::io::Read::read_exact(stderr, &mut byte).unwrap();
            line.push(byte[0].into());
        }
        child
    };
    let child = start();
    host.lab.sh(&format!("kill -TERM {}", child.id()));
    let (stderr, outcome) = run_to_end(child, b"", Deadline::after(timeout()));
    let (status, stdout) = outcome.unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGTERM));
    assert_eq!((stderr, stdout), (Vec::new(), Vec::new()), "no message");
    // No lease changes here: the closed pipe alone must end it.
    let mut child = start();
    drop(child.stdout.take());
    let (stderr, outcome) = run_to_end(child, b"", Deadline::after(timeout()));
    assert_eq!((stderr, outcome.unwrap().0.code()), (Vec::new(), Some(0)));
}
