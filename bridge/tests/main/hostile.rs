//! A hostile container: the plugin trusts nothing in its namespace, and its packets do not change the host.

use std::fs;

use serde_json::{Value, json};
use testing::{Lab, Pod, Process, legacy, wait_until};

use crate::pod::{assert_clean, host_veth, layer2, layer3};

/// Lists the host's sysctls, without those of interfaces that come and go.
const SETTINGS: &str = "sysctl -a 2>/dev/null | grep -E '^net.ipv[46].conf.(all|default|lo)\\.'";

#[test]
fn strange_objects_in_the_container_do_not_affect_the_host() {
    let lab = &Lab::new();
    let config = layer3(json!({ "ipMasq": true, "ipMasqBackend": "nftables", "macspoofchk": true }));
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
    // Names that could break a shell, a log or a rule, addresses of others, and unsuitable sysctls.
    pod.sh(
        r#"for name in "\$(reboot)" "a;b" "\"" "$(printf "\033[2J")" "$(printf "\377\376")" "-rf" "br0"
           do ip link add name "$name" type bridge; done
           ip link set lo up
           for n in $(seq 250); do echo "address add 10.9.0.$n/32 dev lo"; done | ip -batch -
           ip address add 10.1.0.1/24 dev br0; ip address add fd01::1/64 dev br0 nodad; ip link set br0 up
           sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1 net.ipv6.conf.all.forwarding=1
           sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.arp_ignore=8"#,
    );
    let before = lab.sh(SETTINGS);
    let result = pod.add(&config);
    let names: Vec<_> = result["interfaces"].as_array().unwrap().iter().map(|link| link["name"].clone()).collect();
    assert_eq!(names, [json!("br0"), names[1].clone(), json!("eth0")]);
    assert_eq!(pod.ip("address show eth0")[0]["addr_info"][0]["local"], "10.1.0.2");
    pod.check_result(&config, &result).ok();
    // The container claims to be another one. DEL of each container must still affect only that container.
    let other = Pod::with_ips(lab, "b", &["10.1.0.3/24", "fd01::3/64"]);
    other.add(&config);
    pod.sh("ip address add 10.1.0.3/24 dev eth0; ip link set eth0 alias \"cni-attachment net1 b eth0\"");
    pod.del(&config);
    let rules = lab.sh("nft list ruleset");
    assert!(rules.contains("10.1.0.3") && !rules.contains("10.1.0.2"), "{rules}");
    other.del(&config);
    assert_clean(lab);
    // ADD enables forwarding, and then the kernel ignores redirects.
    let after = lab.sh(SETTINGS);
    let changed = after.lines().zip(before.lines()).filter(|(after, before)| after != before);
    let strange: Vec<_> =
        changed.filter(|(line, _)| !line.contains("forwarding") && !line.contains("redirects")).collect();
    assert!(strange.is_empty(), "{strange:?}");
}

#[test]
fn only_the_network_namespace_of_the_container_is_entered() {
    let lab = &Lab::new();
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
    let config = layer3(json!({ "ipMasq": true, "ipMasqBackend": "nftables" }));
    let trace = lab.dir().join("trace");
    let options = ["-f", "-e", "trace=setns,chroot,pivot_root,open,openat,openat2", "-o", trace.to_str().unwrap()];
    let result = pod.call("ADD", &config).strace(&options).run().ok();
    let mut traced = fs::read_to_string(&trace).unwrap();
    let mut with_previous = config.clone();
    with_previous["prevResult"] = result;
    for command in ["CHECK", "DEL"] {
        pod.call(command, &with_previous).strace(&options).run().ok();
        traced += &fs::read_to_string(&trace).unwrap();
    }
    let entered: Vec<_> = traced.lines().filter(|line| line.contains("setns(")).collect();
    assert!(entered.len() >= 4 && entered.iter().all(|line| line.contains("CLONE_NEWNET")), "{entered:?}");
    // Its /proc and its files are in another mount namespace, which the plugin must not enter.
    for access in ["chroot(", "pivot_root(", "/root/", "CLONE_NEWNS"] {
        assert!(!traced.contains(access), "{access}: {traced}");
    }
    let settings: Vec<_> = traced.lines().filter(|line| line.contains("/proc/sys/")).collect();
    assert!(settings.iter().all(|line| line.contains("\"/proc/sys/net/")), "{settings:?}");
}

/// Sends a router advertisement from the pod to `ip`, then waits for an echo reply: by then the host has processed the
/// advertisement.
fn advertise(pod: &Pod<'_>, ip: &str) {
    let script = pod.lab.dir().join("advertise");
    fs::write(
        &script,
        r#"use Socket qw(AF_INET6 SOCK_RAW inet_pton pack_sockaddr_in6);
socket(my $socket, AF_INET6, SOCK_RAW, 58) or die "socket: $!";
setsockopt($socket, 41, 16, pack("i", 255)) or die "hops: $!";
my $advertisement = pack("CCnCCnNN", 134, 0, 0, 64, 0, 1800, 0, 0)
    . pack("CCCCNNN", 3, 4, 64, 0xc0, 3600, 3600, 0) . inet_pton(AF_INET6, "2001:db8:bad::");
my $to = pack_sockaddr_in6(0, inet_pton(AF_INET6, $ARGV[0]), $ARGV[1], 0);
send($socket, $advertisement, 0, $to) or die "send: $!";
"#,
    )
    .unwrap();
    let link = pod.ip("link show eth0")[0]["ifindex"].to_string();
    // Duplicate detection of its own address may still be running.
    pod.sh(&format!(
        "ip address replace fe80::99/64 dev eth0 nodad; perl {} {ip} {link}
         until ping -6 -c 1 -W 5 -I fe80::99%eth0 {ip}%eth0; do :; done",
        script.display()
    ));
}

/// Returns the link-local address of `link`. The kernel adds it when the link has a carrier, and ignores packets to it
/// until duplicate detection has finished.
fn link_local(lab: &Lab, link: &str) -> String {
    let mut found = None;
    wait_until("the link-local address of the bridge", || {
        let addresses = lab.ip(&format!("address show {link}"));
        let mut all = addresses[0]["addr_info"].as_array().unwrap().iter();
        let ready = |address: &&Value| address["scope"] == "link" && address.get("tentative").is_none();
        found = all.find(ready).map(|address| address["local"].as_str().unwrap().to_owned());
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn a_router_advertisement_does_not_reach_the_host() {
    let lab = &Lab::new();
    // Layer 2 and IPv4 do not enable IPv6 forwarding, with which the host would ignore advertisements anyway.
    for (id, config) in [("a", layer2(json!({}))), ("b", layer3(json!({ "bridge": "br1" })))] {
        let pod = Pod::with_ips(lab, id, &["10.1.0.2/24"]);
        let outcome = pod.call("ADD", &config).env("CNI_LOG", "debug").run();
        let bridge = config["bridge"].as_str().unwrap();
        let number = &lab.ip(&format!("link show {bridge}"))[0]["ifindex"];
        // It ignores advertisements before it can receive any.
        let (log, at) = (&outcome.stderr, |what: &str| outcome.stderr.find(what).unwrap_or(usize::MAX));
        let (ignores, up) =
            (at(&format!("set net.ipv6.conf.{bridge}.accept_ra to 0")), at(&format!("set link #{number} up\n")));
        assert!(ignores < up && up < usize::MAX, "{log}");
        let result = outcome.ok();
        let port = host_veth(&result);
        assert_eq!(lab.sh(&format!("sysctl -n net.ipv6.conf.{port}.accept_ra")), "0\n");

        let ip = link_local(lab, bridge);
        let learned = || lab.sh("ip -6 route show table all; ip -6 address").matches("2001:db8:bad:").count();
        advertise(&pod, &ip);
        assert_eq!((learned(), lab.sh("ip -6 route show default").as_str()), (0, ""));
        // Without that setting, the same advertisement has an effect.
        lab.sh(&format!("sysctl -qw net.ipv6.conf.{bridge}.accept_ra=1"));
        advertise(&pod, &ip);
        // The echo may overtake it on another processor.
        wait_until("the host to accept the advertisement (otherwise the test proves nothing)", || {
            learned() > 0 && lab.sh("ip -6 route show default").contains(bridge)
        });
        lab.sh(&format!("ip link delete {bridge}"));
    }
}

/// The tools that change legacy tables.
const TOOLS: [&str; 2] = ["iptables-legacy-restore", "ip6tables-legacy-restore"];

#[test]
fn children_get_what_they_need_and_no_more() {
    let Some(lab) = &legacy::host("nat", "children_get_what_they_need_and_no_more") else { return };
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
    let spy = |name: &str, then: &str| {
        let notes = lab.dir().display();
        lab.script(name, &format!("env >{notes}/env.{name}\nls -l /proc/$$/fd >{notes}/fd.{name}\n{then}"))
    };
    let numbers = |name: &str| -> (usize, String) {
        let fds = fs::read_to_string(lab.dir().join(format!("fd.{name}"))).unwrap();
        (fds.lines().count(), fds)
    };
    // Children also inherit the descriptors of the test process itself.
    Process::new(spy("direct", "")).run();
    let (expected, _) = numbers("direct");
    spy("watched", &format!("exec {}", lab.bin().join("scripted").display()));
    for tool in TOOLS {
        spy(tool, &format!("exec /usr/sbin/{tool} \"$@\""));
    }
    let config = layer3(
        json!({ "ipMasq": true, "ipMasqBackend": "iptables", "macspoofchk": true, "ipam": { "type": "watched" } }),
    );
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", lab.bin().display());
    pod.call("ADD", &config).env("PATH", &path).env("OTHER", "kept").run().ok();
    let inherited =
        ["CNI_PATH", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_COMMAND", "PATH", "LC_ALL", "OTHER"];
    for child in TOOLS.into_iter().chain(["watched"]) {
        let env = fs::read_to_string(lab.dir().join(format!("env.{child}"))).unwrap();
        for line in env.lines() {
            let name = line.split('=').next().unwrap();
            // The shell adds variables of its own.
            assert!(inherited.contains(&name) || ["PWD", "OLDPWD", "SHLVL", "_"].contains(&name), "{child}: {line}");
        }
        assert!(env.contains("OTHER=kept") && env.contains("CNI_COMMAND=ADD"), "{env}");
        // Sockets and namespaces of the plugin are not inherited.
        let (found, fds) = numbers(child);
        assert_eq!(found, expected, "{child}: {fds}");
        for own in ["net:[", "/run/netns", "/var/lib/cni"] {
            assert!(!fds.contains(own), "{child}: {fds}");
        }
    }
    pod.del(&config);
    assert_clean(lab);
}

#[test]
fn no_program_in_the_current_directory_is_run() {
    let Some(lab) = &legacy::host("nat", "no_program_in_the_current_directory_is_run") else { return };
    let trap = lab.dir().join("trap");
    lab.sh(&format!(
        "mkdir {0}; printf '#!/bin/sh\\ntouch {0}/sprung\\n' > {0}/{1}; chmod +x {0}/{1}",
        trap.display(),
        TOOLS[0],
    ));
    let config = layer3(json!({
        "ipMasq": true, "ipMasqBackend": "iptables", "ipam": { "type": "host-local", "subnet": "10.1.0.0/24" },
    }));
    let pod = Pod::new(lab, "a");
    for path in ["export PATH=", "export PATH=:.", "unset PATH"] {
        pod.call("ADD", &config).via_shell(&format!("cd {}; {path}; exec \"$0\"", trap.display())).run().ok();
        assert!(!trap.join("sprung").exists(), "{path}");
        assert!(lab.sh("iptables-legacy -t nat -S").contains("MASQUERADE"), "{path}");
        pod.del(&config);
    }
}
