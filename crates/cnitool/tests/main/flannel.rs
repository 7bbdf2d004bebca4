//! A network of flannel: its delegates are checked, and what it leaves is pruned.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::doctor::{only_problem, problems};
use crate::node::{attach, host, json, lose_namespace, page};

const SUBNET_FILE: &str = "/run/flannel/subnet.env";

#[test]
fn a_missing_subnet_file_is_the_only_problem() {
    let host = host("10.214.0.0/24");
    let config = json!({
        "cniVersion": "1.1.0", "name": "pods",
        "plugins": [{ "type": "flannel", "delegate": { "bridge": "cni0", "isDefaultGateway": true } }],
    });
    host.configure("10-pods.conflist", &config.to_string());
    let write = || {
        let text =
            "FLANNEL_NETWORK=10.214.0.0/16\nFLANNEL_SUBNET=10.214.0.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
        fs::create_dir_all("/run/flannel").unwrap();
        fs::write(SUBNET_FILE, text).unwrap();
    };
    write();
    attach(&host, "blue");
    let lost = attach(&host, "lost");
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);

    // Until flanneld has a subnet. Its delegates have no ranges then, which is not a mistake in the configuration.
    fs::remove_file(SUBNET_FILE).unwrap();
    let what = only_problem(&host, "flannel", "fail");
    assert!(what.contains("open /run/flannel/subnet.env: no such file or directory"), "{what}");
    assert!(page(&host.run("show")).contains("10.214.0.2/24"));

    // With a subnet, the delegates are checked.
    write();
    let wrong = config.to_string().replace(r#""bridge":"cni0""#, r#""bridge":"a/b""#);
    host.configure("10-pods.conflist", &wrong);
    let findings = json(&host, "doctor --json").to_string();
    assert!(findings.contains("a/b"), "{findings}");
    host.configure("10-pods.conflist", &config.to_string());

    lose_namespace(&host, "lost", &lost);
    let file = Path::new("/var/lib/cni/flannel").join(&lost);
    assert!(file.exists());
    let findings = json(&host, "doctor --json").to_string();
    assert!(findings.contains("1 state file of containers that are gone"), "{findings}");
    page(&host.run("prune --force pods"));
    assert!(!file.exists());
}

/// flanneld gives each tunnel the first address of the node's subnet, with host length. Without the kernel modules of
/// tunnels, links of another kind have their names.
#[test]
fn a_healthy_node_with_tunnels_of_both_families() {
    let host = host("10.60.1.0/24");
    let list = |delegate: Value| {
        let plugin = json!({ "type": "flannel", "delegate": delegate });
        host.configure(
            "10-pods.conflist",
            &json!({ "cniVersion": "1.1.0", "name": "pods", "plugins": [plugin] }).to_string(),
        );
    };
    list(json!({ "bridge": "cni0", "isDefaultGateway": true, "mtu": 1430 }));
    fs::create_dir_all("/run/flannel").unwrap();
    let text = "FLANNEL_NETWORK=10.60.0.0/16\nFLANNEL_SUBNET=10.60.1.1/24\nFLANNEL_IPV6_NETWORK=fd00:60::/48\n\
                FLANNEL_IPV6_SUBNET=fd00:60:0:1::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
    fs::write(SUBNET_FILE, text).unwrap();
    host.lab.netns("other-node");
    host.lab.sh("ip link add flannel.1 mtu 1450 type veth peer name end4 netns other-node
         ip link add flannel-v6.1 mtu 1430 type veth peer name end6 netns other-node
         ip address add 10.60.1.0/32 dev flannel.1; ip link set flannel.1 up
         ip -6 address add fd00:60:0:1::/128 dev flannel-v6.1 nodad; ip link set flannel-v6.1 up
         ip route add 10.60.2.0/24 via 10.60.2.0 dev flannel.1 onlink
         ip -6 route add fd00:60:0:2::/64 via fd00:60:0:2:: dev flannel-v6.1 onlink");
    attach(&host, "blue");
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);

    // flanneld writes only the MTU of the IPv4 tunnel.
    list(json!({ "bridge": "cni0", "isDefaultGateway": true }));
    host.run("del pods /run/netns/blue").ok();
    let what = only_problem(&host, "mtu", "warn");
    assert!(what.contains("packets of 1450 bytes, and flannel-v6.1 carries 1430"), "{what}");
    assert!(what.contains("set \\\"mtu\\\": 1430 in \\\"delegate\\\""), "{what}");

    // Without IPv6, the other tunnel does not matter.
    let text: String = text.lines().filter(|line| !line.contains("IPV6")).map(|line| format!("{line}\n")).collect();
    fs::write(SUBNET_FILE, text).unwrap();
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);
}
