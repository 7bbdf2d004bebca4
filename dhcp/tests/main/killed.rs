//! The daemon is killed before each system call that another process or a server can notice, or gets an error from
//! those by which it asks the kernel.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::json;
use testing::config::with;
use testing::dhcp::{self, SOCKET, Service, Wire, daemon};
use testing::{Lab, Pod, wait_until};

use crate::support::{address, addresses, lan, recorded};

/// The system calls that change files, interfaces and sockets, or send a message: on some architectures by other names.
const NOTICED: [&str; 12] = [
    "bind",
    "mkdir",
    "mkdirat",
    "rename",
    "renameat",
    "renameat2",
    "rmdir",
    "sendmsg",
    "sendto",
    "unlink",
    "unlinkat",
    "write",
];
const KILL: &str = "signal=KILL";
const PIDFILE: &str = "/run/dhcp.pid";

/// Starts a daemon that gets a fault, as strace injects it, at the `n`th system call of a name. Waits until it listens,
/// or was killed.
fn struck(lab: &Lab, fault: &str, name: &str, n: usize) -> Service {
    let log = lab.dir().join("strace.log");
    [log.as_path(), Path::new(PIDFILE)].iter().for_each(|path| drop(fs::remove_file(path)));
    let (traced, inject) = (format!("trace={name}"), format!("inject={name}:{fault}:when={n}"));
    let program = lab.bin().join("dhcp");
    let daemon = dhcp::start(
        lab,
        "daemon",
        "strace",
        &[
            &["-q", "-o", log.to_str().unwrap(), "-e", &traced, "-e", &inject][..],
            &[
                "env",
                "CNI_LOG=off",
                "setpriv",
                "--pdeathsig",
                "KILL",
                program.to_str().unwrap(),
                "daemon",
                "-pidfile",
                PIDFILE,
            ],
        ]
        .concat(),
    );
    wait_until("the daemon to listen", || UnixStream::connect(SOCKET).is_ok() || was_struck(lab));
    daemon
}

/// Ends a daemon, and waits for strace. Returns whether the daemon got its fault.
fn end(lab: &Lab, strace: Service) -> bool {
    lab.sh(&format!("kill $(cat {PIDFILE}) 2>/dev/null || true"));
    strace.wait();
    was_struck(lab)
}

fn was_struck(lab: &Lab) -> bool {
    let shows = |log: String| log.contains("killed by SIGKILL") || log.contains("(INJECTED)");
    fs::read_to_string(lab.dir().join("strace.log")).is_ok_and(shows)
}

/// Runs `round` for each point at which a daemon is killed. It returns whether the daemon was.
fn everywhere(mut round: impl FnMut(&str, usize) -> bool) {
    let mut points = Vec::new();
    for name in NOTICED {
        let count = (1..).take_while(|n| round(name, *n)).count();
        points.push((name, count));
    }
    assert!(points.iter().filter(|(_, count)| *count > 0).count() > 4, "{points:?}");
}

/// The plugin fails, and the runtime removes the container. The server gets the address back from the next daemon.
#[test]
fn no_add_loses_an_address() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let Some(_server) = wire.dnsmasq("killed::no_add_loses_an_address", &[]) else { return };
    let config = with(lan(json!({})), json!({"type": "dhcp"}));
    let pod = Pod::new(lab, "c1");
    lab.sh("ip link add link eth1 name eth0 netns c1 type macvlan mode bridge; ip -n c1 link set eth0 up");
    everywhere(|name, n| {
        let first = struck(lab, KILL, name, n);
        let added = pod.call("ADD", &config).run();
        let killed = end(lab, first);
        assert!(killed || added.status == Some(0), "{name} {n}: {added:?}");
        let second = daemon(lab, &[]);
        if added.status == Some(0) {
            assert!(wire.leases().contains(&address(&added.ok())), "{name} {n}");
            assert_eq!(recorded().len(), 1, "{name} {n}");
        }
        pod.call("DEL", &config).run().silent();
        assert!(!Path::new("/run/cni0/dhcp/lan").exists(), "{name} {n}");
        wait_until(&format!("{name} {n}: the server to take the address back"), || wire.leases().is_empty());
        assert!(second.end());
        killed
    });
}

/// The daemon after it continues the lease.
#[test]
fn no_restart_loses_a_lease() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let Some(_server) = wire.dnsmasq("killed::no_restart_loses_a_lease", &[]) else { return };
    let config = lan(json!({}));
    let first = daemon(lab, &[]);
    let pod = Pod::new(lab, "c1");
    let result = pod.add(&config);
    drop(first);
    everywhere(|name, n| {
        let since = || recorded()[0]["grant"]["since"].clone();
        let before = since();
        let second = struck(lab, KILL, name, n);
        wait_until("the server to confirm the lease", || was_struck(lab) || since() != before);
        let killed = end(lab, second);
        let third = daemon(lab, &[]);
        pod.check_result(&config, &result).ok();
        assert_eq!((addresses(&pod), recorded().len()), (vec![address(&result)], 1), "{name} {n}");
        assert_eq!(wire.leases().lines().count(), 1, "{name} {n}");
        assert!(third.end());
        killed
    });
    let _last = daemon(lab, &[]);
    pod.del(&config);
    wait_until("the server to take the address back", || wire.leases().is_empty());
}

/// An error does not mean that the interface is gone.
#[test]
fn no_error_loses_a_lease() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let Some(_server) = wire.dnsmasq("killed::no_error_loses_a_lease", &[]) else { return };
    let first = daemon(lab, &[]);
    Pod::new(lab, "c1").add(&lan(json!({})));
    drop(first);
    let since = || recorded().first().map(|lease| lease["grant"]["since"].clone());
    for name in ["recvfrom", "sendto"] {
        let count = (1..).take_while(|n| {
            let before = since();
            let second = struck(lab, "error=ENOBUFS", name, *n);
            wait_until("the server to confirm the lease", || was_struck(lab) || since() != before);
            let failed = end(lab, second);
            assert_eq!(recorded().len(), 1, "{name} {n}");
            failed
        });
        assert!(count.count() > 1, "{name}");
    }
}
