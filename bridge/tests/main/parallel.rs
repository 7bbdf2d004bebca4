//! Many calls at the same time, on a host without a bridge.

use std::collections::BTreeSet;

use linux::ip::MacAddr;
use linux::netlink::{Change, LinkKind, Netlink, NewLink};
use serde_json::{Value, json};
use testing::{Lab, Outcome, Pod, parallel};

use crate::pod::{assert_clean, layer3};

const PODS: usize = 100;

/// Runs `command` for all pods at the same time, and returns their results.
fn all_at_once(pods: &[Pod<'_>], command: &str, config: &Value) -> Vec<Value> {
    let outcomes = parallel::run(pods.iter().map(|pod| pod.call(command, config)).collect());
    outcomes.iter().map(Outcome::ok).collect()
}

#[test]
fn a_hundred_adds_without_a_bridge_and_a_hundred_dels() {
    for backend in ["nftables", "iptables"] {
        let lab = &Lab::new();
        let pods: Vec<_> = (1..=PODS).map(|n| Pod::new(lab, &format!("p{n}"))).collect();
        let config = layer3(json!({
            "isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": backend, "macspoofchk": true,
            "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd01::/64" }]] },
        }));
        let results = all_at_once(&pods, "ADD", &config);
        for family in [0, 1] {
            let ips: BTreeSet<_> = results.iter().map(|result| result["ips"][family]["address"].to_string()).collect();
            assert_eq!(ips.len(), PODS, "each address is used once");
        }
        let bridges: BTreeSet<_> = results.iter().map(|result| result["interfaces"][0].to_string()).collect();
        assert_eq!(bridges.len(), 1, "one bridge, with one MAC address");
        assert_eq!(lab.sh("ip -o link show master br0 | grep -c 'state UP'"), format!("{PODS}\n"));
        assert_eq!(
            lab.sh("ip -o -4 address show br0 | wc -l; ip -o -6 address show br0 scope global | wc -l"),
            "1\n1\n"
        );
        if backend == "nftables" {
            assert_eq!(lab.sh("nft list chain inet cni_plugins_masquerade postrouting | grep -c goto"), "1\n");
            assert_eq!(
                lab.sh("nft list chain inet cni_plugins_masquerade masq_checks | grep -c masquerade.comment"),
                format!("{}\n", 2 * PODS)
            );
        }
        assert_eq!(lab.sh("nft list chain bridge cni_spoofcheck prerouting | grep -c drop"), "1\n");
        for set in ["ports", "macs", "attachments"] {
            let elements = lab.sh(&format!("nft list set bridge cni_spoofcheck {set} | grep -o comment | wc -l"));
            assert_eq!(elements, format!("{PODS}\n"), "{set}");
        }
        all_at_once(&pods, "DEL", &config);
        assert_clean(lab);
    }
}

/// Stops the DEL after every message that it reads, and changes the list of links before it continues, so that the list
/// changes during each of its dumps.
#[test]
fn del_finds_its_port_while_other_links_come_and_go() {
    let lab = &Lab::new();
    let config = layer3(json!({ "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }]] } }));
    let pod = Pod::new(lab, "p1");
    pod.add(&config);
    // Enough links for several messages.
    lab.sh("seq 1 6 | sed 's/.*/link add x& type veth peer name y&/' | ip -batch -");
    let mut host = Netlink::open().unwrap();
    let kind = LinkKind::Bridge { vlan_filtering: false };
    let other = NewLink { name: Some("other"), mac: Some(MacAddr([2, 0, 0, 0, 0, 1])), ..NewLink::of(kind) };
    for present in [true, false] {
        let options = ["-e", "trace=recvfrom", "-e", "inject=recvfrom:signal=STOP"];
        // Without the namespace, the port is only found in the list of links.
        let del = pod.call("DEL", &config).env("CNI_NETNS", "/run/netns/missing");
        let mut stops = 0;
        let _ = host.apply(&[Change::delete_link("other")]);
        let (outcome, log) = parallel::at_each_stop(lab, del, &options, |_| {
            stops += 1;
            let change = if stops % 2 == 1 { Change::create_link(&other) } else { Change::delete_link("other") };
            host.apply(&[change]).unwrap();
        });
        outcome.ok();
        assert!(log.contains("NLM_F_DUMP_INTR"), "no list changed (present: {present}): {log}");
    }
    assert_eq!(lab.sh("ip -o link show type veth | grep -c cni0 || true"), "0\n");
}
