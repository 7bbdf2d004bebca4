//! A process that is killed at any of its changes leaves complete files, and a later call completes or reverts its
//! work.

use testing::Process;

use crate::support::{Host, NAMES};

/// The system calls that change something, as patterns of strace: their names depend on the architecture.
const CHANGES: [&str; 7] = ["/^rename", "/^link", "/^unlink", "/^mkdir", "/^rmdir", "fsync", "write"];

/// Kills the process that `call` returns at each of its changes in turn. Then `verify` gets the place. Returns the
/// number of places.
pub(crate) fn kill_everywhere(host: &Host, call: impl Fn() -> Process, verify: impl Fn(&str)) -> usize {
    let mut places = 0;
    for change in CHANGES {
        for n in 1.. {
            let inject = format!("inject={change}:signal=KILL:when={n}");
            let (outcome, _) = call().trace(&host.lab, &["-e", &format!("trace={change}"), "-e", &inject]);
            if outcome.status.is_some() {
                assert_eq!(outcome.status, Some(0), "{}", outcome.stderr);
                break;
            }
            verify(&format!("{change} {n}"));
            places += 1;
            assert!(n < 100, "{change} is called without end");
        }
    }
    places
}

/// Asserts that every program in the directory is a complete one.
fn all_are_complete(host: &Host, place: &str) {
    for name in NAMES {
        let path = host.dir().join(name);
        if path.exists() {
            let answer = Process::plugin(&path, "VERSION").run();
            assert!(answer.stdout.contains("supportedVersions"), "{place}: {name}: {answer:?}");
        }
    }
}

#[test]
fn a_killed_installation_can_be_reverted() {
    let host = Host::new();
    let before = host.state();
    let places = kill_everywhere(
        &host,
        || {
            host.uninstall();
            assert_eq!(host.state(), before);
            host.installing()
        },
        |place| {
            all_are_complete(&host, place);
            let said = host.uninstall();
            assert!(!said.contains("unchanged"), "{place}: {said}");
            assert_eq!(host.state(), before, "{place}");
        },
    );
    assert!(places > 30, "only {places} places");
}

#[test]
fn a_killed_upgrade_can_be_completed() {
    let host = Host::new();
    let before = host.state();
    let places = kill_everywhere(
        &host,
        || {
            host.build("1");
            host.install();
            host.build("2");
            host.installing()
        },
        |place| {
            all_are_complete(&host, place);
            host.install();
            host.has_version("2");
            host.uninstall();
            assert_eq!(host.state(), before, "{place}");
        },
    );
    assert!(places > 30, "only {places} places");
}

#[test]
fn a_killed_uninstallation_can_be_completed_and_reverted() {
    for again in [false, true] {
        let host = Host::new();
        let before = host.state();
        let places = kill_everywhere(
            &host,
            || {
                host.install();
                host.uninstalling()
            },
            |place| {
                all_are_complete(&host, place);
                if again {
                    host.install();
                    host.has_version("1");
                }
                let said = host.uninstall();
                assert!(!said.contains("unchanged"), "{place}: {said}");
                assert_eq!(host.state(), before, "{place}");
            },
        );
        assert!(places > 10, "only {places} places");
    }
}
