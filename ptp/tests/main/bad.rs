//! Invalid input: one error with the right code that names the key and the value, and no change to the host.

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod};

use crate::{assert_clean, dual_stack, scripted};

/// Key and value as JSON, the code, and texts that the message must contain.
const VALUES: &[(&str, u32, &[&str])] = &[
    (r#""ipMasq": "no""#, 6, &["ipMasq", "no"]),
    (r#""ipMasqBackend": "ipfw""#, 7, &["ipMasqBackend", "ipfw"]),
    (r#""ipMasqBackend": """#, 7, &["ipMasqBackend", "\"\""]),
    (r#""ipMasqBackend": true"#, 6, &["ipMasqBackend", "true"]),
    (r#""ipMasqExclude": "10.0.0.0/8""#, 6, &["ipMasqExclude", "10.0.0.0/8"]),
    (r#""ipMasqExclude": ["fd00::/8", "10.244.1.1/24"]"#, 7, &["ipMasqExclude[1]", "10.244.1.1/24", "host bits"]),
    (r#""linkLocalGateway": "yes""#, 6, &["linkLocalGateway", "yes"]),
    (r#""linkLocalGateway": 1"#, 6, &["linkLocalGateway", "1"]),
    (r#""mtu": "1500""#, 6, &["mtu", "\"1500\""]),
    (r#""mtu": 67"#, 7, &["mtu", "67"]),
    (r#""mtu": 65536"#, 7, &["mtu", "65536"]),
    (r#""mtu": 1279"#, 7, &["mtu", "1279", "fd01::"]),
    (r#""ipam": "host-local""#, 6, &["ipam", "host-local"]),
    (r#""ipam": {"type": 5}"#, 6, &["ipam.type", "5"]),
    (r#""ipam": {"type": "../bridge"}"#, 7, &["../bridge"]),
    (r#""ipam": {"type": "absent"}"#, 999, &["absent"]),
    (r#""dns": []"#, 6, &["dns", "list"]),
    (r#""dns": {"nameservers": [1]}"#, 6, &["dns.nameservers[0]", "1"]),
    (r#""args": {"cni": {"mac": "xx"}}"#, 7, &["args.cni.mac", "xx"]),
    (r#""runtimeConfig": {"mac": "01:00:5e:00:00:01"}"#, 7, &["runtimeConfig.mac", "01:00:5e:00:00:01"]),
    (r#""runtimeConfig": {"mac": true}"#, 6, &["runtimeConfig.mac", "true"]),
    (r#""cniVersion": "1.2.0""#, 1, &["1.2.0"]),
    (r#""name": "../net""#, 7, &["../net"]),
];

#[test]
fn bad_values_are_reported_and_nothing_changes() {
    let lab = &Lab::new();
    for (index, (value, code, texts)) in VALUES.iter().enumerate() {
        let pod = Pod::new(lab, &format!("c{index}"));
        let more: Value = serde_json::from_str(&format!("{{{value}}}")).unwrap();
        let error = pod.call("ADD", &with(dual_stack(json!({})), more)).run().error(*code);
        let msg = error["msg"].as_str().unwrap();
        assert!(texts.iter().all(|text| msg.contains(text)), "{value}: {msg}");
        assert!(!pod.sh("ip -o link").contains("eth0"), "{value}");
    }
    assert_clean(lab);
}

/// DEL needs none of these values.
#[test]
fn a_mistake_does_not_prevent_del() {
    let lab = &Lab::new();
    for more in [json!({ "ipMasqBackend": "ipfw" }), json!({ "mtu": 67 }), json!({ "runtimeConfig": { "mac": "xx" } })]
    {
        let pod = Pod::new(lab, "a");
        pod.add(&dual_stack(json!({ "ipMasq": true })));
        pod.del(&dual_stack(more));
        assert_clean(lab);
        lab.sh("ip netns del a");
    }
}

#[test]
fn unusable_addresses_are_rolled_back() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    for (answer, text) in [
        (json!({}), "returned no address"),
        (json!({ "ips": [{ "address": "10.1.0.2/24", "gateway": "fd01::1" }] }), "one is IPv4, the other IPv6"),
        (
            json!({ "ips": [{ "address": "10.1.0.2/24", "gateway": "10.1.0.1" }],
                    "routes": [{ "dst": "10.9.0.0/16", "gw": "10.8.0.1" }] }),
            "add route to 10.9.0.0/16 via 10.8.0.1",
        ),
    ] {
        pod.answer(answer);
        let error = pod.call("ADD", &scripted(json!({ "ipMasq": true }))).run().error(999);
        assert!(error["msg"].as_str().unwrap().contains(text), "{text}: {error}");
        assert_clean(lab);
    }
}
