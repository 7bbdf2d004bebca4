//! Invalid input: one error with the right code that names the key and the value, and no change to the host.

use serde_json::json;
use testing::{Lab, Pod, Scripted};

use crate::pod::{layer2, layer3};

/// Key and value as JSON, the code, and texts that the message must contain.
const VALUES: &[(&str, u32, &[&str])] = &[
    (r#""bridge": """#, 7, &["bridge", "\"\""]),
    (r#""bridge": "sixteen-bytes-xx""#, 7, &["bridge", "sixteen-bytes-xx"]),
    (r#""bridge": "a/b""#, 7, &["bridge", "a/b"]),
    (r#""bridge": "..""#, 7, &["bridge", ".."]),
    (r#""bridge": "a b""#, 7, &["bridge", "a b"]),
    (r#""bridge": "a:b""#, 7, &["bridge", "a:b"]),
    (r#""bridge": "br%d""#, 7, &["bridge", "br%d"]),
    (r#""bridge": 7"#, 6, &["bridge", "7"]),
    (r#""bridge": ["br0"]"#, 6, &["bridge", "list"]),
    (r#""bridge": true"#, 6, &["bridge", "true"]),
    (r#""isGateway": "yes""#, 6, &["isGateway", "yes"]),
    (r#""isGateway": 1"#, 6, &["isGateway", "1"]),
    (r#""isDefaultGateway": "true""#, 6, &["isDefaultGateway", "true"]),
    (r#""isDefaultGateway": {}"#, 6, &["isDefaultGateway", "object"]),
    (r#""forceAddress": 0"#, 6, &["forceAddress", "0"]),
    (r#""ipMasq": "no""#, 6, &["ipMasq", "no"]),
    (r#""ipMasq": []"#, 6, &["ipMasq", "list"]),
    (r#""ipMasqBackend": "ipfw""#, 7, &["ipMasqBackend", "ipfw"]),
    (r#""ipMasqBackend": """#, 7, &["ipMasqBackend", "\"\""]),
    (r#""ipMasqBackend": "NFTABLES""#, 7, &["ipMasqBackend", "NFTABLES"]),
    (r#""ipMasqBackend": true"#, 6, &["ipMasqBackend", "true"]),
    (r#""ipMasqExclude": "10.0.0.0/8""#, 6, &["ipMasqExclude", "10.0.0.0/8"]),
    (r#""ipMasqExclude": ["10.0.0.0"]"#, 7, &["ipMasqExclude[0]", "10.0.0.0"]),
    (r#""ipMasqExclude": ["10.0.0.0/33"]"#, 7, &["ipMasqExclude[0]", "10.0.0.0/33"]),
    (r#""ipMasqExclude": ["10.0.0.0/8", ""]"#, 7, &["ipMasqExclude[1]", "\"\""]),
    (r#""ipMasqExclude": ["fd00::/8", "10.244.1.1/24"]"#, 7, &["ipMasqExclude[1]", "10.244.1.1/24", "host bits"]),
    (r#""ipMasqExclude": ["::ffff:10.0.0.0/104"]"#, 7, &["ipMasqExclude[0]", "IPv4"]),
    (r#""ipMasqExclude": [null]"#, 6, &["ipMasqExclude[0]", "null"]),
    (r#""ipMasqExclude": [7]"#, 6, &["ipMasqExclude[0]", "7"]),
    (r#""mtu": "1500""#, 6, &["mtu", "\"1500\""]),
    (r#""mtu": 1500.0"#, 6, &["mtu", "1500.0"]),
    (r#""mtu": 67"#, 7, &["mtu", "67"]),
    (r#""mtu": 65536"#, 7, &["mtu", "65536"]),
    (r#""mtu": 99999999999"#, 7, &["mtu", "99999999999"]),
    (r#""mtu": 1e400"#, 6, &["mtu", "1e400"]),
    (r#""mtu": 18446744073709551615"#, 7, &["mtu", "18446744073709551615"]),
    (r#""mtu": {}"#, 6, &["mtu", "object"]),
    (r#""hairpinMode": "on""#, 6, &["hairpinMode", "on"]),
    (r#""promiscMode": 2"#, 6, &["promiscMode", "2"]),
    (r#""vlan": -1"#, 7, &["vlan", "-1"]),
    (r#""vlan": 4095"#, 7, &["vlan", "4095"]),
    (r#""vlan": 100000"#, 7, &["vlan", "100000"]),
    (r#""vlan": "100""#, 6, &["vlan", "\"100\""]),
    (r#""vlan": 1.5"#, 6, &["vlan", "1.5"]),
    (r#""vlan": [100]"#, 6, &["vlan", "list"]),
    (r#""vlanTrunk": {}"#, 6, &["vlanTrunk", "object"]),
    (r#""vlanTrunk": 5"#, 6, &["vlanTrunk", "5"]),
    (r#""vlanTrunk": [null]"#, 7, &["vlanTrunk[0]", "null"]),
    (r#""vlanTrunk": [5]"#, 6, &["vlanTrunk[0]", "5"]),
    (r#""vlanTrunk": [[]]"#, 6, &["vlanTrunk[0]", "list"]),
    (r#""vlanTrunk": [{"id": 0}]"#, 7, &["vlanTrunk[0].id", "0"]),
    (r#""vlanTrunk": [{"id": 4095}]"#, 7, &["vlanTrunk[0].id", "4095"]),
    (r#""vlanTrunk": [{"id": -7}]"#, 7, &["vlanTrunk[0].id", "-7"]),
    (r#""vlanTrunk": [{"id": "5"}]"#, 6, &["vlanTrunk[0].id", "\"5\""]),
    (r#""vlanTrunk": [{"id": 1}, {"minID": 5}]"#, 7, &["vlanTrunk[1]", "5", "maxID"]),
    (r#""vlanTrunk": [{"maxID": 5}]"#, 7, &["vlanTrunk[0]", "5", "minID"]),
    (r#""vlanTrunk": [{"minID": 0, "maxID": 5}]"#, 7, &["vlanTrunk[0].minID", "0"]),
    (r#""vlanTrunk": [{"minID": 1, "maxID": 4095}]"#, 7, &["vlanTrunk[0].maxID", "4095"]),
    (r#""vlanTrunk": [{"minID": 9, "maxID": 5}]"#, 7, &["vlanTrunk[0]", "9", "5"]),
    (r#""vlanTrunk": [{"minID": 1.5, "maxID": 5}]"#, 6, &["vlanTrunk[0].minID", "1.5"]),
    (r#""preserveDefaultVlan": "x""#, 6, &["preserveDefaultVlan", "x"]),
    (r#""macspoofchk": 1"#, 6, &["macspoofchk", "1"]),
    (r#""enabledad": "1""#, 6, &["enabledad", "1"]),
    (r#""disableContainerInterface": []"#, 6, &["disableContainerInterface", "list"]),
    (r#""portIsolation": "false""#, 6, &["portIsolation", "false"]),
    (r#""ipam": "host-local""#, 6, &["ipam", "host-local"]),
    (r#""ipam": []"#, 6, &["ipam", "list"]),
    (r#""ipam": true"#, 6, &["ipam", "true"]),
    (r#""ipam": {"type": 5}"#, 6, &["ipam.type", "5"]),
    (r#""ipam": {"type": ["host-local"]}"#, 6, &["ipam.type", "list"]),
    (r#""ipam": {"type": "../bridge"}"#, 7, &["../bridge"]),
    (r#""ipam": {"type": "a/b"}"#, 7, &["a/b"]),
    (r#""ipam": {"type": ".."}"#, 7, &[".."]),
    (r#""ipam": {"type": "absent"}"#, 999, &["absent"]),
    (r#""dns": "1.1.1.1""#, 6, &["dns", "1.1.1.1"]),
    (r#""dns": []"#, 6, &["dns", "list"]),
    (r#""dns": {"nameservers": "1.1.1.1"}"#, 6, &["dns.nameservers", "1.1.1.1"]),
    (r#""dns": {"nameservers": [1]}"#, 6, &["dns.nameservers[0]", "1"]),
    (r#""dns": {"nameservers": [null]}"#, 6, &["dns.nameservers[0]", "null"]),
    (r#""dns": {"domain": 1}"#, 6, &["dns.domain", "1"]),
    (r#""dns": {"search": {}}"#, 6, &["dns.search", "object"]),
    (r#""dns": {"options": [true]}"#, 6, &["dns.options[0]", "true"]),
    (r#""args": "mac""#, 6, &["args", "mac"]),
    (r#""args": {"cni": 1}"#, 6, &["args.cni", "1"]),
    (r#""args": {"cni": {"mac": 1}}"#, 6, &["args.cni.mac", "1"]),
    (r#""args": {"cni": {"mac": "xx"}}"#, 7, &["args.cni.mac", "xx"]),
    (r#""args": {"cni": {"mac": "02:00:00:00:00"}}"#, 7, &["args.cni.mac", "02:00:00:00:00"]),
    (r#""runtimeConfig": []"#, 6, &["runtimeConfig", "list"]),
    (r#""runtimeConfig": {"mac": true}"#, 6, &["runtimeConfig.mac", "true"]),
    (r#""runtimeConfig": {"mac": "02:00:00:00:00:0g"}"#, 7, &["runtimeConfig.mac", "02:00:00:00:00:0g"]),
    (r#""runtimeConfig": {"mac": "02:00:00:00:00:00:00:01"}"#, 7, &["runtimeConfig.mac", "02:00:00:00:00:00:00:01"]),
    (r#""runtimeConfig": {"mac": "01:00:5e:00:00:01"}"#, 7, &["runtimeConfig.mac", "01:00:5e:00:00:01"]),
    (r#""runtimeConfig": {"mac": "ff:ff:ff:ff:ff:ff"}"#, 7, &["runtimeConfig.mac", "ff:ff:ff:ff:ff:ff"]),
    (r#""runtimeConfig": {"mac": "00:00:00:00:00:00"}"#, 7, &["runtimeConfig.mac", "00:00:00:00:00:00"]),
    (r#""cniVersion": "1.2.0""#, 1, &["1.2.0"]),
    (r#""cniVersion": "9""#, 1, &["9"]),
    (r#""cniVersion": 1"#, 6, &["cniVersion", "1"]),
    (r#""name": "../net""#, 7, &["../net"]),
    (r#""name": """#, 7, &["name"]),
    (r#""name": 5"#, 6, &["name", "5"]),
    (r#""ipMasqBackend": ["nftables"]"#, 6, &["ipMasqBackend", "list"]),
];

/// Invalid documents, the code, and texts that the message must contain.
const DOCUMENTS: &[(&str, u32, &[&str])] = &[
    ("", 6, &[]),
    ("{", 6, &[]),
    ("[]", 6, &["list"]),
    ("\"text\"", 6, &["text"]),
    ("42", 6, &["42"]),
    ("null", 7, &["name"]),
    ("{\"name\": \"n\"} x", 6, &[]),
    ("{\"name\": \"n\", \"cniVersion\": \"1.1.0\", \"mtu\": }", 6, &[]),
    ("{'name': 'n'}", 6, &[]),
    ("\u{feff}{}", 6, &[]),
];

/// Values of `CNI_ARGS`, and texts that the message must contain. An empty list marks a valid value.
const ARGS: &[(&str, &[&str])] = &[
    ("MAC", &["MAC"]),
    ("MAC=", &[]),
    ("MAC=zz", &["MAC", "zz"]),
    ("MAC=01:00:00:00:00:01", &["MAC", "01:00:00:00:00:01"]),
    ("IP=10.0.0.1", &["IP"]),
    ("MAC=02:00:00:00:00:01;", &["\"\""]),
    ("IgnoreUnknown=maybe", &["maybe"]),
    ("mac=02:00:00:00:00:01", &["mac"]),
];

/// Returns a configuration with one more key.
fn config(pair: &str) -> String {
    let mut base = layer2(json!({})).to_string();
    // The last of several equal keys is used.
    base.truncate(base.len() - 1);
    format!("{base}, {pair}}}")
}

/// Asserts that ADD, CHECK and DEL reject `bad` and do not change the host.
#[track_caller]
fn assert_rejected(pod: &Pod<'_>, bad: &str, args: &str, code: u32, names: &[&str]) {
    for command in ["ADD", "CHECK", "DEL"] {
        let outcome = pod.call(command, &layer2(json!({}))).stdin(bad).env("CNI_ARGS", args).run();
        // A DEL that can still remove the attachment reports the mistake on stderr and succeeds.
        let succeeds = command == "DEL" && outcome.status == Some(0);
        let message = if succeeds { outcome.stderr.clone() } else { outcome.error(code)["msg"].to_string() };
        for name in names {
            let escaped = name.replace('"', "\\\"");
            assert!(
                message.contains(name) || message.contains(&escaped),
                "{command} {bad} {args}: no {name:?} in {message}"
            );
        }
    }
    assert_eq!(pod.lab.sh("ip -o link | wc -l; nft list ruleset; sysctl -n net.ipv4.ip_forward"), "1\n0\n", "{bad}");
    assert_eq!(pod.sh("ip -o link | wc -l"), "1\n", "{bad}");
}

#[test]
fn there_are_a_hundred_cases() {
    assert!(VALUES.len() + DOCUMENTS.len() + ARGS.len() >= 100);
}

#[test]
fn bad_values_are_rejected() {
    let lab = &Lab::new();
    let pod = Pod::with_ips(lab, "a", &[]);
    for (pair, code, names) in VALUES {
        assert_rejected(&pod, &config(pair), "", *code, names);
    }
}

#[test]
fn bad_documents_are_rejected() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    for (document, code, names) in DOCUMENTS {
        assert_rejected(&pod, document, "", *code, names);
    }
}

#[test]
fn bad_arguments_are_rejected() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    for (args, names) in ARGS.iter().filter(|(_, names)| !names.is_empty()) {
        assert_rejected(&pod, &layer2(json!({})).to_string(), args, 4, names);
    }
}

#[test]
fn del_removes_everything_despite_bad_values() {
    let lab = &Lab::new();
    let good = layer3(json!({ "ipMasq": true, "isGateway": true }));
    for (n, bad) in [
        r#""mtu": 99999"#,
        r#""mtu": "x""#,
        r#""ipMasqBackend": "x""#,
        r#""vlan": 5000"#,
        r#""runtimeConfig": {"mac": "zz"}"#,
        r#""bridge": "a/b""#,
    ]
    .iter()
    .enumerate()
    {
        let pod = Pod::with_ips(lab, &format!("c{n}"), &["10.1.0.2/24"]);
        pod.add(&good);
        let mut text = good.to_string();
        text.truncate(text.len() - 1);
        let outcome = pod.call("DEL", &good).stdin(format!("{text}, {bad}}}")).run();
        outcome.ok();
        let key = bad.split('"').nth(1).unwrap();
        assert!(outcome.stderr.starts_with("warning: [") && outcome.stderr.contains(key), "{bad}: {outcome:?}");
        assert_eq!(lab.sh("ip -o link show type veth"), "", "{bad}");
        assert_eq!(pod.sh("ip -o link | wc -l"), "1\n", "{bad}");
        assert!(!lab.sh("nft list ruleset").contains(&format!("c{n}")), "{bad}");
        assert_eq!(Scripted::of(lab).calls().last().unwrap(), &format!("DEL c{n} eth0"), "{bad}");
    }
}

#[test]
fn add_rejects_contradictions_and_del_ignores_them() {
    let lab = &Lab::new();
    for (id, (more, names)) in [
        (json!({ "hairpinMode": true, "promiscMode": true }), ["hairpinMode", "promiscMode"]),
        (
            json!({ "disableContainerInterface": true, "ipam": { "type": "scripted" } }),
            ["disableContainerInterface", "scripted"],
        ),
        (
            json!({ "bridge": "twelve-bytes", "vlan": 4000, "isGateway": true, "ipam": { "type": "scripted" } }),
            ["bridge", "twelve-bytes.4000"],
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let pod = Pod::with_ips(lab, &format!("c{id}"), &[]);
        let config = layer2(more);
        let error = pod.call("ADD", &config).run().error(7);
        for name in names {
            assert!(error["msg"].as_str().unwrap().contains(name), "{error}");
        }
        pod.del(&config);
    }
    assert_eq!(lab.sh("ip -o link | wc -l"), "1\n");
}

#[test]
fn add_rejects_a_bad_namespace_and_del_ignores_it() {
    let lab = &Lab::new();
    let mut pod = Pod::new(lab, "a");
    for path in ["/nowhere", "/etc/passwd", "/proc/self/ns/mnt"] {
        pod.netns = path.into();
        let error = pod.call("ADD", &layer2(json!({}))).run().error(8);
        assert!(error["msg"].as_str().unwrap().contains(path), "{error}");
        pod.del(&layer2(json!({})));
    }
    assert_eq!(lab.sh("ip -o link | wc -l"), "1\n");
}

#[test]
fn errors_of_host_local_are_found_before_any_change() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    let config = |subnet: &str, resolv: &str| {
        layer3(json!({ "ipam": { "type": "host-local", "ranges": [[{ "subnet": subnet }]], "resolvConf": resolv } }))
    };
    let assert_rejected = |wrong: [(&str, &str, u32); 2]| {
        for (subnet, resolv, code) in wrong {
            let outcome = pod.call("ADD", &config(subnet, resolv)).env("CNI_LOG", "debug").run();
            outcome.error(code);
            assert!(!outcome.stderr.contains("create"), "{}", outcome.stderr);
        }
    };
    let wrong = [("10.1.0.1/24", "", 7), ("10.1.0.0/24", "/dev/null", 7)];
    assert_rejected(wrong);
    assert_eq!(lab.ip("link show type bridge"), json!([]));
    Pod::new(lab, "b").add(&config("10.1.0.0/24", ""));
    assert_rejected(wrong);
}
