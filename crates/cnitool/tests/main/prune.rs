//! `cnitool prune`. A test has its own mount and network namespaces, so it needs `--force`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde_json::{Value, json};
use testing::config::with;
use testing::{Process, program_path, skip};

use crate::doctor::{assert_healthy, only_problem};
use crate::node::{
    LONG_ID, attach, host, host_with, json, leak, lose_namespace, network, page, port, powerless, snapshot,
};
use crate::support::{Host, failure};

fn leases() -> Vec<String> {
    let dir = fs::read_dir("/var/lib/cni/networks/pods").unwrap();
    let names = dir.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut leases: Vec<String> = names.filter(|name| name.starts_with("10.")).collect();
    leases.sort();
    leases
}

/// A host with a live container, one whose namespace is gone, one without a port, a leaked lease and an empty lease.
fn mixed_host(subnet: &str) -> (Host, [String; 3]) {
    let host = host(&format!("{subnet}.0/24"));
    let ids = [attach(&host, "blue"), attach(&host, "lost"), attach(&host, "cut")];
    lose_namespace(&host, "lost", &ids[1]);
    host.lab.sh(&format!("ip link del {}", port(&ids[2])));
    leak(&format!("{subnet}.99"), &format!("{LONG_ID}\r\neth0"));
    leak(&format!("{subnet}.98"), "");
    (host, ids)
}

#[test]
fn a_dry_run_prints_everything_and_changes_nothing() {
    let (host, ids) = mixed_host("10.121.0");
    let before = snapshot(&host);
    let text = page(&host.run("prune --dry-run"));
    assert_eq!(snapshot(&host), before);
    for part in
        ["10.121.0.3", "10.121.0.98", "10.121.0.99", "in the cache", "kept: 1 alive, 1 no port", "nothing was changed"]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
    for kept in ["10.121.0.2 ", "10.121.0.4 ", &ids[0]] {
        assert!(!text.contains(kept), "{kept} in {text}");
    }
}

#[test]
fn exactly_the_attachments_that_are_gone_are_removed() {
    let (host, ids) = mixed_host("10.122.0");
    let alive = port(&ids[0]);
    assert_eq!(leases(), ["10.122.0.2", "10.122.0.3", "10.122.0.4", "10.122.0.98", "10.122.0.99"]);
    page(&host.run("prune --force pods"));
    assert_eq!(leases(), ["10.122.0.2", "10.122.0.4"]);
    assert_eq!(host.cached().len(), 2);
    assert!(!host.cached().iter().any(|name| name.contains(&ids[1])), "{:?}", host.cached());
    assert_eq!(port(&ids[0]), alive);
    let rules = host.lab.sh("nft list ruleset");
    assert!(rules.contains("10.122.0.2") && rules.contains("10.122.0.4") && !rules.contains("10.122.0.3"), "{rules}");
    host.run("check pods /run/netns/blue").ok();

    let before = snapshot(&host);
    assert!(page(&host.run("prune --force")).contains("nothing to remove"));
    let without_times =
        |text: &str| text.lines().map(|line| line.split(' ').take(3).collect()).collect::<Vec<String>>();
    assert_eq!(without_times(&snapshot(&host)), without_times(&before));
}

/// Versions before 1.1.0 do not have GC, and the leaked lease has no cache entry.
#[test]
fn a_network_of_an_old_version_is_pruned() {
    let host = host("10.123.0.0/24");
    let mut config = network("pods", "10.123.0.0/24", &json!({}));
    config["cniVersion"] = "0.4.0".into();
    host.configure("10-pods.conflist", &config.to_string());
    attach(&host, "blue");
    leak("10.123.0.99", &format!("{LONG_ID}\r\neth0"));
    page(&host.run("prune --force"));
    assert_eq!(leases(), ["10.123.0.2"]);
}

#[test]
fn attachments_of_unknown_state_are_kept() {
    let host = host("10.124.0.0/24");
    attach(&host, "blue");
    leak("10.124.0.99", &format!("{LONG_ID}\r\neth0"));
    // A port whose owner is unknown.
    host.lab.netns("stranger");
    host.lab.sh("ip link add stranger type veth peer name eth0 netns stranger; ip link set stranger master br-pods up");
    let text = page(&host.run("prune --force"));
    assert!(text.contains("nothing to remove") && text.contains("kept: 1 alive, 1 unknown"), "{text}");
    assert_eq!(leases(), ["10.124.0.2", "10.124.0.99"]);
    host.lab.sh("ip link del stranger");
    page(&host.run("prune --force"));
    assert_eq!(leases(), ["10.124.0.2"]);
}

/// In a network without a bridge, only the cache knows the namespaces of the containers.
#[test]
fn a_network_without_a_bridge_is_judged_by_the_cache() {
    let host = host("10.125.0.0/24");
    host.recorder("other");
    let config = json!({ "cniVersion": "1.1.0", "name": "pods", "plugins": [{ "type": "other",
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.125.0.0/24" }]] } }] });
    host.configure("10-pods.conflist", &config.to_string());
    attach(&host, "blue");
    let lost = attach(&host, "lost");
    host.lab.sh("umount /run/netns/lost; rm /run/netns/lost");
    leak("10.125.0.99", &format!("{LONG_ID}\r\neth0"));
    let text = page(&host.run("prune --force"));
    assert!(text.contains("kept: 1 alive, 1 unknown"), "{text}");
    let deleted: Vec<String> = host.log().into_iter().filter(|line| line.starts_with("DEL ")).collect();
    assert_eq!(deleted.len(), 1, "{deleted:?}");
    assert!(deleted[0].contains(&lost), "{deleted:?}");
    assert!(host.calls().iter().all(|call| !call.starts_with("GC")), "{:?}", host.calls());
}

/// An alias has at most 255 bytes, so that the port does not say whose it is.
#[test]
fn a_live_port_that_cannot_be_named_is_kept() {
    let host = host("10.126.0.0/24");
    attach(&host, "blue");
    leak("10.126.0.99", &format!("{LONG_ID}\r\neth0"));
    let netns = host.lab.netns("long");
    let mut config = network("pods", "10.126.0.0/24", &json!({}))["plugins"][0].clone();
    config["name"] = "pods".into();
    config["cniVersion"] = "1.1.0".into();
    let id = "c".repeat(300);
    host.lab.plugin("bridge", "ADD").attachment(&id, "eth0", netns).stdin(config.to_string()).run().ok();
    fs::remove_file("/var/lib/cni/networks/pods/10.126.0.3").unwrap();
    let state = || host.lab.sh("nft list table inet cni_plugins_masquerade; ip -o link show master br-pods | wc -l");
    let before = state();
    page(&host.run("prune --force"));
    assert_eq!((leases(), state()), (vec!["10.126.0.2".to_owned(), "10.126.0.99".to_owned()], before.clone()));
    leak("10.126.0.3", &format!("{id}\r\neth0"));
    page(&host.run("prune --force"));
    assert!(leases().contains(&"10.126.0.3".to_owned()) && state() == before, "{:?}", leases());
}

/// A node is upgraded in place. Only the alias proves that the container is alive: its address and its cache entry are
/// gone.
#[test]
fn a_port_with_the_alias_of_an_earlier_version_is_kept() {
    let host = host("10.128.0.0/24");
    let id = attach(&host, "blue");
    leak("10.128.0.99", &format!("{LONG_ID}\r\neth0"));
    host.lab.sh("ip -n blue address flush dev eth0; rm -r /var/lib/cni/results");
    let alive = port(&id);
    host.lab.sh(&format!("ip link set {alive} alias \"cni0 pods {id} eth0\""));
    page(&host.run("prune --force"));
    assert_eq!(leases(), ["10.128.0.2"]);
    assert_eq!(port(&id), alive);
}

#[test]
fn networks_with_gc_disabled_or_without_a_configuration_are_skipped() {
    let host = host("10.127.0.0/24");
    let mut config = network("pods", "10.127.0.0/24", &json!({}));
    config["disableGC"] = true.into();
    host.configure("10-pods.conflist", &config.to_string());
    attach(&host, "blue");
    leak("10.127.0.99", &format!("{LONG_ID}\r\neth0"));
    fs::create_dir_all("/var/lib/cni/networks/former").unwrap();
    fs::write("/var/lib/cni/networks/former/10.1.1.1", "c1\r\neth0").unwrap();
    let text = page(&host.run("prune --force"));
    assert!(text.contains("disableGC") && text.contains("no configuration"), "{text}");
    assert_eq!(leases(), ["10.127.0.2", "10.127.0.99"]);
    assert!(Path::new("/var/lib/cni/networks/former/10.1.1.1").exists());
}

#[test]
fn prune_without_permission_changes_nothing() {
    let (host, _) = mixed_host("10.251.0");
    let before = snapshot(&host);
    let line = failure(&powerless(&host, "prune --force"));
    assert!(line.contains("CAP_NET_ADMIN"), "{line}");
    assert_eq!(snapshot(&host), before);
}

#[test]
fn a_missing_plugin_or_a_corrupt_entry_of_the_cache_removes_nothing() {
    let (host, _) = mixed_host("10.129.0");
    let before = leases();
    fs::write("/var/lib/cni/results/pods-x-eth0", "{").unwrap();
    let outcome = host.run("prune --force");
    assert!(outcome.status == Some(1) && outcome.stderr.contains("pods-x-eth0"), "{outcome:?}");
    assert_eq!(leases(), before);
    fs::remove_file("/var/lib/cni/results/pods-x-eth0").unwrap();
    fs::remove_file(host.lab.bin().join("bridge")).unwrap();
    let outcome = host.run("prune --force");
    assert!(outcome.status == Some(1) && outcome.stderr.contains("failed to find plugin \"bridge\""), "{outcome:?}");
    assert_eq!(leases(), before);
    let _ = json(&host, "leases --json");
}

#[test]
fn no_plugin_is_called_if_nothing_is_gone() {
    let host = host("10.252.0.0/24");
    host.recorder("second");
    let mut config = network("pods", "10.252.0.0/24", &json!({}));
    config["plugins"].as_array_mut().unwrap().push(json!({ "type": "second" }));
    host.configure("10-pods.conflist", &config.to_string());
    attach(&host, "blue");
    assert!(page(&host.run("prune --force")).contains("nothing to remove"));
    assert_eq!(host.calls(), ["ADD second"]);
    leak("10.252.0.99", &format!("{LONG_ID}\r\neth0"));
    page(&host.run("prune --force"));
    assert_eq!(host.calls(), ["ADD second", "DEL second"]);
    assert!(host.log().last().unwrap().contains(LONG_ID), "{:?}", host.log());
}

/// Neither a lease nor the cache names their container any more.
#[test]
fn objects_that_are_all_that_is_left_are_removed() {
    for (subnet, plugin, find) in [
        ("10.250.5", json!({ "type": "tuning", "mtu": 1400 }), "ls /run/cni/tuning"),
        (
            "10.250.6",
            json!({ "type": "bandwidth", "egressRate": 1_000_000, "egressBurst": 1_000_000 }),
            "ip -o link show type ifb",
        ),
    ] {
        let host = host_with(&format!("{subnet}.0/24"), &plugin);
        attach(&host, "blue");
        let lost = attach(&host, "lost");
        lose_namespace(&host, "lost", &lost);
        host.lab.sh(&format!("rm /var/lib/cni/results/*{lost}* /var/lib/cni/networks/pods/{subnet}.3"));
        assert_eq!(host.lab.sh(find).lines().count(), 2, "{plugin}");
        page(&host.run("prune --force"));
        assert_eq!(host.lab.sh(find).lines().count(), 1, "{plugin}");
        host.run("check pods /run/netns/blue").ok();
    }
}

/// A host with a container `lost` that is gone. The first and the last plugin of the list are slow: during their DEL,
/// which `command` calls, another runtime attaches the containers `names` directly. Returns the configuration of its
/// bridge.
fn attach_meanwhile(subnet: &str, command: &str, names: &[&str]) -> (Host, Value) {
    let host = host(&format!("{subnet}.0/24"));
    let mut config = network("pods", &format!("{subnet}.0/24"), &json!({}));
    let bridge =
        with(config["plugins"][0].clone(), json!({ "name": "pods", "cniVersion": "1.1.0", "macspoofchk": true }));
    config["plugins"] = json!([{ "type": "first" }, bridge, { "type": "last" }]);
    host.configure("10-pods.conflist", &config.to_string());
    fs::write(host.lab.dir().join("bridge.conf"), bridge.to_string()).unwrap();
    for name in names {
        host.lab.netns(name);
    }
    for plugin in ["first", "last"] {
        let script = format!(
            "set -e
             if [ $CNI_COMMAND = ADD ]; then jq '.prevResult // {{ \"cniVersion\": \"1.1.0\" }}'; exit; fi
             export CNI_IFNAME=eth0
             for name in {}; do
                 id=$name; [ $name != lost ] || id=$CNI_CONTAINERID
                 ! ip -o link show type veth | grep -q \" $id \" || continue
                 for command in DEL ADD; do
                     CNI_COMMAND=$command CNI_CONTAINERID=$id CNI_NETNS=/run/netns/$name {bin}/bridge \\
                         <{dir}/bridge.conf >{dir}/$id.result || {{ cat {dir}/$id.result >&2; exit 1; }}
                 done
             done",
            names.join(" "),
            bin = host.lab.bin().display(),
            dir = host.lab.dir().display()
        );
        host.lab.script(plugin, &script);
    }
    let id = "f".repeat(64);
    let call = |command: &str| host.lab.plugin("bridge", command).stdin(bridge.to_string());
    call("ADD").attachment(&id, "eth0", host.lab.netns("gone")).run().ok();
    lose_namespace(&host, "gone", &id);
    let before = leases().len();
    assert_eq!((before, host.cached().len()), (1, 0));
    page(&host.run(command));
    (host, bridge)
}

/// Asserts that a container, which the other runtime has attached, has everything.
fn assert_attached(host: &Host, bridge: &Value, id: &str, name: &str) {
    let result: Value =
        serde_json::from_slice(&fs::read(host.lab.dir().join(format!("{id}.result"))).unwrap()).unwrap();
    let config = with(bridge.clone(), json!({ "prevResult": result }));
    let netns = format!("/run/netns/{name}");
    host.lab.plugin("bridge", "CHECK").attachment(id, "eth0", netns).stdin(config.to_string()).run().ok();
}

#[test]
fn containers_that_another_runtime_attaches_meanwhile_are_kept() {
    for (subnet, command) in [("10.250.1", "prune --force"), ("10.250.2", "gc pods")] {
        let (host, bridge) = attach_meanwhile(subnet, command, &["new"]);
        assert_attached(&host, &bridge, "new", "new");
        assert_eq!(leases(), [format!("{subnet}.3")], "{command}: only the lost one is gone");
    }
}

/// Some runtimes attach a container again under the same ID.
#[test]
fn a_container_that_comes_back_meanwhile_is_kept() {
    for (subnet, command) in [("10.250.3", "prune --force"), ("10.250.4", "gc pods")] {
        let (host, bridge) = attach_meanwhile(subnet, command, &["lost"]);
        assert_attached(&host, &bridge, &"f".repeat(64), "lost");
        assert_eq!(leases(), [format!("{subnet}.3")], "{command}");
    }
}

#[test]
fn concurrent_adds_lose_nothing() {
    let host = host("10.130.0.0/24");
    let names: Vec<String> = (0..12).map(|i| format!("z{i}")).collect();
    names.iter().for_each(|name| drop(host.lab.netns(name)));
    let tool = program_path("cnitool");
    host.lab.sh(&format!(
        "export NETCONFPATH={} CNI_PATH={}
         mkdir -p /var/lib/cni/networks/pods; for i in 1 2 3 4 5 6; do echo >/var/lib/cni/networks/pods/10.130.0.$((i + 90)); {tool} prune --force; done &
         for name in {}; do {tool} add pods /run/netns/$name; done
         wait $!",
        host.conf_dir().display(),
        host.lab.bin().display(),
        names.join(" "),
        tool = tool.display()
    ));
    for name in names {
        host.run(&format!("check pods /run/netns/{name}")).ok();
    }
}

/// Plugins check which kind of lock is available while they run.
#[test]
fn prune_and_gc_lock_exclusively_and_adds_share_the_lock() {
    let host = host("10.168.0.0/24");
    let seen = host.lab.dir().join("locks");
    let script = format!(
        "for how in shared exclusive; do
             flock --$how --nonblock /run/cni0/cnitool.lock true && echo $CNI_COMMAND $how >>{}
         done\n[ $CNI_COMMAND != ADD ] || jq .prevResult",
        seen.display()
    );
    host.lab.script("locked", &script);
    let mut config = network("pods", "10.168.0.0/24", &json!({}));
    config["plugins"].as_array_mut().unwrap().push(json!({ "type": "locked" }));
    host.configure("10-pods.conflist", &config.to_string());
    attach(&host, "blue");
    leak("10.168.0.99", &format!("{LONG_ID}\r\neth0"));
    page(&host.run("prune --force"));
    host.run("gc pods").ok();
    host.run("del pods /run/netns/blue").ok();
    assert_eq!(fs::read_to_string(&seen).unwrap(), "ADD shared\nDEL shared\n");
}

/// Attaches namespaces to the loopback of containerd, which has no file.
fn loopbacks(host: &Host, names: &[&str]) {
    let list = r#"{"cniVersion": "0.3.1", "name": "cni-loopback", "plugins": [{"type": "loopback"}]}"#;
    host.configure("99-loopback.conflist", list);
    for name in names {
        host.lab.netns(name);
        host.call(&format!("add cni-loopback /run/netns/{name}")).env("CNI_IFNAME", "lo").run().ok();
    }
    fs::remove_file(host.conf_dir().join("99-loopback.conflist")).unwrap();
}

/// containerd attaches each pod to a network of its own. Its results stay if containerd loses its state.
#[test]
fn results_of_a_network_of_the_runtime_are_reported_and_removed() {
    let host = host("10.31.0.0/24");
    attach(&host, "blue");
    // A veth pair leads to this namespace: its loopback addresses do not make others alive.
    loopbacks(&host, &["green", "lost"]);
    host.lab.sh("ip link add name wire type veth peer name wire0 netns green");
    assert_healthy(&host, "containers with a loopback");
    let text = page(&host.run("doctor"));
    assert!(!text.contains("not seen"), "{text}");
    host.lab.sh("umount /run/netns/lost; rm /run/netns/lost");
    let what = only_problem(&host, "cache", "warn");
    assert!(what.contains("1 result of containers that are gone"), "{what}");
    assert!(what.contains("cnitool prune cni-loopback"), "{what}");
    let before = host.cached();
    let text = page(&host.run("prune --dry-run"));
    assert!(text.contains("kept: 1 alive") && text.contains("in the cache"), "{text}");
    assert_eq!((before.len(), host.cached()), (3, before));
    page(&host.run("prune --force"));
    assert_eq!(host.cached().len(), 2, "{:?}", host.cached());
    assert_healthy(&host, "results of live containers");
}

/// What cannot be removed with certainty stays, with the reason.
#[test]
fn results_that_no_plugin_can_remove_stay() {
    let host = host("10.32.0.0/24");
    attach(&host, "blue");
    loopbacks(&host, &["lost"]);
    host.lab.sh("umount /run/netns/lost; rm /run/netns/lost");
    let file = format!("/var/lib/cni/results/{}", host.cached()[0]);
    assert!(file.contains("cni-loopback"), "{file}");
    let entry: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    // In Base64.
    for (list, why) in [
        (
            "eyJjbmlWZXJzaW9uIjoiMC4zLjEiLCJuYW1lIjoib3RoZXIiLCJwbHVnaW5zIjpbeyJ0eXBlIjoibG9vcGJhY2sifV19",
            "another network",
        ),
        ("eyJuYW1lIjoiY25pLWxvb3BiYWNrIiwicGx1Z2lucyI6W3sidHlwZSI6Im5vbmUifV19", "plugin \\\"none\\\""),
        (
            "eyJuYW1lIjoiY25pLWxvb3BiYWNrIiwiZGlzYWJsZUdDIjp0cnVlLCJwbHVnaW5zIjpbeyJ0eXBlIjoibG9vcGJhY2sifV19",
            "disableGC",
        ),
        ("e30=", "has no \\\"name\\\""),
    ] {
        fs::write(&file, with(entry.clone(), json!({ "config": list })).to_string()).unwrap();
        let what = only_problem(&host, "cache", "warn");
        assert!(what.contains("remove the files by hand") && what.contains(why), "{why}: {what}");
        let text = page(&host.run("prune --force"));
        assert!(text.contains("skipped:"), "{text}");
        assert_eq!(host.cached().len(), 2);
    }
}

#[test]
fn a_named_network_that_is_skipped_is_a_failure() {
    let host = host("10.169.0.0/24");
    attach(&host, "blue");
    let outcome = host.call("prune --force pods").env("NETCONFPATH", "/nonexist").run();
    assert_eq!(outcome.status, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("prune network \"pods\": it has no configuration"), "{outcome:?}");
    let outcome = host.call("prune --force").env("NETCONFPATH", "/nonexist").run();
    assert_eq!(outcome.status, Some(0), "{outcome:?}");
    let mut config = network("pods", "10.169.0.0/24", &json!({}));
    config["disableGC"] = true.into();
    host.configure("10-pods.conflist", &config.to_string());
    let outcome = host.run("prune --force pods");
    assert_eq!(outcome.status, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("disableGC"), "{outcome:?}");
}

/// A pod with its own `/run` or its own processes does not see the namespaces of live containers.
#[test]
fn nothing_is_pruned_inside_a_container() {
    let (host, _) = mixed_host("10.253.0");
    let before = snapshot(&host);
    let refusal = |line: String, which: &str| {
        let want =
            format!("cannot determine which containers are gone: the {which} of this process may not be the host's");
        assert!(line.contains(&want) && line.contains("--force"), "{line}");
        assert_eq!(snapshot(&host), before);
    };
    // Its own mount and network namespaces. Without permission to inspect process 1, all three are reported.
    let line = failure(&host.run("prune"));
    assert!(line.contains("mount") && line.contains("network namespaces of this process"), "{line}");
    assert_eq!(snapshot(&host), before);
    // Its own pid namespace, whose process 1 has the same mount and network namespaces.
    let mut call = Process::new("unshare").env("NETCONFPATH", host.conf_dir()).env("CNI_PATH", host.lab.bin());
    for word in ["--pid", "--fork", "--mount-proc"] {
        call = call.arg(word);
    }
    refusal(failure(&call.arg(program_path("cnitool")).arg("prune").run()), "pid namespace");
    // A dry run reports it.
    let text = page(&host.run("prune --dry-run"));
    assert!(text.contains("prune would refuse: cannot determine which containers are gone"), "{text}");
    assert_eq!(snapshot(&host), before);
}

#[test]
fn the_host_prunes_without_force() {
    if fs::metadata("/proc/self/ns/pid").unwrap().ino() != 0xEFFF_FFFC {
        return skip("the_host_prunes_without_force", "this is not the initial pid namespace");
    }
    let (host, _) = mixed_host("10.170.0");
    // Makes process 1 appear to have the namespaces of this test.
    let own = fs::read_link("/proc/thread-self").unwrap();
    host.lab.sh(&format!("mount --bind /proc/{}/ns /proc/1/ns", own.display()));
    let text = page(&host.run("prune --dry-run"));
    assert!(!text.contains("would refuse"), "{text}");
    page(&host.run("prune"));
    assert_eq!(leases(), ["10.170.0.2", "10.170.0.4"]);
}

/// If `/run/netns` is missing, a namespace in it may be alive. The directory of a process disappears with the process.
#[test]
fn a_namespace_whose_directory_is_missing_is_not_gone() {
    let host = host("10.186.0.0/24");
    host.recorder("other");
    let config = json!({ "cniVersion": "1.1.0", "name": "pods", "plugins": [{ "type": "other",
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.186.0.0/24" }]] } }] });
    host.configure("10-pods.conflist", &config.to_string());
    attach(&host, "blue");
    let ended = attach(&host, "ended");
    let file = host.cached().into_iter().find(|name| name.contains(&ended)).unwrap();
    let path = Path::new("/var/lib/cni/results").join(file);
    // Process ids are smaller.
    let entry = fs::read_to_string(&path).unwrap().replace("/run/netns/ended", "/proc/4194305/ns/net");
    fs::write(&path, entry).unwrap();
    host.lab.sh("mount -t tmpfs none /run");
    let text = page(&host.run("prune --force"));
    assert!(text.contains("kept: 1 unknown"), "{text}");
    let deleted: Vec<String> = host.log().into_iter().filter(|line| line.starts_with("DEL ")).collect();
    assert!(deleted.len() == 1 && deleted[0].contains(&ended), "{deleted:?}");
    host.lab.sh("umount /run; umount /run/netns/blue; rm /run/netns/blue");
    page(&host.run("prune --force"));
    assert_eq!(host.cached(), [""; 0], "with an existing directory, it is gone");
}

#[test]
fn json_has_what_was_removed_and_kept() {
    let host = host("10.188.0.0/24");
    attach(&host, "blue");
    let lost = attach(&host, "lost");
    lose_namespace(&host, "lost", &lost);
    leak("10.188.0.77", "");
    host.configure(
        "20-other.conf",
        r#"{"cniVersion": "1.1.0", "name": "other", "type": "loopback", "disableGC": true}"#,
    );
    let dry = json(&host, "prune --dry-run --json");
    let pods = &dry["networks"][0];
    let removal = |kind: &str, what: &str| {
        let all = pods["remove"].as_array().unwrap();
        all.iter().find(|one| one["kind"] == kind && one["what"] == what).unwrap_or_else(|| panic!("{what} in {pods}"))
    };
    let lease = removal("lease", "10.188.0.3");
    assert_eq!((&lease["container"], &lease["interface"]), (&lost.as_str().into(), &"eth0".into()));
    assert_eq!(removal("lease", "10.188.0.77")["container"], Value::Null);
    assert_eq!(removal("rule", "10.188.0.3")["why"], "its container is gone");
    removal("result", "in the cache");
    assert_eq!(pods["keep"], json!({ "alive": 1, "noPort": 0, "unknown": 0 }));
    assert_eq!((&dry["dryRun"], &pods["error"], &pods["skipped"]), (&true.into(), &Value::Null, &Value::Null));
    let done = json(&host, "prune --force --json");
    assert_eq!((&done["dryRun"], &done["networks"][0]["remove"]), (&false.into(), &pods["remove"]));
    assert_eq!(json(&host, "prune --force --json")["networks"][0]["remove"], json!([]));
}

#[test]
fn json_has_the_error_of_each_network() {
    let host = host("10.189.0.0/24");
    let lost = attach(&host, "lost");
    lose_namespace(&host, "lost", &lost);
    fs::remove_file(host.lab.bin().join("bridge")).unwrap();
    let outcome = host.run("prune --force --json");
    assert!(outcome.status == Some(1) && outcome.stderr.contains("failed to find plugin \"bridge\""), "{outcome:?}");
    let answer: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let error = answer["networks"][0]["error"].as_str().unwrap();
    assert!(error.contains("failed to find plugin \"bridge\""), "{error}");
}
