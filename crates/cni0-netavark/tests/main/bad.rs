//! Bad input: one error as netavark expects it, and nothing is changed.

use serde_json::{Value, json};
use testing::Lab;

use crate::support::{Container, assert_clean, call, failure, network, with};

#[test]
fn the_program_describes_itself() {
    for command in ["info", ""] {
        let info = call(command).run().ok();
        assert_eq!(info, json!({"version": env!("CARGO_PKG_VERSION"), "api_version": "1.0.0"}));
    }
    let help = call("--help").run();
    assert!(help.status == Some(0) && help.stdout.contains("podman network create --driver cni0"), "{help:?}");
    assert!(help.stdout.lines().all(|line| line.len() <= 80));
}

#[test]
fn a_wrong_command_line_is_explained() {
    assert_eq!(failure(&call("remove").run()), "unknown command \"remove\" (use create, setup, teardown or info)");
    for command in ["setup", "teardown"] {
        assert!(failure(&call(command).stdin("{}").run()).contains("the path of the namespace is missing"));
    }
}

#[test]
fn invalid_json_is_refused_by_every_command() {
    let lab = &Lab::without_plugins();
    for command in ["create", "setup", "teardown"] {
        for text in
            ["", "{", "[]", "5", "null", r#"{"network": 5}"#, r#"{"name": 5}"#, "{\"name\": \"a\", }", "\0\u{1}"]
        {
            let error = failure(&call(command).arg("/run/netns/x").stdin(text).run());
            assert!(error.contains("read stdin"), "{command} {text:?}: {error}");
        }
    }
    assert_clean(lab);
}

#[test]
fn an_invalid_setup_changes_nothing_and_its_teardown_succeeds() {
    let lab = &Lab::without_plugins();
    let a = Container::new(lab, 2);
    let port = |host: u32, range: u32| json!([{"host_ip": "", "host_port": host, "container_port": 80, "protocol": "tcp", "range": range}]);
    let input = a.input(&network(1), "eth0");
    let net = |other: Value| with(input.clone(), &json!({"network": with(network(1), &other)}));
    let own =
        |other: Value| with(input.clone(), &json!({"network_options": with(input["network_options"].clone(), &other)}));
    for (wrong, message) in [
        (net(json!({"options": {"mtu": "1"}})), "mtu"),
        (net(json!({"options": {"vrf": "red"}})), r#"unknown option "vrf""#),
        (net(json!({"ipam_options": {"driver": "dhcp"}})), "dhcp"),
        (net(json!({"routes": [{"destination": "10.9.0.0/16", "route_type": "prohibit"}]})), "prohibit"),
        (own(json!({"static_ips": ["10.9.0.2", "fd01::2"]})), "address 10.9.0.2 is in no subnet"),
        (own(json!({"static_ips": ["10.1.0.2"]})), "no address of subnet fd01::/64"),
        (own(json!({"static_ips": null})), "no address of subnet 10.1.0.0/24"),
        (own(json!({"static_mac": "zz"})), "zz"),
        (own(json!({"options": {"host_interface_name": "x"}})), r#"option "host_interface_name" of the container"#),
        (with(input.clone(), &json!({"port_mappings": port(65535, 2)})), "ends above 65535"),
        (with(input.clone(), &json!({"port_mappings": port(0, 1)})), "Invalid host port number: 0"),
    ] {
        let error = failure(&a.call("setup", &wrong).run());
        assert!(error.contains(message), "{error}");
        assert_clean(lab);
        // It may warn of the same mistake.
        assert_eq!(a.call("teardown", &wrong).run().ok(), Value::Null);
    }
    for name in ["", "a/b", "a-name-of-16-byte"] {
        let error = failure(&a.call("setup", &own(json!({"interface_name": name}))).run());
        assert!(!error.is_empty());
    }
    let error = failure(&call("setup").arg("/run/netns/none").stdin(input.to_string()).run());
    assert!(error.contains("/run/netns/none"), "{error}");
    assert_clean(lab);
}
