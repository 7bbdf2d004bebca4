//! Installation, upgrade and uninstallation.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use testing::{Process, parallel, program_path, write_script};

use crate::support::{Host, NAMES, command, program, success};

#[test]
fn uninstall_restores_the_directory() {
    let host = Host::new();
    let before = host.state();
    assert_eq!(
        host.install(),
        format!("cni0-install: installed in {}: bridge, cnitool, loopback\n", host.dir().display())
    );
    host.has_version("1");
    for name in NAMES {
        let inode = fs::metadata(host.dir().join(name)).unwrap();
        assert_eq!((inode.permissions().mode() & 0o7777, inode.nlink()), (0o755, 1), "{name}");
    }
    let restored = before.iter().filter(|(path, ..)| NAMES.iter().any(|name| path.ends_with(name))).count();
    assert!(restored > 0);
    assert!(host.uninstall().contains(&format!("removed from {}; files restored: {restored}\n", host.dir().display())));
    assert_eq!(host.state(), before);
    assert!(host.uninstall().contains("nothing is installed in"));
    assert_eq!(host.state(), before);
}

#[test]
fn installing_again_upgrades_and_keeps_the_first_files() {
    let host = Host::new();
    let before = host.state();
    for version in ["1", "1", "2"] {
        host.build(version);
        host.install();
        host.has_version(version);
    }
    let record = fs::read_to_string(host.dir().join(".cni0/files")).unwrap();
    assert_eq!(record.lines().count(), NAMES.len(), "{record}");
    host.lab.sh(&format!("cd {} && sha256sum -c .cni0/files", host.dir().display()));
    host.uninstall();
    assert_eq!(host.state(), before);
}

#[test]
fn the_kept_program_uninstalls_without_the_payload() {
    let host = Host::new();
    let before = host.state();
    host.install();
    fs::remove_dir_all(host.payload()).unwrap();
    let kept = host.dir().join(".cni0/cni0-install");
    success(&Process::new(kept).arg("uninstall").arg("--prefix").arg(host.dir()).run());
    assert_eq!(host.state(), before);
}

/// In a container, the directory of the host has another path.
#[test]
fn a_record_is_valid_under_another_path() {
    let host = Host::new();
    let before = host.state();
    // In the lab's own /run: a directory on which something is mounted could not be removed at the end.
    let other = Path::new("/run/host/opt/cni/bin");
    fs::create_dir_all(other).unwrap();
    host.lab.sh(&format!("mount --bind {} {}", host.dir().display(), other.display()));
    success(&command("install", other).arg("--from").arg(host.payload()).run());
    host.has_version("1");
    assert!(!host.uninstall().contains("unchanged"));
    assert_eq!(host.state(), before);
}

#[test]
fn a_file_that_was_modified_stays() {
    let host = Host::new();
    host.install();
    write_script(&host.dir().join("bridge"), &program("bridge", "third"));
    assert!(host.uninstall().contains("/bridge is unchanged: it was modified after the installation"));
    host.is_version("bridge", "third");
    // Installed over it, that file is the one to restore.
    let before = host.state();
    host.install();
    host.uninstall();
    assert_eq!(host.state(), before);
}

#[test]
fn symbolic_links_are_replaced_and_restored() {
    let host = Host::new();
    symlink("/usr/lib/cni/loopback", host.dir().join("loopback")).unwrap();
    symlink("sbr", host.dir().join("cnitool")).unwrap();
    let before = host.state();
    host.install();
    host.has_version("1");
    host.uninstall();
    assert_eq!(host.state(), before);
}

#[test]
fn a_directory_that_was_created_is_removed() {
    let host = Host::new();
    let dir = host.lab.dir().join("a/b/c");
    success(&command("install", &dir).arg("--from").arg(host.payload()).run());
    assert!(dir.join("bridge").exists());
    success(&command("uninstall", &dir).run());
    assert!(!host.lab.dir().join("a").exists());
    success(&command("install", &dir).arg("--from").arg(host.payload()).run());
    fs::write(dir.join("../other"), "").unwrap();
    success(&command("uninstall", &dir).run());
    assert!(!dir.exists() && host.lab.dir().join("a/b/other").exists());
}

#[test]
fn the_payload_is_next_to_the_program_by_default() {
    let host = Host::new();
    let own = host.payload().join("cni0-install");
    testing::copy_program(&program_path("cni0-install"), &own);
    fs::write(host.payload().join("LICENSE"), "not a program").unwrap();
    // It is not a plugin of CNI, and does not answer VERSION.
    write_script(&host.payload().join("cni0-netavark"), "[ \"$1\" = --version ]");
    success(&Process::new(own).arg("install").arg("--prefix").arg(host.dir()).run());
    host.has_version("1");
    assert!(host.dir().join("cni0-netavark").exists());
    assert!(!host.dir().join("cni0-install").exists() && !host.dir().join("LICENSE").exists());
}

#[test]
fn a_first_network_is_written_only_if_there_is_none() {
    let host = Host::new();
    let path = host.net_d().join("10-cni0.conflist");
    let install = || success(&host.installing().arg("--conf").arg(host.net_d()).run());
    assert!(install().contains("network \"pods\" is configured in"));
    install();
    assert!(fs::read_to_string(&path).unwrap().contains("\"bridge\""));
    host.uninstall();
    assert!(!host.lab.dir().join("etc").exists());

    install();
    fs::write(&path, "{}").unwrap();
    assert!(install().contains("is unchanged: it was modified after the installation"));
    host.uninstall();
    assert_eq!(fs::read_to_string(&path).unwrap(), "{}");
    fs::rename(&path, host.net_d().join("87-other.conf")).unwrap();
    assert!(install().contains("is unchanged: it contains 87-other.conf"));
    assert!(!path.exists());
}

/// A pod of the DaemonSet installs at each of its starts.
#[test]
fn installed_programs_are_not_written_again() {
    let host = Host::new();
    host.install();
    let before = host.state();
    assert!(host.install().contains("is unchanged: these programs are installed"));
    assert_eq!(host.state(), before);
    // One that was replaced since, or cannot be executed, is installed again.
    fs::write(host.dir().join("bridge"), "other").unwrap();
    host.install();
    host.is_version("bridge", "1");
    host.lab.sh(&format!("chmod a-x {}", host.dir().join("bridge").display()));
    assert!(host.install().contains("installed in"));
    fs::remove_file(host.dir().join(".cni0/cni0-install")).unwrap();
    assert!(host.install().contains("installed in"));
    assert!(host.dir().join(".cni0/cni0-install").exists());
}

#[test]
fn installations_at_the_same_time_take_turns() {
    let host = Host::new();
    let before = host.state();
    let outcomes = parallel::run((0..8).map(|_| host.installing()).collect());
    outcomes.iter().for_each(|outcome| drop(success(outcome)));
    host.has_version("1");
    let calls = (0..8).map(|n| if n % 2 == 0 { host.installing() } else { host.uninstalling() });
    parallel::run(calls.collect()).iter().for_each(|outcome| drop(success(outcome)));
    host.uninstall();
    assert_eq!(host.state(), before);
}

/// The directory itself comes and goes.
#[test]
fn a_directory_that_is_removed_meanwhile_is_created_again() {
    let host = Host::new();
    let dir = host.lab.dir().join("a/b");
    let install = || command("install", &dir).arg("--from").arg(host.payload());
    let calls = (0..8).map(|n| if n % 2 == 0 { install() } else { command("uninstall", &dir) });
    parallel::run(calls.collect()).iter().for_each(|outcome| drop(success(outcome)));
    success(&install().run());
    assert!(dir.join("bridge").exists());
}

#[test]
fn wait_ends_with_a_signal() {
    let lab = testing::Lab::without_plugins();
    let waiting = Process::new(program_path("cni0-install")).arg("wait");
    let fifo = lab.dir().join("fifo").display().to_string();
    // It prints a line when signals can arrive.
    let script = r#"mkfifo "$FIFO"; "$0" "$@" 2>"$FIFO" & read line <"$FIFO"; kill -TERM $!; wait $!"#;
    assert_eq!(waiting.env("FIFO", fifo).via_shell(script).run().status, Some(0));
}

#[test]
fn the_version_is_that_of_the_project() {
    let outcome = Process::new(program_path("cni0-install")).arg("--version").run();
    assert_eq!(outcome.stdout, format!("cni0-install {}\n", env!("CARGO_PKG_VERSION")));
    assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/example.conflist").exists());
}
