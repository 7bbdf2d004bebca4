//! Bad input: one clear line, exit code 1, nothing changed.

use std::fs;

use serde_json::json;

use crate::node;
use crate::support::{Host, failure, messages};

const NET: &str = r#"{"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "first"}, {"type": "second"}]}"#;

fn host() -> Host {
    let host = Host::new();
    host.recorder("first");
    host.recorder("second");
    host.configure("net.conflist", NET);
    host.lab.netns("blue");
    host
}

#[test]
fn unknown_network() {
    let host = host();
    host.configure("other.conf", r#"{"name": "other", "type": "first"}"#);
    for command in ["add", "del", "check", "gc", "status"] {
        let why = failure(&host.run(&format!("{command} nowhere /run/netns/blue")));
        let dir = host.conf_dir().display().to_string();
        assert_eq!(why, format!("there is no network \"nowhere\" in {dir} (the networks are net, other)"));
    }
    host.lab.sh(&format!("rm {}/*", host.conf_dir().display()));
    let why = failure(&host.run("add nowhere /run/netns/blue"));
    assert!(why.ends_with("(configurations end in .conflist, .conf or .json)"), "{why}");
    host.configure("net.yaml", "name: nowhere");
    let why = failure(&host.run("add nowhere /run/netns/blue"));
    assert!(why.ends_with("/net.yaml is ignored: write it as JSON, into a file that ends in .conflist)"), "{why}");
    let why = failure(&host.call("add nowhere /run/netns/blue").env("NETCONFPATH", "/missing").run());
    let missing = "the directory does not exist: create it, or set NETCONFPATH";
    assert_eq!(why, format!("there is no network \"nowhere\" in /missing ({missing})"));
    let why = failure(&host.call("add nowhere /run/netns/blue").env("NETCONFPATH", "/dev/null").run());
    assert!(why.starts_with("read the directory /dev/null: Not a directory"), "{why}");
}

#[test]
fn missing_plugin() {
    let host = host();
    fs::remove_file(host.lab.bin().join("second")).unwrap();
    let path = format!("/missing:{}", host.lab.bin().display());
    for command in ["add", "del", "check", "gc", "status"] {
        let why = failure(&host.call(&format!("{command} net /run/netns/blue")).env("CNI_PATH", &path).run());
        let expected = format!("failed to find plugin \"second\" in path [/missing {}]", host.lab.bin().display());
        assert!(why.contains(&expected) && why.contains("net.conflist: "), "{why}");
    }
    assert_eq!(host.log(), [""; 0], "the first plugin was not called either");
    fs::write(host.lab.bin().join("second"), "").unwrap();
    let why = failure(&host.run("add net /run/netns/blue"));
    assert!(why.contains("second\" is not executable"), "{why}");
    let why = failure(&host.call("status net").without("CNI_PATH").run());
    assert!(why.contains("in path [/opt/cni/bin /usr/lib/cni /usr/libexec/cni]"), "{why}");
}

#[test]
fn missing_permission() {
    let host = host();
    host.lab.sh(&format!("chmod 755 {0} {0}/bin; chmod 1777 {0}", host.lab.dir().display()));
    let tool = testing::program_path("cnitool");
    // A directory that other users can read.
    testing::copy_program(&tool, &host.lab.bin().join("cnitool"));
    for command in ["add", "del", "check", "gc", "status"] {
        let outcome = testing::Process::new("setpriv")
            .arg("--bounding-set=-net_admin")
            .arg(host.lab.bin().join("cnitool"))
            .arg(command)
            .arg("net")
            .arg("/run/netns/blue")
            .env("NETCONFPATH", host.conf_dir())
            .env("CNI_PATH", host.lab.bin())
            .run();
        assert_eq!(failure(&outcome), "permission missing: CAP_NET_ADMIN (run as root)");
    }
    assert_eq!(host.log(), [""; 0]);
    assert_eq!(host.cached(), [""; 0]);
}

#[test]
fn wrong_namespace() {
    let host = host();
    fs::write("/run/file", "").unwrap();
    for path in ["/run/netns/red", "/run/file", "/proc/self/ns/mnt", "/run"] {
        for command in ["add", "check"] {
            let why = failure(&host.run(&format!("{command} net {path}")));
            assert!(why.contains(&format!("there is no network namespace at \"{path}\"")), "{why}");
        }
        let why = failure(&host.run(&format!("del net {path}")));
        let expected = format!("there is no network namespace at {path:?}, and nothing was added there");
        assert!(why.starts_with(&expected), "{why}");
    }
    assert_eq!(host.log(), [""; 0]);
    host.run("add net /run/netns/blue").ok();
    host.lab.sh("umount /run/netns/blue; rm /run/netns/blue");
    host.run("del net /run/netns/blue").ok();
    assert_eq!(
        host.calls()[2..],
        ["DEL second", "DEL first"],
        "an attachment can be deleted after its namespace is gone"
    );
}

#[test]
fn wrong_environment() {
    let host = host();
    for (name, value, want) in [
        ("CNI_ARGS", "A", "invalid pair \"A\" in CNI_ARGS"),
        ("CNI_ARGS", "A=1;", "invalid pair \"\" in CNI_ARGS"),
        ("CNI_ARGS", "A=b=c", "invalid pair \"A=b=c\" in CNI_ARGS"),
        ("CAP_ARGS", "{", "CAP_ARGS is not a JSON object: EOF"),
        ("CAP_ARGS", "[]", "CAP_ARGS is not a JSON object: invalid type"),
        ("CNI_IFNAME", "a/b", "invalid interface name \"a/b\" in CNI_IFNAME"),
    ] {
        for command in ["add", "del", "check"] {
            let why = failure(&host.call(&format!("{command} net /run/netns/blue")).env(name, value).run());
            assert!(why.contains(want), "{why}");
        }
    }
    assert_eq!(host.log(), [""; 0]);
}

#[test]
fn a_program_that_is_not_a_plugin() {
    let host = host();
    host.configure("odd.conf", r#"{"cniVersion": "1.0.0", "name": "odd", "type": "odd"}"#);
    for (script, want) in [
        ("echo noise; exit 3", "plugin \"odd\": plugin \"odd\" failed with exit status: 3 and no CNI error"),
        ("echo hello", "plugin \"odd\": read the result of plugin \"odd\": invalid JSON"),
        ("echo '{\"cniVersion\": \"7\"}'", "the result has the unknown cniVersion \"7\""),
        ("kill -9 $$", "signal: 9"),
    ] {
        // After an invalid result of ADD, cnitool calls DEL, which succeeds.
        host.lab.script("odd", &format!("[ $CNI_COMMAND = ADD ] || exit 0\n{script}"));
        let why = failure(&host.run("add odd /run/netns/blue"));
        assert!(why.contains(want), "{why}");
        assert_eq!(host.cached(), [""; 0]);
    }
}

#[test]
fn a_program_of_another_architecture() {
    let host = host();
    host.configure("odd.conf", r#"{"cniVersion": "1.0.0", "name": "odd", "type": "odd"}"#);
    // The start of a program for a processor that Linux does not know.
    host.lab.sh(&format!("printf '\\177ELF\\2\\1' >{0} && chmod 755 {0}", host.lab.bin().join("odd").display()));
    let why = failure(&host.run("add odd /run/netns/blue"));
    assert!(why.contains("Exec format error") && why.contains("(install the plugin for this architecture; "), "{why}");
}

#[test]
fn nothing_was_added_there() {
    let host = host();
    let why = failure(&host.run("check net /run/netns/blue"));
    assert_eq!(
        why,
        "check \"eth0\" of /run/netns/blue in network \"net\": nothing was added there (the cache has no entry for it)"
    );
    assert_eq!(host.log(), [""; 0]);
}

/// A caller that does not get the result assumes that the add failed.
#[test]
fn an_add_whose_result_cannot_be_printed_is_rolled_back() {
    let host = host();
    let tool = testing::program_path("cnitool");
    // The second case is a pipe without a reader.
    let pipe = host.lab.dir().join("pipe").display().to_string();
    let orphan = format!("mkfifo {pipe}; exec 3<>{pipe}; exec 4>{pipe}; exec 3<&-");
    for (before, sink, want) in [("", "/dev/full", "No space left on device"), (orphan.as_str(), "&4", "Broken pipe")] {
        let command = format!(
            "{before}
             NETCONFPATH={} CNI_PATH={} {} add net /run/netns/blue 2>{dir}/err >{sink} || echo $? >{dir}/rc",
            host.conf_dir().display(),
            host.lab.bin().display(),
            tool.display(),
            dir = host.lab.dir().display()
        );
        host.lab.sh(&command);
        let stderr = fs::read_to_string(host.lab.dir().join("err")).unwrap();
        assert!(stderr.contains("write to stdout: ") && stderr.contains(want), "{stderr}");
        assert_eq!(fs::read_to_string(host.lab.dir().join("rc")).unwrap(), "1\n");
        assert_eq!(host.calls(), ["ADD first", "ADD second", "DEL second", "DEL first"]);
        assert_eq!(host.cached(), [""; 0]);
        ["log", "rc"].iter().for_each(|name| fs::remove_file(host.lab.dir().join(name)).unwrap());
    }
}

#[test]
fn a_remedy_is_printed_once() {
    let host = host();
    let ipam = r#"{"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/99"}]]}"#;
    let list =
        format!(r#"{{"cniVersion": "1.1.0", "name": "net", "plugins": [{{"type": "bridge", "ipam": {ipam}}}]}}"#);
    host.configure("net.conflist", &list);
    let why = failure(&host.run("status net"));
    assert!(why.contains("\"10.1.0.0/99\"") && why.matches("correct the").count() == 1, "{why}");
}

#[test]
fn a_misspelt_key_is_a_warning_of_add() {
    let host = node::host("172.20.61.0/24");
    let misspelt =
        node::network("pods", "172.20.61.0/24", &json!({ "isDefaultGatway": true, "org.example.note": "mine" }));
    host.configure("10-pods.conflist", &misspelt.to_string());
    host.lab.netns("blue");
    let outcome = host.run("add pods /run/netns/blue");
    outcome.ok();
    let text = messages(&outcome);
    assert!(text.contains("\"isDefaultGatway\"") && text.contains("\"isDefaultGateway\""), "{text}");
}
