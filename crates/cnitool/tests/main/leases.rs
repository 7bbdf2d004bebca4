//! `cnitool leases`.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testing::{Process, REFERENCE, reference, skip};

use crate::node::{LONG_ID, attach, host, json, leak, lose_namespace, network, page, port, powerless};
use crate::support::failure;

/// Returns the lease of an address.
fn lease(answer: &Value, ip: &str) -> Value {
    let all = answer["networks"].as_array().unwrap().iter().flat_map(|network| network["leases"].as_array().unwrap());
    all.clone().find(|lease| lease["address"] == ip).unwrap_or_else(|| panic!("{ip} in {answer}")).clone()
}

#[test]
fn live_leases_are_alive_and_ranges_show_their_usage() {
    let host = host("10.101.0.0/24");
    let (blue, green) = (attach(&host, "blue"), attach(&host, "green"));
    let text = page(&host.run("leases"));
    assert!(text.contains("network pods\n"), "{text}");
    assert!(text.contains("10.101.0.0/24  [#-------------------]  2     251"), "{text}");
    for id in [&blue, &green] {
        let line = text.lines().find(|line| line.contains(id.as_str())).unwrap_or_else(|| panic!("{id} in {text}"));
        assert!(line.contains("eth0") && line.ends_with("alive"), "{line}");
    }
    let answer = json(&host, "leases pods --json");
    assert_eq!(answer["notSeen"], json!([]));
    let range = &answer["networks"][0]["ranges"][0];
    assert_eq!((&range["size"], &range["used"], &range["free"]), (&253.into(), &2.into(), &251.into()));
    let first = lease(&answer, "10.101.0.2");
    assert_eq!((&first["container"], &first["interface"]), (&blue.as_str().into(), &"eth0".into()));
    assert_eq!((&first["port"], &first["netns"]), (&port(&blue).into(), &"/run/netns/blue".into()));
}

#[test]
fn the_state_of_each_container_is_shown() {
    let host = host("10.102.0.0/24");
    let (_, lost, cut) = (attach(&host, "blue"), attach(&host, "lost"), attach(&host, "cut"));
    lose_namespace(&host, "lost", &lost);
    host.lab.sh(&format!("ip link del {}", port(&cut)));
    leak("10.102.0.99", &format!("{LONG_ID}\r\neth0"));
    leak("10.102.0.98", LONG_ID);
    leak("10.102.0.97", "");
    let answer = json(&host, "leases --json");
    for (ip, state) in [
        ("10.102.0.2", "alive"),
        ("10.102.0.3", "gone"),
        ("10.102.0.4", "no port"),
        ("10.102.0.97", "free"),
        ("10.102.0.98", "gone"),
        ("10.102.0.99", "gone"),
    ] {
        assert_eq!(lease(&answer, ip)["state"], state, "{ip}");
    }
    assert_eq!(lease(&answer, "10.102.0.99")["container"], LONG_ID, "full id");
    assert_eq!(lease(&answer, "10.102.0.98")["interface"], Value::Null);
    let text = page(&host.run("leases"));
    assert!(!text.contains(LONG_ID) && text.contains("0123456789abcdef"), "short: {text}");
}

#[test]
fn a_table_of_long_names_fits_a_terminal() {
    let host = host("10.103.0.0/24");
    let subnet = "fd00:1234:5678:9abc:def0:1234:5678:0/112";
    let ranges = json!([[{ "subnet": subnet, "rangeStart": "fd00:1234:5678:9abc:def0:1234:5678:1000",
        "rangeEnd": "fd00:1234:5678:9abc:def0:1234:5678:ffff" }]]);
    let config = network("pods", subnet, &json!({ "ipam": { "type": "host-local", "ranges": ranges } }));
    host.configure("10-pods.conflist", &config.to_string());
    attach(&host, "blue");
    let all = json!({ "hairpinMode": true, "portIsolation": true, "macspoofchk": true });
    let mut second = network("more", "10.109.0.0/24", &all);
    second["plugins"][0]["bridge"] = "fifteen-bytes-b".into();
    host.configure("20-more.conflist", &second.to_string());
    host.lab.netns("green");
    host.run("add more /run/netns/green").ok();
    assert!(page(&host.run("show more")).contains("hairpin isolated masq spoofchk"));
    leak("fd00:1234:5678:9abc:def0:1234:5678:ffff", &format!("{}\r\nfifteen-bytes-x", LONG_ID.repeat(3)));
    for command in ["leases", "show", "prune --dry-run", "doctor"] {
        page(&host.run(command));
    }
}

#[test]
fn leases_of_a_network_without_a_configuration_are_shown() {
    let host = host("10.104.0.0/24");
    attach(&host, "blue");
    std::fs::remove_file(host.conf_dir().join("10-pods.conflist")).unwrap();
    let answer = json(&host, "leases pods --json");
    assert_eq!(answer["networks"][0]["file"], Value::Null);
    assert_eq!(lease(&answer, "10.104.0.2")["state"], "alive");
    assert!(page(&host.run("leases")).contains("its ranges are unknown"));
}

#[test]
fn without_permission_nothing_is_reported_as_gone() {
    let host = host("10.105.0.0/24");
    attach(&host, "blue");
    leak("10.105.0.99", &format!("{LONG_ID}\r\neth0"));
    let text = page(&powerless(&host, "leases"));
    assert!(text.contains("not seen") && text.contains("unknown") && !text.contains("gone"), "{text}");
}

/// Ports of the reference have no alias.
#[test]
fn a_container_of_the_reference_is_recognised_by_its_address() {
    if reference("bridge", "a_container_of_the_reference_is_recognised_by_its_address").is_none() {
        return;
    }
    let host = host("10.106.0.0/24");
    let netns = host.lab.netns("old");
    let mut config = network("pods", "10.106.0.0/24", &json!({}))["plugins"][0].clone();
    config["name"] = "pods".into();
    config["cniVersion"] = "1.0.0".into();
    let reference = Path::new(REFERENCE);
    Process::plugin(&reference.join("bridge"), "ADD")
        .env("CNI_PATH", REFERENCE)
        .attachment("old", "eth0", &netns)
        .stdin(config.to_string())
        .run()
        .ok();
    leak("10.106.0.99", &format!("{LONG_ID}\r\neth0"));
    let answer = json(&host, "leases --json");
    assert_eq!(lease(&answer, "10.106.0.2")["state"], "alive");
    assert_eq!(lease(&answer, "10.106.0.99")["state"], "gone", "every port belongs to another container");
    let shown = json(&host, "show --json");
    assert_eq!(shown["bridges"][0]["ports"][0]["container"], "old");

    // If a container loses its address, the owner of its port is unknown.
    host.lab.sh(&format!("nsenter --net={} ip address flush dev eth0", netns.display()));
    let answer = json(&host, "leases --json");
    for ip in ["10.106.0.2", "10.106.0.99"] {
        assert_eq!(lease(&answer, ip)["state"], "unknown", "{ip}");
    }
}

/// The kernel's `btime` follows the clock; time stamps from the boot do not.
#[test]
fn a_lease_is_from_an_earlier_boot_only_if_that_is_certain() {
    let host = host("10.108.0.0/24");
    // Without a bridge, there is no other evidence.
    let mut config = network("pods", "10.108.0.0/24", &json!({}));
    config["plugins"][0]["type"] = "sriov".into();
    host.configure("10-pods.conflist", &config.to_string());
    leak("10.108.0.2", &format!("{LONG_ID}\r\neth0"));
    let state = || lease(&json(&host, "leases --json"), "10.108.0.2")["state"].clone();
    assert_eq!(state(), "unknown");
    std::fs::write("/run/stat", "btime 4102444800\n").unwrap();
    host.lab.sh("mount --bind /run/stat /proc/stat");
    assert_eq!(state(), "unknown", "the clock was stepped forward");
    let written = std::fs::metadata("/var/lib/cni/networks/pods/10.108.0.2").unwrap().ctime();
    let deadline = Instant::now() + Duration::from_secs(60);
    // Only a file shows the clock of time stamps.
    while std::fs::metadata("/run/stat").unwrap().ctime() <= written {
        assert!(Instant::now() < deadline, "the clock stays at second {written}");
        std::fs::write("/run/stat", "btime 4102444800\n").unwrap();
    }
    let boot = "mount -t sysfs none /sys && mount -t proc none /proc && mount --bind /run/stat /proc/stat";
    if Process::new("sh").arg("-c").arg(boot).run().status != Some(0) {
        skip("a_lease_is_from_an_earlier_boot_only_if_that_is_certain", "a second /proc cannot be mounted here");
        return;
    }
    assert_eq!(state(), "gone");
    assert!(!Path::new("/run/cni0/earlier-boot").exists(), "an inspection creates nothing");
}

#[test]
fn an_unknown_network_is_one_line_on_stderr() {
    let host = host("10.107.0.0/24");
    for command in ["leases nope", "show nope", "prune --force nope", "leases nope --json"] {
        let line = failure(&host.run(command));
        assert!(line.contains("\"nope\"") && line.contains("the networks are pods"), "{line}");
    }
}

#[test]
fn colours_are_used_only_on_terminals_and_not_with_no_color() {
    let host = host("10.100.0.0/24");
    attach(&host, "blue");
    let on_terminal = |more: &str| {
        let tool = testing::program_path("cnitool");
        let command = format!(
            "CNI_PATH={} NETCONFPATH={} {more} script -qec '{} leases' /dev/null",
            host.lab.bin().display(),
            host.conf_dir().display(),
            tool.display()
        );
        host.lab.sh(&command)
    };
    assert!(on_terminal("TERM=xterm").contains("\x1b[32malive\x1b[0m"));
    for variables in ["TERM=xterm NO_COLOR=1", "TERM=dumb"] {
        let text = on_terminal(variables);
        assert!(text.contains("alive") && !text.contains('\x1b'), "{variables}: {text:?}");
    }
}

#[test]
fn control_characters_in_names_do_not_reach_the_terminal() {
    let host = host("10.110.0.0/24");
    std::fs::create_dir_all("/var/lib/cni/networks/e\x1b[31mvil\n\u{9b}x").unwrap();
    leak("10.110.0.9", "c\x1b]0;title\x07\r\neth\x1b0");
    leak("10.110.0.8", "\x1b[2J\r\neth0");
    for command in ["leases", "show", "prune --dry-run"] {
        let text = page(&host.run(command));
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        assert!(command == "show" || text.contains("e?[31mvil??x"), "{text:?}");
    }
}

#[test]
fn root_is_not_advised_to_become_root() {
    let host = host("10.111.0.0/24");
    std::fs::create_dir_all("/var/lib/cni").unwrap();
    std::fs::write("/var/lib/cni/results", "").unwrap();
    let text = page(&host.run("leases"));
    assert!(text.contains("not seen:\n  - read the directory /var/lib/cni/results"), "{text}");
    let text = page(&powerless(&host, "leases"));
    assert!(text.contains("not seen (root sees more):\n"), "{text}");
}

#[test]
fn broken_configurations_are_reported() {
    let host = host("10.112.0.0/24");
    host.configure("20-broken.conflist", "{");
    for command in ["leases", "show --json", "prune --force", "prune --dry-run pods"] {
        let outcome = host.run(command);
        assert_eq!(outcome.status, Some(0), "{outcome:?}");
        assert!(outcome.stderr.starts_with("cnitool: ignored: "), "{outcome:?}");
        assert!(outcome.stderr.contains("20-broken.conflist:1:1: invalid JSON"), "{outcome:?}");
        assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    }
}
