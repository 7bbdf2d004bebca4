//! Leases of earlier boots are reclaimed, leases of this boot never, regardless of the clock.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testing::{Lab, reference};

use crate::support::{Net, addresses, ip, names};

/// The directory of the records of earlier boots.
const RECORDS: &str = "/run/cni0/earlier-boot";

/// A subnet with five addresses to lease.
const SUBNET: &str = "10.1.0.0/29";

/// A network whose five addresses are leased to `a` to `e`.
fn full(lab: &Lab) -> Net<'_> {
    let net = Net::of(lab, SUBNET);
    for id in ["a", "b", "c", "d", "e"] {
        net.add(id);
    }
    net
}

/// A simulated boot: replacements for `/proc` and `/sys` with current time stamps and a `btime` in the future.
struct Boot<'a>(&'a Lab);

impl<'a> Boot<'a> {
    /// Prepares directories that are at least a second younger than all existing files, because `btime` is in seconds.
    fn new(lab: &'a Lab) -> Boot<'a> {
        lab.sh("touch /run/now");
        let now = fs::metadata("/run/now").unwrap().ctime();
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            lab.sh(
                "rm -rf /run/boot; mkdir -p /run/boot/sys /run/boot/proc; echo 'btime 4102444800' >/run/boot/proc/stat",
            );
            if fs::metadata("/run/boot/sys").unwrap().ctime() > now {
                return Boot(lab);
            }
            assert!(Instant::now() < deadline, "the clock stays at second {now}");
        }
    }

    fn proc(self) -> Boot<'a> {
        self.0.sh("mount --bind /run/boot/proc /proc");
        self
    }

    fn sys(self) -> Boot<'a> {
        self.0.sh("mount --bind /run/boot/sys /sys");
        self
    }
}

/// Simulates a reboot of the machine.
fn reboot(lab: &Lab) {
    lab.sh("rm -rf /run/cni0");
    Boot::new(lab).sys().proc();
}

/// Makes the kernel's own `/proc` and `/sys` visible again.
fn end(lab: &Lab) {
    lab.sh("umount /proc /sys");
}

/// Simulates a clock that was stepped into the future, by changing the kernel's boot time.
fn step_clock(lab: &Lab) {
    fs::write("/run/stat", "cpu 1\nbtime 4102444800\n").unwrap();
    lab.sh("mount --bind /run/stat /proc/stat");
}

/// Asserts that an ADD fails and reclaims no lease.
#[track_caller]
fn assert_kept(net: &Net<'_>) -> Value {
    let before = net.leases();
    let error = net.call("ADD", "more").error(100);
    assert_eq!(net.leases(), before);
    error
}

#[track_caller]
fn assert_owners(net: &Net<'_>, owners: &[&str]) {
    let found: Vec<String> = net.leases().into_values().map(|lease| lease.replace("\r\neth0", "")).collect();
    assert_eq!(found, owners);
}

fn record(net: &Net<'_>) -> PathBuf {
    let leases = fs::metadata(net.dir()).unwrap();
    Path::new(RECORDS).join(format!("{:x}-{:x}", leases.dev(), leases.ino()))
}

#[test]
fn leases_of_an_earlier_boot_are_reclaimed_when_no_address_is_left() {
    let lab = Lab::new();
    let net = Net::of(&lab, SUBNET);
    for id in ["a", "b", "c", "d"] {
        net.add(id);
    }
    reboot(&lab);
    assert_eq!(net.add("e"), [ip("10.1.0.6")], "one address is still free");
    assert_owners(&net, &["a", "b", "c", "d", "e"]);
    let outcome = net.calling("ADD", "f").env("CNI_LOG", "warn").run();
    assert_eq!(addresses(&outcome.ok()), [ip("10.1.0.2")]);
    assert!(outcome.stderr.contains("reclaimed 4 leases of earlier boots"), "{}", outcome.stderr);
    assert_owners(&net, &["f", "e"]);
    for id in ["g", "h", "i"] {
        net.add(id);
    }
    assert_kept(&net);
}

#[test]
fn a_requested_address_and_the_attachments_own_one_are_reclaimed() {
    let lab = Lab::new();
    let net = full(&lab);
    reboot(&lab);
    net.calling("ADD", "x").env("CNI_ARGS", "IP=10.1.0.4").run().ok();
    assert_owners(&net, &["x"]);
    // The same container, started again after another reboot.
    end(&lab);
    reboot(&lab);
    net.add("x");
    assert_owners(&net, &["x"]);
}

#[test]
fn the_key_disables_it() {
    let lab = Lab::new();
    let net = full(&lab);
    reboot(&lab);
    let error = assert_kept(&net.with("/ipam/reclaimAfterReboot", json!(false)));
    assert!(error["details"].as_str().unwrap().contains("reclaimAfterReboot"), "{error}");
    assert_eq!(net.with("/ipam/reclaimAfterReboot", json!(true)).add("x").len(), 1);
}

#[test]
fn a_clock_that_is_stepped_forward_reclaims_nothing() {
    let lab = Lab::new();
    let net = full(&lab);
    step_clock(&lab);
    assert_kept(&net);
    lab.sh("umount /proc/stat");
    // Even if everything looks like a new boot, the record of the first call decides.
    Boot::new(&lab).sys().proc();
    assert_kept(&net);
}

#[test]
fn a_clock_that_is_stepped_before_the_first_call_reclaims_nothing() {
    for fresh in ["", "sys", "proc"] {
        let lab = Lab::new();
        let net = full(&lab);
        // Without a record, as if another implementation had written the leases in this boot.
        lab.sh("rm -rf /run/cni0");
        step_clock(&lab);
        let boot = Boot::new(&lab);
        match fresh {
            "sys" => drop(boot.sys()),
            "proc" => drop(boot.proc()),
            _ => {}
        }
        assert_kept(&net);
        if !fresh.is_empty() {
            lab.sh(&format!("umount /{fresh}"));
        }
        lab.sh("umount /proc/stat");
    }
}

#[test]
fn a_lease_that_was_restored_with_an_old_time_stamp_is_kept() {
    let lab = Lab::new();
    let net = full(&lab);
    lab.sh(&format!("rm -rf /run/cni0; touch -d @1000000000 {}/10.*", net.dir().display()));
    assert_kept(&net);
}

#[test]
fn leases_that_the_reference_writes_in_this_boot_are_kept() {
    let test = "reboot::leases_that_the_reference_writes_in_this_boot_are_kept";
    let Some(reference) = reference("host-local", test) else { return };
    for first in [false, true] {
        let lab = Lab::new();
        let net = full(&lab);
        reboot(&lab);
        if first {
            net.call("CHECK", "a").ok();
        }
        net.reference(&reference, "DEL", "a").run().ok();
        net.reference(&reference, "ADD", "theirs").run().ok();
        assert_owners(&net, &["theirs", "b", "c", "d", "e"]);
        net.add("ours");
        assert_owners(&net, &["theirs", "ours"]);
        end(&lab);
    }
}

#[test]
fn a_lease_that_is_requested_again_is_one_of_this_boot() {
    let lab = Lab::new();
    let net = full(&lab);
    reboot(&lab);
    net.calling("ADD", "a").env("CNI_ARGS", "IP=10.1.0.2").run().ok();
    net.add("x");
    assert_owners(&net, &["a", "x"]);
}

#[test]
fn a_rewritten_lease_is_one_of_this_boot() {
    let lab = Lab::new();
    let net = full(&lab);
    reboot(&lab);
    net.call("CHECK", "a").ok();
    fs::write(net.dir().join("10.1.0.3"), "other\r\neth0").unwrap();
    net.add("x");
    assert_owners(&net, &["x", "other"]);
}

#[test]
fn the_record_is_written_by_the_first_call_only() {
    for command in ["ADD", "CHECK", "DEL", "GC"] {
        let lab = Lab::new();
        let net = full(&lab);
        reboot(&lab);
        net.call("STATUS", "x").ok();
        assert!(!Path::new(RECORDS).exists(), "STATUS creates nothing");
        match command {
            "ADD" => drop(net.calling("ADD", "a").env("CNI_ARGS", "IP=10.1.0.2").run().ok()),
            "GC" => net.gc(&["a", "b", "c", "d", "e"]),
            _ => drop(net.call(command, if command == "DEL" { "x" } else { "a" }).ok()),
        }
        let made = fs::read(record(&net)).unwrap();
        assert_eq!(made.len(), 8 + 5 * 8, "{command}");
        // A deleted index is rebuilt; the record does not change.
        fs::write(net.dir().join("10.1.0.2"), "a\r\neth0").unwrap();
        lab.sh("rm -rf /run/cni0/host-local");
        net.call("CHECK", "a").ok();
        assert!(net.index().is_some());
        assert_eq!(fs::read(record(&net)).unwrap(), made, "{command}");
        end(&lab);
    }
}

#[test]
fn later_calls_do_not_read_the_record() {
    let lab = Lab::new();
    let net = Net::of(&lab, SUBNET);
    net.add("a");
    let trace = lab.dir().join("trace");
    for (command, id) in [("ADD", "b"), ("CHECK", "b"), ("DEL", "b"), ("STATUS", "x")] {
        net.calling(command, id).strace(&["-f", "-o", trace.to_str().unwrap()]).run().ok();
        let text = fs::read_to_string(&trace).unwrap();
        assert!(text.contains("exit_group") && !text.contains(RECORDS) && !text.contains("/proc/stat"), "{command}");
    }
}

#[test]
fn a_record_that_cannot_be_trusted_reclaims_nothing() {
    let damaged = |record: &Path| {
        let mut bytes = fs::read(record).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(record, bytes).unwrap();
    };
    let cut = |record: &Path| fs::write(record, &fs::read(record).unwrap()[..16]).unwrap();
    let link = |record: &Path| {
        fs::rename(record, "/run/elsewhere").unwrap();
        symlink("/run/elsewhere", record).unwrap();
    };
    let removed = |record: &Path| fs::remove_file(record).unwrap();
    let open_to_all = |_: &Path| fs::set_permissions(RECORDS, fs::Permissions::from_mode(0o777)).unwrap();
    for spoil in [&damaged as &dyn Fn(&Path), &cut, &link, &removed, &open_to_all] {
        let lab = Lab::new();
        let net = full(&lab);
        reboot(&lab);
        net.call("CHECK", "a").ok();
        spoil(&record(&net));
        assert_kept(&net);
        end(&lab);
    }
}

#[test]
fn without_a_record_nothing_is_reclaimed() {
    let lab = Lab::new();
    let net = full(&lab);
    reboot(&lab);
    fs::create_dir("/run/cni0").unwrap();
    fs::write(RECORDS, "in the way").unwrap();
    assert_kept(&net);
    fs::remove_file(RECORDS).unwrap();
    symlink("/run/elsewhere", RECORDS).unwrap();
    assert_kept(&net);
    assert!(!Path::new("/run/elsewhere").exists());
}

#[test]
fn on_a_file_system_that_hosts_may_share_nothing_is_reclaimed() {
    let lab = Lab::new();
    fs::create_dir_all("/var/lib/cni").unwrap();
    // Like NFS, this kind of file system is not known to be local.
    lab.sh("mount -t ramfs none /var/lib/cni");
    let net = full(&lab);
    reboot(&lab);
    assert_kept(&net);
}

#[test]
fn the_record_of_a_deleted_network_is_removed_with_its_index() {
    let lab = Lab::new();
    let net = full(&lab);
    let old = record(&net);
    assert!(old.exists());
    fs::remove_dir_all(net.dir()).unwrap();
    let other = net.with("/name", json!("other"));
    other.add("a");
    assert_eq!(names(Path::new(RECORDS)), [record(&other).file_name().unwrap().to_str().unwrap()]);
}

#[test]
fn a_large_network_is_reclaimed_as_a_whole() {
    let lab = Lab::new();
    let range = json!([[{"subnet": "10.1.0.0/16", "rangeStart": "10.1.0.2", "rangeEnd": "10.1.129.0"}]]);
    let net = Net::new(&lab, range);
    fs::create_dir_all(net.dir()).unwrap();
    let count = 129 * 256 - 1;
    for n in 2..2 + count {
        fs::write(net.dir().join(format!("10.1.{}.{}", n / 256, n % 256)), format!("c{n}\r\neth0")).unwrap();
    }
    reboot(&lab);
    let outcome = net.calling("ADD", "new").env("CNI_LOG", "warn").run();
    outcome.ok();
    assert!(outcome.stderr.contains(&format!("reclaimed {count} leases")), "{}", outcome.stderr);
    assert_owners(&net, &["new"]);
}
