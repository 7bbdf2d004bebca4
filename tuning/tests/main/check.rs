//! CHECK compares values, and changes nothing.

use serde_json::json;

use crate::support::{NEW_MAC, Tuned, config, everything, lab, pod};

#[test]
fn every_difference_is_found() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let config = config(everything());
    for (change, part) in [
        ("ip link set eth0 address 02:00:00:00:00:88", "\\\"mac\\\""),
        ("ip link set eth0 promisc off", "\\\"promisc\\\""),
        ("ip link set eth0 mtu 1399", "\\\"mtu\\\""),
        ("ip link set eth0 allmulticast off", "\\\"allmulti\\\""),
        ("ip link set eth0 txqueuelen 21", "\\\"txQLen\\\""),
        ("echo 76 >/proc/sys/net/core/somaxconn", "net.core.somaxconn"),
        ("ip link set eth0 down; ip link set eth0 name eth7", "eth0"),
    ] {
        pod.add(&config);
        pod.check(&config).ok();
        pod.sh(change);
        let before = pod.sh("ip -d link; cat /proc/sys/net/core/somaxconn");
        let error = pod.check(&config).error(999);
        assert!(error.to_string().contains(part), "{change}: {error}");
        assert_eq!(pod.sh("ip -d link; cat /proc/sys/net/core/somaxconn"), before, "{change}");
    }
}

#[test]
fn values_count_and_not_their_notation() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let config = config(json!({
        "mac": NEW_MAC.to_uppercase().replace(':', "-"),
        "sysctl": {
            "net.core.somaxconn": " 0x4d ", "net.ipv4.ip_local_port_range": "10000 20000", "net.ipv4.route.flush": "1",
            "net.ipv4.ip_default_ttl": "7\n8", "net.ipv4.ip_local_reserved_ports": "",
        },
    }));
    pod.sh("echo 80 >/proc/sys/net/ipv4/ip_local_reserved_ports");
    pod.add(&config);
    pod.check(&config).ok();
    assert_eq!(
        (pod.sysctl("net/ipv4/ip_default_ttl"), pod.sysctl("net/ipv4/ip_local_reserved_ports")),
        ("7".to_owned(), String::new())
    );
}

/// A capture makes the interface promiscuous without the flag.
#[test]
fn a_capture_does_not_matter() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let capture = |keys: &serde_json::Value| {
        let script = "import socket, struct, subprocess, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
index = socket.if_nametoindex(\"eth0\")
s.setsockopt(263, 1, struct.pack(\"IHH8s\", index, 1, 0, b\"\"))
assert \"promiscuity 1\" in subprocess.check_output([\"ip\", \"-d\", \"link\", \"show\", \"eth0\"], text=True)
sys.exit(subprocess.call(sys.argv[1:]))";
        let file = lab.dir().join("capture.py");
        std::fs::write(&file, script).unwrap();
        let config = config(keys.clone());
        let mut stdin = config;
        stdin["prevResult"] = pod.result("1.1.0");
        let input = lab.dir().join("stdin");
        std::fs::write(&input, stdin.to_string()).unwrap();
        let command = format!(
            "CNI_COMMAND=CHECK CNI_CONTAINERID=c1 CNI_IFNAME=eth0 CNI_NETNS={} CNI_PATH={bin} \
             nsenter --net={} python3 {} nsenter --net=/proc/{}/ns/net {bin}/tuning <{}",
            pod.netns.display(),
            pod.netns.display(),
            file.display(),
            std::process::id(),
            input.display(),
            bin = lab.bin().display(),
        );
        lab.sh(&format!("{command} || true"))
    };
    assert_eq!(capture(&json!({ "promisc": false, "mtu": 1500 })), "");
    assert!(capture(&json!({ "promisc": true })).contains("promisc"), "a capture is not the setting");
}
