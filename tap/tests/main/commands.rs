//! What distinguishes `tap` from other plugins.

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod};

fn layer2(more: Value) -> Value {
    with(json!({ "cniVersion": "1.1.0", "name": "net1", "type": "tap" }), more)
}

fn config(more: Value) -> Value {
    let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd01::/64" }]] });
    with(layer2(json!({ "ipam": ipam })), more)
}

/// Asserts that a call left neither a link nor a lease.
#[track_caller]
fn assert_nothing_left(lab: &Lab, pod: &Pod<'_>, what: &dyn std::fmt::Display) {
    assert_eq!(pod.sh("ip -o link | grep -v LOOPBACK || true"), "", "{what}");
    assert_eq!(lab.sh("find /var/lib -type f -name '10.*'"), "", "{what}");
}

#[test]
fn all_keys_reach_the_device() {
    let lab = &Lab::new();
    let keys = json!({
        "multiQueue": true, "vnetHdr": true, "owner": 1234, "group": 4321, "mtu": 1400, "mac": "02:00:00:00:00:07",
        "dns": { "domain": "d" },
    });
    for (number, keys) in [json!({}), keys].into_iter().enumerate() {
        let pod = Pod::new(lab, &format!("c{number}"));
        let result = pod.add(&config(keys.clone()));
        let link = &pod.ip("link show eth0")[0];
        let data = &link["linkinfo"]["info_data"];
        let is_set = json!(number == 1);
        assert_eq!((&data["type"], &data["pi"], &data["persist"]), (&json!("tap"), &json!(false), &json!(true)));
        assert_eq!((&data["multi_queue"], &data["vnet_hdr"]), (&is_set, &is_set), "{link}");
        let of_all = pod.sh("ip -N -d link show eth0");
        let has = |text| of_all.contains(text);
        assert_eq!((has("user 1234"), has("group 4321")), (number == 1, number == 1), "{of_all}");
        assert_eq!(link["mtu"], if number == 1 { 1400 } else { 1500 });
        assert_eq!(result["interfaces"][0]["mac"], link["address"]);
        if number == 1 {
            assert_eq!((&link["address"], &result["dns"]["domain"]), (&json!("02:00:00:00:00:07"), &json!("d")));
        }
        let addresses = pod.sh("ip -o address show eth0");
        assert!(addresses.contains(&format!("10.1.0.{}/24", number + 2)) && !addresses.contains("tentative"));
        pod.check_result(&config(keys), &result).ok();
    }
}

/// A program that opens the device gets the frames of the container.
#[test]
fn a_program_reads_frames() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    pod.add(&config(json!({})));
    // 0x0806 is ARP, whose target address starts at byte 38.
    let program = r#"
import fcntl, struct, subprocess
tun = open("/dev/net/tun", "r+b", buffering=0)
fcntl.ioctl(tun, 0x400454ca, struct.pack("16sH22x", b"eth0", 0x1002))
ping = subprocess.Popen(["ping", "-c", "1", "-W", "1", "10.1.0.99"], stdout=subprocess.DEVNULL)
while True:
    frame = tun.read(2048)
    if frame[12:14] == b"\x08\x06" and frame[38:42] == bytes([10, 1, 0, 99]):
        break
ping.wait()
"#;
    pod.sh(&format!("timeout 60 python3 - <<\\END\n{program}END\n"));
}

#[test]
fn check_compares_the_device() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    let keys = json!({ "owner": 1234 });
    let result = pod.add(&config(keys));
    for (keys, what) in [
        (json!({ "owner": 1235 }), "owner of \"eth0\": want 1235, got 1234"),
        (json!({ "group": 7 }), "group of \"eth0\": want 7, got none"),
        (json!({ "multiQueue": true }), "multi-queue of \"eth0\": want true, got false"),
        (json!({ "vnetHdr": true }), "vnet_hdr of \"eth0\": want true, got false"),
        (json!({ "bridge": "br0" }), "bridge of \"eth0\": want br0, got none"),
    ] {
        assert_eq!(pod.check_result(&config(keys), &result).error(999)["msg"], what);
    }
}

/// A second ADD of the reference reports the device of the first, and leaves another one for ever.
#[test]
fn a_second_add_creates_no_device() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    let links = || -> Vec<_> {
        let list = pod.ip("link show");
        list.as_array().unwrap().iter().map(|link| (link["ifname"].clone(), link["ifindex"].clone())).collect()
    };
    pod.add(&config(json!({})));
    let before = links();
    pod.call("ADD", &config(json!({}))).run().error(999);
    assert_eq!(links(), before);
}

#[test]
fn the_device_becomes_a_port_of_a_bridge() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    let keys = config(json!({ "bridge": "br0" }));
    for prepare in ["", "ip link add br0 type veth peer name other"] {
        pod.sh(prepare);
        let error = pod.call("ADD", &keys).run().error(999);
        assert_eq!(error["msg"], "in \"/run/netns/a\": failed to get bridge br0: Link not found");
        pod.sh("ip link del br0 2>/dev/null || true");
        assert_nothing_left(lab, &pod, &prepare);
    }
    pod.sh("ip link add br0 type bridge; ip link set br0 up");
    let result = pod.add(&keys);
    assert_eq!(pod.ip("link show eth0")[0]["master"], "br0");
    pod.check_result(&keys, &result).ok();
    pod.del(&keys);
    pod.sh("ip link del br0");
    assert_nothing_left(lab, &pod, &"DEL");
}

#[test]
fn bad_keys_change_nothing() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    for (keys, code, text) in [
        (json!({ "owner": -1 }), 7, "owner"),
        (json!({ "group": 4_294_967_295_u32 }), 7, "group"),
        (json!({ "multiQueue": "yes" }), 6, "multiQueue"),
        (json!({ "bridge": "a/b" }), 7, "bridge"),
        (json!({ "mtu": 67 }), 7, "mtu"),
        (json!({ "mac": "zz" }), 7, "zz"),
        (json!({ "selinuxContext": "a\0b" }), 7, "selinuxContext"),
        // No test machine has SELinux.
        (json!({ "selinuxContext": "system_u:system_r:container_t:s0" }), 5, "set the socket label"),
    ] {
        let error = pod.call("ADD", &config(keys.clone())).run().error(code);
        assert!(error["msg"].as_str().unwrap().contains(text), "{keys}: {error}");
        assert_nothing_left(lab, &pod, &keys);
        pod.del(&config(keys));
    }
}

#[test]
fn status_reports_a_host_without_devices() {
    let lab = &Lab::new();
    let status = || lab.plugin("tap", "STATUS").stdin(layer2(json!({})).to_string()).run();
    status().silent();
    lab.sh("mount -t tmpfs none /dev/net");
    let error = status().error(50);
    assert!(error["msg"].as_str().unwrap().contains("/dev/net/tun"), "{error}");
    assert!(error["details"].as_str().unwrap().contains("load the module \"tun\""), "{error}");
    let pod = Pod::new(lab, "a");
    let error = pod.call("ADD", &config(json!({}))).run().error(5);
    assert!(error["msg"].as_str().unwrap().contains("/dev/net/tun"), "{error}");
    assert_nothing_left(lab, &pod, &"ADD");
}
