//! Namespaces by name, and hints for misspelt words.

use crate::node::{attach, host, json};
use crate::support::{Host, failure};

#[test]
fn a_name_means_a_file_in_run_netns() {
    let host = host("10.171.0.0/24");
    host.lab.netns("blue");
    host.run("add pods blue").ok();
    host.run("check pods blue").silent();
    let leases = json(&host, "leases --json");
    assert_eq!(leases["networks"][0]["leases"][0]["netns"], "/run/netns/blue");
    host.run("check pods /run/netns/blue").silent();
    host.lab.sh("umount /run/netns/blue; rm /run/netns/blue");
    host.run("del pods blue").silent();
    assert_eq!(host.cached(), Vec::<String>::new());
}

#[test]
fn a_number_is_a_name_and_a_path_needs_a_slash() {
    let host = host("10.172.0.0/24");
    host.lab.netns("42");
    host.run("add pods 42").ok();
    host.run("del pods 42").silent();
    let why = failure(&host.run("add pods 43"));
    assert!(why.ends_with("(for the namespace of process 43, write /proc/43/ns/net)"), "{why}");
    host.lab.sh("touch /run/netns/file");
    let call = format!("cd /run/netns; {} add pods ./42", testing::program_path("cnitool").display());
    let shell = testing::Process::new("sh").arg("-ec").arg(call);
    shell.env("NETCONFPATH", host.conf_dir()).env("CNI_PATH", host.lab.bin()).run().ok();
    host.run("check pods /run/netns/42").silent();
}

#[test]
fn an_unknown_name_is_explained() {
    let host = host("10.173.0.0/24");
    for command in ["add", "del", "check"] {
        let why = failure(&host.run(&format!("{command} pods blue")));
        let wanted = "there is no namespace \"blue\" in /run/netns (create it with `ip netns add`, or write a path such as ./blue)";
        assert!(why.contains(wanted), "{command}: {why}");
    }
    host.lab.netns("blu");
    for command in ["add", "del", "check"] {
        let why = failure(&host.run(&format!("{command} pods blue")));
        assert!(why.contains("there is no namespace \"blue\" in /run/netns (did you mean \"blu\"?)"), "{why}");
    }
    let why = failure(&host.run("add pods green"));
    assert!(why.contains("(the namespaces are blu)"), "{why}");
    for number in 0..20 {
        host.lab.sh(&format!("touch /run/netns/other{number}"));
    }
    let why = failure(&host.run("add pods green"));
    assert!(!why.contains("other7") && why.len() < 200, "a node has hundreds of namespaces: {why}");
}

#[test]
fn similar_networks_and_plugins_are_suggested() {
    let host = host("10.174.0.0/24");
    host.lab.netns("blue");
    for words in ["add pod blue", "status pdos", "show pod", "leases podss", "prune --dry-run pod", "repair pod"] {
        let why = failure(&host.run(words));
        assert!(why.contains("(did you mean \"pods\"?"), "{words}: {why}");
    }
    host.configure("20-bad.conf", r#"{"cniVersion": "1.0.0", "name": "bad", "type": "brigde"}"#);
    let why = failure(&host.run("add bad blue"));
    assert!(why.contains("failed to find plugin \"brigde\"") && why.contains("did you mean \"bridge\"?"), "{why}");
    let why = failure(&host.run("status bad"));
    assert!(why.contains("did you mean \"bridge\"?"), "{why}");
}

#[test]
fn similar_commands_and_options_are_suggested() {
    let host = Host::new();
    for (words, wanted) in [
        ("lease", "unknown command \"lease\"; did you mean leases? the commands are "),
        ("help promt", "unknown command \"promt\"; the commands are "),
        ("man chekc", "unknown command \"chekc\"; did you mean check? "),
        ("leases --jsno", "leases: unknown option --jsno (did you mean --json? see leases --help)"),
        ("leases --json=x", "leases: --json has no value (see leases --help)"),
        ("metrics --output", "metrics: --output needs a value: --output <file>"),
        ("metrics --output=", "metrics: the value of --output is empty"),
        ("completion tcsh", "completion: unknown shell \"tcsh\"; the shells are bash, zsh, fish"),
    ] {
        let outcome = host.run(words);
        assert_eq!((outcome.status, outcome.stdout.as_str()), (Some(2), ""), "{words}");
        assert!(outcome.stderr.starts_with(&format!("cnitool: {wanted}")), "{}", outcome.stderr);
    }
}

#[test]
fn a_container_that_was_attached_by_a_path_is_deleted_by_its_name() {
    let host = host("10.175.0.0/24");
    attach(&host, "blue");
    host.run("del pods blue").silent();
    assert_eq!(host.cached(), Vec::<String>::new());
}
