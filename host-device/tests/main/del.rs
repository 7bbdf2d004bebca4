//! DEL and GC give the device back under its name, and touch nothing else.

use serde_json::{Value, json};
use testing::config::with;
use testing::fault::kill_everywhere;
use testing::{Lab, Pod};

use crate::{assert_given_back, config, has, ipam, lab, return_as};

fn leases(lab: &Lab) -> String {
    lab.sh("find /var/lib/cni -name '10.*' -o -name 'fd*'")
}

fn gc(lab: &Lab, valid: Value) {
    let config = with(config(ipam()), json!({ "cni.dev/valid-attachments": valid }));
    lab.plugin("host-device", "GC").stdin(config.to_string()).run().silent();
}

/// The device stays usable in the container until the host has no other link with its name.
#[test]
fn a_name_that_is_taken_on_the_host_is_named() {
    let lab = &lab();
    let pod = Pod::new(lab, "a");
    pod.add(&config(ipam()));
    for (taken, free) in [
        ("ip link add nic type bridge", "ip link del nic"),
        ("ip link property add dev far altname nic", "ip link property del dev far altname nic"),
    ] {
        lab.sh(taken);
        let before = pod.sh("ip -o address show eth0");
        let error = pod.call("DEL", &config(ipam())).run().error(999);
        let msg = error["msg"].as_str().unwrap();
        assert!(msg.starts_with("give back \"nic\": the host has another link with this name"), "{error}");
        assert_eq!(pod.sh("ip -o address show eth0"), before);
        assert_ne!(leases(lab), "", "the container can still use its addresses");
        lab.sh(free);
    }
    pod.del(&config(ipam()));
    assert_given_back(lab, "DEL");
    assert_eq!(leases(lab), "");
}

/// Programs in a container rename interfaces, and set aliases.
#[test]
fn a_device_that_the_container_changed_is_found() {
    let lab = &lab();
    let pod = Pod::new(lab, "a");
    for change in [
        "ip link set eth0 down; ip link set eth0 name other",
        "ip link set eth0 alias far",
        "ip link set eth0 alias \"\"",
        "ip link set eth0 down; ip link set eth0 name other alias other; ip link add eth0 type bridge",
        "ip link add nic type bridge",
    ] {
        pod.add(&config(ipam()));
        pod.sh(change);
        pod.del(&config(ipam()));
        assert_given_back(lab, change);
        assert_eq!(leases(lab), "", "{change}");
        pod.sh("ip link del eth0 2>/dev/null || true; ip link del nic 2>/dev/null || true");
    }
}

/// The marks are enough without the record, and the record without the alias.
#[test]
fn a_device_without_a_record_is_given_back() {
    let lab = &lab();
    let pod = Pod::new(lab, "a");
    pod.add(&config(json!({})));
    lab.sh("rm -r /run/cni0");
    pod.sh("ip link set eth0 down; ip link set eth0 name other");
    pod.del(&config(json!({})));
    assert_given_back(lab, "DEL");
    // A file that is not a record, or that of another attachment.
    for content in
        ["", "{", "[]", "{\"name\": \"../x\"}", "{\"name\": \"far\", \"ifname\": \"eth0\", \"container\": \"b\"}"]
    {
        pod.add(&config(json!({})));
        lab.sh(&format!("for file in /run/cni0/host-device/*; do echo '{content}' >$file; done"));
        pod.del(&config(json!({})));
        assert_given_back(lab, content);
    }
}

/// A container can remove all marks of a virtual device, and give them to a link of the same kind that it has created.
#[test]
fn a_virtual_device_is_recognised_without_its_marks() {
    let lab = &lab();
    lab.sh("ip link add wire type veth peer name end; ip link add link wire name mac type macvlan");
    // The kernel puts a macvlan on another one on the link of the host, too.
    for (device, forged) in [("nic", "type veth peer name end"), ("mac", "link other type macvlan")] {
        let config = config(with(ipam(), json!({ "device": device })));
        let pod = Pod::new(lab, device);
        let add_and_forge = || {
            let result = pod.add(&config);
            let link = pod.ip("link show eth0")[0].clone();
            let mark = link["altnames"][0].as_str().unwrap();
            pod.sh(&format!(
                "ip link property del dev eth0 altname {mark}
                ip link set eth0 down; ip link set eth0 name other alias evil; ip link add eth0 {forged}
                ip link property add dev eth0 altname {mark}; ip link set eth0 alias {device}"
            ));
            let mac = link["address"].as_str().unwrap().to_owned();
            pod.sh(&format!("ip link set eth0 address {mac}; ip link set eth0 up"));
            let error = pod.check_result(&config, &result).error(999);
            assert!(error["msg"].as_str().unwrap().contains("got another one"), "{error}");
            mac
        };
        let mac = add_and_forge();
        pod.del(&config);
        assert_eq!(lab.ip(&format!("link show {device}"))[0]["address"], mac, "{device}");
        assert!(pod.sh("ip -o link").contains("eth0"), "{device}");
        assert_eq!((leases(lab), lab.sh("ls -A /run/cni0/host-device")), Default::default());
        pod.sh("ip link del eth0");
        // There is nothing to give back, and neither the first DEL nor the next one takes the other link.
        add_and_forge();
        pod.sh("ip link del other");
        for _ in 0..2 {
            pod.del(&config);
            assert!(!has(lab, device) && pod.sh("ip -o link").contains("eth0"), "{device}");
        }
        gc(lab, json!([]));
        assert_eq!((leases(lab), lab.sh("ls -A /run/cni0/host-device")), Default::default());
    }
}

/// A container must not get a link of its own onto the host.
#[test]
fn a_link_that_the_container_created_stays() {
    let lab = &lab();
    let pod = Pod::new(lab, "a");
    pod.add(&config(json!({})));
    let mark = pod.ip("link show eth0")[0]["altnames"][0].as_str().unwrap().to_owned();
    pod.sh(&format!(
        "ip link property del dev eth0 altname {mark}; ip link set eth0 down; ip link set eth0 name nic
         ip link add eth0 type bridge; ip link property add dev eth0 altname {mark}; ip link set eth0 alias evil"
    ));
    pod.del(&config(json!({})));
    assert!(!has(lab, "evil") && pod.sh("ip -o link").contains("eth0"));
    assert_eq!(lab.ip("link show nic")[0]["address"], "02:00:00:00:00:01", "the device itself is given back");
    // Nor one that it has prepared for the second DEL, which finds no record. That one must not fail, either.
    let prepared = Pod::new(lab, "prepared");
    lab.sh("ip link add nic3 type veth peer name far3");
    let third = config(json!({ "device": "nic3" }));
    prepared.add(&third);
    let mark = prepared.ip("link show eth0")[0]["altnames"][0].as_str().unwrap().to_owned();
    prepared.del(&third);
    for alias in ["nic3", "evil"] {
        prepared.sh(&format!(
            "ip link add eth0 type veth peer name end; ip link property add dev eth0 altname {mark}; ip link set eth0 alias {alias}"
        ));
        prepared.del(&third);
        assert!(!has(lab, "evil") && prepared.sh("ip -o link").contains("eth0"), "{alias}");
        prepared.sh("ip link del eth0");
    }
    // Nor one of another container, at whose namespace the path leads by now.
    let other = Pod::new(lab, "b");
    lab.sh("ip link add nic2 type veth peer name far2");
    let theirs = config(json!({ "device": "nic2" }));
    other.add(&theirs);
    let reused = Pod { netns: other.netns.clone(), ..pod.clone() };
    for late in [config(json!({})), theirs.clone(), with(theirs.clone(), json!({ "device": "eth0" }))] {
        let strange = json!({ "interfaces": [{ "name": "eth0", "mac": other.ip("link show eth0")[0]["address"], "sandbox": "/x" }] });
        reused.del(&with(late, json!({ "prevResult": with(json!({ "cniVersion": "1.1.0" }), strange) })));
        assert!(other.sh("ip -o link").contains("eth0"));
    }
    other.del(&theirs);
    assert!(has(lab, "nic2"));
}

/// The kernel gives a device back under the name that it had in the container, or under one of its own choice.
#[test]
fn a_device_whose_namespace_is_gone_gets_its_name_again() {
    let lab = &lab();
    let pod = Pod::new(lab, "a");
    for name in ["eth0", "dev4", "other"] {
        // DEL, with and without the device in the configuration.
        for device in ["nic", "nope"] {
            pod.add(&config(ipam()));
            return_as(&pod, name);
            pod.call("DEL", &config(with(ipam(), json!({ "device": device })))).without("CNI_NETNS").run().ok();
            assert_given_back(lab, &format!("DEL of {name}"));
            assert_eq!(leases(lab), "");
        }
        // GC, with and without a record.
        for record in ["true", "rm -r /run/cni0"] {
            pod.add(&config(ipam()));
            return_as(&pod, name);
            gc(lab, json!([{ "containerID": "a", "ifname": "eth0" }]));
            assert!(has(lab, name) && !has(lab, "nic"), "the attachment is valid");
            lab.sh(record);
            gc(lab, json!([]));
            assert_given_back(lab, &format!("GC of {name}"));
            assert_eq!(leases(lab), "");
        }
        // ADD of the next container, which still needs no DEL of the first one. That comes late, and must not matter.
        pod.add(&config(json!({})));
        return_as(&pod, name);
        let next = Pod::new(lab, &format!("next-{name}"));
        next.add(&config(json!({})));
        pod.del(&config(json!({})));
        assert!(!has(lab, "nic"), "the next container has it");
        next.del(&config(json!({})));
        assert_given_back(lab, &format!("ADD of {name}"));
    }
}

/// The kernel keeps a link on top of a device that moves: a container that goes on running would see the frames of the
/// next one.
#[test]
fn links_on_top_of_the_device_are_deleted() {
    let lab = &lab();
    let pod = Pod::new(lab, "a");
    pod.add(&config(json!({})));
    pod.sh("ip link add inner type veth peer name other; ip link set inner up
        for number in 1 2; do ip link add link eth0 name above$number type macvlan; ip link set above$number up; done
        ip link add link above1 name higher type macvlan; ip link add link inner name kept type macvlan");
    pod.del(&config(json!({})));
    assert_given_back(lab, "DEL");
    let links = pod.ip("link show");
    let mut links: Vec<_> = links.as_array().unwrap().iter().map(|link| link["ifname"].as_str().unwrap()).collect();
    links.sort_unstable();
    assert_eq!(links, ["inner", "kept", "lo", "other"]);
}

/// Another link of the host can have a name that the container has added, or get it later.
#[test]
fn the_device_has_its_own_alternative_names_again() {
    let lab = &lab();
    lab.sh("ip link property add dev nic altname own1 altname own2");
    let pod = Pod::new(lab, "a");
    let changed = "ip link property add dev eth0 altname far altname later; ip link property del dev eth0 altname own1";
    let returned = format!("{changed}; ip link property del dev eth0 altname far");
    for (back, record) in [(false, "true"), (true, "true"), (false, "rm -r /run/cni0")] {
        pod.add(&config(json!({})));
        pod.sh(if back { &returned } else { changed });
        if back {
            return_as(&pod, "eth0");
        }
        lab.sh(record);
        pod.del(&config(json!({})));
        let names = lab.ip("link show nic")[0]["altnames"].clone();
        match record {
            "true" => assert_eq!(names, json!(["own2", "own1"]), "{back}"),
            // Without a record, the names count that other links do not have.
            _ => assert_eq!(names, json!(["own2", "later"])),
        }
    }
}

/// A container can change the alias of a device, even to the name of another one. The record of the attachment decides.
#[test]
fn an_alias_that_the_container_chose_is_not_the_name() {
    let lab = &lab();
    lab.sh("ip link add nic2 type veth peer name far2");
    let devices = [json!({ "device": "nic" }), json!({ "device": "", "hwaddr": "02:00:00:00:00:01" })];
    for (number, device) in devices.into_iter().enumerate() {
        let [pod, other, next] = ["a", "b", "c"].map(|id| Pod::new(lab, &format!("{id}{number}")));
        let second = config(json!({ "device": "nic2" }));
        pod.add(&config(device.clone()));
        pod.sh("ip link set eth0 alias nic2");
        return_as(&pod, "eth0");
        other.add(&second);
        let error = next.call("ADD", &second).run().error(999);
        assert!(error["details"].as_str().unwrap().contains(&format!("container \"b{number}\"")), "{error}");
        other.del(&second);
        next.add(&config(device.clone()));
        assert_eq!(next.ip("link show eth0")[0]["address"], "02:00:00:00:00:01");
        next.del(&config(device.clone()));
        pod.del(&config(device));
        assert_given_back(lab, "DEL");
        assert!(has(lab, "nic2"));
    }
}

#[test]
fn a_name_that_is_taken_when_the_namespace_is_gone_is_named() {
    let lab = &lab();
    let pod = Pod::new(lab, "a");
    pod.add(&config(ipam()));
    return_as(&pod, "eth0");
    lab.sh("ip link add nic type bridge");
    let error = pod.call("DEL", &config(ipam())).without("CNI_NETNS").run().error(999);
    assert!(error["msg"].as_str().unwrap().contains("another link with this name, a bridge"), "{error}");
    assert_eq!(leases(lab), "", "no container has the addresses");
    lab.sh("ip link del nic");
    pod.del(&config(ipam()));
    assert_given_back(lab, "DEL");
}

/// The kernel deletes a virtual device with its namespace. There is nothing to give back, or to wait for.
#[test]
fn a_virtual_device_goes_with_its_namespace() {
    let lab = &lab();
    let pod = Pod::new(lab, "a");
    pod.add(&config(ipam()));
    lab.sh("ip netns del a");
    testing::wait_until("the kernel to delete the namespace", || !has(lab, "far"));
    pod.del(&config(ipam()));
    assert_eq!(leases(lab), "");
    assert_eq!(lab.sh("ls -A /run/cni0/host-device"), "");
}

/// The record, which ADD writes before it sets the mark.
#[test]
fn a_killed_add_leaves_no_record_to_the_next_del() {
    let lab = lab();
    let (pod, config) = (Pod::new(&lab, "a"), config(json!({})));
    let add = || pod.call("ADD", &config);
    let killed = kill_everywhere(&lab, &["sendto"], add, |place| {
        pod.del(&config);
        assert_given_back(&lab, place);
    });
    assert!(killed >= 2, "ADD was killed only {killed} times");
}
