//! Calls whose stdin, stdout or stderr is closed or not read.

use std::fs::{self, File};
use std::net::IpAddr;
use std::process::{Command, Stdio};

use testing::Lab;

const CONFIG: &str = r#"{"cniVersion": "1.0.0", "name": "pods", "type": "bridge",
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24"}]]}}"#;

/// Prepares an ADD by host-local, through a shell with the redirections `redirected`.
fn add(lab: &Lab, container: &str, redirected: &str) -> Command {
    let config = lab.dir().join("conf");
    fs::write(&config, CONFIG).unwrap();
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("exec {}/host-local {redirected}", lab.bin().display()));
    shell.env("CNI_COMMAND", "ADD").env("CNI_CONTAINERID", container).env("CNI_NETNS", "/x");
    shell.env("CNI_IFNAME", "eth0").env("CNI_PATH", lab.bin());
    shell.stdin(File::open(&config).unwrap()).stdout(Stdio::null()).stderr(Stdio::null());
    shell
}

#[test]
fn files_never_take_the_place_of_a_closed_stream() {
    let lab = Lab::new();
    let leases = "/var/lib/cni/networks/pods";
    for (n, closed) in ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"].iter().enumerate() {
        let status = add(&lab, &format!("c{n}"), closed).status().unwrap();
        assert_eq!(status.code(), Some(i32::from(closed.starts_with('<'))), "{closed}: only stdin is needed");
        for entry in fs::read_dir(leases).into_iter().flatten() {
            let entry = entry.unwrap();
            let (name, content) = (entry.file_name(), fs::read_to_string(entry.path()).unwrap());
            let sound = match name.to_str().unwrap() {
                "lock" => content.is_empty(),
                "last_reserved_ip.0" => content.parse::<IpAddr>().is_ok(),
                _ => content.starts_with('c') && content.ends_with("\r\neth0") && content.len() == 8,
            };
            assert!(sound, "{closed}: {name:?} holds {content:?}");
        }
    }
    assert_eq!(fs::read_dir(leases).unwrap().count(), 5, "three leases, the lock and the pointer");
}

#[test]
fn a_caller_that_does_not_read_does_not_kill_the_plugin() {
    let lab = Lab::new();
    // The shell creates a pipe and closes its reading end. Children of other tests would inherit a pipe of this process
    // and keep it open.
    let pipe = lab.dir().join("pipe").display().to_string();
    lab.sh(&format!("mkfifo {pipe}"));
    let outcome = add(&lab, "deaf", &format!("3<>{pipe} >{pipe} 3<&-")).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(outcome.status.code(), Some(1), "an error, not a signal");
    assert!(String::from_utf8(outcome.stderr).unwrap().contains("write the answer to stdout"));
}

#[test]
fn versions_that_cannot_be_written_are_an_error() {
    let lab = Lab::new();
    let outcome = lab.plugin("host-local", "VERSION").via_shell("exec \"$0\" >/dev/full").run();
    assert_eq!(outcome.status, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("write the answer to stdout"), "{outcome:?}");
}
