use serde_json::{Value, json};
use testing::document;

use super::*;

fn parse_with(keys: Value, args: &'static str) -> Result<Config> {
    let mut config = json!({ "cniVersion": "1.1.0", "name": "pods", "type": "tuning" });
    config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    parse_text(&config.to_string(), args)
}

fn parse_text(config: &str, args: &'static str) -> Result<Config> {
    let mut call = Call::for_config(config)?;
    call.args = args;
    Config::parse(&call, None)
}

fn parse(keys: Value) -> Result<Config> {
    parse_with(keys, "")
}

#[track_caller]
fn refused(keys: Value, parts: &[&str]) -> Error {
    let error = parse(keys.clone()).err().unwrap_or_else(|| panic!("{keys} is accepted"));
    for part in parts {
        assert!(error.to_string().contains(part), "{keys}: {error}");
    }
    assert!(!error.details_text().is_empty(), "{error:?}");
    error
}

#[test]
fn the_keys_are_described() {
    document::describes("tuning", &shape().keys());
}

#[test]
fn nothing_is_changed_by_default() {
    for keys in [
        json!({}),
        json!({"sysctl": {}, "mac": "", "promisc": false, "mtu": 0, "args": {"cni": {"promisc": false, "mtu": 0}}}),
        json!({"sysctl": null, "mac": null, "txQLen": null, "allmulti": null, "args": null, "runtimeConfig": null}),
    ] {
        let config = parse(keys).unwrap();
        assert!(config.is_empty(), "{config:?}");
        assert_eq!(config.data_dir, Path::new(DATA_DIR));
    }
}

#[test]
fn every_attribute_is_read() {
    let config =
        parse(json!({"mac": "C2:11:22:33:44:55", "promisc": true, "mtu": 1400, "txQLen": 0, "allmulti": false}));
    let wanted = Attributes {
        mac: Some(MacAddr([0xc2, 0x11, 0x22, 0x33, 0x44, 0x55])),
        promiscuous: Some(true),
        mtu: Some(1400),
        all_multicast: Some(false),
        tx_queue: Some(0),
    };
    assert_eq!(config.unwrap().attributes, wanted);
}

#[test]
fn arguments_override_the_network() {
    let config = parse(json!({
        "mtu": 1400, "txQLen": 1, "allmulti": true, "sysctl": {"net.core.somaxconn": "1", "net.ipv4.tcp_fin_timeout": "2"},
        "args": {"cni": {
            "mtu": 1300, "txQLen": 2, "allmulti": false, "promisc": true,
            "sysctl": {"net.ipv4.ip_forward": "3", "net/core/somaxconn": "4"},
        }},
    }))
    .unwrap();
    let Attributes { promiscuous, mtu, all_multicast, tx_queue, .. } = config.attributes;
    assert_eq!((promiscuous, mtu, all_multicast, tx_queue), (Some(true), Some(1300), Some(false), Some(2)));
    let sysctls: Vec<String> = config.sysctls.iter().map(|sysctl| format!("{}={}", sysctl.key, sysctl.value)).collect();
    assert_eq!(sysctls, ["net.core.somaxconn=4", "net.ipv4.tcp_fin_timeout=2", "net.ipv4.ip_forward=3"]);
    let only_args = json!({"args": {"cni": {"sysctl": {"net.core.somaxconn": "9"}}}});
    assert_eq!(parse(only_args).unwrap().sysctls.len(), 1, "without `sysctl`, which makes the reference panic");
}

#[test]
fn arguments_can_override_with_unchanged() {
    let keys = json!({
        "mac": "02:00:00:00:00:01", "promisc": true, "mtu": 1400, "runtimeConfig": {"mac": "02:00:00:00:00:02"},
        "args": {"cni": {"mac": "", "promisc": false, "mtu": 0}},
    });
    let config = parse_with(keys, "MAC=02:00:00:00:00:03").unwrap();
    assert!(config.is_empty(), "{config:?}");
    let nulls = json!({"promisc": true, "mtu": 1400, "args": {"cni": {"mac": null, "promisc": null, "mtu": null}}});
    let Attributes { promiscuous, mtu, .. } = parse(nulls).unwrap().attributes;
    assert_eq!((promiscuous, mtu), (Some(true), Some(1400)));
}

#[test]
fn the_sources_of_the_mac_address_have_a_precedence() {
    let mac = |n: u8| format!("02:00:00:00:00:0{n}");
    let all = json!({"mac": mac(1), "runtimeConfig": {"mac": mac(3)}, "args": {"cni": {"mac": mac(4)}}});
    let args = "MAC=02:00:00:00:00:02";
    let chosen = |keys: &Value| parse_with(keys.clone(), args).unwrap().attributes.mac.unwrap().0[5];
    assert_eq!(chosen(&all), 4);
    let mut fewer = all;
    fewer["args"] = json!({});
    assert_eq!(chosen(&fewer), 3);
    fewer["runtimeConfig"] = json!({});
    assert_eq!(chosen(&fewer), 2);
    assert_eq!(parse(fewer).unwrap().attributes.mac.unwrap().0[5], 1);
    assert_eq!(parse_with(json!({}), "FOO=1").unwrap_err().code(), Code::ENVIRONMENT);
    assert!(parse_with(json!({}), "FOO=1;IgnoreUnknown=1").unwrap().is_empty());
}

#[test]
fn sysctls_keep_their_order() {
    let text = r#"{"cniVersion": "1.1.0", "name": "n", "sysctl": {"net.z.a": "1", "net.a.z": "2", "net.m.m": "3"}}"#;
    let keys: Vec<String> = parse_text(text, "").unwrap().sysctls.iter().map(|sysctl| sysctl.key.to_string()).collect();
    assert_eq!(keys, ["net.z.a", "net.a.z", "net.m.m"]);
}

#[test]
fn duplicates_are_refused() {
    for members in [
        r#""net.core.somaxconn": "1", "net.core.somaxconn": "1""#,
        r#""net.core.somaxconn": "1", "net/core/somaxconn": "2""#,
        r#""net/ipv4/conf/a.b/x": "1", "net.ipv4.conf.a/b.x": "1""#,
    ] {
        for (text, key) in [
            (format!(r#"{{"cniVersion": "1.1.0", "name": "n", "sysctl": {{{members}}}}}"#), "\"sysctl\""),
            (
                format!(r#"{{"cniVersion": "1.1.0", "name": "n", "args": {{"cni": {{"sysctl": {{{members}}}}}}}}}"#),
                "\"args.cni.sysctl\"",
            ),
        ] {
            let error = parse_text(&text, "").unwrap_err();
            assert_eq!(error.code(), Code::CONFIG);
            assert!(error.to_string().contains("duplicated") && error.to_string().contains(key), "{error}");
        }
    }
}

#[test]
fn values_must_be_texts() {
    for (value, written) in [(json!(128), "\"128\""), (json!(true), "\"true\""), (json!(null), "\"null\"")] {
        let error = refused(json!({"sysctl": {"net.core.somaxconn": value}}), &["sysctl.net.core.somaxconn"]);
        assert_eq!(error.code(), Code::DECODE);
        assert!(error.details_text().contains(written), "{error:?}");
    }
}

#[test]
fn invalid_values_are_refused() {
    for (keys, parts) in [
        (json!({"mtu": -1}), ["\"mtu\"", "-1"]),
        (json!({"mtu": 1_i64 << 31}), ["\"mtu\"", "2147483648"]),
        (json!({"args": {"cni": {"mtu": -7}}}), ["\"args.cni.mtu\"", "-7"]),
        (json!({"txQLen": -1}), ["\"txQLen\"", "-1"]),
        (json!({"txQLen": 1_i64 << 32}), ["\"txQLen\"", "4294967296"]),
        (json!({"args": {"cni": {"txQLen": -1}}}), ["\"args.cni.txQLen\"", "-1"]),
        (json!({"mac": "xx"}), ["\"mac\"", "xx"]),
        (json!({"mac": "00:00:00:00:00:00"}), ["\"mac\"", "all zeros"]),
        (json!({"mac": "01:00:5e:00:00:01"}), ["\"mac\"", "multicast"]),
        (json!({"mac": "02:00:00:00:00:00:00:01"}), ["\"mac\"", "02:00:00:00:00:00:00:01"]),
        (json!({"runtimeConfig": {"mac": "x"}}), ["\"runtimeConfig.mac\"", "x"]),
        (json!({"args": {"cni": {"mac": "x"}}}), ["\"args.cni.mac\"", "x"]),
        (json!({"dataDir": "run"}), ["\"dataDir\"", "absolute"]),
        (json!({"dataDir": "/a\u{0}"}), ["\"dataDir\"", "valid path"]),
        (json!({"sysctl": {"kernel.domainname": "x"}}), ["\"sysctl\"", "kernel.domainname"]),
        (json!({"sysctl": {"net/../kernel/x": "x"}}), ["\"sysctl\"", "net/../kernel/x"]),
    ] {
        assert_eq!(refused(keys, &parts).code(), Code::CONFIG);
    }
}

#[test]
fn del_reads_only_the_directory() {
    for (keys, wanted) in [
        (json!({"dataDir": "/tmp/x", "mtu": "garbage", "sysctl": 5}), "/tmp/x"),
        (json!({"dataDir": 5}), DATA_DIR),
        (json!({"dataDir": "relative"}), DATA_DIR),
    ] {
        let mut config = json!({ "cniVersion": "1.1.0", "name": "pods" });
        config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        assert_eq!(data_dir(&Call::for_config(&config.to_string()).unwrap()), Path::new(wanted));
    }
}
