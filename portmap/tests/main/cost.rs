//! Limits for the cost of a call in system calls, messages and processes, so that it grows only on purpose.

use serde_json::Value;
use testing::cost::{self, Cost};
use testing::{Lab, Pod};

use crate::support::config;

/// Returns the cost of a call in one process. DEL leaves the last wait for the kernel to a child.
fn cost(pod: &Pod<'_>, command: &str, config: &Value) -> Cost {
    let cost = cost::of(pod.lab, pod.call(command, config));
    assert!(cost.children <= usize::from(command == "DEL"), "{command}: {cost:?}");
    cost
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
        let messages = [add, check, del].map(|cost| cost.messages);
        seen.push(messages);
        // One process, whatever the number of ports.
        assert!(messages.iter().zip([7, 13, 18]).all(|(found, limit)| *found <= limit), "{add:?} {check:?} {del:?}");
        assert!(add.calls <= 60 && check.calls <= 80 && del.calls <= 90, "{add:?} {check:?} {del:?}");
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
        ["ADD", "DEL"].map(|command| cost(&pod, command, &config).messages)
    };
    assert_eq!(messages(20), messages(200));
}

/// When the kernel rejects a transaction or recreates a base chain, it waits until no processor uses the old rules. That
/// takes as long as ten ADDs.
#[test]
fn add_neither_recreates_a_chain_nor_sends_a_rejected_transaction() {
    let lab = &Lab::new();
    let edits =
        |id: &str, ip: &str, port: &str| cost::nft_edits(Pod::with_port(lab, id, &[ip]).call("ADD", &config(&[port])));
    let first = edits("a", "10.1.0.2/24", "8080:80/tcp");
    assert_eq!(first[0], "add table inet cni_hostport", "{first:?}");
    let second = edits("b", "10.1.0.3/24", "8081:80/tcp");
    let elements = ["ipv4_ports", "ipv4_masquerade", "attachments"];
    assert_eq!(second, elements.map(|set| format!("create elements of set inet cni_hostport {set}")));
}
