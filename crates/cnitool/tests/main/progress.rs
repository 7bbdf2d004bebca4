//! A command that waits reports what it waits for.

use std::fs::{self, File};
use std::process::{Command, Stdio};

use testing::{program_path, wait_until};

use crate::node::{LEASE_LOCK, attach, hold_lock, host};

#[test]
fn an_add_that_waits_for_a_lock_names_it() {
    let host = host("10.62.0.0/24");
    attach(&host, "blue");
    for (name, lock) in [("red", LEASE_LOCK), ("green", "/run/cni0/cnitool.lock")] {
        host.lab.netns(name);
        let mut holder = hold_lock(lock);
        let path = host.lab.dir().join(name);
        let mut add = Command::new(program_path("cnitool"))
            .args(["add", "pods", name])
            .env("NETCONFPATH", host.conf_dir())
            .env("CNI_PATH", host.lab.bin())
            .stdout(Stdio::null())
            .stderr(File::create(&path).unwrap())
            .spawn()
            .unwrap();
        let printed = || fs::read_to_string(&path).unwrap();
        wait_until("the report", || printed().ends_with('\n'));
        holder.kill().unwrap();
        holder.wait().unwrap();
        assert!(add.wait().unwrap().success(), "{}", printed());
        let who = match lock {
            LEASE_LOCK => format!("ADD of plugin \"bridge\": process {} (sleep) holds the lock", holder.id()),
            _ => "another cnitool, which holds the lock".to_owned(),
        };
        assert_eq!(printed().lines().next(), Some(format!("cnitool: waiting for {who} {lock}").as_str()));
    }
}
