//! DEL: removes what belongs to the attachment, and nothing else, with whatever the runtime still knows.

use std::fs;
use std::path::Path;

use serde_json::json;
use testing::{Lab, Pod, reference};

use crate::pod::{IFB, both, container, container_named, ifbs, limit, redirect, state, text, with};

#[test]
fn del_needs_neither_result_nor_namespace_nor_rates() {
    let lab = &Lab::new();
    let pod = container(lab);
    let bare = json!({ "cniVersion": "1.1.0", "name": "net1", "type": "bandwidth", "prevResult": null });
    for config in [bare, both(), with(both(), json!({ "prevResult": 5 })), with(both(), json!({ "ingressRate": "x" }))]
    {
        for netns in [pod.netns.to_str().unwrap(), "", "/nowhere", "/run", "/proc/self/ns/net"] {
            pod.add(&both());
            pod.call("DEL", &config).env("CNI_NETNS", netns).run().ok();
            assert_eq!((ifbs(lab), redirect(lab, "vethc1")), (vec![], None), "{config} {netns}");
            // Packets of the container pass until the veth is deleted.
            pod.sh("ping -q -c 1 -w 60 10.9.0.1");
            let before = state(lab);
            pod.call("DEL", &config).env("CNI_NETNS", netns).run().ok();
            assert_eq!(state(lab), before);
        }
    }
}

#[test]
fn del_after_the_veth_and_the_namespace_are_gone() {
    let lab = &Lab::new();
    let pod = container(lab);
    pod.add(&both());
    lab.sh("ip netns delete c1; ip link delete vethc1 2>/dev/null || true");
    pod.del(&both());
    assert_eq!(ifbs(lab), [""; 0]);
}

/// The runtime passes the result of another container, which names another veth. The container loses its limits, and
/// not its packets.
#[test]
fn the_filter_is_removed_whatever_veth_the_result_names() {
    let lab = &Lab::new();
    let pod = container(lab);
    let other = container_named(lab, "c2");
    pod.add(&both());
    other.add(&both());
    let [wrong, absent] = [other.result("1.1.0"), Pod { port: "veth9".to_owned(), ..pod.clone() }.result("1.1.0")];
    pod.del(&with(both(), json!({ "prevResult": wrong })));
    assert_eq!(redirect(lab, "vethc1"), None);
    pod.sh("ping -q -c 1 -w 60 10.9.0.1");
    other.check(&both()).ok();
    // A veth that is gone needs no search.
    lab.sh("ip link delete vethc2");
    other.del(&with(both(), json!({ "prevResult": absent })));
    assert_eq!(ifbs(lab), [""; 0]);
}

#[test]
fn a_renamed_link_is_found_by_its_alias() {
    let lab = &Lab::new();
    let pod = container(lab);
    pod.add(&both());
    lab.sh(&format!(
        "ip link set {IFB} down; ip link set {IFB} name renamed; ip link set vethc1 down
                     ip link set vethc1 name veth9"
    ));
    pod.del(&with(both(), json!({ "prevResult": null })));
    assert_eq!((ifbs(lab), redirect(lab, "veth9")), (vec![], None));
}

/// Everything that DEL uses names another container by now: the name of the veth, the namespace, the hash.
#[test]
fn the_link_of_another_attachment_stays() {
    let lab = &Lab::new();
    let pod = container(lab);
    pod.add(&both());
    let before = state(lab);
    let attackers = [
        ("net1", "c2", "eth0", &pod.netns),
        ("net1", "c1", "eth1", &pod.netns),
        ("net2", "c1", "eth0", &pod.netns),
        ("net", "1c1", "eth0", &pod.netns),
    ];
    for (network, id, ifname, netns) in attackers {
        let other = Pod { id: id.to_owned(), ifname: ifname.to_owned(), netns: netns.clone(), ..pod.clone() };
        for result in [json!(null), pod.result("1.1.0")] {
            let config = with(both(), json!({ "name": network, "prevResult": result }));
            other.del(&config);
            other.call("DEL", &config).env("CNI_NETNS", "").run().ok();
            assert_eq!(state(lab), before, "{network} {id} {ifname}");
        }
    }
    pod.check(&both()).ok();
}

/// A link without an alias, as the reference creates it.
fn of_reference<'a>(lab: &'a Lab, test: &str) -> Option<(Pod<'a>, serde_json::Value)> {
    reference("bandwidth", test)?;
    let pod = container(lab);
    let config = with(both(), json!({ "cniVersion": "1.0.0" }));
    pod.call_reference("ADD", &config).run().ok();
    Some((pod, config))
}

#[test]
fn a_link_of_the_reference_is_removed_with_any_evidence() {
    let test = "del::a_link_of_the_reference_is_removed_with_any_evidence";
    for (keeps_result, keeps_netns, keeps_veth) in
        [(true, true, true), (true, false, true), (false, true, true), (false, false, true), (false, false, false)]
    {
        let lab = &Lab::new();
        let Some((pod, mut config)) = of_reference(lab, test) else { return };
        if !keeps_result {
            config["prevResult"] = json!(null);
        }
        if !keeps_veth {
            lab.sh("ip link delete vethc1");
        }
        let netns = if keeps_netns { pod.netns.clone() } else { "/nowhere".into() };
        pod.call("DEL", &config).env("CNI_NETNS", netns).run().ok();
        assert_eq!(ifbs(lab), [""; 0], "{keeps_result} {keeps_netns} {keeps_veth}");
        if keeps_veth {
            assert_eq!(redirect(lab, "vethc1"), None);
            pod.sh("ping -q -c 1 -w 60 10.9.0.1");
        }
    }
}

#[test]
fn a_link_of_the_reference_is_removed_after_its_veth_was_renamed() {
    let lab = &Lab::new();
    let Some((pod, config)) = of_reference(lab, "del::a_link_of_the_reference_is_removed_after_its_veth_was_renamed")
    else {
        return;
    };
    let mac = text(&lab.ip("link show vethc1")[0]["address"]);
    lab.sh("ip link set vethc1 down; ip link set vethc1 name other; ip link set other up");
    let del = |mac: &str| {
        let mut result = pod.result("1.0.0");
        result["interfaces"][0]["mac"] = json!(mac);
        let config = with(config.clone(), json!({ "prevResult": result }));
        pod.call("DEL", &config).env("CNI_NETNS", "/nowhere").run().ok();
    };
    let before = state(lab);
    ["", "0a:58:0a:09:00:02"].into_iter().for_each(del);
    assert_eq!(state(lab), before, "the veth may be that of another container");
    del(&mac);
    assert_eq!(ifbs(lab), [""; 0]);
}

#[test]
fn a_link_of_the_reference_that_another_container_uses_stays() {
    let lab = &Lab::new();
    let Some((pod, config)) = of_reference(lab, "del::a_link_of_the_reference_that_another_container_uses_stays")
    else {
        return;
    };
    let before = state(lab);
    // The namesake on the network `net` is another container, in another namespace.
    let namesake = Pod { id: "1c1".to_owned(), port: "veth1c1".to_owned(), ..pod.clone() };
    let on_net = with(config.clone(), json!({ "name": "net" }));
    let other = Pod { netns: lab.netns("other"), ..namesake.clone() };
    other.del(&with(on_net.clone(), json!({ "prevResult": null })));
    assert_eq!(state(lab), before, "the veth leads to another namespace");
    other.call("DEL", &on_net).env("CNI_NETNS", "").run().ok();
    assert_eq!(state(lab), before, "the result names another veth");
    // Another interface of the same container.
    let sibling = Pod { ifname: "eth1".to_owned(), ..pod.clone() };
    sibling.del(&with(config.clone(), json!({ "prevResult": null })));
    assert_eq!(state(lab), before, "the veth leads to another interface");
    // A lease proves that the other one exists.
    let dir = Path::new("/var/lib/cni/networks/net1");
    fs::create_dir_all(dir).unwrap();
    fs::write(dir.join("10.9.0.2"), "c1\r\neth0").unwrap();
    let blind = with(on_net, json!({ "prevResult": null }));
    namesake.call("DEL", &blind).env("CNI_NETNS", "").run().ok();
    assert_eq!(state(lab), before, "a lease names the owner");
    // The alias of the veth takes precedence over all of that.
    lab.sh("ip link set vethc1 alias 'cni-attachment net1 c1 eth0'");
    fs::remove_dir_all(dir).unwrap();
    namesake.call("DEL", &blind).env("CNI_NETNS", "").run().ok();
    assert_eq!(state(lab), before, "the alias names the owner");
    pod.del(&config);
    assert_eq!(ifbs(lab), [""; 0]);
}

#[test]
fn links_of_other_programs_stay() {
    let lab = &Lab::new();
    let pod = container(lab);
    lab.sh(&format!(
        "ip link add ifb7 type ifb; ip link add bwp000000000000 type ifb; ip link add {IFB} type dummy ||
                     ip link add {IFB} type bridge"
    ));
    let before = lab.ip("link show").as_array().unwrap().len();
    pod.del(&both());
    pod.del(&with(both(), json!({ "prevResult": null })));
    assert_eq!(lab.ip("link show").as_array().unwrap().len(), before);
    // The name of the reference is taken: ADD uses another.
    let result = pod.add(&both());
    assert_ne!(result["interfaces"][2]["name"], IFB);
    pod.del(&both());
    assert_eq!(lab.ip("link show").as_array().unwrap().len(), before);
}

/// Neither the result nor the namespace is known, but where the veth leads to.
#[test]
fn a_link_of_the_reference_of_another_interface_stays() {
    let lab = &Lab::new();
    let Some((pod, config)) = of_reference(lab, "del::a_link_of_the_reference_of_another_interface_stays") else {
        return;
    };
    let before = state(lab);
    let sibling = Pod { ifname: "eth1".to_owned(), ..pod.clone() };
    let blind = with(config.clone(), json!({ "prevResult": null }));
    sibling.call("DEL", &blind).env("CNI_NETNS", "").run().ok();
    assert_eq!(state(lab), before);
    pod.call("DEL", &blind).env("CNI_NETNS", "").run().ok();
    assert_eq!(ifbs(lab), [""; 0]);
}

#[test]
fn an_add_whose_answer_is_lost_is_reverted() {
    let lab = &Lab::new();
    let pod = container(lab);
    let outcome = pod.call("ADD", &both()).via_shell("exec \"$0\" >/dev/full").run();
    assert_eq!(outcome.status, Some(1), "{outcome:?}");
    assert_eq!((ifbs(lab), redirect(lab, "vethc1"), limit(lab, "vethc1")), (vec![], None, None));
}
