//! What distinguishes `ipvlan` from other plugins.

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod, can_create_link, needs_link};

/// The parent of all links, and its other end.
const UPLINK: &str = "ip link add uplink type veth peer name far; ip link set uplink up; ip link set far up";

fn config(more: Value) -> Value {
    let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd01::/64" }]] });
    let keys = json!({ "cniVersion": "1.1.0", "name": "net1", "type": "ipvlan", "master": "uplink", "ipam": ipam });
    with(keys, more)
}

/// Returns a host with a master; `None` if the kernel has no such links.
fn lab(test: &str) -> Option<Lab> {
    let lab = Lab::new();
    lab.sh(UPLINK);
    needs_link(test, "link uplink type ipvlan").then_some(lab)
}

#[test]
fn all_keys_reach_the_link() {
    let Some(lab) = &lab("all_keys_reach_the_link") else { return };
    for (mode, flag) in [("l2", "bridge"), ("l3", "private"), ("l3s", "vepa")] {
        let pod = Pod::new(lab, mode);
        let keys = config(json!({ "mode": mode, "flag": flag, "mtu": 1400, "dns": { "domain": "d" } }));
        let result = pod.add(&keys);
        let link = &pod.ip("link show eth0")[0];
        let data = &link["linkinfo"]["info_data"];
        assert_eq!((&data["mode"], &data[flag], &link["mtu"]), (&json!(mode), &json!(true), &json!(1400)), "{link}");
        assert_eq!((&result["interfaces"][0]["mtu"], &result["dns"]["domain"]), (&json!(1400), &json!("d")));
        assert_eq!(result["interfaces"][0]["mac"], lab.ip("link show uplink")[0]["address"], "that of the master");
        pod.check_result(&keys, &result).ok();
        let other = if mode == "l2" { "l3" } else { "l2" };
        pod.check_result(&config(json!({ "mode": other, "flag": flag })), &result).error(999);
        pod.del(&keys);
    }
}

/// The kernel would give the links of the other containers the new mode.
#[test]
fn another_mode_on_the_same_master_is_refused() {
    let Some(lab) = &lab("another_mode_on_the_same_master_is_refused") else { return };
    let [a, b] = ["a", "b"].map(|id| Pod::new(lab, id));
    let networks = [("l2", "bridge"), ("l3", "bridge"), ("l2", "private")]
        .map(|(mode, flag)| config(json!({ "name": format!("net-{mode}-{flag}"), "mode": mode, "flag": flag })));
    let links = lab.sh("ip -o link | cut -d: -f1,2");
    a.add(&networks[0]);
    for other in &networks[1..] {
        let error = b.call("ADD", other).run().error(7);
        let text = error["msg"].as_str().unwrap();
        assert!(text.contains("would change the containers on \"uplink\", which have \"l2 bridge\""), "{error}");
        assert_eq!(a.ip("link show eth0")[0]["linkinfo"]["info_data"]["mode"], "l2");
        assert!(!b.sh("ip -o link").contains("eth0"));
        b.del(other);
    }
    assert_eq!(lab.sh("ip -o link | cut -d: -f1,2"), links);
    b.add(&networks[0]);
    // The last container takes the mode with it, also if its namespace just disappears.
    a.del(&networks[0]);
    b.call("ADD", &networks[1]).env("CNI_IFNAME", "net1").run().error(7);
    lab.sh("ip netns del b");
    lab.sh("ip netns add b");
    b.add(&networks[1]);
    assert_eq!(b.ip("link show eth0")[0]["linkinfo"]["info_data"]["mode"], "l3");
}

/// DEL of the reference looks for the default route, and fails without.
#[test]
fn del_does_not_need_the_master() {
    let Some(lab) = &lab("del_does_not_need_the_master") else { return };
    lab.sh("ip address add 192.0.2.2/24 dev uplink; ip route add default via 192.0.2.1");
    let (pod, keys) = (Pod::new(lab, "a"), config(json!({ "master": "" })));
    let result = pod.add(&keys);
    pod.check_result(&keys, &result).ok();
    lab.sh("ip link del uplink");
    pod.del(&keys);
    assert_eq!(lab.sh("find /var/lib/cni -name '10.*' -o -name 'fd*'"), "");
}

/// Chained: master and addresses come from the result of another plugin.
#[test]
fn a_previous_result_gives_master_and_addresses() {
    let Some(lab) = &lab("a_previous_result_gives_master_and_addresses") else { return };
    for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let pod = Pod::new(lab, "a");
        let address = match version < "1.0.0" {
            true => json!({ "version": "4", "address": "10.1.2.2/24", "interface": 0 }),
            false => json!({ "address": "10.1.2.2/24", "interface": 0 }),
        };
        let previous = json!({ "cniVersion": version, "interfaces": [{ "name": "uplink" }], "ips": [address] });
        let keys = json!({ "cniVersion": version, "name": "net1", "type": "ipvlan", "prevResult": previous });
        let result = pod.add(&keys);
        assert_eq!(result["interfaces"].as_array().unwrap().len(), 1);
        assert_eq!(result["ips"][0]["interface"], 0);
        assert!(pod.sh("ip address show eth0").contains("10.1.2.2/24"));
        if version >= "0.4.0" {
            pod.check_result(&keys, &result).ok();
        }
        pod.del(&with(keys.clone(), json!({ "prevResult": result })));
        assert!(!pod.sh("ip -o link").contains("eth0"));
        let two = json!([{ "name": "uplink" }, { "name": "far" }]);
        let error = pod
            .call("ADD", &with(keys, json!({ "prevResult": with(previous, json!({ "interfaces": two })) })))
            .run()
            .error(7);
        assert!(error["msg"].as_str().unwrap().contains("chained master failure"), "{error}");
        lab.sh("ip netns del a");
    }
}

#[test]
fn the_master_can_be_in_the_container() {
    let Some(lab) = &lab("the_master_can_be_in_the_container") else { return };
    let pod = Pod::new(lab, "a");
    pod.sh("ip link add net1 type veth peer name far1; ip link set net1 up; ip link set far1 up");
    let keys = config(json!({ "master": "net1", "linkInContainer": true }));
    let result = pod.add(&keys);
    pod.check_result(&keys, &result).ok();
    pod.del(&keys);
    assert!(!pod.sh("ip -o link").contains("eth0"));
}

#[test]
fn bad_keys_change_nothing() {
    let lab = &Lab::new();
    lab.sh(UPLINK);
    let pod = Pod::new(lab, "a");
    for (keys, code, text) in [
        (json!({ "master": "nope" }), 999, "find master \"nope\": Link not found"),
        (json!({ "mode": "foo" }), 7, "unknown ipvlan mode: \"foo\""),
        (json!({ "flag": "foo" }), 7, "unknown ipvlan flag: \"foo\""),
        (json!({ "mtu": 9000 }), 7, "invalid MTU 9000, must be [0, master MTU(1500)]"),
    ] {
        let error = pod.call("ADD", &config(keys.clone())).run().error(code);
        assert!(error["msg"].as_str().unwrap().contains(text), "{keys}: {error}");
        assert_eq!(pod.sh("ip -o link | grep -v LOOPBACK || true"), "", "{keys}");
        assert_eq!(lab.sh("find /var/lib -type f -name '10.*'"), "", "{keys}");
        pod.del(&config(keys));
    }
}

#[test]
fn status_reports_a_kernel_without_ipvlan_links() {
    let lab = &Lab::new();
    lab.sh(UPLINK);
    let before = lab.sh("ip -o link | cut -d: -f1,2");
    let status = lab.plugin("ipvlan", "STATUS").stdin(config(json!({})).to_string()).run();
    match can_create_link("link uplink type ipvlan") {
        true => status.silent(),
        false => {
            assert_eq!(status.error(50)["msg"], "this kernel has no ipvlan interfaces");
            // An ADD creates nothing either.
            Pod::new(lab, "a").call("ADD", &config(json!({}))).run().error(999);
            assert_eq!(lab.sh("find /var/lib -type f -name '10.*'"), "");
        }
    }
    assert_eq!(lab.sh("ip -o link | cut -d: -f1,2"), before);
}
