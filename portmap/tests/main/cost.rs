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

/// Returns a configuration with this number of ports. Those of two numbers differ: the kernel may still have a port,
/// for a moment after its DEL, and an ADD then looks for its owner.
fn ports(count: usize, protocol: &str) -> Value {
    let ports: Vec<String> = (0..count).map(|n| format!("{}:80/{protocol}", 8000 + 10 * count + n)).collect();
    config(&ports.iter().map(String::as_str).collect::<Vec<_>>())
}

/// ADD sends one transaction. CHECK and DEL look up the entries of the attachment, 32 with each message.
#[test]
fn the_cost_hardly_depends_on_the_number_of_ports() {
    let lab = &Lab::new();
    lab.sh("ip link add br0 up type bridge; ip address add 10.1.0.1/24 dev br0");
    // The first ADD creates the chains.
    Pod::with_port(lab, "first", &["10.1.0.9/24", "fd01::9/64"]).add(&config(&["7999:80/tcp"]));
    let mut seen = Vec::new();
    for count in [1, 14, 94] {
        let pod = Pod::with_port(lab, &format!("c{count}"), &["10.1.0.2/24", "fd01::2/64"]);
        let config = ports(count, "tcp");
        let [add, check, del] = ["ADD", "CHECK", "DEL"].map(|command| cost(&pod, command, &config));
        seen.push([add, check, del].map(|cost| cost.messages));
        assert!(add.calls <= 60, "{add:?}");
        let answers = 2 * count;
        assert!(check.calls <= 60 + answers && del.calls <= 90 + answers, "{check:?} {del:?}");
    }
    let [one, some, many] = &seen[..] else { panic!("{seen:?}") };
    assert!(one.iter().zip([8, 13, 18]).all(|(found, limit)| *found <= limit), "{one:?}");
    assert_eq!(one, some, "messages with 1 port and with 14 ports");
    assert_eq!(*many, [one[0], one[1] + 5, one[2] + 5], "188 ports and 3 ranges are 6 messages instead of one");
}

/// The ports of others cost nothing.
#[test]
fn the_cost_does_not_depend_on_the_ports_of_others() {
    let lab = &Lab::new();
    let pod = Pod::with_port(lab, "a", &["10.1.0.2/24"]);
    Pod::with_port(lab, "first", &["10.1.0.9/24"]).add(&config(&["7999:80/tcp"]));
    let costs = || {
        let config = config(&["9999:80/tcp"]);
        // The second ADD is a repetition, the second DEL has nothing to remove.
        ["ADD", "ADD", "CHECK", "DEL", "DEL"].map(|command| cost(&pod, command, &config))
    };
    let before = costs();
    for (n, protocol) in ["tcp", "udp", "sctp"].iter().enumerate() {
        Pod::with_port(lab, &format!("o{n}"), &[&format!("10.1.0.{}/24", n + 3)]).add(&ports(1000, protocol));
    }
    for (before, after) in before.into_iter().zip(costs()) {
        assert_eq!(before.messages, after.messages);
        // A process and its child that wait for each other need one or two system calls for it.
        assert!(before.calls.abs_diff(after.calls) <= 3, "{before:?} {after:?}");
    }
}

#[test]
fn the_flows_of_udp_take_the_same_number_of_messages_for_any_number_of_ports() {
    let lab = &Lab::new();
    Pod::with_port(lab, "first", &["10.1.0.9/24"]).add(&config(&["7999:80/tcp"]));
    let messages = |count: usize| {
        let pod = Pod::with_port(lab, &format!("c{count}"), &["10.1.0.2/24"]);
        ["ADD", "DEL"].map(|command| cost(&pod, command, &ports(count, "udp")).messages)
    };
    let (some, many) = (messages(20), messages(200));
    assert_eq!(many, [some[0], some[1] + 6], "202 entries are looked up with 7 messages, 22 with one");
}

/// When the kernel rejects a transaction or recreates a base chain, it waits until no processor uses the old rules.
/// That takes as long as ten ADDs.
#[test]
fn add_neither_recreates_a_chain_nor_sends_a_rejected_transaction() {
    let lab = &Lab::new();
    let edits =
        |id: &str, ip: &str, port: &str| cost::nft_edits(Pod::with_port(lab, id, &[ip]).call("ADD", &config(&[port])));
    let first = edits("a", "10.1.0.2/24", "8080:80/tcp");
    assert_eq!(first[0], "add table inet cni_hostport", "{first:?}");
    let second = edits("b", "10.1.0.3/24", "8081:80/tcp");
    let elements = ["ipv4_ports", "ipv4_masquerade", "attachments", "inventory"];
    let (version, created) = second.split_first().unwrap();
    assert_eq!(version, "add elements to set inet cni_hostport versions");
    assert_eq!(created, elements.map(|set| format!("create elements of set inet cni_hostport {set}")));
}
