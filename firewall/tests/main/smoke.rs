//! One attachment from ADD to DEL.

use serde_json::json;
use testing::{Lab, Pod};

use crate::support::{ADMIN, MARKED, config, containers, isolated, rules};

#[test]
fn rules_are_added_checked_and_removed() {
    let lab = Lab::new();
    let pod = Pod::absent(&lab, "c1", &["10.9.0.2/24", "fd00::2/64"]);
    let config = config(json!({}));
    for _ in 0..2 {
        assert_eq!(pod.add(&config), pod.result("1.1.0"));
        assert_eq!(containers(&lab), ["10.9.0.2", "fd00::2"]);
        for tool in ["iptables", "ip6tables"] {
            assert_eq!(
                rules(&lab, tool, "FORWARD"),
                ["-m comment --comment \"CNI firewall plugin rules\" -j CNI-FORWARD"]
            );
            assert_eq!(rules(&lab, tool, "CNI-FORWARD"), [ADMIN, MARKED]);
            assert_eq!(rules(&lab, tool, "CNI-ADMIN"), [] as [&str; 0]);
        }
        pod.check(&config).ok();
    }
    for _ in 0..2 {
        pod.del(&config);
        assert_eq!(containers(&lab), [] as [&str; 0]);
    }
    let error = pod.check(&config).error(999);
    assert!(error["msg"].as_str().unwrap().ends_with("in chain CNI-FORWARD does not exist"), "{error:?}");
}

/// As in a list of plugins, of which `bridge` is the first.
#[test]
fn the_result_of_bridge_is_accepted_in_each_version() {
    let lab = &Lab::new();
    for version in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let network = json!({
            "cniVersion": version, "name": "net1", "type": "bridge", "bridge": "br0", "isGateway": true,
            "ipam": { "type": "host-local", "subnet": "10.9.0.0/24" },
        });
        let pod = Pod::attached(lab, &format!("c{version}"), &network);
        let config = config(json!({ "cniVersion": version, "ingressPolicy": "isolated" }));
        assert_eq!(pod.add(&config), pod.result(version));
        let (ip, _) = pod.ips[0].split_once('/').unwrap();
        assert_eq!(containers(lab), [ip]);
        assert_eq!(isolated(lab), [pod.port.as_str()]);
        pod.call("DEL", &config).run().silent();
        assert_eq!(isolated(lab), [] as [&str; 0]);
        assert_eq!(containers(lab), [] as [&str; 0]);
        pod.del(&network);
    }
}

#[test]
fn policies_have_the_rules_of_the_reference() {
    let lab = Lab::new();
    let pod = Pod::on_bridge(&lab, "br0", "c1", &["10.9.0.2/24"]);
    let config = config(json!({ "ingressPolicy": "isolated" }));
    let comment =
        |policy: &str| format!("-m comment --comment \"CNI firewall plugin rules (ingressPolicy: {policy})\"");
    let shared = comment("same-bridge|isolated");
    for _ in 0..2 {
        pod.add(&config);
        assert_eq!(
            rules(&lab, "iptables", "FORWARD"),
            [
                format!("{shared} -j CNI-ISOLATION-STAGE-1"),
                "-m comment --comment \"CNI firewall plugin rules\" -j CNI-FORWARD".to_owned()
            ]
        );
        assert_eq!(
            rules(&lab, "iptables", "CNI-ISOLATION-STAGE-1"),
            [
                "-m conntrack --ctstate DNAT -j RETURN".to_owned(),
                format!("-i br0 -o br0 {} -j DROP", comment("isolated")),
                format!("-i br0 ! -o br0 {} -j CNI-ISOLATION-STAGE-2", comment("isolated")),
                format!("{shared} -j RETURN"),
            ]
        );
        assert_eq!(
            rules(&lab, "iptables", "CNI-ISOLATION-STAGE-2"),
            [format!("-o br0 {shared} -j DROP"), format!("{shared} -j RETURN")]
        );
        assert_eq!(isolated(&lab), ["vethc1"]);
        let settings = lab.ip("-d link show vethc1")[0]["linkinfo"]["info_slave_data"].clone();
        assert_eq!(settings["isolated"], json!(false), "it belongs to the key portIsolation of bridge");
        pod.check(&config).ok();
    }
}
