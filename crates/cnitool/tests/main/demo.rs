//! `cnitool demo`.

use std::fs;

use testing::{Process, copy_program, program_path, skip};

use crate::support::{Host, failure, messages};

#[test]
fn it_shows_everything_and_changes_nothing() {
    let host = Host::new();
    fs::write("/var/lib/mine", "").unwrap();
    let before = host.lab.sh("find /run /var/lib | sort; ip link; nft list ruleset");
    let outcome = host.run("demo");
    assert_eq!((outcome.status, messages(&outcome).as_str()), (Some(0), ""), "{}", outcome.stdout);
    assert_eq!(host.lab.sh("find /run /var/lib | sort; ip link; nft list ruleset"), before);
    let shown = outcome.stdout;
    assert_eq!(shown.matches(" 0% packet loss").count(), 2);
    for piece in [
        "$ ip netns add blue\n",
        "$ ip -n blue link set lo up\n",
        "peer name eth0 netns blue\n",
        "\"address\": \"10.22.0.2/16\"",
        "/var/lib/cni/networks/pods/10.22.0.3  green eth0\n",
        "/var/lib/cni/results/pods-blue-eth0\n",
        " masquerade comment",
        "      hello from blue\n",
        "fail  masquerade: network pods: 2 of 2 live containers lack a masquerade\n",
        "repaired  pods     green      eth0\n",
        "(nothing: all is well again)\n",
        "Its lease and its rules are removed. blue stays attached.\n",
        "\"eth0\" should have the address 10.22.0.2/16",
        "Left: 0 ports, 0 leases, 0 results.",
        "code 7)",
        " ms\n",
        "cnitool init pods ",
    ] {
        assert!(shown.contains(piece), "{piece:?} in\n{shown}");
    }
    for line in shown.lines() {
        assert!(line.chars().count() <= 80 && line == line.trim_end() && !line.contains('\x1b'), "{line:?}");
    }
}

#[test]
fn plugins_below_a_hidden_directory_stay_visible() {
    let host = Host::new();
    host.lab.sh(&format!("mkdir -p /var/lib/k3s; cp -r {}/bin /var/lib/k3s", host.lab.dir().display()));
    let outcome = host.call("demo").env("CNI_PATH", "/var/lib/k3s/bin").run();
    assert_eq!(outcome.status, Some(0), "{outcome:?}");
}

#[test]
fn it_needs_no_root_where_users_may_have_namespaces() {
    let host = Host::new();
    let tool = host.lab.bin().join("cnitool");
    copy_program(&program_path("cnitool"), &tool);
    let as_nobody = || {
        let setpriv = Process::new("setpriv").arg("--reuid=65534").arg("--regid=65534");
        setpriv.arg("--clear-groups")
    };
    if as_nobody().arg("unshare").arg("-rn").arg("true").run().status != Some(0) {
        return skip("it_needs_no_root_where_users_may_have_namespaces", "users may not have namespaces here");
    }
    let calling = as_nobody().arg(tool).arg("demo");
    let outcome = calling.env("CNI_PATH", host.lab.bin()).run();
    assert_eq!(outcome.status, Some(0), "{outcome:?}");
}

#[test]
fn a_missing_plugin_is_reported_with_the_search_path() {
    let host = Host::new();
    fs::remove_file(host.lab.bin().join("host-local")).unwrap();
    let why = failure(&host.run("demo"));
    let dir = host.lab.bin().display().to_string();
    assert!(why.starts_with(&format!("failed to find plugin \"host-local\" in path [{dir}]")), "{why}");
}

#[test]
fn a_reader_that_closes_the_pipe_causes_no_error() {
    let host = Host::new();
    let calling = Process::new("sh").arg("-c").arg("(\"$0\" demo | true) 2>&1").arg(program_path("cnitool"));
    let outcome = calling.env("CNI_PATH", host.lab.bin()).run();
    assert_eq!(outcome.stdout, "");
}
