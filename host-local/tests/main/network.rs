//! DEL, GC and STATUS, also with missing files and invalid configurations.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::json;
use testing::fault::inject_at;
use testing::{Lab, Outcome, Process, program_path, skip};

use crate::support::{DATA, Net, ip};

#[test]
fn del_needs_neither_ranges_nor_a_directory() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    net.del("a");
    assert!(!Path::new(DATA).exists(), "DEL creates nothing");
    assert!(!Path::new("/run/cni0").exists());
    for broken in [json!([[{"subnet": "nonsense"}]]), json!("nonsense"), json!(null), json!([])] {
        net.add("a");
        net.with("/ipam/ranges", broken.clone()).del("a");
        assert!(net.leases().is_empty(), "{broken}");
    }
    net.add("a");
    net.with("/args", json!({"cni": {"ips": [null]}})).calling("DEL", "a").env("CNI_ARGS", "x").run().ok();
    assert!(net.leases().is_empty());
    net.with("/ipam/dataDir", json!(5)).call("DEL", "a").error(6);
}

#[test]
fn del_twice_succeeds_and_keeps_other_leases() {
    let lab = Lab::new();
    let net = Net::new(&lab, json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]));
    net.add("a");
    net.add("b");
    net.calling("ADD", "a").env("CNI_IFNAME", "net1").run().ok();
    net.del("a");
    net.del("a");
    let left: Vec<String> = net.leases().into_values().collect();
    assert_eq!(left, ["b\r\neth0", "a\r\nnet1", "b\r\neth0", "a\r\nnet1"]);
    assert_eq!(net.files()["last_reserved_ip.0"], "10.1.0.4");
}

#[test]
fn files_with_other_names_are_not_leases() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    net.add("a");
    for name in ["notes", "10.1.0.9.bak", "last_reserved_ip.7"] {
        fs::write(net.dir().join(name), "a\r\neth0").unwrap();
    }
    fs::create_dir(net.dir().join("sub")).unwrap();
    fs::write(net.dir().join("sub/10.1.0.8"), "a\r\neth0").unwrap();
    symlink("notes", net.dir().join("10.1.0.7")).unwrap();
    net.del("a");
    net.gc(&[]);
    for name in ["notes", "10.1.0.9.bak", "last_reserved_ip.7", "sub/10.1.0.8", "10.1.0.7"] {
        assert!(net.dir().join(name).exists(), "{name}");
    }
    assert!(!net.dir().join("10.1.0.2").exists());
}

#[test]
fn gc_keeps_valid_attachments_and_releases_the_rest() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    for id in ["a", "b", "c", "d"] {
        net.add(id);
    }
    fs::write(net.dir().join("10.1.0.99"), "").unwrap();
    fs::write(net.dir().join("10.1.0.98"), "b").unwrap();
    fs::write(net.dir().join("10.1.0.97"), "gone").unwrap();
    net.call("GC", "x").error(7);
    assert_eq!(net.leases().len(), 7, "without a list, nothing is released");
    net.with("/ipam/ranges", json!("broken")).gc(&["b", "d", "unknown"]);
    let left: Vec<String> = net.leases().into_values().collect();
    assert_eq!(left, ["b\r\neth0", "d\r\neth0", "b"]);
    assert_eq!(net.add("e"), [ip("10.1.0.6")]);
    net.gc(&[]);
    assert!(net.leases().is_empty());
    assert!(net.files().contains_key("lock") && net.files().contains_key("last_reserved_ip.0"));
    net.with("/name", json!("unheard-of")).gc(&[]);
    assert!(!net.dir().with_file_name("unheard-of").exists());
}

/// Calls STATUS, which must succeed, and returns its warnings.
#[track_caller]
fn warnings(net: &Net<'_>) -> String {
    let outcome = net.calling("STATUS", "x").env("CNI_LOG", "warn").run();
    outcome.ok();
    outcome.stderr
}

#[test]
fn status_of_a_full_set_succeeds_with_a_warning() {
    let lab = Lab::new();
    let net = Net::new(&lab, json!([[{"subnet": "fd00::/64"}], [{"subnet": "10.1.0.0/29"}]]));
    net.call("STATUS", "x").ok();
    assert!(!Path::new(DATA).exists(), "STATUS creates nothing");
    for id in ["a", "b", "c", "d", "e"] {
        assert_eq!(warnings(&net), "");
        net.add(id);
    }
    let assert_warned = || {
        let warned = warnings(&net);
        assert!(warned.contains("range set 1") && warned.contains("all 5 are leased"), "{warned}");
    };
    assert_warned();
    net.call("STATUS", "x").ok();
    // Without an index, STATUS counts the names of the files.
    lab.sh("rm -rf /run/cni0");
    assert_warned();
    assert!(net.index().is_none(), "STATUS creates nothing");
    net.del("c");
    assert_eq!(warnings(&net), "");
}

#[test]
fn status_does_not_wait_for_the_lock() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/30");
    net.add("a");
    let trace = lab.dir().join("trace");
    let options = ["-f", "-qq", "-e", "trace=flock,openat", "-o", trace.to_str().unwrap()];
    net.calling("STATUS", "x").env("CNI_LOG", "warn").strace(&options).run().ok();
    let text = fs::read_to_string(&trace).unwrap();
    assert!(!text.contains("flock") && !text.contains("\"lock\""), "{text}");
}

#[test]
fn status_fails_when_the_directory_is_unusable() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/29");
    fs::create_dir_all("/run/data").unwrap();
    lab.sh("mount -t tmpfs none /run/data");
    let net = net.with("/ipam/dataDir", json!("/run/data/networks"));
    net.call("STATUS", "x").ok();
    lab.sh("mount -o remount,bind,ro /run/data");
    let error = net.call("STATUS", "x").error(50);
    assert!(error["msg"].as_str().unwrap().contains("/run/data"), "{error}");
    net.call("ADD", "a").error(5);
    lab.sh("mount -o remount,bind,rw /run/data");
    net.call("STATUS", "x").ok();
    let file = net.with("/ipam/dataDir", json!("/etc/hostname"));
    file.call("STATUS", "x").error(50);
    file.call("ADD", "a").error(5);
}

/// STATUS says what every ADD would say.
#[test]
fn status_fails_when_the_resolver_file_is_unusable() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/29").with("/ipam/resolvConf", json!("/run/resolv.conf"));
    fs::write("/run/resolv.conf", "nameserver 192.0.2.53\n").unwrap();
    net.call("STATUS", "x").ok();
    for (damage, add, status) in [
        ("rm /run/resolv.conf", 5, 50),
        ("ln -s resolv.conf /run/resolv.conf", 5, 50),
        ("rm /run/resolv.conf; mkfifo /run/resolv.conf", 7, 7),
        ("rm /run/resolv.conf; mkdir /run/resolv.conf", 7, 7),
    ] {
        lab.sh(damage);
        let refused = net.call("ADD", "a").error(add);
        assert_eq!(net.call("STATUS", "x").error(status)["msg"], refused["msg"], "{damage}");
    }
}

/// No ADD can have succeeded, so that DEL, with which a runtime follows a failed ADD, and GC have nothing to do.
#[test]
fn del_and_gc_succeed_where_there_can_be_no_leases() {
    let lab = Lab::new();
    fs::write("/run/file", "").unwrap();
    symlink("loop", "/run/loop").unwrap();
    let long = format!("/run/{}", "d".repeat(300));
    for dir in ["/run/file", "/run/file/networks", "/run/loop", &long] {
        let net = Net::of(&lab, "10.1.0.0/29").with("/ipam/dataDir", json!(dir));
        net.call("ADD", "a").error(5);
        net.call("DEL", "a").ok();
        net.with("/cni.dev~1valid-attachments", json!([])).call("GC", "x").ok();
        let error = net.call("CHECK", "a").error(999);
        assert!(error["msg"].as_str().unwrap().contains("no lease"), "{error}");
        net.call("STATUS", "x").error(50);
    }
    // The lease directory itself is a file.
    fs::create_dir_all("/var/lib/cni/networks").unwrap();
    fs::write("/var/lib/cni/networks/net", "").unwrap();
    Net::of(&lab, "10.1.0.0/29").call("DEL", "a").ok();
}

#[test]
fn status_of_a_shortage_succeeds_with_a_warning() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/29");
    fs::create_dir_all("/run/data").unwrap();
    lab.sh("mount -t tmpfs -o size=64k none /run/data");
    let net = net.with("/ipam/dataDir", json!("/run/data/networks"));
    lab.sh("head -c 1m /dev/zero > /run/data/full || true");
    let warned = warnings(&net);
    assert!(warned.contains("/run/data") && warned.contains("No space left"), "{warned}");
    net.call("ADD", "a").error(5);
    lab.sh("rm /run/data/full");
    assert_eq!(warnings(&net), "");
    net.call("ADD", "a").ok();
    // Other shortages, and two errors that are not transient.
    let status = |error: &str| {
        let call = net.calling("STATUS", "x").env("CNI_LOG", "warn");
        inject_at(&lab, call, "/run/data/networks/net", "openat", &format!("error={error}"))
    };
    for error in ["EDQUOT", "ENOMEM", "EMFILE", "ENFILE"] {
        let outcome = status(error);
        outcome.ok();
        assert!(outcome.stderr.contains("/run/data/networks/net"), "{error}: {}", outcome.stderr);
    }
    for error in ["EIO", "EACCES"] {
        status(error).error(50);
    }
}

/// Asserts that a call fails with this text and this remedy, and does not mention a rollback.
#[track_caller]
fn assert_one_error(outcome: &Outcome, said: &[&str], remedy: &str) {
    let error = outcome.error(5);
    let (msg, details) = (error["msg"].as_str().unwrap(), error["details"].as_str().unwrap());
    assert!(said.iter().all(|part| msg.contains(part)), "{msg}");
    assert!(details.contains(remedy) && !details.contains("not undone"), "{details}");
}

#[test]
fn a_read_only_file_system_is_one_clear_error() {
    let lab = Lab::new();
    fs::create_dir_all("/var/lib/cni").unwrap();
    lab.sh("mount -t tmpfs none /var/lib/cni");
    let net = Net::new(&lab, json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]));
    net.add("a");
    lab.sh("mount -o remount,bind,ro /var/lib/cni");
    let remedy = "read-write, or set \"dataDir\"";
    let other = net.with("/name", json!("other"));
    assert_one_error(
        &other.call("ADD", "b"),
        &["create directory \"/var/lib/cni/networks/other\"", "Read-only"],
        remedy,
    );
    assert_one_error(&net.call("ADD", "b"), &["/var/lib/cni/networks/net/10.1.0.3", "Read-only"], remedy);
    assert_one_error(&net.call("DEL", "a"), &["/var/lib/cni/networks/net/10.1.0.2", "Read-only"], remedy);
    assert!(net.call("STATUS", "x").error(50)["details"].as_str().unwrap().contains(remedy));
}

#[test]
fn without_root_there_is_one_clear_error() {
    let test = "network::without_root_there_is_one_clear_error";
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    lab.sh("chmod 755 /var/lib");
    // Another user may not be able to read the directory of the built program.
    let program = Path::new("/run/host-local");
    fs::copy(program_path("host-local"), program).unwrap();
    let as_nobody = || Process::new("setpriv").arg("--reuid=65534").arg("--regid=65534").arg("--clear-groups");
    if as_nobody().arg("true").run().status != Some(0) {
        return skip(test, "there is no other user here");
    }
    let call = || {
        let call = as_nobody().arg(program).env("CNI_COMMAND", "ADD").env("CNI_PATH", "/none");
        call.attachment("b", "eth0", "/run/netns/none").stdin(net.config.to_string()).run()
    };
    let (dir, lock) = (net.dir(), net.dir().join("lock"));
    let said = |what: &str, path: &Path| format!("{what} {path:?}: Permission denied");
    assert_one_error(&call(), &[&said("create directory", &dir)], "run as root");
    net.add("a");
    assert_one_error(&call(), &[&said("lock", &lock)], "run as root");
    assert_eq!(net.leases().len(), 1);
}

#[test]
fn a_full_disk_leaves_no_partial_lease() {
    let lab = Lab::new();
    fs::create_dir_all("/run/data").unwrap();
    lab.sh("mount -t tmpfs -o size=64k none /run/data");
    let net = Net::of(&lab, "10.1.0.0/24").with("/ipam/dataDir", json!("/run/data"));
    let first = net.call("ADD", "a").ok();
    assert_eq!(first["ips"][0]["address"], "10.1.0.2/24");
    lab.sh("head -c 1m /dev/zero > /run/data/full || true");
    let before = crate::support::files(Path::new("/run/data/net"));
    let error = net.call("ADD", "b").error(5);
    assert!(error["msg"].as_str().unwrap().contains("No space left"), "{error}");
    assert_eq!(crate::support::files(Path::new("/run/data/net")), before);
    net.del("a");
    lab.sh("rm /run/data/full");
    net.call("ADD", "b").ok();
}

#[test]
fn the_plugin_reports_its_name_and_version() {
    let lab = Lab::new();
    let about = Process::new(lab.bin().join("host-local")).run();
    assert!(about.stderr.starts_with("CNI host-local plugin"), "{about:?}");
    assert_eq!(lab.plugin("host-local", "VERSION").run().ok()["cniVersion"], "1.1.0");
}
