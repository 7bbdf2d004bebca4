//! `ipam.leases`: no two attachments of a network have the same address.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde_json::json;
use testing::{Lab, Process};

use crate::support::{DATA, Net, leases};

fn leased(lab: &Lab) -> Net<'_> {
    let addresses = json!([{"address": "10.1.0.5/24"}, {"address": "fd00::5/64"}]);
    Net::new(lab, json!({"leases": true, "addresses": addresses}))
}

fn of(id: &str) -> BTreeMap<String, String> {
    ["10.1.0.5", "fd00::5"].map(|ip| (ip.to_owned(), format!("{id}\r\neth0"))).into()
}

#[test]
fn an_address_in_use_is_refused() {
    let lab = Lab::new();
    let net = leased(&lab);
    let result = net.add("c1");
    assert_eq!(net.leases(), of("c1"));
    // Again, for the same attachment.
    assert_eq!(net.add("c1"), result);
    net.check("c1", &result).ok();

    let error = net.call("ADD", "c2").error(999);
    assert_eq!(error["msg"], "the requested address 10.1.0.5 is in use by container \"c1\" interface \"eth0\"");
    net.check("c2", &result).error(999);
    // All or nothing.
    let second = net.with("runtimeConfig", json!({"ips": ["10.1.0.9/24", "fd00::5/64"]}));
    second.call("ADD", "c2").error(999);
    assert_eq!(net.leases(), of("c1"));
    net.del("c2");
    assert_eq!(net.leases(), of("c1"));

    net.del("c1");
    net.del("c1");
    assert!(net.leases().is_empty());
    let error = net.check("c1", &result).error(999);
    assert!(error["msg"].as_str().unwrap().contains("has no lease for 10.1.0.5"), "{error}");
    net.add("c2");
    assert_eq!(net.leases(), of("c2"));
}

#[test]
fn another_network_may_have_the_address() {
    let lab = Lab::new();
    leased(&lab).add("c1");
    let other = leased(&lab).with("name", json!("other"));
    other.add("c2");
    assert_eq!(other.leases(), of("c2"));
    let elsewhere = leased(&lab).with_ipam("dataDir", json!("/run/leases"));
    elsewhere.add("c3");
    assert_eq!(leases(Path::new("/run/leases/net")), of("c3"));
    elsewhere.del("c3");
    assert!(leases(Path::new("/run/leases/net")).is_empty());
    assert_eq!(leased(&lab).leases(), of("c1"));
}

#[test]
fn gc_releases_leases_that_are_not_in_the_list() {
    let lab = Lab::new();
    let net = leased(&lab);
    net.add("c1");
    net.with("runtimeConfig", json!({"ips": ["10.1.0.9/24"]})).add("c2");
    assert_eq!(net.leases().len(), 3);
    net.gc(&["c1"]);
    assert_eq!(net.leases(), of("c1"));
    // A network that no longer keeps leases releases the old ones.
    net.with_ipam("leases", json!(false)).gc(&[]);
    assert!(net.leases().is_empty());
    net.call("GC", "x").error(7);
    net.with_ipam("leases", json!(false)).call("GC", "x").error(7);
}

#[test]
fn without_the_key_no_directory_is_created() {
    let lab = Lab::new();
    let net = leased(&lab).with_ipam("leases", json!(false));
    net.add("c1");
    net.add("c2");
    net.del("c1");
    net.gc(&[]);
    assert!(!Path::new(DATA).exists());
}

/// The leases are those of `host-local`: a network that changes its IPAM plugin keeps them.
#[test]
fn host_local_reads_the_leases() {
    let lab = Lab::new();
    let net = leased(&lab);
    net.add("c1");
    let ranges = json!([[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.5", "rangeEnd": "10.1.0.6"}]]);
    let ipam = json!({"type": "host-local", "ranges": ranges});
    let config = json!({"cniVersion": "1.1.0", "name": "net", "ipam": ipam}).to_string();
    let call = |command, id| lab.plugin("host-local", command).attachment(id, "eth0", "/none").stdin(config.clone());
    assert_eq!(call("ADD", "c2").run().ok()["ips"][0]["address"], "10.1.0.6/24");
    call("ADD", "c3").run().error(100);
    call("DEL", "c1").run().ok();
    assert_eq!(
        net.leases().keys().collect::<Vec<_>>(),
        ["10.1.0.6"].iter().chain(&["last_reserved_ip.0"]).collect::<Vec<_>>()
    );
}

#[test]
fn one_of_many_concurrent_adds_gets_the_address() {
    let lab = Lab::new();
    let net = leased(&lab);
    let ids: Vec<String> = (0..40).map(|n| format!("c{n}")).collect();
    let calls: Vec<Process> = ids.iter().map(|id| net.calling("ADD", id)).collect();
    let outcomes = testing::parallel::run(calls);
    let winners: Vec<&String> =
        ids.iter().zip(&outcomes).filter(|(_, outcome)| outcome.status == Some(0)).map(|(id, _)| id).collect();
    assert_eq!(winners.len(), 1, "{outcomes:?}");
    assert_eq!(net.leases(), of(winners[0]));
    testing::parallel::run(ids.iter().map(|id| net.calling("DEL", id)).collect());
    assert!(net.leases().is_empty());
}

#[test]
fn garbled_leases_are_free_and_other_entries_are_not() {
    let lab = Lab::new();
    let net = leased(&lab);
    let dir = Path::new(DATA).join("net");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("10.1.0.5"), "").unwrap();
    net.add("c1");
    assert_eq!(net.leases(), of("c1"));
    net.del("c1");
    fs::create_dir(dir.join("fd00::5")).unwrap();
    let error = net.call("ADD", "c1").error(999);
    assert!(error["msg"].as_str().unwrap().contains("fd00::5 is in use by an entry that is not a lease"), "{error}");
    assert!(!dir.join("10.1.0.5").exists());
}

#[test]
fn a_lease_of_an_earlier_boot_gives_way() {
    let lab = Lab::new();
    let net = leased(&lab);
    net.add("c1");
    // Simulates a reboot: `/proc` and `/sys` are mounted at least a second after the lease was written, because the
    // time of the boot is in seconds.
    let written = fs::metadata(Path::new(DATA).join("net/10.1.0.5")).unwrap().ctime();
    testing::wait_until("the next second", || {
        lab.sh("rm -rf /run/cni0 /run/boot; mkdir -p /run/boot/sys /run/boot/proc; echo 'btime 4102444800' >/run/boot/proc/stat");
        fs::metadata("/run/boot/sys").unwrap().ctime() > written
    });
    lab.sh("mount --bind /run/boot/sys /sys; mount --bind /run/boot/proc /proc");
    net.add("c2");
    assert_eq!(net.leases(), of("c2"));
    // That of c2 is of this boot.
    net.call("ADD", "c3").error(999);
    lab.sh("umount /proc /sys");
}

#[test]
fn a_directory_that_cannot_be_written_is_reported() {
    let lab = Lab::new();
    let net = leased(&lab);
    lab.sh("mkdir -p /var/lib/cni; mount -t tmpfs -o ro tmpfs /var/lib/cni");
    let error = net.call("ADD", "c1").error(5);
    assert!(error["details"].as_str().unwrap().contains("read-write"), "{error}");
    net.del("c1");
}
