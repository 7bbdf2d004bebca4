//! `cnitool validate`, and the same findings of `doctor`.

use std::fs;

use serde_json::{Value, json};
use testing::{Outcome, Process, program_path};

use crate::support::{Host, failure};

/// A list with this plugin after `bridge`.
fn list(plugin: &Value) -> Value {
    let bridge = json!({"type": "bridge", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}});
    json!({"cniVersion": "1.1.0", "name": "net", "plugins": [bridge, plugin]})
}

/// Checks a document on stdin, without any plugin.
fn validate(options: &str, document: &str) -> Outcome {
    let call = Process::new(program_path("cnitool")).env("CNI_PATH", "/nowhere").arg("validate");
    let call = options.split_whitespace().fold(call, Process::arg);
    call.arg("-").stdin(document).run()
}

/// Returns the lines of the findings without the name of the file.
#[track_caller]
fn findings(outcome: &Outcome, status: i32) -> Vec<String> {
    assert_eq!((outcome.status, outcome.stderr.as_str()), (Some(status), ""), "{}", outcome.stdout);
    let lines = outcome.stdout.lines().filter_map(|line| line.strip_prefix("<stdin>"));
    lines.map(|line| line.trim_start_matches(": ").to_owned()).collect()
}

#[test]
fn a_valid_list_is_summarised() {
    let outcome = validate("--strict", &list(&json!({"type": "portmap"})).to_string());
    assert_eq!(findings(&outcome, 0), ["valid: network net, cniVersion 1.1.0: bridge, portmap"]);
    assert!(outcome.stdout.ends_with("\n0 errors, 0 warnings\n"), "{}", outcome.stdout);
    let old = validate("", r#"{"cniVersion": "0.4.0", "name": "lo", "type": "loopback"}"#);
    assert_eq!(findings(&old, 0), ["valid: network lo, cniVersion 0.4.0 (without GC and STATUS): loopback"]);
}

#[test]
fn what_an_add_refuses_is_an_error() {
    for (plugin, want) in [
        (json!({"type": "bridge", "mtu": 5}), "plugins[1] (bridge): key \"mtu\": 5 "),
        (json!({"type": "bridge", "hairpinMode": true, "promiscMode": true}), "are both true"),
        (json!({"type": "bridge", "ipam": {"type": "host-local"}}), "\"ipam\" has no ranges"),
        (json!({"type": "portmap", "backend": "ebtables"}), "key \"backend\": "),
        (json!({"type": "firewall", "ingressPolicy": "closed"}), "key \"ingressPolicy\": "),
        (json!({"type": "bandwidth", "ingressRate": 5}), "key \"ingressBurst\": "),
        (json!({"type": "tuning", "sysctl": {"kernel.x": "5"}}), "key \"sysctl\": "),
        (json!({"type": "flannel", "delegate": {"name": "x"}}), "must not have 'name' field"),
        // A node without flanneld can report wrong types in the generated configuration all the same.
        (json!({"type": "flannel", "delegate": {"isGateway": 1}}), "key \"isGateway\": expected true or false, got 1"),
        (json!({"type": "a/b"}), "invalid plugin name \"a/b\""),
        (json!({"type": ""}), "a plugin needs a \"type\""),
    ] {
        let outcome = validate("", &list(&plugin).to_string());
        let found = findings(&outcome, 3);
        assert!(found.iter().any(|line| line.contains("error: ") && line.contains(want)), "{plugin}: {found:#?}");
    }
    let first = validate("", r#"{"cniVersion": "1.1.0", "name": "n", "plugins": [{"type": "portmap"}]}"#);
    assert!(findings(&first, 3)[0].contains("it needs the result of an earlier plugin"), "{}", first.stdout);
}

#[test]
fn every_value_of_a_wrong_type_is_reported() {
    let ranges = json!([[{"subnet": 5, "rangeStart": true}], [{"gateway": []}]]);
    let plugin = json!({
        "type": "bridge", "mtu": "1400", "vlan": {}, "isGateway": "yes", "dns": {"domain": 5},
        "vlanTrunk": [{"id": "x", "minID": "y"}], "ipam": {"type": "host-local", "ranges": ranges},
    });
    let outcome = validate("", &list(&plugin).to_string());
    let mut keys: Vec<String> = findings(&outcome, 3)
        .iter()
        .map(|line| {
            line.strip_prefix("error: plugins[1] (bridge): key ").unwrap().split(':').next().unwrap().to_owned()
        })
        .collect();
    keys.sort();
    let wanted = [
        "dns.domain",
        "ipam.ranges[0][0].rangeStart",
        "ipam.ranges[0][0].subnet",
        "ipam.ranges[1][0].gateway",
        "isGateway",
        "mtu",
        "vlan",
        "vlanTrunk[0].id",
        "vlanTrunk[0].minID",
    ];
    assert_eq!(keys, wanted.map(|key| format!("{key:?}")));
}

#[test]
fn unknown_keys_are_warnings_with_a_suggestion() {
    for (plugin, want) in [
        (
            json!({"type": "bridge", "isDefaultGatway": true}),
            "key \"isDefaultGatway\": unknown key, did you mean \"isDefaultGateway\"?",
        ),
        (
            json!({"type": "bridge", "subnet": "10.0.0.0/8"}),
            "key \"subnet\": unknown key, did you mean \"ipam.subnet\"?",
        ),
        (json!({"type": "bridge", "color": "red"}), "key \"color\": unknown key, which bridge ignores"),
        (
            json!({"type": "bridge", "vlanTrunk": [{"minId": 1, "maxID": 2}, {"idd": 1, "id": 2}]}),
            "key \"vlanTrunk[1].idd\"",
        ),
        (json!({"type": "bridge", "runtimeConfig": {"ipss": []}}), "key \"runtimeConfig.ipss\""),
        (
            json!({"type": "portmap", "capabilities": {"portMapping": true}}),
            "key \"capabilities.portMapping\": unknown key, did you mean \"portMappings\"?",
        ),
        (json!({"type": "portmap", "capabilities": {"portmappings": true}}), "did you mean \"portMappings\"?"),
        (
            json!({"type": "bridge", "mtu": 0, "MTU": 1400}),
            "key \"mtu\": the same key as \"MTU\"; the last one in the file counts",
        ),
        (json!({"type": "bridge", "ipam": {"typ": "x"}}), "key \"ipam.typ\": unknown key, did you mean \"type\"?"),
        (json!({"type": "tuning", "args": {"cni": {"sysctll": {}}}}), "key \"args.cni.sysctll\""),
        (json!({"type": "loopback", "mtu": 5}), "key \"mtu\": unknown key, which loopback ignores"),
        (
            json!({"type": "bandwidth", "shapedSubnets": []}),
            "key \"shapedSubnets\": a key of the reference, which bandwidth of cni0 ignores",
        ),
        (
            json!({"type": "flannel", "delegate": {"hairpinMod": true}}),
            "configuration of its delegate bridge: key \"hairpinMod\"",
        ),
        (json!({"type": "bridgee"}), "unknown plugin \"bridgee\", did you mean \"bridge\"?"),
        (json!({"type": "sriov"}), "unknown plugin \"sriov\": cni0 does not have it"),
        (
            json!({"type": "bridge", "ipam": {"type": "host-locla", "x": 1}}),
            "unknown plugin \"host-locla\", did you mean \"host-local\"?",
        ),
    ] {
        let document = list(&plugin).to_string();
        let found = findings(&validate("", &document), 0);
        assert_eq!(found.len(), 2, "{plugin}: {found:#?}");
        assert!(found[0].starts_with("warning: plugins[1] (") && found[0].contains(want), "{plugin}: {}", found[0]);
        assert_eq!(validate("--strict", &document).status, Some(3), "{plugin}");
    }
}

#[test]
fn keys_of_others_are_not_reported() {
    for plugin in [
        json!({"type": "bridge", "ISGATEWAY": true, "IsDefaultGateway": true, "cni.dev/other": 1, "$schema": "x", "_note": 1}),
        json!({"type": "bridge", "ipam": {"type": "whereabouts", "range": "10.0.0.0/8"}, "isGateway": null}),
        json!({"type": "bridge", "args": {"labels": [], "cni": {"sandbox": 1}}, "runtimeConfig": {"portMappings": []}}),
        json!({"type": "portmap", "ipam": {}, "dns": {"x": 1}, "capabilities": {"portMappings": true}, "logLevel": "debug"}),
        json!({"type": "flannel", "delegate": {"type": "sriov", "x": 1, "y": {}}}),
    ] {
        let found = findings(&validate("", &list(&plugin).to_string()), 0);
        let others = found.iter().filter(|line| !line.contains("unknown plugin") && !line.starts_with("valid"));
        assert_eq!(others.count(), 0, "{found:#?}");
    }
    let podman =
        r#"{"cniVersion": "0.4.0", "name": "n", "args": {"podman_labels": {}}, "plugins": [{"type": "bridge"}]}"#;
    assert_eq!(findings(&validate("", podman), 0).len(), 1);
}

#[test]
fn the_keys_of_a_list_are_checked_too() {
    for (keys, want) in [
        (r#""cniVersion": "1.1.0", "disableGc": true"#, "key \"disableGc\": unknown key, did you mean \"disableGC\"?"),
        (r#""cniVersion": "1.1.0", "Name": "x""#, "key \"Name\": unknown key, did you mean \"name\"?"),
        (
            r#""cniVersion": "1.0.0", "disableGC": true"#,
            "key \"disableGC\": it has no effect: cniVersion 1.0.0 has no GC",
        ),
        (r#""cniVersion": "0.3.1", "disableCheck": "true""#, "key \"disableCheck\": it has no effect"),
        (r#""x": 1"#, "key \"cniVersion\": it is missing, so 0.1.0 applies"),
    ] {
        let document = format!(r#"{{{keys}, "name": "net", "plugins": [{{"type": "loopback"}}]}}"#);
        let found = findings(&validate("", &document), 0);
        assert!(found[0].starts_with("warning: ") && found[0].contains(want), "{found:#?}");
    }
}

#[test]
fn a_file_that_is_not_a_network_is_invalid() {
    for (text, want) in [
        ("", ":1:1: error: invalid JSON: EOF while parsing a value"),
        ("{", ":1:1: error: invalid JSON: EOF while parsing an object"),
        ("{\"a\": [1,\n]}", ":2:1: error: invalid JSON: trailing comma"),
        ("{\"a\": 1 // b\n}", ":1:9: error: invalid JSON: JSON has no comments"),
        ("{“a”: 1}", ":1:2: error: invalid JSON: a string needs plain double quotes, not typographic quotes"),
        ("\u{feff}{}", ":1:1: error: invalid JSON: the text starts with a byte order mark"),
        ("[1, 2]", ":1:1: error: expected an object, got a list"),
        ("null", ":1:1: error: expected an object, got null"),
        ("{}", ":1:1: error: "),
        (r#"{"name": "n"}"#, ":1:1: error: a plugin needs a \"type\""),
        (r#"{"name": "../n", "type": "x"}"#, ":1:10: error: "),
        (r#"{"name": "n", "type": "loopback", "cniVersion": "7"}"#, ":1:49: error: cniVersion \"7\" is not supported"),
        ("{\"name\": \"n\",\n \"plugins\": [{\"type\": 5}]}", ":2:23: error: key \"type\": expected a string, got 5"),
    ] {
        let outcome = validate("", text);
        assert_eq!((outcome.status, outcome.stderr.as_str()), (Some(3), ""), "{text:?} {}", outcome.stdout);
        assert!(outcome.stdout.starts_with(&format!("<stdin>{want}")), "{text:?}: {}", outcome.stdout);
    }
    let broken =
        Process::new(program_path("cnitool")).arg("validate").arg("-").stdin(b"{\"a\": \"\xff\"}".to_vec()).run();
    assert_eq!(broken.stdout.lines().next(), Some("<stdin>:1:8: error: it is not UTF-8"));
    let deep = format!(r#"{{"name": "n", "type": "bridge", "x": {}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(validate("", &deep).status, Some(3));
}

#[test]
fn json_has_places_and_numbers() {
    let plugin = json!({"type": "bridge", "mtu": 5, "isGatewya": true});
    let outcome = validate("--json", &list(&plugin).to_string());
    assert_eq!(outcome.status, Some(3));
    let document: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!((&document["errors"], &document["warnings"]), (&json!(1), &json!(1)));
    let file = &document["files"][0];
    assert_eq!((&file["file"], &file["network"], &file["line"]), (&json!("<stdin>"), &json!("net"), &Value::Null));
    assert_eq!(file["plugins"], json!(["bridge", "bridge"]));
    let unknown = &file["findings"][1];
    let wanted = json!({
        "level": "warning", "place": "plugins[1] (bridge)", "key": "isGatewya",
        "what": "unknown key, did you mean \"isGateway\"?", "remedy": null,
    });
    assert_eq!(unknown, &wanted);
    let broken: Value = serde_json::from_str(&validate("--json", "{").stdout).unwrap();
    assert_eq!((&broken["files"][0]["line"], &broken["files"][0]["network"]), (&json!(1), &Value::Null));
}

#[test]
fn files_and_directories_are_checked() {
    let host = Host::new();
    let none = host.run("validate");
    assert!(failure_with_summary(&none).contains("there is no network configuration in "), "{none:?}");
    host.configure("10-a.conflist", &list(&json!({"type": "portmap"})).to_string());
    host.configure("20-b.conf", r#"{"cniVersion": "1.1.0", "name": "net", "type": "loopback"}"#);
    host.configure("30-c.txt", "not read");
    let dir = host.conf_dir();
    let all = host.run("validate");
    assert_eq!(all.status, Some(0), "{all:?}");
    assert!(
        all.stdout.contains(&format!("{}/20-b.conf: warning: key \"name\": {0}/10-a.conflist defines", dir.display()))
    );
    let both = host.run(&format!("validate {0}/10-a.conflist {0}/20-b.conf", dir.display()));
    assert!(both.stdout.ends_with("0 errors, 0 warnings\n"), "{}", both.stdout);
    // Plugins in the folder of the network are part of the list.
    fs::create_dir(dir.join("net")).unwrap();
    host.configure("net/1.conf", r#"{"type": "firewall", "backend": "x"}"#);
    let folder = host.run("validate");
    assert!(folder.status == Some(3) && folder.stdout.contains("plugins[2] (firewall): key \"backend\""), "{folder:?}");
    host.configure("10-a.conflist", &list(&json!({"type": "first"})).to_string());
    host.recorder("first");
    assert!(!host.run("validate").stdout.contains("unknown plugin"), "an installed plugin is known");
}

/// Returns the error of a call that has also printed its summary.
fn failure_with_summary(outcome: &Outcome) -> String {
    failure(&Outcome { stdout: String::new(), ..outcome.clone() })
}

#[test]
fn an_unreadable_file_does_not_hide_the_others() {
    let host = Host::new();
    host.configure("10-a.conf", r#"{"cniVersion": "1.1.0", "name": "a", "type": "loopback"}"#);
    let dir = host.conf_dir();
    host.lab.sh(&format!("mkfifo {0}/20-b.conf; truncate -s 2M {0}/30-c.conf", dir.display()));
    let outcome = host.run("validate");
    assert_eq!(outcome.status, Some(1));
    assert!(outcome.stdout.contains("10-a.conf: valid: "), "{}", outcome.stdout);
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert!(lines[0].contains("20-b.conf: it is not a regular file"), "{lines:?}");
    assert!(lines[1].contains("30-c.conf: it is larger than 1 MiB"), "{lines:?}");
    let absent = host.run("validate /nowhere.conf");
    assert!(failure_with_summary(&absent).contains("read /nowhere.conf: "), "{absent:?}");
}

#[test]
fn doctor_reports_unknown_keys() {
    let host = Host::new();
    host.configure("10-a.conflist", &list(&json!({"type": "bridge", "hairpinMod": true})).to_string());
    let outcome = host.run("doctor --json");
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let found = report["findings"].as_array().unwrap().iter();
    let unknown = found.filter(|finding| finding["what"].as_str().unwrap().contains("unknown key")).collect::<Vec<_>>();
    assert_eq!(unknown.len(), 1, "{report:#}");
    assert_eq!((&unknown[0]["level"], &unknown[0]["network"]), (&json!("warn"), &json!("net")));
    let what = "plugins[1] (bridge): key \"hairpinMod\": unknown key, did you mean \"hairpinMode\"?";
    assert_eq!(unknown[0]["what"], what);
}
