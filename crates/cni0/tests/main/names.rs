//! What a plugin prints about itself, and which delegates it contains.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use testing::{Lab, Process, Set, copy_to_set, plugins, program_path, write_script};

/// Returns the plugin that answers when `path` is called without a command.
fn who(path: &Path) -> String {
    let outcome = Process::new(path).run();
    assert_eq!((outcome.status, outcome.stdout.as_str()), (Some(0), ""), "{outcome:?}");
    outcome.stderr.lines().next().unwrap().to_owned()
}

#[test]
fn a_plugin_is_the_same_under_any_name() {
    let lab = Lab::new();
    for plugin in plugins() {
        // Runtimes parse this line: Nomad requires at least 0.4.0, nerdctl 1.7.1 for its isolation feature.
        let wanted = format!("CNI {plugin} plugin v1.9.1+cni0.{}", env!("CARGO_PKG_VERSION"));
        assert_eq!(who(&lab.bin().join(&plugin)), wanted, "full path");
        let link = lab.dir().join("link");
        symlink(lab.bin().join(&plugin), &link).unwrap();
        assert_eq!(who(&link), wanted, "symbolic link");
        fs::remove_file(&link).unwrap();
        assert_eq!(
            lab.sh(&format!("PATH={}; {plugin} 2>&1", lab.bin().display())).lines().next().unwrap(),
            wanted,
            "by PATH"
        );
    }
}

/// Returns the programs that a STATUS executes after the plugin itself.
fn executed(lab: &Lab, plugin: &str, config: &str) -> Vec<String> {
    let trace = lab.dir().join("trace");
    let options = ["-f", "-qq", "-e", "trace=execve", "-o", trace.to_str().unwrap()];
    lab.plugin(plugin, "STATUS").stdin(config).strace(&options).run().ok();
    let trace = fs::read_to_string(&trace).unwrap();
    let paths = trace.lines().filter_map(|line| line.split_once("execve(\"")?.1.split_once('"'));
    paths.skip(1).map(|(path, _)| path.rsplit('/').next().unwrap().to_owned()).collect()
}

#[test]
fn delegates_of_the_same_set_run_in_the_process() {
    let lab = Lab::new();
    let ipam = r#""ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}"#;
    let bridge = &format!(r#"{{"cniVersion": "1.1.0", "name": "net", "type": "bridge", {ipam}}}"#);
    let flannel = r#"{"cniVersion": "1.1.0", "name": "net", "type": "flannel"}"#;
    fs::create_dir_all("/run/flannel").unwrap();
    let subnet = "FLANNEL_NETWORK=10.8.0.0/16\nFLANNEL_SUBNET=10.8.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n";
    fs::write("/run/flannel/subnet.env", subnet).unwrap();
    assert_eq!(executed(&lab, "bridge", bridge), [""; 0]);
    assert_eq!(executed(&lab, "flannel", flannel), [""; 0]);
    // As installers of other plugins do: they write into the existing file.
    write_script(&lab.bin().join("loopback"), "echo another program >&2");
    assert_eq!(who(&lab.bin().join("loopback")), "another program");
    assert_eq!(executed(&lab, "bridge", bridge), [""; 0], "beside another program");
    copy_to_set(&program_path("host-local"), &lab.bin().join("host-local"), Set::Another);
    assert_eq!(executed(&lab, "bridge", bridge), ["host-local"], "of another set");
    assert_eq!(executed(&lab, "flannel", flannel), ["host-local"], "of another set");
    copy_to_set(&program_path("bridge"), &lab.bin().join("bridge"), Set::Another);
    assert_eq!(executed(&lab, "flannel", flannel), ["bridge"], "which runs host-local, of its set, in process");
    let lab = Lab::with(Set::None);
    fs::create_dir_all("/run/flannel").unwrap();
    fs::write("/run/flannel/subnet.env", subnet).unwrap();
    assert_eq!(executed(&lab, "flannel", flannel), ["bridge", "host-local"], "as cargo builds them");
}

/// All programs of `ci/build` have the same set, and those of cargo have none.
#[test]
fn all_programs_have_the_same_set() {
    let head = |plugin: &String| fs::read(program_path(plugin)).unwrap()[..4096].to_vec();
    let heads: HashMap<_, _> = plugins().into_iter().map(|plugin| (plugin.clone(), head(&plugin))).collect();
    let mut ids = heads
        .iter()
        .filter(|(_, head)| head.starts_with(b"\x7fELF"))
        .map(|(plugin, head)| linux::process::set::find(head).unwrap_or_else(|| panic!("{plugin} has no note")));
    let first = ids.next();
    assert!(ids.all(|id| Some(id) == first));
    assert_eq!(
        first.is_some_and(|id| id.iter().all(|byte| *byte == 0)),
        linux::process::env("CNI0_TEST_BIN").is_none()
    );
}

#[test]
fn every_plugin_supports_every_version() {
    let lab = &Lab::new();
    for plugin in plugins() {
        // As libcni calls it: all variables except the command are dummies.
        let call = lab.plugin(&plugin, "VERSION").env("CNI_NETNS", "dummy").env("CNI_IFNAME", "dummy");
        let outcome = call.env("CNI_PATH", "dummy").stdin(r#"{"cniVersion":"1.1.0"}"#).run();
        let wanted = "{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[\"0.1.0\",\"0.2.0\",\"0.3.0\",\"0.3.1\",\"0.4.0\",\"1.0.0\",\"1.1.0\"]}\n";
        assert_eq!((outcome.status, outcome.stdout.as_str()), (Some(0), wanted), "{plugin}");
    }
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
            let mut lines = outcome.stdout.lines();
            assert!(lines.all(|line| line.len() <= 80 || line.starts_with("CNI protocol")), "{}", outcome.stdout);
        }
    }
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
