//! The node gets another subnet or MTU while containers run.

use serde_json::{Value, json};
use testing::{Lab, Pod};

use crate::node::{REST, V4, V6, addresses, assert_clean, config, write_subnet_file};

/// Returns the same lines for the node's next subnets.
fn moved(lines: &str) -> String {
    lines.replace("10.1.17.1", "10.1.18.1").replace("fc00::1/", "fc00:0:0:1::1/")
}

/// Returns the gateways of a result.
fn gateways(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().unwrap().iter();
    ips.map(|ip| ip["gateway"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn old_and_new_pods_work_after_a_change_of_the_subnet() {
    for lines in [V4.to_owned(), V6.to_owned(), format!("{V4}{V6}")] {
        Lab::for_each_way_to_delegate(|lab| {
            let config = config(json!({ "delegate": { "isDefaultGateway": true } }));
            let (old, new) = (Pod::new(lab, "c1"), Pod::new(lab, "c2"));
            write_subnet_file(&format!("{lines}{REST}"));
            let before = old.add(&config);
            write_subnet_file(&format!("{}{REST}", moved(&lines)));
            let after = new.add(&config);
            assert_ne!(gateways(&before), gateways(&after));
            for (pod, result) in [(&old, &before), (&new, &after)] {
                gateways(result).iter().for_each(|gateway| pod.ping(gateway));
                pod.check_result(&config, result).ok();
            }
            for ip in after["ips"].as_array().unwrap() {
                old.ping(ip["address"].as_str().unwrap().split_once('/').unwrap().0);
            }
            old.del(&config);
            gateways(&after).iter().for_each(|gateway| new.ping(gateway));
            new.check_result(&config, &after).ok();
            new.del(&config);
            assert_clean(lab);
        });
    }
}

/// If another node got the old subnet, packets to it would stay on this node. An executed IPAM plugin cannot report its
/// leases, so separate plugins keep the gateway.
#[test]
fn the_last_pod_of_an_old_subnet_takes_its_gateway_along() {
    for lines in [V4.to_owned(), V6.to_owned(), format!("{V4}{V6}")] {
        let lab = &Lab::new();
        let config = config(json!({}));
        let pods = ["c1", "c2", "c3"].map(|id| Pod::new(lab, id));
        write_subnet_file(&format!("{lines}{REST}"));
        pods[0].add(&config);
        pods[1].add(&config);
        lab.pass_ticks();
        let old = addresses(lab, "cni0");
        write_subnet_file(&format!("{}{REST}", moved(&lines)));
        pods[2].add(&config);
        pods[0].del(&config);
        assert_eq!(addresses(lab, "cni0").len(), 2 * old.len(), "a pod still uses the old subnet");
        pods[1].del(&config);
        let left = addresses(lab, "cni0");
        assert!(left.len() == old.len() && left.iter().all(|address| !old.contains(address)), "{left:?}");
        pods[2].del(&config);
        assert_clean(lab);
    }
}

#[test]
fn another_mtu_reaches_the_bridge_and_new_pods() {
    Lab::for_each_way_to_delegate(|lab| {
        let config = config(json!({}));
        for (n, size) in ["1472", "1400", "8950"].into_iter().enumerate() {
            write_subnet_file(&format!("{V4}{}", REST.replace("1472", size)));
            let pod = Pod::new(lab, &format!("c{n}"));
            pod.add(&config);
            assert_eq!(lab.ip("link show cni0")[0]["mtu"].to_string(), size);
            assert!(pod.sh("ip -o link show eth0").contains(&format!("mtu {size}")));
        }
    });
}
