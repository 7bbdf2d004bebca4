//! The cache, which is shared with other runtimes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::json;
use testing::{Process, copy_program, skip};

use crate::support::{Host, failure};

const ENTRY: &str = "/var/lib/cni/results/net-cnitool-df26705e2e4ffd095eb1-eth0";
const ARGS: &str = "IgnoreUnknown=1;K8S_POD_NAME=a<b";
const CAPABILITIES: &str =
    r#"{"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}], "other": 1.5}"#;

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/cache")
}

/// A host with the network of the captured entries, and its plugin.
fn host() -> Host {
    let host = Host::new();
    fs::copy(testdata().join("net.conflist"), host.conf_dir().join("net.conflist")).unwrap();
    copy_program(&testdata().join("fixed"), &host.lab.bin().join("fixed"));
    host.lab.netns("blue");
    host
}

/// Returns an entry that libcni 1.1.2 wrote.
fn captured(name: &str) -> String {
    fs::read_to_string(testdata().join(name)).unwrap()
}

fn put(text: &str) {
    fs::create_dir_all("/var/lib/cni/results").unwrap();
    fs::write(ENTRY, text).unwrap();
}

#[test]
fn an_entry_matches_libcni_byte_for_byte() {
    let host = host();
    let ours = || {
        let text = fs::read_to_string(ENTRY).unwrap();
        let netns = r#","netns":"/run/netns/blue""#;
        assert!(text.contains(&format!("\"networkName\":\"net\"{netns}")), "where libcni writes it since 1.2: {text}");
        text.replacen(netns, "", 1)
    };
    host.run("add net /run/netns/blue").ok();
    assert_eq!(ours(), captured("plain"));
    host.run("del net /run/netns/blue").ok();
    host.call("add net /run/netns/blue").env("CNI_ARGS", ARGS).env("CAP_ARGS", CAPABILITIES).run().ok();
    assert_eq!(ours(), captured("with-args"));
    let mode = |path: &str| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("/var/lib/cni/results"), mode(ENTRY)), (0o700, 0o600));
    assert_eq!(host.lab.sh("ls -A /var/lib/cni"), "results\n", "no scratch file is left");
}

#[test]
fn attachments_of_another_runtime_are_checked_and_deleted() {
    let host = host();
    host.recorder("fixed");
    put(&captured("with-args"));
    host.run("check net /run/netns/blue").ok();
    host.run("del net /run/netns/blue").ok();
    assert_eq!(host.cached(), [""; 0]);
    let log = host.log();
    let call = format!("fixed cnitool-df26705e2e4ffd095eb1 /run/netns/blue eth0 {ARGS}");
    assert_eq!(log, [format!("CHECK {call}"), format!("DEL {call}")]);
    let seen = host.seen("fixed", "DEL");
    assert_eq!(seen["prevResult"]["ips"][0]["address"], "10.1.0.2/24");
    assert_eq!(
        seen["runtimeConfig"],
        json!({"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]})
    );
}

#[test]
fn an_entry_of_the_oldest_format_is_a_bare_result() {
    let host = host();
    host.recorder("fixed");
    put(r#"{"cniVersion": "0.4.0", "ips": [{"version": "4", "address": "10.1.0.7/24"}]}"#);
    host.run("del net /run/netns/blue").ok();
    let seen = host.seen("fixed", "DEL");
    assert_eq!(
        seen["prevResult"],
        json!({"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.7/24"}]}),
        "in the version of the network"
    );
    assert_eq!(host.cached(), [""; 0]);
}

#[test]
fn without_its_configuration_an_attachment_is_deleted_with_that_of_the_add() {
    let host = host();
    host.run("add net /run/netns/blue").ok();
    host.recorder("fixed");
    fs::remove_file(host.conf_dir().join("net.conflist")).unwrap();
    host.lab.sh("umount /run/netns/blue && rm /run/netns/blue");
    let outcome = host.run("del net /run/netns/blue");
    assert_eq!(outcome.status, Some(0), "{outcome:?}");
    assert!(outcome.stderr.contains("using the configuration of the add"), "{outcome:?}");
    assert_eq!(host.seen("fixed", "DEL")["note"], "<é&>");
    assert_eq!(host.cached(), [""; 0]);
}

#[test]
fn plugins_of_a_folder_are_kept_too() {
    let host = host();
    host.recorder("fixed");
    host.recorder("other");
    host.configure("folded.conflist", r#"{"cniVersion": "1.0.0", "name": "folded", "plugins": [{"type": "fixed"}]}"#);
    fs::create_dir(host.conf_dir().join("folded")).unwrap();
    host.configure("folded/1.conf", r#"{"type": "other", "x": 1}"#);
    host.run("add folded /run/netns/blue").ok();
    host.lab.sh(&format!("rm -r {}/folded*", host.conf_dir().display()));
    assert_eq!(host.run("del folded /run/netns/blue").status, Some(0));
    assert_eq!(host.calls(), ["ADD fixed", "ADD other", "DEL other", "DEL fixed"]);
}

#[test]
fn a_corrupt_entry_is_named_and_nothing_is_done() {
    let host = host();
    host.recorder("fixed");
    let good = captured("plain");
    for (text, why) in [
        ("", "invalid JSON"),
        ("{", "invalid JSON"),
        ("[]", "expected an object"),
        ("{}", "neither \"kind\" nor \"cniVersion\""),
        (good.get(..300).unwrap(), "invalid JSON"),
        (&good.replace("cniCacheV1", "cniCacheV9"), "its kind is \"cniCacheV9\""),
        (&good.replace("\"ewog", "\"?wog"), "key \"config\": it is not Base64"),
        (&good.replace("\"ifName\":\"eth0\",", ""), "\"containerId\", \"ifName\" or \"networkName\" is missing"),
        (&good.replace("\"net\"", "5"), "key \"networkName\""),
    ] {
        put(text);
        for command in ["add", "check", "del"] {
            let line = failure(&host.run(&format!("{command} net /run/netns/blue")));
            assert!(line.starts_with(&format!("the cache entry {ENTRY} is corrupt: ")) || command == "add", "{line}");
            assert!(line.contains(ENTRY) && line.contains(why) && line.contains("remove the file"), "{line}");
        }
        let list = fs::read_to_string(testdata().join("net.conflist")).unwrap();
        host.configure("net.conflist", &list.replace("1.0.0", "1.1.0"));
        let line = failure(&host.run("gc net"));
        assert!(line.contains(ENTRY), "{line}");
        assert_eq!(fs::read_to_string(ENTRY).unwrap(), text);
    }
    assert_eq!(host.log(), [""; 0], "no plugin was called");
    fs::remove_file(ENTRY).unwrap();
    host.run("del net /run/netns/blue").ok();
}

#[test]
fn an_entry_of_another_attachment_with_the_same_file_name_is_kept() {
    let host = host();
    host.recorder("fixed");
    // Network "net-cnitool" with a container of that id has the same file name.
    let text = captured("plain")
        .replace("\"net\"", "\"net-cnitool\"")
        .replace("\"cnitool-df26705e2e4ffd095eb1\"", "\"df26705e2e4ffd095eb1\"");
    put(&text);
    for command in ["add", "check", "del"] {
        let line = failure(&host.run(&format!("{command} net /run/netns/blue")));
        assert!(line.contains("belongs to another attachment: network \"net-cnitool\""), "{line}");
    }
    assert_eq!(host.log(), [""; 0]);
    assert_eq!(fs::read_to_string(ENTRY).unwrap(), text);
}

#[test]
fn hand_over_to_and_from_libcni() {
    let given = std::env::vars_os().find(|(name, _)| name == "CNI0_TEST_LIBCNI").map(|(_, value)| value);
    let Some(runtime) = given.filter(|path| !path.is_empty()) else {
        return skip(
            "hand_over_to_and_from_libcni",
            "no runtime on libcni (testdata/cache/capture --runtime DIR builds one: CNI0_TEST_LIBCNI=DIR/runtime)",
        );
    };
    let host = Host::new();
    host.configure(
        "pods.conflist",
        r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [
            {"type": "bridge", "isDefaultGateway": true,
             "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.22.0.0/16"}]]}}
        ]}"#,
    );
    host.lab.netns("blue");
    let libcni = |command: &str| {
        let calling = Process::new(&runtime).env("NETCONFPATH", host.conf_dir()).env("CNI_PATH", host.lab.bin());
        calling.arg(command).arg("pods").arg("/run/netns/blue").run().ok()
    };
    let ours = |command: &str| host.run(&format!("{command} pods /run/netns/blue")).ok();
    let nothing_is_left = || {
        assert_eq!(host.cached(), [""; 0]);
        assert_eq!(host.lab.sh("ip -o link show type veth; find /var/lib/cni/networks -name '10.*'"), "");
    };
    ours("add");
    libcni("check");
    libcni("del");
    nothing_is_left();
    libcni("add");
    ours("check");
    ours("del");
    nothing_is_left();
}
