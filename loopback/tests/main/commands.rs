//! The commands of the plugin.

use std::fs;
use std::path::Path;

use cni::{Code, Version};
use serde_json::json;
use testing::{Lab, Process};

use super::{call, config, is_up};

/// Returns the result of ADD in the layout of `version`, for a namespace at /run/netns/c1.
fn expected(version: Version) -> String {
    if version < Version::V0_3_0 {
        return format!(
            r#"{{
    "cniVersion": "{version}",
    "ip4": {{
        "ip": "127.0.0.1/8"
    }},
    "ip6": {{
        "ip": "::1/128"
    }},
    "dns": {{}}
}}"#
        );
    }
    if version < Version::V1_0_0 {
        return format!(
            r#"{{
    "cniVersion": "{version}",
    "interfaces": [
        {{
            "name": "lo",
            "mac": "00:00:00:00:00:00",
            "sandbox": "/run/netns/c1"
        }}
    ],
    "ips": [
        {{
            "version": "4",
            "interface": 0,
            "address": "127.0.0.1/8"
        }},
        {{
            "version": "6",
            "interface": 0,
            "address": "::1/128"
        }}
    ],
    "dns": {{}}
}}"#
        );
    }
    format!(
        r#"{{
    "cniVersion": "{version}",
    "interfaces": [
        {{
            "mac": "00:00:00:00:00:00",
            "name": "lo",
            "sandbox": "/run/netns/c1"
        }}
    ],
    "ips": [
        {{
            "address": "127.0.0.1/8",
            "interface": 0
        }},
        {{
            "address": "::1/128",
            "interface": 0
        }}
    ]
}}"#
    )
}

#[test]
fn add_returns_results_in_the_layout_of_every_version() {
    let lab = &Lab::new();
    let netns = lab.netns("c1");
    for version in Version::ALL {
        let outcome = call(lab, "ADD", &netns).stdin(config(version.as_str())).run();
        outcome.ok();
        assert_eq!(outcome.stdout, expected(version), "{version}");
        assert_eq!(outcome.stderr, "", "{version}");
        assert!(is_up(lab, "c1"));
        call(lab, "DEL", &netns).stdin(config(version.as_str())).run().ok();
        assert!(!is_up(lab, "c1"));
    }
    let outcome = call(lab, "ADD", &netns).stdin(config("")).run();
    assert_eq!(outcome.stdout, expected(Version::V0_1_0), "without a version, the oldest is used");
}

#[test]
fn add_passes_a_previous_result_on() {
    let lab = Lab::new();
    let netns = lab.netns("c1");
    let previous = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "eth0", "sandbox": "/run/netns/c1"}],
        "ips": [{"address": "10.1.0.2/24", "interface": 0}],
        "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1", "mtu": 1400}],
        "dns": {"nameservers": ["10.1.0.1"]},
    });
    let config = json!({"cniVersion": "1.1.0", "name": "lo", "prevResult": previous});
    assert_eq!(call(&lab, "ADD", &netns).stdin(config.to_string()).run().ok(), previous);
    assert!(is_up(&lab, "c1"));
    call(&lab, "DEL", &netns).run().ok();
    let bad = json!({"cniVersion": "1.1.0", "name": "lo", "prevResult": {"ips": [{"address": "nonsense"}]}});
    let error = call(&lab, "ADD", &netns).stdin(bad.to_string()).run().error(7);
    assert!(error["msg"].as_str().unwrap().contains("nonsense"), "{error}");
    assert!(!is_up(&lab, "c1"), "nothing was changed");
}

#[test]
fn an_add_whose_result_is_lost_leaves_lo_down() {
    let lab = Lab::new();
    let netns = lab.netns("c1");
    let outcome = call(&lab, "ADD", &netns).via_shell("exec \"$0\" >/dev/full").run();
    assert_eq!(outcome.status, Some(1), "{outcome:?}");
    assert!(!is_up(&lab, "c1"));
}

#[test]
fn add_if_lo_is_already_up() {
    let lab = Lab::new();
    let netns = lab.netns("c1");
    lab.sh("ip -n c1 link set lo up");
    assert_eq!(call(&lab, "ADD", &netns).run().stdout, expected(Version::V1_1_0));
    assert_eq!(call(&lab, "ADD", &netns).run().stdout, expected(Version::V1_1_0), "and again");
}

#[test]
fn add_without_ipv6() {
    let lab = Lab::new();
    let netns = lab.netns("c1");
    // Unless the kernel lacks IPv6.
    let off = "sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.lo.disable_ipv6=1";
    lab.sh(&format!("! [ -e /proc/sys/net/ipv6 ] || ip netns exec c1 {off}"));
    let answer = call(&lab, "ADD", &netns).run().ok();
    assert_eq!(answer["ips"], json!([{"address": "127.0.0.1/8", "interface": 0}]));
}

#[test]
fn a_foreign_address_is_rejected_before_any_change() {
    let lab = Lab::new();
    for (name, foreign) in [("c4", "192.0.2.1/32"), ("c6", "2001:db8::1/128")] {
        let netns = lab.netns(name);
        lab.sh(&format!("ip -n {name} address add {foreign} dev lo"));
        let error = call(&lab, "ADD", &netns).run().error(Code::INTERNAL.0);
        assert!(error["msg"].as_str().unwrap().contains(foreign), "{error}");
        assert!(!is_up(&lab, name), "{foreign}");
    }
}

#[test]
fn the_interface_is_always_lo() {
    let lab = Lab::new();
    let netns = lab.netns("c1");
    let answer = call(&lab, "ADD", &netns).env("CNI_IFNAME", "eth0").run().ok();
    assert_eq!(answer["interfaces"][0]["name"], "lo");
    call(&lab, "CHECK", &netns).env("CNI_IFNAME", "eth9").run().ok();
    call(&lab, "DEL", &netns).env("CNI_IFNAME", "eth0").run().ok();
    assert!(!is_up(&lab, "c1"));
}

#[test]
fn check_reports_that_lo_is_down() {
    let lab = Lab::new();
    let netns = lab.netns("c1");
    let error = call(&lab, "CHECK", &netns).run().error(999);
    assert!(error["msg"].as_str().unwrap().contains("is down"), "{error}");
    call(&lab, "ADD", &netns).run().ok();
    let outcome = call(&lab, "CHECK", &netns).run();
    outcome.ok();
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("", ""));
}

#[test]
fn a_missing_namespace() {
    let lab = Lab::new();
    fs::write("/run/netns/file", "").unwrap();
    fs::create_dir("/run/netns/dir").unwrap();
    for path in ["/run/netns/gone", "/nowhere/at/all", "/run/netns/file", "/run/netns/dir", "/proc/self/ns/mnt"] {
        for command in ["ADD", "CHECK"] {
            let error = call(&lab, command, Path::new(path)).run().error(8);
            assert!(error["msg"].as_str().unwrap().contains(path), "{error}");
        }
        call(&lab, "DEL", Path::new(path)).run().ok();
    }
    for command in ["ADD", "CHECK"] {
        call(&lab, command, Path::new("")).run().error(4);
    }
    call(&lab, "DEL", Path::new("")).run().ok();
}

#[test]
fn del_can_be_repeated() {
    let lab = Lab::new();
    let netns = lab.netns("c1");
    call(&lab, "DEL", &netns).run().ok();
    call(&lab, "ADD", &netns).run().ok();
    for _ in 0..2 {
        call(&lab, "DEL", &netns).run().ok();
        assert!(!is_up(&lab, "c1"));
    }
}

#[test]
fn the_plugins_own_namespace_is_not_changed() {
    let lab = Lab::new();
    lab.sh("ip link set lo up; ip netns attach self $$");
    let own = Path::new("/run/netns/self");
    let error = call(&lab, "ADD", own).run().error(8);
    assert!(error["msg"].as_str().unwrap().contains("/run/netns/self"), "{error}");
    call(&lab, "ADD", own).env("CNI_NETNS_OVERRIDE", "1").run().ok();
    // The container's namespace is gone, and its path now leads to the host's namespace.
    for allowed in ["", "1"] {
        call(&lab, "DEL", own).env("CNI_NETNS_OVERRIDE", allowed).run().ok();
        assert!(is_up(&lab, "self"));
    }
}

#[test]
fn del_does_not_change_a_namespace_that_another_container_uses_now() {
    let lab = Lab::new();
    let netns = lab.netns("c1");
    let other = |command| call(&lab, command, &netns).env("CNI_CONTAINERID", "c2");
    other("ADD").run().ok();
    call(&lab, "DEL", &netns).run().ok();
    assert!(is_up(&lab, "c1"), "it belongs to c2 now");
    // c2 was never detached, and c1 is attached to the namespace again.
    call(&lab, "ADD", &netns).run().ok();
    other("DEL").run().ok();
    assert!(is_up(&lab, "c1"), "it belongs to c1 again");
    call(&lab, "DEL", &netns).run().ok();
    assert!(!is_up(&lab, "c1"));
    // If another tool has set `lo` up, DEL does not set it down.
    lab.sh("ip -n c1 link set lo up");
    for _ in 0..2 {
        call(&lab, "DEL", &netns).run().ok();
        assert!(is_up(&lab, "c1"));
        call(&lab, "ADD", &netns).run().ok();
    }
}

/// For example if the list of each network of a container has the plugin.
#[test]
fn only_the_first_attachment_of_a_container_sets_lo_down() {
    let lab = Lab::new();
    let netns = lab.netns("c1");
    let second = |command| call(&lab, command, &netns).env("CNI_IFNAME", "eth1");
    call(&lab, "ADD", &netns).run().ok();
    second("ADD").run().ok();
    second("DEL").run().ok();
    assert!(is_up(&lab, "c1"), "the first one set it up");
    second("ADD").run().ok();
    call(&lab, "DEL", &netns).run().ok();
    assert!(!is_up(&lab, "c1"));
}

/// A node is upgraded in place: containers that an earlier version attached have its alias.
#[test]
fn del_recognises_the_alias_of_an_earlier_version() {
    let lab = Lab::new();
    let netns = lab.netns("c1");
    for (owner, is_ours) in [("c2", false), ("c1", true)] {
        lab.sh(&format!("ip -n c1 link set lo up alias \"cni0 lo {owner} lo\""));
        call(&lab, "DEL", &netns).run().ok();
        assert_eq!(is_up(&lab, "c1"), !is_ours, "{owner}");
    }
}

#[test]
fn gc_and_status() {
    let lab = Lab::new();
    let netns = lab.netns("c1");
    call(&lab, "ADD", &netns).run().ok();
    let gc = json!({"cniVersion": "1.1.0", "name": "lo", "cni.dev/valid-attachments": []});
    for (command, stdin) in [("GC", gc.to_string()), ("STATUS", config("1.1.0"))] {
        let outcome = lab.plugin("loopback", command).stdin(stdin).run();
        outcome.ok();
        assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("", ""), "{command}");
        lab.plugin("loopback", command).stdin(config("1.0.0")).run().error(1);
    }
    assert!(is_up(&lab, "c1"));
}

#[test]
fn without_permission_the_error_names_the_missing_capability() {
    let lab = Lab::new();
    let netns = lab.netns("c1");
    let script = format!("exec setpriv --bounding-set=-all --inh-caps=-all {}/loopback", lab.bin().display());
    let calling = Process::new("sh").arg("-c").arg(script).attachment("c1", "lo", &netns);
    let error = calling.env("CNI_COMMAND", "ADD").env("CNI_PATH", lab.bin()).stdin(config("1.1.0")).run().error(8);
    assert!(error["details"].as_str().unwrap().contains("CAP_SYS_ADMIN"), "{error}");
}

#[test]
fn a_result_that_the_version_cannot_express_changes_nothing() {
    let lab = Lab::new();
    let netns = lab.netns("c1");
    let config = json!({"cniVersion": "0.2.0", "name": "lo", "prevResult": {"dns": {}}});
    let error = call(&lab, "ADD", &netns).stdin(config.to_string()).run().error(1);
    assert!(error["msg"].as_str().unwrap().contains("without an address"), "{error}");
    assert!(!is_up(&lab, "c1"));
}

/// A system call that a signal interrupts is repeated. A system call that fails is reported.
#[test]
fn interrupted_and_failed_system_calls() {
    let lab = Lab::new();
    let run = |command: &str, netns: &str, inject: &str| {
        let trace = lab.dir().join("trace");
        let (syscall, _) = inject.split_once(':').unwrap();
        let options = [
            "-qq",
            "-o",
            trace.to_str().unwrap(),
            "-e",
            &format!("trace={syscall}"),
            "-e",
            &format!("inject={inject}"),
        ];
        let outcome = call(&lab, command, Path::new(netns)).strace(&options).run();
        assert!(fs::read_to_string(&trace).unwrap().contains("INJECTED"), "{inject}");
        outcome
    };
    lab.netns("c1");
    for syscall in ["sendto", "recvfrom"] {
        for when in 1..=3 {
            run("ADD", "/run/netns/c1", &format!("{syscall}:error=EINTR:when={when}")).ok();
            call(&lab, "DEL", Path::new("/run/netns/c1")).run().ok();
        }
    }
    call(&lab, "ADD", Path::new("/run/netns/c1")).run().ok();
    // Nothing can be done in a namespace that cannot be opened. DEL must not fail for ever because of it.
    run("DEL", "/run/netns/c1", "ioctl:error=EPERM").ok();
    assert!(is_up(&lab, "c1"));
    lab.sh("ln -s loop /run/netns/loop");
    for path in ["/run/netns/loop", &format!("/run/netns/{}", "x".repeat(300))] {
        call(&lab, "DEL", Path::new(path)).run().ok();
    }
    run("DEL", "/run/netns/c1", "setns:error=EINVAL:when=1").error(8);
    run("DEL", "/run/netns/c1", "socket:error=EMFILE").error(5);
    assert!(is_up(&lab, "c1"));
}
