//! The command line: help for everything, and exit codes.

use crate::support::{COMMANDS, Host};

#[test]
fn there_is_help_for_everything_and_it_fits_a_terminal() {
    let host = Host::new();
    let overview = host.run("--help");
    for command in COMMANDS {
        assert!(overview.stdout.contains(&format!("\n  {command} ")), "{command}");
        let help = host.run(&format!("{command} --help"));
        assert_eq!((help.status, help.stderr.as_str()), (Some(0), ""));
        assert!(help.stdout.starts_with(&format!("usage: cnitool {command}")), "{}", help.stdout);
        assert!(help.stdout.contains("\nexit codes:\n  0  success\n"), "{}", help.stdout);
        assert_eq!(help, host.run(&format!("help {command}")));
        assert_eq!(help, host.run(&format!("-h {command}")));
        assert!(help.stdout.lines().all(|line| line.len() <= 80), "{}", help.stdout);
    }
    assert!(overview.stdout.lines().all(|line| line.len() <= 80), "{}", overview.stdout);
    assert_eq!(overview, host.run("help"));
    assert!(host.run("--version").stdout.starts_with("cnitool "));
}

#[test]
fn the_help_of_a_command_lists_only_the_variables_and_exit_codes_that_it_has() {
    let host = Host::new();
    let terms = |command: &str| {
        let help = host.run(format!("help {command}").trim_end()).stdout;
        let lists = help.split_once("\nenvironment:\n").or_else(|| help.split_once("\nexit codes:\n")).unwrap().1;
        let items = lists.lines().filter_map(|line| line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')));
        items.map(|item| item.split_once(' ').unwrap().0.to_owned()).collect::<Vec<_>>().join(" ")
    };
    let attachment = "NETCONFPATH CNI_PATH CNI_IFNAME CNI_ARGS CAP_ARGS";
    assert_eq!(terms(""), format!("{attachment} COLUMNS NO_COLOR 0 1 2 3"));
    for (command, want) in [
        ("add", format!("{attachment} 0 1 2")),
        ("gc", "NETCONFPATH CNI_PATH 0 1 2".to_owned()),
        ("show", "NETCONFPATH COLUMNS NO_COLOR 0 1 2".to_owned()),
        ("doctor", "NETCONFPATH CNI_PATH COLUMNS NO_COLOR 0 1 2 3".to_owned()),
        ("validate", "NETCONFPATH CNI_PATH NO_COLOR 0 1 2 3".to_owned()),
        ("man", "0 1 2".to_owned()),
    ] {
        assert_eq!(terms(command), want, "{command}");
    }
}

#[test]
fn the_help_of_show_explains_each_flag_of_a_plugin() {
    let help = Host::new().run("show --help").stdout;
    for kind in cni0::PLUGINS.iter().flat_map(|plugin| plugin.kinds()) {
        assert!(help.contains(&format!("\n  {} ", kind.flag)), "{}: {help}", kind.flag);
    }
}

#[test]
fn an_invalid_command_line_is_reported_in_one_line() {
    let host = Host::new();
    for (words, want) in [
        ("fly", "unknown command \"fly\"; the commands are add, del, "),
        ("help fly", "unknown command \"fly\""),
        ("--fly", "unknown option --fly"),
        ("add --fly net /x", "add: unknown option --fly"),
        ("add --json net /x", "add: unknown option --json"),
        ("add", "usage: cnitool add <network> <netns>"),
        ("add net", "usage: cnitool add <network> <netns>"),
        ("status", "usage: cnitool status <network> [<netns>]"),
        ("add net /x more", "add: unexpected argument \"more\""),
        ("gc net /x more", "gc: unexpected argument \"more\""),
        ("demo more", "demo: unexpected argument \"more\"; usage: cnitool demo (see demo --help"),
        ("leases a b", "leases: unexpected argument \"b\"; usage: cnitool leases [--json] [--watch] [<network>] ("),
        ("add net ", "add: the path of the namespace is empty; usage: cnitool add <network> <netns> ("),
        ("check net ", "check: the path of the namespace is empty"),
        ("add --\x1b[31mred net /x", "add: unknown option --?[31mred ("),
    ] {
        let outcome = host.run(words);
        assert_eq!((outcome.status, outcome.stdout.as_str()), (Some(2), ""), "{words}");
        assert!(outcome.stderr.starts_with(&format!("cnitool: {want}")), "{}", outcome.stderr);
        assert_eq!(outcome.stderr.lines().count(), 1);
    }
}
