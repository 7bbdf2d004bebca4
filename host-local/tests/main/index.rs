//! The index is a hint: results are correct regardless of its content.

use std::fs;

use serde_json::json;
use testing::{Lab, reference};

use crate::support::{Net, ip, names};

/// Calls all commands, damages the index before each one, and compares the results with the expected ones.
fn exercise(net: &Net<'_>, spoil: impl Fn(&Net<'_>)) {
    net.gc(&[]);
    fs::write(net.dir().join("last_reserved_ip.0"), "10.1.0.1").unwrap();
    assert_eq!(net.add("a"), [ip("10.1.0.2")]);
    spoil(net);
    net.call("ADD", "a").error(999);
    spoil(net);
    assert_eq!(net.add("b"), [ip("10.1.0.3")]);
    spoil(net);
    net.call("CHECK", "b").ok();
    spoil(net);
    net.del("a");
    assert_eq!(net.leases().into_values().collect::<Vec<_>>(), ["b\r\neth0"]);
    spoil(net);
    net.call("CHECK", "a").error(999);
    spoil(net);
    net.call("STATUS", "x").ok();
    spoil(net);
    net.del("b");
    assert!(net.leases().is_empty());
    net.assert_tidy();
}

/// Changes every page without a change of the directory's mtime.
fn spoil_pages(net: &Net<'_>, spoil: impl Fn(Vec<u8>) -> Vec<u8>) {
    let Some(index) = net.index() else { return };
    for name in names(&index) {
        let path = index.join(name);
        fs::write(&path, spoil(fs::read(&path).unwrap())).unwrap();
    }
}

/// Returns the number of leases that a call reads.
fn opened(net: &Net<'_>, command: &str, id: &str) -> usize {
    let trace = net.lab.dir().join("trace");
    net.calling(command, id).strace(&["-f", "-qq", "-e", "trace=openat", "-o", trace.to_str().unwrap()]).run().ok();
    let text = fs::read_to_string(&trace).unwrap();
    text.lines().filter(|line| line.contains("\"10.1.0.") && line.contains("O_RDONLY")).count()
}

#[test]
fn no_call_reads_the_leases_of_others() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    let fill = |from: u8| {
        fs::create_dir_all(net.dir()).unwrap();
        (from..from + 50)
            .for_each(|n| fs::write(net.dir().join(format!("10.1.0.{n}")), format!("s{n}\r\neth0")).unwrap());
    };
    // After another program has changed the directory, only one call reads all leases.
    for from in [10, 100] {
        fill(from);
        assert!(opened(&net, "ADD", &format!("first{from}")) >= 50, "the index has to be built");
        let id = format!("second{from}");
        for command in ["ADD", "CHECK", "DEL"] {
            let read = opened(&net, command, &id);
            assert!(read <= 3, "{command} read {read} leases");
        }
    }
}

#[test]
fn the_index_of_a_deleted_network_is_removed_when_a_new_one_is_created() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    let named = |name: &str| net.with("/name", json!(name));
    let [stays, goes, hidden] = ["stays", "goes", "hidden"].map(|name| {
        let net = named(name);
        net.add("a");
        net.index().unwrap()
    });
    fs::write(goes.parent().unwrap().join("other"), "").unwrap();
    fs::remove_dir_all(named("goes").dir()).unwrap();
    // A process in another mount namespace may still use the directory under this mount.
    lab.sh(&format!("mount -t tmpfs tmpfs {}", named("hidden").dir().display()));
    named("stays").add("b");
    assert!(goes.exists(), "it stays until an index is created");
    named("new").add("a");
    assert!(!goes.exists());
    assert!(stays.exists() && hidden.exists() && named("new").index().is_some());
    named("stays").call("CHECK", "b").ok();
}

#[test]
fn a_lost_or_damaged_index_only_costs_time() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    net.add("x");
    exercise(&net, |_| ());
    exercise(&net, |net| net.index().iter().for_each(|index| fs::remove_dir_all(index).unwrap()));
    exercise(&net, |net| {
        let Some(index) = net.index() else { return };
        names(&index).iter().for_each(|name| fs::remove_file(index.join(name)).unwrap());
    });
    exercise(&net, |net| spoil_pages(net, |_| Vec::new()));
    exercise(&net, |net| spoil_pages(net, |bytes| bytes[..bytes.len() / 2].to_vec()));
    exercise(&net, |net| spoil_pages(net, |bytes| vec![0xa5; bytes.len()]));
    exercise(&net, |net| spoil_pages(net, |_| vec![0; 1032]));
    // A page of another layout has another digest at its head.
    exercise(&net, |net| {
        spoil_pages(net, |mut bytes| {
            bytes[0] ^= 1;
            bytes
        })
    });
}

#[test]
fn calls_work_if_the_index_cannot_be_saved() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    fs::write("/run/cni0", "in the way").unwrap();
    net.add("x");
    exercise(&net, |_| ());
    assert_eq!(fs::read_to_string("/run/cni0").unwrap(), "in the way");
}

#[test]
fn changes_by_other_programs_are_detected_immediately() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    // Repeated, because a change within one clock tick is hidden only sometimes.
    for turn in 0..40 {
        assert_eq!(net.add("a").len(), 1);
        fs::write(net.dir().join("10.1.0.200"), "foreign\r\neth0").unwrap();
        net.call("ADD", "foreign").error(999);
        net.call("CHECK", "foreign").ok();
        net.del("foreign");
        assert_eq!(net.leases().len(), 1, "turn {turn}");
        fs::remove_file(net.dir().join(net.leases().keys().next().unwrap().to_string())).unwrap();
        net.call("CHECK", "a").error(999);
        net.del("a");
    }
}

#[test]
fn a_lease_that_was_rewritten_in_place_overrides_the_index() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    net.add("a");
    fs::write(net.dir().join("10.1.0.2"), "b\r\neth0").unwrap();
    net.del("a");
    assert_eq!(net.leases().len(), 1);
    net.del("b");
    assert!(net.leases().is_empty());
}

#[test]
fn changes_by_the_reference_between_two_calls_are_detected() {
    let test = "index::changes_by_the_reference_between_two_calls_are_detected";
    let Some(reference) = reference("host-local", test) else { return };
    let lab = Lab::new();
    let net = Net::new(&lab, json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]));
    for turn in 0..10 {
        net.add("ours");
        net.reference(&reference, "ADD", "theirs").run().ok();
        net.call("CHECK", "theirs").ok();
        net.call("ADD", "theirs").error(999);
        net.reference(&reference, "CHECK", "ours").run().ok();
        net.reference(&reference, "DEL", "ours").run().ok();
        net.call("CHECK", "ours").error(999);
        net.del("theirs");
        assert!(net.leases().is_empty(), "turn {turn}");
    }
}

#[test]
fn status_of_a_full_network_reads_no_directory() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/25");
    for n in 0..125 {
        net.add(&format!("c{n}"));
    }
    let trace = lab.dir().join("trace");
    let options = ["-f", "-e", "trace=getdents64", "-o", trace.to_str().unwrap()];
    net.calling("STATUS", "x").env("CNI_LOG", "warn").strace(&options).run().ok();
    assert!(!fs::read_to_string(&trace).unwrap().contains("getdents64"));
}

#[test]
fn a_current_index_is_used_and_not_rebuilt() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/16");
    for n in 0..50 {
        net.add(&format!("c{n}"));
    }
    let trace = lab.dir().join("trace");
    for (command, id) in
        [("ADD", "new"), ("CHECK", "c7"), ("DEL", "c7"), ("DEL", "c7"), ("DEL", "absent"), ("STATUS", "x")]
    {
        let call = net.calling(command, id).strace(&["-f", "-e", "trace=getdents64", "-o", trace.to_str().unwrap()]);
        call.run().ok();
        let listed = fs::read_to_string(&trace).unwrap();
        assert!(!listed.contains("getdents64"), "{command} {id} read the directory: {listed}");
    }
}

#[test]
fn any_mtime_of_the_directory_is_accepted() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    net.add("a");
    for time in [i64::MIN, i64::MAX] {
        lab.sh(&format!("touch -d @{time} {}", net.dir().display()));
        net.call("CHECK", "a").ok();
    }
    net.del("a");
}
