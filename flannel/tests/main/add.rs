//! ADD and DEL with the real `bridge` and `host-local`.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use cni::Version;
use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod};

use crate::node::{
    DATA_DIR, REST, V4, V6, addresses, assert_clean, config, join_cluster, leases, node_with_pod, read_state,
    state_files, write_subnet_file,
};

/// The reference's own tests of the life of a container: the subnet file, and the ranges and routes in the state file.
#[test]
fn the_life_of_a_container_is_that_of_the_references_tests() {
    let masquerades = REST.replace("false", "true");
    let two = V4.replace("10.1.0.0/16", "10.1.0.0/16,192.168.0.0/16");
    let (set4, set6) = (json!([{ "subnet": "10.1.17.0/24" }]), json!([{ "subnet": "fc00::/64" }]));
    let route = |dst: &str| json!({ "dst": dst });
    for (lines, ranges, routes) in [
        (V4.to_owned(), json!([set4]), json!([route("10.1.0.0/16")])),
        (two, json!([set4]), json!([route("10.1.0.0/16"), route("192.168.0.0/16")])),
        (V6.to_owned(), json!([set6]), json!([route("fc00::/48")])),
        (format!("{V4}{V6}"), json!([set4, set6]), json!([route("10.1.0.0/16"), route("fc00::/48")])),
    ] {
        Lab::for_each_way_to_delegate(|lab| {
            let file = lab.dir().join("subnet.env");
            fs::write(&file, format!("{lines}{masquerades}")).unwrap();
            let data = lab.dir().join("data");
            let config = json!({ "name": "cni-flannel", "type": "flannel", "subnetFile": file, "dataDir": data });
            // A result without a version has only one address of each family.
            let pod = Pod::new(lab, "some-container-id");
            let result = pod.add(&config);
            let count = ["ip4", "ip6"].iter().filter(|key| result.get(**key).is_some()).count();
            assert_eq!(count, ranges.as_array().unwrap().len(), "{result}");
            let state = data.join("some-container-id");
            let written: Value = serde_json::from_slice(&fs::read(&state).unwrap()).unwrap();
            let wanted = json!({
                "name": "cni-flannel", "type": "bridge", "ipMasq": false, "isGateway": true, "mtu": 1472,
                "ipam": { "type": "host-local", "ranges": ranges, "routes": routes },
                // Only this plugin writes this key.
                "cni0/ifname": "eth0",
            });
            assert_eq!(written, wanted);
            pod.del(&config);
            assert!(!state.exists());
            pod.del(&config);
            assert_eq!(fs::read_dir(&data).unwrap().count(), 0);
            assert_clean(lab);
        });
    }
}

#[test]
fn every_version_can_add_and_delete() {
    Lab::for_each_way_to_delegate(|lab| {
        join_cluster();
        for version in Version::ALL {
            let pod = Pod::new(lab, &format!("v{version}"));
            let config = config(json!({ "cniVersion": version.as_str() }));
            let result = pod.add(&config);
            assert_eq!(result["cniVersion"], version.as_str());
            assert_eq!(leases(lab).len(), 1);
            pod.ping("10.1.17.1");
            // The runtime passes the result to DEL since 0.4.0.
            let previous = if version >= Version::since("CHECK") { json!({ "prevResult": result }) } else { json!({}) };
            pod.del(&with(config, previous));
            assert_clean(lab);
        }
    });
}

#[test]
fn the_pod_has_the_subnets_of_the_node() {
    let lab = &Lab::new();
    write_subnet_file(&format!("{V4}{V6}{REST}"));
    let delegate = json!({ "isDefaultGateway": true, "hairpinMode": true });
    let config = config(json!({ "delegate": delegate, "cniVersion": "0.3.1", "name": "cbr0" }));
    let pod = Pod::new(lab, "c1");
    let result = pod.add(&config);
    let ips: Vec<_> = result["ips"].as_array().unwrap().iter().map(|ip| ip["address"].as_str().unwrap()).collect();
    assert_eq!(ips, ["10.1.17.2/24", "fc00::2/64"]);
    assert_eq!(addresses(lab, "cni0"), ["10.1.17.1/24", "fc00::1/64"]);
    let routes = pod.sh("ip -4 route; ip -6 route");
    for route in ["default via 10.1.17.1", "10.1.0.0/16 via 10.1.17.1", "default via fc00::1", "fc00::/48 via fc00::1"]
    {
        assert!(routes.contains(route), "{route} in\n{routes}");
    }
    assert_eq!(lab.ip("link show cni0")[0]["mtu"], 1472);
    assert!(pod.sh("ip link show eth0").contains("mtu 1472"));
    pod.ping("10.1.17.1");
    pod.ping("fc00::1");
    pod.del(&config);
    assert_clean(lab);
}

#[test]
fn the_state_file_is_private_and_has_the_name_of_the_reference() {
    let lab = &Lab::new();
    join_cluster();
    let pod = Pod::new(lab, "c1");
    pod.add(&config(json!({})));
    assert_eq!(state_files(), ["c1"]);
    let mode = |path: &str| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(DATA_DIR), 0o700);
    assert_eq!(mode(&format!("{DATA_DIR}/c1")), 0o600);
}

/// Such a file name has no place for the name of the interface.
#[test]
fn a_container_id_may_be_as_long_as_a_file_name() {
    Lab::for_each_way_to_delegate(|lab| {
        join_cluster();
        let (pod, config) = (Pod { id: "c".repeat(255), ..Pod::new(lab, "c1") }, config(json!({})));
        let result = pod.add(&config);
        assert_eq!(state_files(), [pod.id.as_str()]);
        pod.check_result(&config, &result).ok();
        pod.del(&config);
        assert_clean(lab);
    });
}

#[test]
fn a_repeated_add_leaves_one_state_file() {
    let lab = &Lab::new();
    let (pod, config) = node_with_pod(lab);
    pod.add(&config);
    // As after a reboot that kept the state files.
    pod.sh("ip link delete eth0");
    lab.sh("rm -r /var/lib/cni/networks");
    write_subnet_file(&format!("{V4}{}", REST.replace("1472", "1400")));
    pod.add(&config);
    assert_eq!(state_files(), [pod.id.as_str()]);
    assert!(read_state("c1").contains("\"mtu\":1400"), "{}", read_state("c1"));
    pod.del(&config);
    assert_clean(lab);
}

#[test]
fn a_second_add_fails_and_keeps_the_attachment() {
    Lab::for_each_way_to_delegate(|lab| {
        join_cluster();
        let (pod, config) = (Pod::new(lab, "c1"), config(json!({ "delegate": { "isDefaultGateway": true } })));
        let result = pod.add(&config);
        let error = pod.call("ADD", &config).run().error(999);
        assert!(error["msg"].as_str().unwrap().starts_with("interface \"eth0\" already exists in "), "{error}");
        pod.check_result(&config, &result).ok();
        assert_eq!(state_files(), [pod.id.as_str()]);
        pod.del(&config);
        assert_clean(lab);
    });
}

#[test]
fn an_add_whose_result_is_lost_leaves_nothing() {
    Lab::for_each_way_to_delegate(|lab| {
        join_cluster();
        let outcome = Pod::new(lab, "c1").call("ADD", &config(json!({}))).via_shell("exec \"$0\" >/dev/full").run();
        assert_eq!(outcome.status, Some(1), "{outcome:?}");
        assert_clean(lab);
    });
}

#[test]
fn the_cluster_is_excluded_from_masquerade_on_request() {
    let lab = &Lab::new();
    join_cluster();
    let pod = Pod::new(lab, "c1");
    let config = config(json!({ "ipMasqExcludeCluster": true }));
    pod.add(&config);
    assert!(read_state("c1").contains("\"ipMasqExclude\":[\"10.1.0.0/16\"]"), "{}", read_state("c1"));
    pod.del(&config);
    assert_clean(lab);
}
