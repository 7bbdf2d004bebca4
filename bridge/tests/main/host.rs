//! Hosts that lack a feature: calls that do not need it succeed, and others fail with an error that names it.

use std::path::Path;

use serde_json::json;
use testing::config::with;
use testing::packets::{send, udp};
use testing::{Lab, Pod, Scripted, legacy, skip};

use crate::pod::{assert_clean, layer2, layer3};

/// Makes /proc/sys read-only, as in many containers, for all network namespaces.
fn make_sysctls_read_only(lab: &Lab) {
    lab.sh("mount --bind /proc/sys /proc/sys; mount -o remount,ro,bind /proc/sys");
}

#[test]
fn with_read_only_sysctls_existing_settings_suffice() {
    let lab = &Lab::new();
    lab.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
    make_sysctls_read_only(lab);
    let config = layer3(json!({ "isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "nftables" }));
    let [a, b] = [("a", 2), ("b", 3)]
        .map(|(id, n)| Pod::with_ips(lab, id, &[format!("10.1.0.{n}/24").as_str(), format!("fd01::{n}/64").as_str()]));
    let outcome = a.call("ADD", &config).env("CNI_LOG", "warn").run();
    let result = outcome.ok();
    // ADD warns that the host may accept router advertisements.
    for key in ["net.ipv6.conf.br0.accept_ra is not 0", "read-only"] {
        assert!(outcome.stderr.contains(key), "{}", outcome.stderr);
    }
    b.add(&config);
    a.check_result(&config, &result).ok();
    for (any, other) in [("0.0.0.0", "10.1.0.3"), ("::", "fd01::3")] {
        assert!(send(&a.udp(any), &b.udp(any), other).is_some(), "{other}");
    }
    a.del(&config);
    b.del(&config);
    assert_clean(lab);
}

#[test]
fn with_read_only_sysctls_a_missing_setting_is_reported_and_nothing_is_left() {
    let lab = &Lab::new();
    lab.sh("sysctl -qw net.ipv4.ip_forward=0");
    make_sysctls_read_only(lab);
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    let error = pod.call("ADD", &layer3(json!({}))).run().error(999);
    assert!(error["msg"].as_str().unwrap().contains("net.ipv4.ip_forward"), "{error}");
    assert!(error["details"].as_str().unwrap().contains("sysctl -w net.ipv4.ip_forward=1"), "{error}");
    assert_clean(lab);
    // Layer 2 needs no forwarding, nor does a network without a gateway.
    for config in [layer2(json!({})), layer3(json!({ "isGateway": false }))] {
        let result = pod.add(&config);
        pod.check_result(&config, &result).ok();
        pod.del(&config);
    }
    assert_clean(lab);
}

/// On a kernel without IPv6 (`ipv6.disable=1`), or with IPv6 disabled.
#[test]
fn without_ipv6_there_is_ipv4() {
    let lab = &Lab::new();
    let off = "! [ -e /proc/sys/net/ipv6 ] || \
               sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1";
    let far = lab.outside();
    lab.sh(off);
    let config = layer3(json!({
        "isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "nftables", "macspoofchk": true,
    }));
    let [a, b] = [("a", "10.1.0.2/24"), ("b", "10.1.0.3/24")].map(|(id, ip)| {
        let pod = Pod::with_ips(lab, id, &[ip]);
        pod.sh(off);
        pod
    });
    let result = a.add(&config);
    b.add(&config);
    a.check_result(&config, &result).ok();
    lab.plugin("bridge", "STATUS").stdin(config.to_string()).run().ok();
    assert!(send(&a.udp("0.0.0.0"), &b.udp("0.0.0.0"), "10.1.0.3").is_some());
    let seen = send(&a.udp("0.0.0.0"), &udp(Some(&far), "0.0.0.0", 0), "192.0.2.2");
    assert_eq!(seen, "192.0.2.1".parse().ok(), "masqueraded");
    a.del(&config);
    b.del(&config);
    assert_clean(lab);
    if !Path::new("/proc/sys/net/ipv6").exists() {
        let dual = Pod::with_ips(lab, "c", &["10.1.0.4/24", "fd01::4/64"]);
        let error = dual.call("ADD", &config).run().error(999);
        assert!(error["msg"].as_str().unwrap().contains("no IPv6"), "{error}");
        assert_clean(lab);
    }
}

/// As on hosts whose administrator disabled IPv6 for new interfaces.
#[test]
fn ipv6_that_is_disabled_on_the_bridge_is_reported_with_the_sysctl() {
    let lab = &Lab::new();
    if !Path::new("/proc/sys/net/ipv6").exists() {
        return skip("ipv6_that_is_disabled_on_the_bridge_is_reported_with_the_sysctl", "this kernel has no IPv6");
    }
    lab.sh("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
    let config = layer3(json!({}));
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
    let error = pod.call("ADD", &config).run().error(999);
    let details = error["details"].as_str().unwrap();
    for part in ["net/ipv6/conf/br0/disable_ipv6 is 1", "net.ipv6.conf.default.disable_ipv6=0"] {
        assert!(details.contains(part), "{error}");
    }
    assert_clean(lab);
    let command = details.split('`').nth(1).unwrap();
    lab.sh(command);
    pod.add(&config);
}

/// Without permission nothing is created, so the error must not mention a failed rollback.
#[test]
fn without_permission_the_error_names_only_the_missing_capabilities() {
    Lab::for_each_way_to_delegate(|lab| {
        let config = layer3(json!({ "ipMasq": true, "macspoofchk": true }));
        let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
        // Otherwise STATUS in a user namespace would report that it cannot be enabled.
        lab.sh("sysctl -qw net.ipv4.ip_forward=1; sysctl -qw net.ipv6.conf.all.forwarding=1 || true");
        for create in ["", "ip link add br0 type bridge"] {
            lab.sh(create);
            for caps in ["-all", "-net_admin"] {
                let run = format!("exec setpriv --bounding-set={caps} --inh-caps={caps} \"$0\"");
                let error = pod.call("ADD", &config).via_shell(&run).run().error(999);
                assert!(error["msg"].as_str().unwrap().ends_with("Operation not permitted (os error 1)"), "{error}");
                let details = "needs CAP_NET_ADMIN and CAP_SYS_ADMIN: run the plugin as root";
                assert_eq!(error["details"], details, "{error}");
                let status = pod.call("STATUS", &config).via_shell(&run).run().error(50);
                assert!(status["details"].as_str().unwrap().contains(details), "{status}");
            }
            assert_clean(lab);
        }
        assert!(!Scripted::of(lab).calls().iter().any(|call| call.starts_with("ADD")));
    });
}

#[test]
#[ignore = "needs a kernel without nf_tables: `ci/kernels no-nftables`"]
fn without_nf_tables_legacy_iptables_is_used() {
    let lab = &Lab::new();
    assert!(lab.sh("nft list tables 2>&1 || true").contains("rror"), "this kernel has nf_tables");
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
    let config = layer3(json!({ "ipMasq": true }));
    let no_veth = || assert_eq!(lab.sh("ip -o link show type veth"), "");

    // The host's iptables tools may themselves need nf_tables.
    lab.sh("for f in /usr/sbin/*tables-legacy*; do mount --bind /dev/null $f; done");
    let error = pod.call("ADD", &config).run().error(999);
    assert!(error.to_string().contains("iptables") && error.to_string().contains("nf_tables"), "{error}");
    no_veth();
    lab.sh("for f in /usr/sbin/*tables-legacy*; do umount $f; done");

    for more in [json!({ "ipMasqBackend": "nftables" }), json!({ "macspoofchk": true })] {
        let config = with(config.clone(), more);
        let error = pod.call("ADD", &config).run().error(999);
        assert!(error.to_string().contains("nf_tables"), "{error}");
        no_veth();
        let error = lab.plugin("bridge", "STATUS").stdin(config.to_string()).run().error(50);
        assert!(error.to_string().contains("nf_tables"), "{error}");
    }

    let path = legacy::path(lab);
    let result = pod.call("ADD", &config).env("PATH", &path).run().ok();
    for (save, ip) in [("iptables-legacy-save", "10.1.0.2"), ("ip6tables-legacy-save", "fd01::2")] {
        let rules = lab.sh(&format!("{save} -t nat"));
        assert!(rules.contains("MASQUERADE") && rules.contains(ip), "{rules}");
    }
    let mut checked = config.clone();
    checked["prevResult"] = result;
    pod.call("CHECK", &checked).env("PATH", &path).run().ok();
    pod.call("DEL", &config).env("PATH", &path).run().ok();
    for save in ["iptables-legacy-save", "ip6tables-legacy-save"] {
        assert!(!lab.sh(&format!("{save} -t nat")).contains("CNI-"));
    }
    no_veth();
}
