//! A daemon that the plugin starts, and that ends with its last lease.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use serde_json::{Value, json};
use testing::dhcp::{DISCOVER, RELEASE, SOCKET, Wire, daemon};
use testing::{Lab, Pod, parallel, wait_until};

use crate::support::{address, lan, pool, recorded};

const HOUR: [u32; 3] = [1800, 3000, 3600];
/// A lease that does not end.
const FOR_EVER: [u32; 3] = [1800, 3000, u32::MAX];

fn config() -> Value {
    lan(json!({"startDaemon": true}))
}

/// Returns the daemons of this lab.
fn daemons(lab: &Lab) -> Vec<u32> {
    let program = lab.bin().join("dhcp");
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_its = |pid: &u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        text.starts_with(&format!("{}\0daemon\0-on-demand\0", program.display()))
    };
    numbers.filter(is_its).collect()
}

/// Returns the only daemon of this lab.
#[track_caller]
fn only_daemon(lab: &Lab) -> u32 {
    let found = daemons(lab);
    let [pid] = found[..] else { panic!("{found:?}") };
    pid
}

#[track_caller]
fn await_end(lab: &Lab) {
    wait_until("the daemon to end", || daemons(lab).is_empty());
    assert!(!Path::new(SOCKET).exists());
}

#[test]
fn the_plugin_starts_a_daemon_that_keeps_nothing_of_its_caller() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let server = wire.server(pool(HOUR));
    let pod = Pod::new(lab, "c1");
    // The caller has an open file, and waits for the end of the plugin's streams.
    let script = format!("exec 8>{}/held; exec $0", lab.dir().display());
    let result = pod.call("ADD", &config()).via_shell(&script).run().ok();
    assert_eq!(address(&result), "10.66.0.60");
    let pid = only_daemon(lab);
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten() {
        let (name, target) = (entry.file_name(), fs::read_link(entry.path()).unwrap_or_default());
        let is_stream = ["0", "1", "2"].iter().any(|stream| name == *stream);
        assert!(is_stream == (target == Path::new("/dev/null")), "{name:?}: {target:?}");
        assert!(!target.starts_with(lab.dir()) && !target.starts_with("pipe:"), "{name:?}: {target:?}");
    }
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let session = stat.rsplit(") ").next().unwrap().split(' ').nth(3).unwrap().to_owned();
    assert_eq!(
        (session, fs::read_link(format!("/proc/{pid}/cwd")).unwrap().as_path()),
        (pid.to_string(), Path::new("/"))
    );
    pod.check_result(&config(), &result).ok();
    pod.del(&config());
    server.await_request("the release", |request| request.kind == RELEASE);
    await_end(lab);
    assert_eq!(recorded(), Vec::<Value>::new());
}

#[test]
fn calls_at_once_start_one_daemon_and_lose_no_address() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let server = wire.server(pool(HOUR));
    let pods: Vec<Pod<'_>> = (0..8).map(|n| Pod::new(lab, &format!("c{n}"))).collect();
    // Between rounds the daemon ends, while calls of the next one begin.
    for _ in 0..3 {
        parallel::assert_added(&parallel::run(pods.iter().map(|pod| pod.call("ADD", &config())).collect()));
        assert_eq!(recorded().len(), 8);
        only_daemon(lab);
        parallel::assert_silent(&parallel::run(pods.iter().map(|pod| pod.call("DEL", &config())).collect()));
        assert_eq!(recorded().len(), 0);
    }
    wait_until("the releases", || {
        server.requests().iter().filter(|request| request.kind == RELEASE).count() == 3 * pods.len()
    });
    await_end(lab);
}

#[test]
fn del_and_gc_start_the_daemon_for_leases_only() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let server = wire.server(pool(HOUR));
    let [a, b] = ["a", "b"].map(|id| Pod::new(lab, id));
    a.call("DEL", &config()).run().silent();
    let gc = || lab.plugin("macvlan", "GC").stdin(with_valid(&[]).to_string()).run().silent();
    gc();
    lab.plugin("macvlan", "STATUS").stdin(config().to_string()).run().silent();
    assert_eq!(daemons(lab), [0; 0]);
    for pod in [&a, &b] {
        pod.add(&config());
    }
    lab.sh(&format!("kill -9 {}", only_daemon(lab)));
    server.forget();
    a.call("DEL", &config()).run().silent();
    let release = server.await_request("the release", |request| request.kind == RELEASE);
    assert_eq!(release.client.to_string(), "10.66.0.60");
    lab.sh(&format!("kill -9 {}", only_daemon(lab)));
    server.forget();
    gc();
    let release = server.await_request("the release", |request| request.kind == RELEASE);
    assert_eq!(release.client.to_string(), "10.66.0.61");
    await_end(lab);
}

fn with_valid(ids: &[&str]) -> Value {
    let valid: Vec<Value> = ids.iter().map(|id| json!({"containerID": id, "ifname": "eth0"})).collect();
    testing::config::with(config(), json!({ "cni.dev/valid-attachments": valid }))
}

#[test]
fn a_lease_that_never_ends_needs_no_daemon() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let server = wire.server(pool(FOR_EVER));
    let pod = Pod::new(lab, "c1");
    let result = pod.add(&config());
    await_end(lab);
    assert_eq!(recorded().len(), 1);
    pod.check_result(&config(), &result).ok();
    pod.ping("10.66.0.1");
    assert_eq!(daemons(lab), [0; 0], "CHECK needs none");
    // A repeated ADD returns the same lease.
    server.forget();
    let ipam = testing::config::with(config(), json!({"type": "dhcp"}));
    assert_eq!(address(&pod.call("ADD", &ipam).run().ok()), address(&result));
    assert!(server.requests().iter().all(|request| request.kind != DISCOVER));
    pod.del(&config());
    server.await_request("the release", |request| request.kind == RELEASE);
    await_end(lab);

    let service = daemon(lab, &[]);
    let other = Pod::new(lab, "c2");
    let result = other.add(&lan(json!({})));
    assert!(service.end());
    other.check_result(&lan(json!({})), &result).ok();
    other.sh("ip address add 10.66.0.99/24 dev eth0; ip address del 10.66.0.61/24 dev eth0");
    let error = other.check_result(&lan(json!({})), &result).error(999);
    assert!(error["msg"].as_str().unwrap().contains("of its DHCP lease"), "{error}");
}

#[test]
fn a_daemon_that_cannot_start_is_reported() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let _server = wire.server(pool(HOUR));
    let pod = Pod::new(lab, "c1");
    let config = lan(json!({"startDaemon": true, "daemonSocketPath": "/proc/none/dhcp.sock"}));
    let error = pod.call("ADD", &config).run().error(11);
    let text = error["msg"].as_str().unwrap();
    assert!(text.contains("start the DHCP daemon at \"/proc/none/dhcp.sock\": dhcp daemon: "), "{error}");
    fs::remove_file(lab.bin().join("dhcp")).unwrap();
    lab.plugin("macvlan", "STATUS").stdin(crate::on_demand::config().to_string()).run().error(50);
}

#[test]
fn its_log_goes_to_the_log_daemon_of_the_host() {
    let lab = &Lab::new();
    lab.sh("mkdir /run/dev
            for file in null urandom; do touch /run/dev/$file; mount --bind /dev/$file /run/dev/$file; done
            mount --rbind /run/dev /dev");
    let log = UnixDatagram::bind("/dev/log").unwrap();
    log.set_read_timeout(Some(testing::timeout())).unwrap();
    let wire = Wire::new(lab);
    let _server = wire.server(pool(HOUR));
    let pod = Pod::new(lab, "c1");
    pod.add(&config());
    let mut buffer = [0; 2048];
    let expected = format!("<30>dhcp[{}]: ", only_daemon(lab));
    loop {
        let length = log.recv(&mut buffer).unwrap();
        let line = String::from_utf8_lossy(&buffer[..length]);
        assert!(line.starts_with(&expected), "{line}");
        if line.contains("leased 10.66.0.60/24 from server 10.66.0.1") {
            break;
        }
    }
    pod.del(&config());
    await_end(lab);
}
