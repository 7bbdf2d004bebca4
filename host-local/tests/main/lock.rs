//! The lock: calls wait for it, but not forever.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use testing::Lab;

use crate::support::Net;

/// Longer than a busy machine needs to start a process.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Starts a process that holds the lock until it is killed.
fn holder(net: &Net<'_>) -> Child {
    let lock = net.dir().join("lock");
    let mut child = Command::new("flock")
        .arg("--no-fork")
        .arg(&lock)
        .args(["sh", "-c", "echo; exec sleep 300"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The process prints a line when it has the lock.
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    child
}

/// Takes the lock of `net`, lets `call` wait for it, runs `meanwhile`, and releases the lock by closing the file, as
/// the kernel does for a killed process.
fn while_waiting<T: Send>(net: &Net<'_>, call: impl FnOnce() -> T + Send, meanwhile: impl FnOnce()) -> T {
    let lock = fs::File::open(net.dir().join("lock")).unwrap();
    fs2::FileExt::lock_exclusive(&lock).unwrap();
    let inode = format!(":{} ", lock.metadata().unwrap().ino());
    let waits = |line: &str| line.contains("->") && line.contains(&inode);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(call);
        let deadline = Instant::now() + TIMEOUT;
        // Only the kernel's list shows waiting processes.
        while !fs::read_to_string("/proc/locks").unwrap().lines().any(waits) {
            assert!(!waiting.is_finished(), "the call ended without waiting for the lock");
            assert!(
                Instant::now() < deadline,
                "after {TIMEOUT:?} the call does not wait for the lock in {:?}",
                net.dir()
            );
            std::thread::yield_now();
        }
        meanwhile();
        drop(lock);
        waiting.join().unwrap()
    })
}

#[test]
fn a_lock_that_is_never_released_is_an_error_with_the_holder() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    net.add("a");
    let before = net.files();
    let mut holder = holder(&net);
    let error = net.call("ADD", "b").error(11);
    let (msg, details) = (error["msg"].as_str().unwrap(), error["details"].as_str().unwrap());
    assert!(msg.contains("/var/lib/cni/networks/net/lock"), "{msg}");
    assert!(details.contains(&format!("process {} ", holder.id())), "{details}");
    assert_eq!(net.files(), before);
    holder.kill().unwrap();
    holder.wait().unwrap();
    net.add("b");
}

#[test]
fn a_waiting_call_continues_when_the_holder_is_killed() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    net.add("a");
    // A call that waits until its deadline would fail.
    assert_eq!(while_waiting(&net, || net.add("b"), || ()).len(), 1);
}

#[test]
fn a_lock_that_is_removed_meanwhile_is_taken_again() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    net.add("a");
    while_waiting(&net, || net.del("a"), || fs::remove_file(net.dir().join("lock")).unwrap());
    assert!(net.leases().is_empty());
}

#[test]
fn a_network_that_is_removed_meanwhile_is_created_again() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    net.add("a");
    while_waiting(&net, || net.add("b"), || fs::remove_dir_all(net.dir()).unwrap());
    assert_eq!(net.leases().into_values().collect::<Vec<_>>(), ["b\r\neth0"]);
}

#[test]
fn the_lock_file_is_opened_for_writing() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    let trace = lab.dir().join("trace");
    // The first call creates the file, the second one opens it.
    for command in ["ADD", "DEL"] {
        let options = ["-f", "-qq", "-e", "trace=openat", "-o", trace.to_str().unwrap()];
        net.calling(command, "a").strace(&options).run().ok();
        let text = fs::read_to_string(&trace).unwrap();
        let opened: Vec<&str> = text.lines().filter(|line| line.contains("\"lock\"")).collect();
        assert!(!opened.is_empty() && opened.iter().all(|line| line.contains("O_RDWR")), "{command}: {opened:?}");
    }
}

#[test]
fn on_a_read_only_file_system_check_and_del_still_take_the_lock() {
    let lab = Lab::new();
    fs::create_dir_all("/run/data").unwrap();
    lab.sh("mount -t tmpfs none /run/data");
    let net = Net::of(&lab, "10.1.0.0/24").with("/ipam/dataDir", json!("/run/data"));
    net.call("ADD", "a").ok();
    lab.sh("mount -o remount,bind,ro /run/data");
    net.call("CHECK", "a").ok();
    net.call("DEL", "other").ok();
    let error = net.call("DEL", "a").error(5);
    assert!(error["msg"].as_str().unwrap().contains("/run/data/net/10.1.0.2"), "{error}");
    lab.sh("mount -o remount,bind,rw /run/data");
    net.call("DEL", "a").ok();
}

#[test]
fn a_directory_in_place_of_the_lock_file_is_reported() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    fs::create_dir_all(net.dir().join("lock")).unwrap();
    for command in ["ADD", "DEL"] {
        let error = net.call(command, "a").error(5);
        let msg = error["msg"].as_str().unwrap();
        assert!(msg.contains("/var/lib/cni/networks/net/lock") && msg.contains("Is a directory"), "{msg}");
    }
}
