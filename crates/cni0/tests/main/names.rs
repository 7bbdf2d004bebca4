//! The name under which the program is called selects the plugin.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use testing::{Lab, Process, copy_as_another_build, plugins, write_script};

/// Returns the plugin that answers when `path` is called without a command.
fn who(path: &Path) -> String {
    let outcome = Process::new(path).run();
    assert_eq!((outcome.status, outcome.stdout.as_str()), (Some(0), ""), "{outcome:?}");
    outcome.stderr.lines().next().unwrap().to_owned()
}

#[test]
fn copies_hard_links_and_symbolic_links() {
    let lab = Lab::new();
    let elsewhere = lab.dir().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    for plugin in plugins() {
        // Runtimes parse this line: Nomad requires at least 0.4.0, nerdctl 1.7.1 for its isolation feature.
        let wanted = format!("CNI {plugin} plugin v1.9.1+cni0.{}", env!("CARGO_PKG_VERSION"));
        assert_eq!(who(&lab.bin().join(&plugin)), wanted, "copy, full path");
        symlink(lab.bin().join("cni0"), elsewhere.join(&plugin)).unwrap();
        assert_eq!(who(&elsewhere.join(&plugin)), wanted, "symbolic link");
        fs::remove_file(elsewhere.join(&plugin)).unwrap();
        fs::hard_link(lab.bin().join("cni0"), elsewhere.join(&plugin)).unwrap();
        assert_eq!(who(&elsewhere.join(&plugin)), wanted, "hard link");
        assert_eq!(
            lab.sh(&format!("cd {}; ./{plugin} 2>&1", lab.bin().display())).lines().next().unwrap(),
            wanted,
            "relative"
        );
        assert_eq!(
            lab.sh(&format!("PATH={}; {plugin} 2>&1", lab.bin().display())).lines().next().unwrap(),
            wanted,
            "by PATH"
        );
    }
}

#[test]
fn a_copy_runs_in_the_process_and_another_program_is_executed() {
    let lab = Lab::new();
    let config = r#"{"cniVersion": "1.1.0", "name": "net", "type": "bridge", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}}"#;
    let executed = || {
        let trace = lab.dir().join("trace");
        let options = ["-f", "-qq", "-e", "trace=execve", "-o", trace.to_str().unwrap()];
        lab.plugin("bridge", "STATUS").stdin(config).strace(&options).run().ok();
        fs::read_to_string(&trace).unwrap().contains("/host-local\"")
    };
    assert!(!executed(), "a copy");
    // As installers of other plugins do: they write into the existing file.
    write_script(&lab.bin().join("loopback"), "echo another program >&2");
    assert_eq!(who(&lab.bin().join("loopback")), "another program");
    assert!(who(&lab.bin().join("bridge")).starts_with("CNI bridge plugin"));
    assert!(!executed(), "a copy, beside another program");
    copy_as_another_build(&lab.bin().join("cni0"), &lab.bin().join("host-local"));
    assert!(executed(), "another build");
}

#[test]
fn the_program_describes_itself() {
    let lab = Lab::new();
    let program = lab.bin().join("cni0");
    let line = who(&program);
    assert!(plugins().iter().all(|plugin| line.contains(plugin)), "{line}");
    for command in ["ADD", "VERSION"] {
        let error =
            Process::plugin(&program, command).attachment("c", "eth0", "/x").env("CNI_PATH", "/x").run().error(999);
        assert!(error["msg"].as_str().unwrap().contains("cni0"), "{error}");
        assert!(error["details"].as_str().unwrap().contains("loopback"), "{error}");
    }
}

#[test]
fn every_plugin_supports_every_version() {
    Lab::for_each_layout(|lab| {
        for plugin in plugins() {
            // As libcni calls it: all variables except the command are dummies.
            let call = lab.plugin(&plugin, "VERSION").env("CNI_NETNS", "dummy").env("CNI_IFNAME", "dummy");
            let outcome = call.env("CNI_PATH", "dummy").stdin(r#"{"cniVersion":"1.1.0"}"#).run();
            let wanted = "{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[\"0.1.0\",\"0.2.0\",\"0.3.0\",\"0.3.1\",\"0.4.0\",\"1.0.0\",\"1.1.0\"]}\n";
            assert_eq!((outcome.status, outcome.stdout.as_str()), (Some(0), wanted), "{plugin}");
        }
    });
}

#[test]
fn every_plugin_has_help() {
    let lab = Lab::new();
    for plugin in plugins() {
        for word in ["--help", "-h", "help"] {
            let outcome = Process::new(lab.bin().join(&plugin)).arg(word).run();
            assert_eq!((outcome.status, outcome.stderr.as_str()), (Some(0), ""), "{plugin} {word}");
            assert!(outcome.stdout.starts_with(&format!("CNI {plugin} plugin v")), "{}", outcome.stdout);
            assert!(outcome.stdout.contains(&format!("CNI_COMMAND=VERSION /opt/cni/bin/{plugin}\n")), "{plugin}");
            for wanted in ["CNI_CONTAINERID", "CNI_NETNS", "cnitool add", "docs/configuration.md"] {
                assert!(outcome.stdout.contains(wanted), "{wanted}: {}", outcome.stdout);
            }
        }
    }
    let outcome = Process::new(lab.bin().join("cni0")).arg("--help").run();
    assert!(outcome.stdout.starts_with("cni0 v") && outcome.stdout.contains("CNI_COMMAND"), "{outcome:?}");
    assert!(
        outcome
            .stdout
            .lines()
            .all(|line| line.len() <= 80 || line.starts_with("CNI protocol") || line.starts_with("cni0 v"))
    );
}

#[test]
fn arguments_do_not_change_a_call() {
    let lab = Lab::new();
    let program = lab.bin().join("loopback");
    for argument in ["--help", "--version", "x"] {
        let version = Process::plugin(&program, "VERSION").arg(argument).run();
        assert!(version.stdout.starts_with("{\"cniVersion\""), "{version:?}");
        let about = Process::new(&program).arg(argument).run();
        assert_eq!(about.stdout.is_empty(), argument != "--help", "the reference prints to stderr: {about:?}");
    }
}
