//! Calls whose stdin, stdout or stderr is closed or not read.

use std::fs::{self, File};
use std::net::IpAddr;
use std::process::{Command, Stdio};

use serde_json::json;
use testing::config::with;
use testing::{Lab, Pod, plugins};

const CONFIG: &str = r#"{"cniVersion": "1.0.0", "name": "pods", "type": "bridge",
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24"}]]}}"#;

/// Prepares an ADD by host-local, through a shell with the redirections `redirected`.
fn add(lab: &Lab, container: &str, redirected: &str) -> Command {
    let config = lab.dir().join("conf");
    fs::write(&config, CONFIG).unwrap();
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("exec {}/host-local {redirected}", lab.bin().display()));
    shell.env("CNI_COMMAND", "ADD").env("CNI_CONTAINERID", container).env("CNI_NETNS", "/x");
    shell.env("CNI_IFNAME", "eth0").env("CNI_PATH", lab.bin());
    shell.stdin(File::open(&config).unwrap()).stdout(Stdio::null()).stderr(Stdio::null());
    shell
}

#[test]
fn files_never_take_the_place_of_a_closed_stream() {
    let lab = Lab::new();
    let leases = "/var/lib/cni/networks/pods";
    for (n, closed) in ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"].iter().enumerate() {
        let status = add(&lab, &format!("c{n}"), closed).status().unwrap();
        assert_eq!(status.code(), Some(i32::from(*closed != "2>&-")), "{closed}: stdin and stdout are needed");
        for entry in fs::read_dir(leases).into_iter().flatten() {
            let entry = entry.unwrap();
            let (name, content) = (entry.file_name(), fs::read_to_string(entry.path()).unwrap());
            let sound = match name.to_str().unwrap() {
                "lock" => content.is_empty(),
                "last_reserved_ip.0" => content.parse::<IpAddr>().is_ok(),
                _ => content.starts_with('c') && content.ends_with("\r\neth0") && content.len() == 8,
            };
            assert!(sound, "{closed}: {name:?} holds {content:?}");
        }
    }
    // A delegating plugin that gets no result from host-local calls DEL.
    assert_eq!(fs::read_dir(leases).unwrap().count(), 5, "three leases, the lock and the pointer");
}

/// Returns everything on the host and in the container that plugins change.
fn state(lab: &Lab) -> String {
    lab.sh("nft list ruleset | sed 's/counter packets [0-9]* bytes [0-9]*//'
            ip -o link | sed 's/^[0-9]*: \\([^:]*\\):.*/\\1/'
            ip -n c1 -o link | sed 's/state.*//'; ip netns exec c1 cat /proc/sys/net/core/somaxconn
            find /var/lib/cni /run/cni -type f | sort")
}

/// Except IPAM plugins, which leave that to the DEL of the delegating plugin.
#[test]
fn an_add_whose_result_is_lost_is_rolled_back() {
    let lab = &Lab::new();
    fs::create_dir_all("/run/flannel").unwrap();
    let subnet = "FLANNEL_NETWORK=10.8.0.0/16\nFLANNEL_SUBNET=10.8.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
    fs::write("/run/flannel/subnet.env", subnet).unwrap();
    let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.9.0.0/24" }]] });
    let network = json!({ "cniVersion": "1.1.0", "name": "pods", "type": "bridge", "ipam": ipam, "ipMasq": true });
    let pod = Pod::attached(lab, "c1", &network);
    lab.sh("ip link add uplink type veth peer name far; ip link set uplink up; ip link set far up");
    for plugin in plugins().into_iter().filter(|plugin| !["dhcp", "host-local", "static"].contains(&plugin.as_str())) {
        let keys = match plugin.as_str() {
            "bandwidth" => json!({ "ingressRate": 8_000_000, "ingressBurst": 800_000 }),
            "portmap" => {
                json!({ "runtimeConfig": { "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }] } })
            }
            "ipvlan" | "macvlan" => json!({ "master": "uplink" }),
            "vlan" => json!({ "master": "uplink", "vlanId": 5 }),
            "host-device" => json!({ "device": "far" }),
            "vrf" => json!({ "vrfname": "blue" }),
            "tuning" => json!({ "sysctl": { "net.core.somaxconn": "77" }, "mtu": 1400 }),
            _ => json!({}),
        };
        let config = with(with(network.clone(), json!({ "type": plugin })), keys);
        // Plugins that create an interface create another one.
        let call = |command: &str| match plugin.as_str() {
            "bridge" | "dummy" | "flannel" | "host-device" | "ipvlan" | "macvlan" | "ptp" | "tap" | "vlan" => {
                pod.interface("eth1", &["10.9.0.9/24"]).call(command, &config)
            }
            _ => pod.call(command, &config),
        };
        // What all containers share stays.
        let added = call("ADD").run();
        // The kernel cannot create such a link; that of `ci/vm` can.
        if added.stdout.contains("this kernel has no ") {
            continue;
        }
        added.ok();
        call("DEL").run().ok();
        let before = state(lab);
        for closed in [">&-", ">/dev/full"] {
            let outcome = call("ADD").via_shell(&format!("exec \"$0\" {closed}")).run();
            assert_eq!(outcome.status, Some(1), "{plugin} {closed}: {outcome:?}");
            assert!(outcome.stderr.contains("write the answer to stdout"), "{plugin} {closed}: {outcome:?}");
            assert_eq!(state(lab), before, "{plugin} {closed}");
        }
        // DEL has nothing to report.
        call("DEL").via_shell("exec \"$0\" >&-").run().ok();
    }
}

#[test]
fn a_caller_that_does_not_read_does_not_kill_the_plugin() {
    let lab = Lab::new();
    // The shell creates a pipe and closes its reading end. Children of other tests would inherit a pipe of this process
    // and keep it open.
    let pipe = lab.dir().join("pipe").display().to_string();
    lab.sh(&format!("mkfifo {pipe}"));
    let outcome = add(&lab, "deaf", &format!("3<>{pipe} >{pipe} 3<&-")).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(outcome.status.code(), Some(1), "an error, not a signal");
    assert!(String::from_utf8(outcome.stderr).unwrap().contains("write the answer to stdout"));
}

#[test]
fn versions_that_cannot_be_written_are_an_error() {
    let lab = Lab::new();
    let outcome = lab.plugin("host-local", "VERSION").via_shell("exec \"$0\" >/dev/full").run();
    assert_eq!(outcome.status, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("write the answer to stdout"), "{outcome:?}");
}
