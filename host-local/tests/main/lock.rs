//! The lock: waited for, but not for ever.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use cni::testing::Lab;

use crate::support::Net;

/// A process that holds the lock until it is killed.
fn holder(net: &Net<'_>) -> Child {
    let lock = net.dir().join("lock");
    let mut child = Command::new("flock")
        .arg("--no-fork")
        .arg(&lock)
        .args(["sh", "-c", "echo; exec sleep 300"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // It says a line when it has the lock.
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    child
}

/// Returns as soon as somebody waits for `lock`; only the kernel's list tells.
fn wait_for_waiter(lock: &fs::File) {
    let inode = format!(":{} ", lock.metadata().unwrap().ino());
    let waits = |line: &str| line.contains("->") && line.contains(&inode);
    while !fs::read_to_string("/proc/locks").unwrap().lines().any(waits) {
        std::thread::yield_now();
    }
}

#[test]
fn a_lock_that_is_never_released_is_an_error_that_names_the_holder() {
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
fn the_next_one_goes_on_when_the_holder_is_killed() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    net.add("a");
    let lock = fs::File::open(net.dir().join("lock")).unwrap();
    fs2::FileExt::lock_exclusive(&lock).unwrap();
    let began = Instant::now();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| net.add("b"));
        wait_for_waiter(&lock);
        // Closing is what the kernel does for the killed.
        drop(lock);
        assert_eq!(waiting.join().unwrap().len(), 1);
    });
    assert!(began.elapsed().as_secs() < 15, "it did not wait for its deadline");
}

#[test]
fn a_lock_that_is_removed_meanwhile_is_taken_anew() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    net.add("a");
    let lock = fs::File::open(net.dir().join("lock")).unwrap();
    fs2::FileExt::lock_exclusive(&lock).unwrap();
    std::thread::scope(|scope| {
        let releasing = scope.spawn(|| net.del("a"));
        wait_for_waiter(&lock);
        fs::remove_file(net.dir().join("lock")).unwrap();
        drop(lock);
        releasing.join().unwrap();
    });
    assert!(net.leases().is_empty());
}

#[test]
fn a_network_that_is_removed_meanwhile_is_made_again() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    net.add("a");
    let lock = fs::File::open(net.dir().join("lock")).unwrap();
    fs2::FileExt::lock_exclusive(&lock).unwrap();
    std::thread::scope(|scope| {
        let adding = scope.spawn(|| net.add("b"));
        wait_for_waiter(&lock);
        fs::remove_dir_all(net.dir()).unwrap();
        drop(lock);
        adding.join().unwrap();
    });
    assert_eq!(net.leases().into_values().collect::<Vec<_>>(), ["b\r\neth0"]);
}
