//! The list of allowed sysctls.

use std::fs;

use serde_json::{Value, json};
use testing::Lab;

use crate::support::{Tuned, config, lab, pod};

const FILE: &str = "/etc/cni/tuning/allowlist.conf";

/// The list of OpenShift, shortened.
const OPENSHIFT: &str = "^net.ipv4.conf.IFNAME.accept_redirects$
^net.ipv4.conf.IFNAME.accept_source_route$
^net.ipv4.conf.IFNAME.arp_accept$
^net.ipv4.conf.IFNAME.arp_notify$
^net.ipv4.conf.IFNAME.send_redirects$
^net.ipv6.conf.IFNAME.accept_ra$
^net.ipv6.neigh.IFNAME.base_reachable_time_ms$
";

fn write(lab: &Lab, list: &str) {
    lab.sh("mkdir -p /etc/cni/tuning");
    fs::write(FILE, list).unwrap();
}

fn sysctl(key: &str) -> Value {
    config(json!({ "sysctl": { key: "1" } }))
}

#[test]
fn only_listed_sysctls_are_allowed() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    write(lab, OPENSHIFT);
    for key in [
        "net.ipv4.conf.IFNAME.arp_accept",
        "net/ipv4/conf/IFNAME/arp_accept",
        "net.ipv4.conf.eth0.arp_accept",
        "net/ipv4/conf/eth0/arp_accept",
    ] {
        pod.add(&sysctl(key));
        assert_eq!(pod.sysctl("net/ipv4/conf/eth0/arp_accept"), "1", "{key}");
        pod.sh("echo 0 >/proc/sys/net/ipv4/conf/eth0/arp_accept");
    }
    let before = pod.state();
    for key in ["net.ipv4.conf.all.arp_accept", "net.ipv4.conf.lo.arp_accept", "net.ipv4.conf.IFNAME.log_martians"] {
        let config = config(json!({ "sysctl": { "net.ipv4.conf.IFNAME.arp_accept": "1", key: "1" }, "mtu": 1400 }));
        let error = pod.refused(&config, 7);
        assert!(error.to_string().contains("is not allowed") && error.to_string().contains(FILE), "{error}");
        assert_eq!(pod.state(), before, "{key}");
        pod.del(&config);
    }
}

#[test]
fn the_lists_of_the_specs_of_the_reference() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let config = sysctl("net.ipv4.conf.all.log_martians");
    write(lab, "^net\\.ipv4\\.conf\\.other\\.[a-z_]*$");
    pod.refused(&config, 7);
    pod.del(&config);
    write(lab, "^net\\.ipv4\\.conf\\.all\\.[a-z_]*$");
    pod.add(&config);
    pod.check(&config).ok();
}

#[test]
fn an_empty_list_forbids_all_and_needs_a_sysctl() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    for list in ["", "\n \n"] {
        write(lab, list);
        pod.refused(&sysctl("net.core.somaxconn"), 7);
        pod.add(&config(json!({ "mtu": 1400 })));
    }
    write(lab, "ok\n[invalid\n");
    let error = pod.refused(&sysctl("net.core.somaxconn"), 7);
    assert!(error.to_string().contains("line 2"), "{error}");
    pod.add(&config(json!({ "mtu": 1400 })));
    fs::remove_file(FILE).unwrap();
    pod.add(&sysctl("net.core.somaxconn"));
}

#[test]
fn check_and_del_do_not_read_it() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let config = config(json!({ "sysctl": { "net.core.somaxconn": "77" }, "mtu": 1400 }));
    pod.add(&config);
    write(lab, "[");
    pod.check(&config).ok();
    pod.del(&config);
    assert_eq!(pod.link()["mtu"], 1500);
}

/// Neither a named pipe nor a directory blocks the call, or allows anything.
#[test]
fn a_list_that_is_not_a_regular_file_allows_nothing() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let before = pod.state();
    for (command, code) in [("mkfifo", 7), ("mkdir", 5)] {
        lab.sh(&format!("mkdir -p /etc/cni/tuning; {command} {FILE}"));
        let error = pod.refused(&sysctl("net.core.somaxconn"), code);
        assert!(error.to_string().contains(FILE), "{error}");
        assert_eq!(pod.state(), before, "{command}");
        lab.sh(&format!("rm -r {FILE}"));
    }
}

/// The administrator has a list, and only its target is missing.
#[test]
fn a_dangling_link_to_a_list_allows_nothing() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let before = pod.state();
    let config = sysctl("net.core.somaxconn");
    for (link, target) in [(FILE, "/run/list"), ("/etc/cni/tuning", "/run/lists")] {
        lab.sh(&format!("mkdir -p $(dirname {link}); ln -s {target} {link}"));
        let error = pod.refused(&config, 7);
        assert!(error.to_string().contains(link) && error.to_string().contains("symbolic link"), "{error}");
        assert_eq!(pod.state(), before, "{link}");
        lab.plugin("tuning", "STATUS").stdin(config.to_string()).run().error(50);
        pod.add(&crate::support::config(json!({ "mtu": 1400 })));
        pod.del(&crate::support::config(json!({ "mtu": 1400 })));
        // A link to a list is followed; a link to a directory without a list is like the directory.
        match link == FILE {
            true => fs::write(target, "somaxconn").unwrap(),
            false => fs::create_dir(target).unwrap(),
        }
        pod.add(&config);
        pod.sh("echo 4096 >/proc/sys/net/core/somaxconn");
        lab.sh("rm -r /etc/cni/tuning");
    }
}
