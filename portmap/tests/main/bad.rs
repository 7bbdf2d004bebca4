//! Bad configurations: everything is validated before anything changes, and each error names the place.

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod};

use crate::support::{assert_clean, config, published, table};

/// Returns a configuration with one port that has the keys of `more`.
fn mapping(more: Value) -> Value {
    let port = with(json!({ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }), more);
    with(
        config(&[]),
        json!({ "runtimeConfig": { "portMappings": [{ "hostPort": 1, "containerPort": 1, "protocol": "udp" }, port] } }),
    )
}

#[test]
fn invalid_values_are_rejected_before_anything_changes() {
    let lab = &Lab::new();
    let pod = Pod::with_port(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
    let key = |key: &str, value: Value| with(mapping(json!({})), json!({ key: value }));
    let place = |name: &str| format!("runtimeConfig.portMappings[1].{name}");
    let port = |key: &str, value: Value| mapping(json!({ key: value }));
    for (config, code, texts) in [
        (port("hostPort", json!(0)), 7, [place("hostPort"), "Invalid host port number: 0".into()]),
        (port("hostPort", json!(-1)), 7, [place("hostPort"), "Invalid host port number: -1".into()]),
        (port("hostPort", json!(65536)), 7, [place("hostPort"), "Invalid host port number: 65536".into()]),
        (port("hostPort", Value::Null), 7, [place("hostPort"), "Invalid host port number: 0".into()]),
        (port("containerPort", json!(0)), 7, [place("containerPort"), "Invalid container port number: 0".into()]),
        (port("containerPort", json!(70000)), 7, [place("containerPort"), "number: 70000".into()]),
        (port("hostPort", json!("80")), 6, [place("hostPort"), "\"80\"".into()]),
        (port("protocol", json!("")), 7, [place("protocol"), "unknown protocol \"\" specified".into()]),
        (port("protocol", json!("icmp")), 7, [place("protocol"), "unknown protocol \"icmp\" specified".into()]),
        (port("protocol", json!("tcp; flush ruleset")), 7, [place("protocol"), "flush".into()]),
        (port("hostIP", json!("foo")), 7, [place("hostIP"), "foo".into()]),
        (port("hostIP", json!("10.9.0.1/24")), 7, [place("hostIP"), "10.9.0.1/24".into()]),
        (port("hostIP", json!("fe80::1%eth0")), 7, [place("hostIP"), "fe80::1%eth0".into()]),
        (key("backend", json!("foo")), 7, ["backend".into(), "unrecognized backend \"foo\"".into()]),
        (key("markMasqBit", json!(32)), 7, ["markMasqBit".into(), "32".into()]),
        (key("markMasqBit", json!(-1)), 7, ["markMasqBit".into(), "-1".into()]),
        (key("snat", json!("yes")), 6, ["snat".into(), "yes".into()]),
        (key("conditionsV4", json!(["-m", "state"])), 7, ["conditionsV4[0]".into(), "\"-m\" is not supported".into()]),
        (key("conditionsV4", json!(["-s", "10.0.0.0/8", "-p", "tcp"])), 7, ["conditionsV4[2]".into(), "-p".into()]),
        (
            key("conditionsV6", json!(["-s", "10.0.0.0/8"])),
            7,
            ["conditionsV6[1]".into(), "other address family".into()],
        ),
        (key("conditionsV4", json!(["ip saddr @blocked"])), 7, ["conditionsV4".into(), "@blocked".into()]),
        (key("conditionsV4", json!(["a; flush ruleset"])), 7, ["conditionsV4".into(), "not supported".into()]),
        (key("conditionsV4", json!("-s 10.0.0.0/8")), 6, ["conditionsV4".into(), "-s 10.0.0.0/8".into()]),
        (key("externalSetMarkChain", json!("two words")), 7, ["externalSetMarkChain".into(), "two words".into()]),
    ] {
        for command in ["ADD", "CHECK"] {
            let error = pod.call(command, &config).run().error(code);
            for text in &texts {
                assert!(error["msg"].as_str().unwrap().contains(text.as_str()), "{text}: {error}");
            }
        }
        assert_eq!(table(lab), "", "{config}");
        pod.del(&config);
    }
    // Nor does a bad repetition change what exists.
    pod.add(&config(&["8080:80/tcp"]));
    let before = table(lab);
    pod.call("ADD", &port("hostPort", json!(0))).run().error(7);
    pod.call("ADD", &with(config(&["81:81/tcp"]), json!({ "prevResult": null }))).run().error(7);
    assert_eq!(table(lab), before);
}

/// The texts of the reference, which users may search for.
#[test]
fn options_of_another_backend_are_rejected() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "a", &["10.1.0.2/24"]);
    let (iptables, nftables) = (json!(["-s", "10.0.0.0/8"]), json!(["ip saddr 10.0.0.0/8"]));
    let (iptables6, nftables6) = (json!(["!", "-s", "fd00::/8"]), json!(["ip6 saddr fd00::/8"]));
    for (more, text) in [
        (
            json!({ "backend": "nftables", "externalSetMarkChain": "MARK", "conditionsV4": iptables, "conditionsV6": iptables6 }),
            "nftables backend was requested but configuration contains iptables-specific options \
             [externalSetMarkChain conditionsV4 conditionsV6]",
        ),
        (
            json!({ "backend": "nftables", "externalSetMarkChain": "MARK" }),
            "nftables backend was requested but configuration contains iptables-specific options [externalSetMarkChain]",
        ),
        (
            json!({ "backend": "iptables", "conditionsV4": nftables, "conditionsV6": nftables6 }),
            "iptables backend was requested but configuration contains nftables-specific options \
             [conditionsV4 conditionsV6]",
        ),
        (
            json!({ "externalSetMarkChain": "MARK", "markMasqBit": 5 }),
            "Cannot specify externalSetMarkChain and markMasqBit",
        ),
    ] {
        let error = pod.call("ADD", &with(config(&["8080:80/tcp"]), more)).run().error(7);
        assert_eq!(error["msg"].as_str().unwrap(), text);
    }
    // Without a backend, either spelling is understood, and options for marks have no meaning.
    for more in [
        json!({ "conditionsV4": iptables }),
        json!({ "conditionsV4": nftables }),
        json!({ "externalSetMarkChain": "MARK" }),
        json!({ "markMasqBit": 5 }),
        json!({ "backend": "" }),
        json!({ "backend": null, "conditionsV4": null, "markMasqBit": null, "externalSetMarkChain": "" }),
        json!({ "backend": "nftables", "conditionsV4": nftables, "markMasqBit": 31 }),
    ] {
        let config = with(config(&["8080:80/tcp"]), more);
        pod.add(&config);
        pod.del(&config);
    }
}

#[test]
fn a_port_twice_in_one_list_is_rejected() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
    for ports in [
        &["8080:80/tcp", "8080:80/tcp"][..],
        &["8080:80/tcp", "8081:80/tcp", "8080:81/tcp"],
        &["8080:80/tcp", "0.0.0.0 8080:80/tcp"],
        &[":: 8080:80/tcp", "8080:80/tcp"],
        &["10.0.0.1 8080:80/tcp", "10.0.0.1 8080:81/tcp"],
        &["10.0.0.1 8080:80/tcp", "::ffff:10.0.0.1 8080:81/tcp"],
    ] {
        let error = pod.call("ADD", &config(ports)).run().error(7);
        let place = format!("runtimeConfig.portMappings[{}].hostPort", ports.len() - 1);
        let text = error["msg"].as_str().unwrap();
        assert!(text.contains(&place) && text.contains("tcp port 8080 is already in element 0"), "{error}");
        assert_eq!(table(lab), "");
    }
    let different = [
        "8080:80/tcp",
        "8080:80/udp",
        "8080:80/sctp",
        "10.0.0.1 8080:80/tcp",
        "10.0.0.2 8080:80/tcp",
        "fd01::1 8080:80/tcp",
        "0.0.0.0 8081:80/tcp",
        ":: 8081:81/tcp",
    ];
    pod.add(&config(&different));
    assert_eq!(published(lab).len(), 11, "{:#?}", published(lab));
    pod.check(&config(&different)).ok();
}

#[test]
fn spellings_of_values() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "a", &["10.1.0.2/24"]);
    for (more, want) in [
        (json!({ "protocol": "TCP" }), "tcp 8080 to 10.1.0.2 80"),
        (json!({ "protocol": "Udp" }), "udp 8080 to 10.1.0.2 80"),
        (json!({ "protocol": "dccp" }), "dccp 8080 to 10.1.0.2 80"),
        (json!({ "hostIP": "" }), "tcp 8080 to 10.1.0.2 80"),
        (json!({ "hostIP": null }), "tcp 8080 to 10.1.0.2 80"),
        (json!({ "hostIP": "::ffff:10.9.0.1" }), "10.9.0.1 tcp 8080 to 10.1.0.2 80"),
        (json!({ "hostIP": "::ffff:0.0.0.0" }), "tcp 8080 to 10.1.0.2 80"),
        (json!({ "hostPort": 65535, "containerPort": 65535 }), "tcp 65535 to 10.1.0.2 65535"),
        (json!({ "unknown": 1 }), "tcp 8080 to 10.1.0.2 80"),
    ] {
        let config = mapping(more.clone());
        pod.add(&config);
        let found = published(lab);
        assert!(found.iter().any(|line| line.starts_with(&format!("{want} ("))), "{more}: {found:?}");
        pod.del(&config);
        assert_clean(lab);
    }
    // Keys match in any letter case, as in the reference.
    let ports =
        json!({ "PORTMAPPINGS": [{ "HostPort": 8080, "containerport": 80, "Protocol": "tcp", "hostip": "10.0.0.1" }] });
    pod.add(&with(config(&[]), json!({ "RuntimeConfig": ports, "runtimeConfig": null })));
    assert_eq!(published(lab).len(), 1, "{:?}", published(lab));
}

#[test]
fn a_previous_result_is_required() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "a", &[]);
    for ports in [&[][..], &["8080:80/tcp"]] {
        let config = with(config(ports), json!({ "prevResult": null }));
        for command in ["ADD", "CHECK"] {
            let error = pod.call(command, &config).run().error(7);
            assert!(error["msg"].as_str().unwrap().contains("must be called as chained plugin"), "{error}");
        }
    }
}
