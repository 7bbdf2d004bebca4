//! The files on disk, byte for byte, and files of other implementations.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::json;
use testing::{Lab, reference};

use crate::support::{Net, files};

/// A lease directory that the reference wrote, with records of older releases.
fn theirs(lab: &Lab) -> Net<'_> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/leases/dual");
    lab.sh(&format!("mkdir -p /var/lib/cni/networks; cp -r {source:?} /var/lib/cni/networks/dual"));
    let net = Net::new(lab, json!([[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]]));
    net.with("/name", json!("dual"))
}

#[test]
fn files_have_the_names_modes_and_contents_of_the_reference() {
    let lab = Lab::new();
    let net = Net::new(&lab, json!([[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]]));
    net.add("cid1");
    let want = [
        ("10.77.0.2", "cid1\r\neth0", 0o600),
        ("fd77::2", "cid1\r\neth0", 0o600),
        ("last_reserved_ip.0", "10.77.0.2", 0o600),
        ("last_reserved_ip.1", "fd77::2", 0o600),
        ("lock", "", 0o750),
    ];
    assert_eq!(net.files(), want.iter().map(|(name, content, _)| ((*name).into(), (*content).into())).collect());
    for (name, _, mode) in want {
        let found = fs::metadata(net.dir().join(name)).unwrap().permissions().mode();
        assert_eq!(found & 0o7777, mode, "{name}");
    }
    assert_eq!(fs::metadata(net.dir()).unwrap().permissions().mode() & 0o7777, 0o755);
}

#[test]
fn the_same_calls_leave_the_same_directory_as_the_reference() {
    let test = "format::the_same_calls_leave_the_same_directory_as_the_reference";
    let Some(reference) = reference("host-local", test) else { return };
    let lab = Lab::new();
    let net =
        Net::new(&lab, json!([[{"subnet": "10.77.0.0/29", "rangeStart": "10.77.0.3"}], [{"subnet": "fd77::/125"}]]));
    let mut seen = Vec::new();
    for name in ["ours", "theirs"] {
        let net = net.with("/name", json!(name)).with("/cniVersion", json!("1.0.0"));
        let mut log = Vec::new();
        for (command, id) in [
            ("ADD", "a"),
            ("ADD", "b"),
            ("DEL", "a"),
            ("ADD", "c"),
            ("ADD", "d"),
            ("ADD", "e"),
            ("ADD", "f"),
            ("DEL", "x"),
            ("ADD", "c"),
            ("DEL", "c"),
            ("CHECK", "b"),
            ("CHECK", "c"),
        ] {
            let call = if name == "ours" { net.calling(command, id) } else { net.reference(&reference, command, id) };
            let outcome = call.run();
            // Release 1.1.1 of the reference prints an empty "dns" in 1.0.0, later releases do not.
            let ips = if outcome.status == Some(0) { outcome.ok()["ips"].clone() } else { json!(null) };
            log.push((command, id, outcome.status, ips));
        }
        seen.push((log, files(&net.dir())));
    }
    assert_eq!(seen[0], seen[1]);
}

#[test]
fn leases_of_the_reference_are_read_and_released() {
    let lab = Lab::new();
    let net = theirs(&lab);
    for id in ["cid1", "cid2", "old1", "old2", "lf1"] {
        net.call("CHECK", id).ok();
        net.call("ADD", id).error(999);
    }
    net.call("CHECK", "cid3").error(999);
    for id in ["cid1", "cid2", "cid4", "old1", "old2", "lf1", "cid3"] {
        net.del(id);
        net.call("CHECK", id).error(999);
    }
    assert_eq!(net.leases().into_values().collect::<Vec<_>>(), ["cid1\r\nnet1"; 2]);
    assert_eq!(net.files()["last_reserved_ip.0"], "10.77.0.6", "no address was leased");
    net.calling("DEL", "cid1").env("CNI_IFNAME", "net1").run().ok();
    assert!(net.leases().is_empty());
}

#[test]
fn a_record_with_the_interface_is_released_before_an_old_one() {
    let lab = Lab::new();
    let net = theirs(&lab);
    fs::write(net.dir().join("10.77.0.30"), "cid2").unwrap();
    net.del("cid2");
    assert_eq!(net.files()["10.77.0.30"], "cid2");
    net.del("cid2");
    assert!(!net.files().contains_key("10.77.0.30"));
}

#[test]
fn gc_understands_old_records() {
    let lab = Lab::new();
    let net = theirs(&lab);
    net.gc(&["cid2", "old1", "lf1"]);
    let left: Vec<String> = net.leases().into_values().collect();
    assert_eq!(left, ["cid2\r\neth0", "old1", "lf1\neth0\n", "cid2\r\neth0"]);
}

#[test]
fn allocation_continues_where_the_reference_stopped() {
    let lab = Lab::new();
    let net = theirs(&lab);
    let answer = net.call("ADD", "new").ok();
    assert_eq!(answer["ips"][0]["address"], "10.77.0.7/24");
    assert_eq!(answer["ips"][1]["address"], "fd77::7/64");
}
