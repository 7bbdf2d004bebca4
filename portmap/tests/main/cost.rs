//! Limits for the cost of a call in system calls, messages and processes, so that it grows only on purpose.

use std::fs;

use serde_json::Value;
use testing::Lab;

use crate::pod::{Pod, config};

/// Returns the number of netlink messages and of all system calls after the configuration was read.
fn cost(pod: &Pod<'_>, command: &str, config: &Value) -> (usize, usize) {
    let trace = pod.lab.dir().join("trace");
    pod.call(command, config).strace(&["-f", "-qq", "-o", trace.to_str().unwrap()]).run().ok();
    let log = fs::read_to_string(trace).unwrap();
    let count = |call: &str| log.lines().filter(|line| line.contains(&format!(" {call}("))).count();
    assert_eq!(count("execve"), 1, "{log}");
    // DEL leaves the last wait for the kernel to a child.
    let children = count("clone") + count("clone3") + count("fork") + count("vfork");
    assert!(children <= usize::from(command == "DEL"), "{log}");
    // The programs under test may use glibc, which makes more system calls at the start than the released program.
    let calls = log.lines().filter(|line| line.contains('(')).count();
    let start = log.lines().position(|line| line.contains("read(0,")).unwrap();
    (count("sendto"), calls - start)
}

#[test]
fn the_cost_does_not_depend_on_the_number_of_ports() {
    let lab = &Lab::new();
    lab.sh("ip link add br0 up type bridge; ip address add 10.1.0.1/24 dev br0");
    // The first ADD creates the chains.
    Pod::with_port(lab, "first", &["10.1.0.9/24", "fd01::9/64"]).add(&config(&["7999:80/tcp"]));
    let mut seen = Vec::new();
    for count in [1, 20] {
        let pod = Pod::with_port(lab, &format!("c{count}"), &["10.1.0.2/24", "fd01::2/64"]);
        let ports: Vec<String> = (0..count).map(|n| format!("{}:80/tcp", 8000 + n)).collect();
        let config = config(&ports.iter().map(String::as_str).collect::<Vec<_>>());
        let add = cost(&pod, "ADD", &config);
        let check = cost(&pod, "CHECK", &config);
        let del = cost(&pod, "DEL", &config);
        seen.push([add.0, check.0, del.0]);
        // One process, whatever the number of ports.
        assert!(add.0 <= 7 && check.0 <= 13 && del.0 <= 18, "{add:?} {check:?} {del:?}");
        assert!(add.1 <= 60 && check.1 <= 80 && del.1 <= 80, "{add:?} {check:?} {del:?}");
    }
    assert_eq!(seen[0], seen[1], "messages of ADD, CHECK and DEL with 1 and 20 ports");
}

#[test]
fn udp_takes_the_same_number_of_messages_for_any_number_of_ports() {
    let lab = &Lab::new();
    Pod::with_port(lab, "first", &["10.1.0.9/24"]).add(&config(&["7999:80/tcp"]));
    let messages = |count: usize| {
        let pod = Pod::with_port(lab, &format!("c{count}"), &["10.1.0.2/24"]);
        let ports: Vec<String> = (0..count).map(|n| format!("{}:80/udp", 8000 + n)).collect();
        let config = config(&ports.iter().map(String::as_str).collect::<Vec<_>>());
        let add = cost(&pod, "ADD", &config).0;
        (add, cost(&pod, "DEL", &config).0)
    };
    assert_eq!(messages(20), messages(200));
}

/// When the kernel rejects a transaction or recreates a base chain, it waits until no processor uses the old rules. That
/// takes as long as ten ADDs.
#[test]
fn add_neither_recreates_a_chain_nor_sends_a_rejected_transaction() {
    let lab = &Lab::new();
    let edits = |id: &str, ip: &str, port: &str| {
        let pod = Pod::with_port(lab, id, &[ip]);
        let outcome = pod.call("ADD", &config(&[port])).env("CNI_LOG", "debug").run();
        outcome.ok();
        let edits = outcome.stderr.lines().filter_map(|line| line.split_once("nf_tables: "));
        edits.map(|(_, edit)| edit.to_owned()).collect::<Vec<_>>()
    };
    let first = edits("a", "10.1.0.2/24", "8080:80/tcp");
    assert_eq!(first[0], "add table inet cni_hostport", "{first:?}");
    let second = edits("b", "10.1.0.3/24", "8081:80/tcp");
    let elements = ["ipv4_ports", "ipv4_masquerade", "attachments"];
    assert_eq!(second, elements.map(|set| format!("create elements of set inet cni_hostport {set}")));
}
