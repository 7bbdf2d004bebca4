//! Bad input changes nothing.

use serde_json::json;
use testing::Pod;

use crate::{assert_given_back, config, ipam, lab};
use testing::config::with;

#[test]
fn bad_keys_change_nothing() {
    let lab = &lab();
    let pod = Pod::new(lab, "a");
    let none = r#"specify either "device", "hwaddr", "kernelpath" or "pciBusID""#;
    for (keys, code, text) in [
        (json!({ "device": "" }), 7, none),
        (json!({ "device": "nope" }), 999, "failed to find host device: Link not found: \"device\" \"nope\""),
        (json!({ "device": "a/b" }), 7, "device"),
        (json!({ "device": "", "hwaddr": "x" }), 7, "failed to parse MAC address \"x\""),
        (json!({ "device": "", "hwaddr": "02:00:00:00:00:99" }), 999, "failed to find host device: Link not found"),
        (json!({ "device": "", "kernelpath": "devices" }), 7, "must be absolute and begin with /sys/devices/"),
        (
            json!({ "device": "", "kernelpath": "/sys/devices/../x" }),
            7,
            "must be absolute and begin with /sys/devices/",
        ),
        (json!({ "device": "", "kernelpath": "/sys/devices/nope" }), 999, "the hardware does not exist"),
        (json!({ "device": "", "pciBusID": "../../x" }), 7, "pciBusID"),
        (json!({ "device": "", "pciBusID": "0000:00:99.0" }), 999, "0000:00:99.0"),
        (json!({ "device": "", "runtimeConfig": { "deviceID": "a/b" } }), 7, "not found or unsupported"),
        (json!({ "device": "", "runtimeConfig": { "deviceID": "x.sf.1" } }), 999, "the hardware does not exist"),
        (json!({ "device": "lo" }), 999, "it is the loopback interface"),
        (json!({ "mac": "zz" }), 7, "zz"),
        (json!({ "restore": "yes" }), 6, "restore"),
        (json!({ "allowDefaultRoute": 1 }), 6, "allowDefaultRoute"),
        (json!({ "runtimeConfig": { "deviceID": 5 } }), 6, "deviceID"),
    ] {
        let config = config(with(ipam(), keys.clone()));
        let error = pod.call("ADD", &config).run().error(code);
        assert!(error["msg"].as_str().unwrap().contains(text), "{keys}: {error}");
        assert!(!error["details"].as_str().unwrap_or_default().is_empty(), "{keys}: {error}");
        assert_eq!(pod.sh("ip -o link | grep -v LOOPBACK || true"), "", "{keys}");
        assert_eq!(lab.sh("find /var/lib -type f -name '10.*'"), "", "{keys}");
        // Whatever the configuration has become, DEL succeeds.
        pod.del(&config);
        assert_given_back(lab, &keys.to_string());
    }
}

/// Without them the host would lose its network.
#[test]
fn devices_that_the_host_needs_are_refused() {
    let lab = &lab();
    let pod = Pod::new(lab, "a");
    let refused = |keys| pod.call("ADD", &config(keys)).run().error(999)["msg"].as_str().unwrap().to_owned();
    lab.sh("ip link add br0 type bridge; ip link add port type veth peer name end; ip link set port master br0");
    let text = refused(json!({ "device": "br0" }));
    assert_eq!(text, "\"br0\" cannot be given to a container: it is a bridge with ports");
    lab.sh("ip link set nic up; ip address add 192.0.2.2/24 dev nic; ip route add default via 192.0.2.1");
    let text = refused(json!({}));
    assert_eq!(text, "\"nic\" cannot be given to a container: a default route of the host leads through it");
    lab.sh("ip route del default; ip -6 address add fd02::2/64 dev nic nodad; ip -6 route add default via fd02::1");
    assert!(refused(json!({})).contains("default route"));
    assert!(lab.sh("ip -6 route").contains("default via fd02::1"));
    let allowed = config(json!({ "allowDefaultRoute": true }));
    pod.add(&allowed);
    pod.del(&allowed);
    assert_given_back(lab, "DEL");
    // The kernel itself refuses a bridge without ports.
    lab.sh("ip link set port nomaster");
    let error = pod.call("ADD", &config(json!({ "device": "br0" }))).run().error(999);
    assert!(error["details"].as_str().unwrap().contains("does not let \"br0\" leave its namespace"), "{error}");
    assert_eq!(lab.ip("link show br0")[0]["altnames"], json!(null));
}
