//! The manual pages and the completion of shells.

use testing::{Process, program_path, skip};

use crate::support::{COMMANDS, Host};

fn is_installed(program: &str) -> bool {
    Process::new("sh").arg("-c").arg(format!("command -v {program}")).run().status == Some(0)
}

/// Formats a page. The formatter must not have any warning.
fn formatted(page: &str) -> String {
    let outcome = Process::new("groff").arg("-ww").arg("-man").arg("-Tascii").arg("-P-cbou").stdin(page).run();
    assert_eq!((outcome.status, outcome.stderr.as_str()), (Some(0), ""), "{page}");
    outcome.stdout
}

#[test]
fn manual_pages_have_everything_that_the_help_has() {
    if !is_installed("groff") {
        return skip("manual_pages_have_everything_that_the_help_has", "groff is missing (apt-get install groff-base)");
    }
    let host = Host::new();
    let all = formatted(&host.run("man").stdout);
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for command in COMMANDS {
        let page = formatted(&host.run(&format!("man {command}")).stdout);
        assert!(page.contains(&format!("CNITOOL-{}(1)", command.to_uppercase())), "{page}");
        let help = host.run(&format!("help {command}")).stdout;
        let (usage, rest) = help.split_once("\n\n").unwrap();
        let usage = usage.strip_prefix("usage: ").unwrap();
        assert!(words(&page).contains(usage), "{usage}: {page}");
        let (_, text) = rest.split_once("\n\n").unwrap();
        for line in text.lines().filter(|line| !line.ends_with(':') && !line.contains("options:")) {
            for word in line.split_whitespace() {
                assert!(page.contains(word), "{word}: {page}");
            }
        }
        assert!(words(&all).contains(usage.strip_prefix("cnitool ").unwrap()), "{command}");
    }
    for heading in ["NAME", "SYNOPSIS", "DESCRIPTION", "COMMANDS", "ENVIRONMENT", "EXIT STATUS"] {
        assert!(all.lines().any(|line| line == heading), "{heading}: {all}");
    }
}

/// Returns the completions of the last of these words in bash, by the script that bash loads.
fn in_bash(host: &Host, words: &[&str]) -> Vec<String> {
    let script = r#"PATH=$1:$PATH; source <(cnitool completion bash)
        complete -p cnitool | grep -q _cnitool
        COMP_WORDS=(cnitool "${@:2}"); COMP_CWORD=$(($# - 1))
        _cnitool
        [ ${#COMPREPLY[@]} = 0 ] || printf '%s\n' "${COMPREPLY[@]}""#;
    let bin = program_path("cnitool").parent().unwrap().to_owned();
    let bash = Process::new("bash").arg("-euc").arg(script).arg("bash").arg(bin);
    let bash = bash.env("NETCONFPATH", host.conf_dir()).env("CNI_PATH", host.lab.bin());
    let outcome = words.iter().fold(bash, Process::arg).run();
    assert_eq!((outcome.status, outcome.stderr.as_str()), (Some(0), ""), "{words:?}");
    outcome.stdout.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_options_networks_and_namespaces() {
    let host = Host::new();
    let network = |name: &str| format!(r#"{{"cniVersion": "1.0.0", "name": "{name}", "type": "loopback"}}"#);
    host.configure("10-pods.conf", &network("pods"));
    host.configure("20-other.conf", &network("other"));
    host.configure("30-broken.conf", "{");
    host.lab.netns("blue");
    host.lab.netns("black");
    host.lab.sh("touch '/run/netns/a b' '/run/netns/b;reboot'");
    assert_eq!(in_bash(&host, &[""]), COMMANDS);
    assert_eq!(in_bash(&host, &["p"]), ["prune"]);
    assert_eq!(in_bash(&host, &["--v"]), ["--version"]);
    assert_eq!(in_bash(&host, &["add", ""]), ["other", "pods"]);
    assert_eq!(in_bash(&host, &["add", "pods", "b"]), ["black", "blue"]);
    assert_eq!(in_bash(&host, &["add", "pods", "blue", ""]), Vec::<String>::new());
    assert_eq!(in_bash(&host, &["leases", "--"]), ["--json", "--watch", "--help"]);
    assert_eq!(in_bash(&host, &["leases", "--json", "p"]), ["pods"]);
    assert_eq!(in_bash(&host, &["metrics", "--output", ""]), Vec::<String>::new(), "bash completes files");
    assert_eq!(in_bash(&host, &["man", "s"]), ["status", "show", "schema"]);
    assert_eq!(in_bash(&host, &["help", "le"]), ["leases"]);
    assert_eq!(in_bash(&host, &["completion", ""]), ["bash", "zsh", "fish"]);
    assert_eq!(in_bash(&host, &["fly", ""]), Vec::<String>::new());
}

#[test]
fn the_scripts_are_valid() {
    let host = Host::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = host.run(&format!("completion {shell}")).stdout;
        if !is_installed(shell) {
            skip("the_scripts_are_valid", &format!("{shell} is missing; the rest of it ran"));
            continue;
        }
        let file = host.lab.dir().join(shell);
        std::fs::write(&file, script).unwrap();
        let outcome = Process::new(shell).arg("-n").arg(file).run();
        assert_eq!((outcome.status, outcome.stderr.as_str()), (Some(0), ""), "{shell}");
    }
}

#[test]
fn fish_completes_networks() {
    if !is_installed("fish") {
        return skip("fish_completes_networks", "fish is missing");
    }
    let host = Host::new();
    host.configure("10-pods.conf", r#"{"cniVersion": "1.0.0", "name": "pods", "type": "loopback"}"#);
    let bin = program_path("cnitool").parent().unwrap().to_owned();
    let script =
        format!("set PATH {} $PATH; cnitool completion fish | source; complete -C'cnitool add p'", bin.display());
    let outcome = Process::new("fish")
        .arg("--no-config")
        .arg("-c")
        .arg(script)
        .env("HOME", host.lab.dir())
        .env("NETCONFPATH", host.conf_dir())
        .run();
    assert_eq!(outcome.stdout, "pods\tnetwork\n", "{outcome:?}");
}
