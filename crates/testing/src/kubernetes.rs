//! The rules of kube-proxy for a service with the NodePort 30080 of TCP, in the form of Kubernetes 1.35.

use std::fs;

use crate::Lab;

/// In the nftables mode, at the address 192.0.2.1.
const NFTABLES: &str = r"
table ip kube-proxy {
    map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
    map service-nodeports {
        type inet_proto . inet_service : verdict
        elements = { tcp . 30080 : goto external-AAAA-default/web/tcp/http }
    }
    set nodeport-ips { type ipv4_addr; elements = { 192.0.2.1 } }
    chain nat-prerouting { type nat hook prerouting priority dstnat; policy accept; jump services; }
    chain nat-output { type nat hook output priority -100; policy accept; jump services; }
    chain services {
        ip daddr . meta l4proto . th dport vmap @service-ips
        ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
    }
    chain mark-for-masquerade { meta mark set meta mark | 0x00004000; }
    chain external-AAAA-default/web/tcp/http { jump mark-for-masquerade; goto service-AAAA-default/web/tcp/http; }
    chain service-AAAA-default/web/tcp/http {
        numgen random mod 1 vmap { 0 : goto endpoint-AAAA-default/web/tcp/http__10.244.0.3/80 }
    }
    chain endpoint-AAAA-default/web/tcp/http__10.244.0.3/80 { meta l4proto tcp dnat to 10.244.0.3:80; }
}";

/// In the iptables mode, at all addresses.
const IPTABLES: &str = r#"*nat
:KUBE-EXT-AAAA - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-SEP-AAAA - [0:0]
:KUBE-SEP-BBBB - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-AAAA - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-EXT-AAAA -m comment --comment "masquerade traffic for default/web:http external destinations" -j KUBE-MARK-MASQ
-A KUBE-EXT-AAAA -j KUBE-SVC-AAAA
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-NODEPORTS -d 127.0.0.0/8 -p tcp -m comment --comment "default/web:http" -m tcp --dport 30080 -j KUBE-EXT-AAAA
-A KUBE-NODEPORTS -p tcp -m comment --comment "default/web:http" -m tcp --dport 30080 -j KUBE-EXT-AAAA
-A KUBE-SEP-AAAA -p tcp -m comment --comment "default/web:http" -m tcp -j DNAT --to-destination 10.244.0.3:80
-A KUBE-SEP-BBBB -p tcp -m comment --comment "default/web:http" -m tcp -j DNAT --to-destination 10.244.0.4:80
-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-SVC-AAAA -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-AAAA
-A KUBE-SVC-AAAA -j KUBE-SEP-BBBB
COMMIT
"#;

/// Adds the service in a mode of kube-proxy: `nftables`, `iptables` or `legacy`.
pub fn add_node_port(lab: &Lab, mode: &str) {
    let (tool, rules) = match mode {
        "nftables" => ("nft -f", NFTABLES),
        "legacy" => ("iptables-legacy-restore --noflush", IPTABLES),
        _ => ("iptables-nft-restore --noflush", IPTABLES),
    };
    let file = lab.dir().join("node-port");
    fs::write(&file, rules).unwrap();
    lab.sh(&format!("{tool} {}", file.display()));
}
