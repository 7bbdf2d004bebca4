//! Directories and programs that cannot be used: one error, and nothing changes.

use std::fs;
use std::path::Path;

use testing::{Process, program_path, write_script};

use crate::support::{Host, command, failure};

/// Asserts that the installation fails with this text and leaves the directory as it was.
#[track_caller]
fn refused(host: &Host, want: &str) {
    let before = host.state();
    let error = failure(&host.installing().run());
    assert!(error.contains(want), "{error}");
    assert_eq!(host.state(), before);
}

#[test]
fn a_program_that_does_not_work_replaces_nothing() {
    let host = Host::new();
    let path = host.payload().join("loopback");
    write_script(&path, "echo 'not today' >&2; exit 3");
    refused(&host, "new/loopback\": it failed: exit status: 3 (not today)");
    write_script(&path, "echo '{}'");
    refused(&host, "it does not answer VERSION as a CNI plugin does");
    // Of another architecture, for example.
    write_script(&path, "");
    host.lab.sh(&format!("printf '\\177ELF not really' >{}", path.display()));
    refused(&host, "Exec format error (os error 8) (install the programs for this architecture");
    host.build("1");
    host.install();
    // An upgrade that fails leaves the installation.
    write_script(&path, "exit 1");
    refused(&host, "it failed");
    host.has_version("1");
}

#[test]
fn a_directory_in_place_of_a_plugin_is_refused() {
    let host = Host::new();
    fs::create_dir(host.dir().join("loopback")).unwrap();
    refused(&host, "bin/loopback\" is a directory (move it away)");
}

#[test]
fn a_record_that_is_not_a_directory_is_refused() {
    let host = Host::new();
    fs::write(host.dir().join(".cni0"), "").unwrap();
    refused(&host, ".cni0\" is not a directory");
}

#[test]
fn a_payload_must_have_programs_of_valid_names() {
    let host = Host::new();
    fs::remove_dir_all(host.payload()).unwrap();
    refused(&host, "list \"");
    fs::create_dir(host.payload()).unwrap();
    refused(&host, "has no programs to install");
    write_script(&host.payload().join("a b"), "");
    refused(&host, "has characters that no plugin name has");
    let itself = failure(&command("install", &host.dir()).arg("--from").arg(host.dir()).run());
    assert!(itself.contains("is already in"), "{itself}");
}

#[test]
fn a_prefix_must_be_a_directory() {
    let host = Host::new();
    let file = host.lab.dir().join("file");
    fs::write(&file, "").unwrap();
    for (prefix, want) in [(file.clone(), "is not a directory"), (file.join("sub"), "create directory")] {
        let error = failure(&command("install", &prefix).arg("--from").arg(host.payload()).run());
        assert!(error.contains(want), "{error}");
    }
    assert!(failure(&command("uninstall", &file).run()).contains("is not a directory"));
    let missing = command("uninstall", &host.lab.dir().join("missing")).run();
    assert!(missing.status == Some(0) && missing.stderr.contains("nothing is installed"), "{missing:?}");
}

/// `podman run` without `-v` would install into the container, and report a success.
#[test]
fn in_a_container_the_directory_must_be_mounted() {
    let host = Host::new();
    let as_process_1 = |arguments: &str| {
        let program = program_path("cni0-install");
        let call = format!("exec unshare --pid --fork --mount-proc {} {arguments}", program.display());
        Process::new("sh").arg("-c").arg(call).run()
    };
    let from = format!("--from {}", host.payload().display());
    for (command, options) in [("install", from.as_str()), ("uninstall", "")] {
        let error = failure(&as_process_1(&format!("{command} --prefix /cni0-of-a-test/bin {options}")));
        assert!(error.contains("is only in this container (mount the host's directory there"), "{error}");
    }
    assert!(!Path::new("/cni0-of-a-test").exists());

    let mounted = host.lab.dir().join("with space");
    host.lab.sh(&format!("mkdir '{0}'; mount -t tmpfs tmpfs '{0}'", mounted.display()));
    let link = host.lab.dir().join("link");
    std::os::unix::fs::symlink(&mounted, &link).unwrap();
    for below in [mounted.join("bin"), link.join("bin")] {
        for (command, options) in [("install", from.as_str()), ("uninstall", "")] {
            let outcome = as_process_1(&format!("{command} --prefix '{}' {options}", below.display()));
            assert_eq!(outcome.status, Some(0), "{outcome:?}");
        }
    }
}

#[test]
fn a_read_only_directory_is_reported() {
    let host = Host::new();
    host.lab.sh(&format!("mount --bind {0} {0}; mount -o remount,bind,ro {0}", host.dir().display()));
    refused(&host, "Read-only file system (os error 30) (run as root, or choose another directory)");
    host.lab.sh(&format!("mount -o remount,bind,rw {0}", host.dir().display()));
    host.install();
    host.lab.sh(&format!("mount -o remount,bind,ro {0}", host.dir().display()));
    assert!(failure(&host.uninstalling().run()).contains("Read-only file system"));
    host.has_version("1");
}

/// At every size of the disk, either all programs are installed or the directory is as before.
#[test]
fn a_full_disk_changes_nothing() {
    let host = Host::new();
    let padding = format!("\n# {}", "x".repeat(60_000));
    for name in crate::support::NAMES {
        write_script(&host.payload().join(name), &(crate::support::program(name, "1") + &padding));
    }
    let own = fs::metadata(program_path("cni0-install")).unwrap().len() >> 10;
    let (mut failed, mut installed) = (0, 0);
    for size in (16..512).step_by(48).chain([own + 200, own + 1024]) {
        host.lab.sh(&format!("mount -t tmpfs -o size={size}k tmpfs {}", host.dir().display()));
        write_script(&host.dir().join("bridge"), &crate::support::program("bridge", "other"));
        let before = host.state();
        if host.installing().run().status == Some(0) {
            installed += 1;
            host.uninstall();
        } else {
            failed += 1;
        }
        assert_eq!(host.state(), before, "{size} KiB");
        // Lazily: a process that another test starts inherits the open files of this one until it executes its program.
        host.lab.sh(&format!("umount --lazy {}", host.dir().display()));
    }
    assert!(failed > 3 && installed > 0, "{failed} failed, {installed} installed");
}

#[test]
fn an_invalid_command_line_is_reported_in_one_line() {
    for (arguments, want) in [(vec![], "no command"), (vec!["install", "--fly"], "unknown option --fly")] {
        let call = arguments.iter().fold(Process::new(program_path("cni0-install")), Process::arg);
        let outcome = call.run();
        assert_eq!((outcome.status, outcome.stdout.as_str()), (Some(2), ""));
        assert!(outcome.stderr.starts_with(&format!("cni0-install: {want}")), "{}", outcome.stderr);
        assert_eq!(outcome.stderr.lines().count(), 1);
    }
}
