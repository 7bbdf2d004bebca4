//! Directories prepared by an attacker: files of other programs are not written, removed or trusted.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use serde_json::json;
use testing::Lab;
use testing::fault::inject_all;

use crate::support::{DATA, Net, files, ip, names};

/// Content of the same length as the address that ADD writes to `last_reserved_ip.0`.
const VICTIM: &str = "precious";

/// Creates a file that must not change, and a network with an empty directory.
fn prepared(lab: &Lab) -> Net<'_> {
    let net = Net::of(lab, "10.1.0.0/24");
    fs::create_dir_all(net.dir()).unwrap();
    fs::write("/var/lib/victim", VICTIM).unwrap();
    net
}

#[test]
fn links_in_the_directory_are_not_followed() {
    for name in ["lock", "last_reserved_ip.0", "last_reserved_ip.0.new", "10.1.0.2"] {
        let lab = Lab::new();
        let net = prepared(&lab);
        symlink("/var/lib/victim", net.dir().join(name)).unwrap();
        let outcome = net.call("ADD", "a");
        match name {
            // Without the lock, ADD fails.
            "lock" => assert!(outcome.error(5)["msg"].as_str().unwrap().contains("lock"), "{}", outcome.stdout),
            // Another program may use the link, so the address is not leased.
            "10.1.0.2" => assert_eq!(crate::support::addresses(&outcome.ok()), [ip("10.1.0.3")]),
            _ => assert_eq!(crate::support::addresses(&outcome.ok()), [ip("10.1.0.2")]),
        }
        if name != "lock" {
            net.del("a");
            net.gc(&[]);
        }
        assert_eq!(fs::read_to_string("/var/lib/victim").unwrap(), VICTIM, "{name}");
    }
    // A dangling link does not create its target.
    for name in ["lock", "last_reserved_ip.0", "10.1.0.2"] {
        let lab = Lab::new();
        let net = prepared(&lab);
        symlink("/var/lib/new", net.dir().join(name)).unwrap();
        net.call("ADD", "a");
        assert!(!Path::new("/var/lib/new").exists(), "{name}");
    }
}

/// Another program may use the entry. Its address is not leased, and the entry is not read: a writer may never come.
#[test]
fn an_entry_that_is_not_a_file_is_left_alone() {
    let lab = Lab::new();
    let net = prepared(&lab);
    let entry = net.dir().join("10.1.0.2").display().to_string();
    for (n, create) in ["mkfifo", "mkdir", "ln -s /dev/zero", "ln -s /nowhere"].iter().enumerate() {
        lab.sh(&format!("{create} {entry}"));
        assert_eq!(net.add("a"), [ip(&format!("10.1.0.{}", n + 3))], "{create}");
        net.gc(&["a"]);
        net.del("a");
        lab.sh(&format!("rm -r {entry}"));
    }
    // A named pipe with a writer has content.
    lab.sh(&format!("mkfifo {entry}"));
    let mut writer = fs::OpenOptions::new().read(true).write(true).open(&entry).unwrap();
    writer.write_all(b"a\r\neth0").unwrap();
    net.del("a");
    assert!(Path::new(&entry).exists());
}

#[test]
fn a_file_with_a_second_hard_link_is_not_overwritten() {
    for name in ["last_reserved_ip.0", "last_reserved_ip.0.new"] {
        let lab = Lab::new();
        let net = prepared(&lab);
        fs::hard_link("/var/lib/victim", net.dir().join(name)).unwrap();
        assert_eq!(net.add("a"), [ip("10.1.0.2")]);
        assert_eq!(fs::read_to_string("/var/lib/victim").unwrap(), VICTIM, "{name}");
        assert_eq!(net.files()["last_reserved_ip.0"], "10.1.0.2", "{name}");
    }
    // The same holds for the temporary file that is used without unnamed files.
    let lab = Lab::new();
    let net = prepared(&lab);
    fs::hard_link("/var/lib/victim", Path::new(DATA).join(".net.draft")).unwrap();
    // The first call of a boot also writes other files, so it is done before.
    net.del("a");
    inject_all(&lab, net.calling("ADD", "a"), "linkat", "error=EOPNOTSUPP:when=1").ok();
    assert_eq!(fs::read_to_string("/var/lib/victim").unwrap(), VICTIM);
    assert_eq!(net.leases()[&ip("10.1.0.2")], "a\r\neth0");
    net.assert_tidy();
}

#[test]
fn all_files_are_accessible_only_to_root() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    // The mode does not depend on the umask of the caller.
    let call = net.calling("ADD", "a").via_shell("umask 0; exec \"$0\"");
    call.run().ok();
    let index = net.index().unwrap();
    for dir in [net.dir(), index.clone(), "/run/cni0/earlier-boot".into()] {
        for name in names(&dir) {
            let mode = fs::metadata(dir.join(&name)).unwrap().permissions().mode() & 0o7777;
            // The lock is empty and has the mode of the reference.
            assert_eq!(mode, if name == "lock" { 0o750 } else { 0o600 }, "{name}");
        }
    }
    for dir in ["/run/cni0", "/run/cni0/host-local", "/run/cni0/earlier-boot", index.to_str().unwrap()] {
        assert_eq!(fs::metadata(dir).unwrap().permissions().mode() & 0o7777, 0o700, "{dir}");
    }
}

#[test]
fn an_index_that_other_users_can_write_is_neither_used_nor_changed() {
    let open_to_all = |index: &Path| fs::set_permissions(index, fs::Permissions::from_mode(0o777)).unwrap();
    let of_another = |index: &Path| {
        // A user namespace may have no other user that could own it.
        if chown(index, Some(1000), None).is_err() {
            open_to_all(index);
        }
    };
    let elsewhere = |index: &Path| {
        fs::rename(index, "/run/elsewhere").unwrap();
        symlink("/run/elsewhere", index).unwrap();
    };
    for spoil in [&open_to_all as &dyn Fn(&Path), &of_another, &elsewhere] {
        let lab = Lab::new();
        let net = Net::of(&lab, "10.1.0.0/24");
        assert_eq!(net.add("a"), [ip("10.1.0.2")]);
        let index = net.index().unwrap();
        fs::write(index.join("keep"), VICTIM).unwrap();
        spoil(&index);
        let before = bytes(&index);
        assert_eq!(net.add("b"), [ip("10.1.0.3")]);
        net.del("a");
        net.gc(&["b"]);
        assert_eq!(bytes(&index), before, "a page was written or removed");
        assert_eq!(net.leases().into_keys().collect::<Vec<_>>(), [ip("10.1.0.3")]);
    }
}

fn bytes(dir: &Path) -> Vec<(String, Vec<u8>)> {
    names(dir).into_iter().map(|name| (name.clone(), fs::read(dir.join(name)).unwrap())).collect()
}

#[test]
fn pages_that_are_links_are_not_followed() {
    let lab = Lab::new();
    let net = prepared(&lab);
    net.add("a");
    let index = net.index().unwrap();
    for name in names(&index) {
        fs::remove_file(index.join(&name)).unwrap();
        symlink("/var/lib/victim", index.join(&name)).unwrap();
    }
    assert_eq!(net.add("b"), [ip("10.1.0.3")]);
    net.del("a");
    net.del("b");
    assert_eq!(fs::read_to_string("/var/lib/victim").unwrap(), VICTIM);
}

#[test]
fn only_resolver_keywords_of_a_resolv_conf_are_returned() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    fs::write("/var/lib/secret", "root:$6$salt$hash:19000:0:99999:7:::\npassword hunter2\n").unwrap();
    let outcome = net.with("/ipam/resolvConf", json!("/var/lib/secret")).call("ADD", "a");
    outcome.ok();
    assert!(!outcome.stdout.contains("hash") && !outcome.stdout.contains("hunter2"), "{}", outcome.stdout);
    // Endless files and pipes are refused.
    lab.sh("mkfifo /var/lib/fifo");
    for path in ["/dev/zero", "/var/lib/fifo"] {
        let error = net.with("/ipam/resolvConf", json!(path)).call("ADD", "b").error(7);
        assert!(error["msg"].as_str().unwrap().contains(path), "{error}");
    }
    assert_eq!(net.leases().len(), 1, "no address was leased");
}

#[test]
fn nothing_is_created_outside_of_the_data_directory() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24").with("/ipam/dataDir", json!("/var/lib/a/../b"));
    fs::create_dir("/var/lib/a").unwrap();
    for name in ["net", "a..b", "...", "..x", "con", "net.d", "10.1.0.2"] {
        let net = net.with("/name", json!(name));
        if name.starts_with('.') {
            net.call("ADD", "a").error(7);
            continue;
        }
        net.call("ADD", "a").ok();
        assert_eq!(files(&Path::new("/var/lib/b").join(name)).len(), 3, "{name}");
    }
    assert_eq!(names(Path::new("/var/lib")), ["a", "b"]);
    assert_eq!(names(Path::new("/var/lib/b")), ["10.1.0.2", "a..b", "con", "net", "net.d"]);
}
