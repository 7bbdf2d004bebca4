//! Network cards on the PCI bus. When the namespace of a container is gone, the kernel moves them to the machine's
//! initial namespace, under the name that they had in the container.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod, Process, cards, reference};

use crate::ipam;

/// The cards, on the machine itself: the network namespace of the lab is not used.
struct Machine<'a> {
    lab: &'a Lab,
    cards: Vec<String>,
    /// One test at a time has the cards.
    _turn: MutexGuard<'static, ()>,
}

impl<'a> Machine<'a> {
    fn new(lab: &'a Lab, test: &str) -> Option<Machine<'a>> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Machine { lab, cards: cards(test, 2)?, _turn: turn })
    }

    fn sh(&self, command: &str) -> String {
        self.lab.sh(&format!("nsenter --net=/proc/1/ns/net sh -ec '{command}'"))
    }

    /// Returns the PCI address of a card that the machine has.
    fn address(&self, card: usize) -> String {
        let path = Path::new("/sys/class/net").join(&self.cards[card]).join("device");
        let path = fs::canonicalize(path).unwrap();
        path.parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned()
    }

    /// Asserts that the machine has its cards under their names, without traces of containers.
    #[track_caller]
    fn assert_given_back(&self, what: &str) {
        for card in &self.cards {
            let link: Value = serde_json::from_str(&self.sh(&format!("ip -j -d link show {card} || echo []"))).unwrap();
            let link = &link[0];
            assert_eq!(link["ifname"], card.as_str(), "{what}: {}", self.sh("ip -br link"));
            assert_eq!((&link["ifalias"], &link["altnames"]), (&Value::Null, &Value::Null), "{what}: {card}");
        }
        assert_eq!(self.lab.sh("ls -A /run/cni0/host-device 2>/dev/null || true"), "", "{what}");
        assert_eq!(self.lab.sh("find /var/lib/cni -name \"10.*\""), "", "{what}");
    }
}

/// Runs a call on the machine.
fn there(call: Process) -> Process {
    call.via_shell("exec nsenter --net=/proc/1/ns/net \"$0\"")
}

fn add(pod: &Pod<'_>, config: &Value) -> Value {
    there(pod.call("ADD", config)).run().ok()
}

fn del(pod: &Pod<'_>, config: &Value) {
    assert_eq!(there(pod.call("DEL", config)).run().ok(), Value::Null);
}

/// Ends the namespace of a container, as a crash of it does.
fn kill(pod: &Pod<'_>) {
    pod.lab.sh(&format!("umount {0}; rm {0}", pod.netns.display()));
}

fn config(more: Value) -> Value {
    with(with(json!({ "cniVersion": "1.1.0", "name": "net1", "type": "host-device" }), ipam()), more)
}

#[test]
fn a_card_comes_back_under_its_name() {
    let lab = &Lab::new();
    let Some(machine) = Machine::new(lab, "a_card_comes_back_under_its_name") else { return };
    let (name, address) = (machine.cards[0].clone(), machine.address(0));
    for round in 0..10 {
        let keys = if round % 2 == 0 { json!({ "device": name }) } else { json!({ "pciBusID": address }) };
        let config = config(keys);
        let pod = Pod::new(lab, &format!("c{round}"));
        let result = add(&pod, &config);
        let listed = &result["interfaces"][0];
        assert_eq!((&listed["name"], &listed["pciID"]), (&json!("eth0"), &json!(address)), "{result}");
        assert!(!machine.sh("ip -br link").contains(&format!("{name} ")));
        there(pod.call("CHECK", &with(config.clone(), json!({ "prevResult": result })))).run().ok();
        kill(&pod);
        // DEL waits for the kernel.
        del(&pod, &config);
        machine.assert_given_back(&format!("round {round}"));
        del(&pod, &config);
    }
}

/// Both have the same name in their containers, so the kernel has to choose another one for the second.
#[test]
fn cards_do_not_swap_their_names() {
    let lab = &Lab::new();
    let Some(machine) = Machine::new(lab, "cards_do_not_swap_their_names") else { return };
    let configs: Vec<Value> = machine.cards.iter().map(|name| config(json!({ "device": name }))).collect();
    for round in 0..3 {
        let pods = [0, 1].map(|card| Pod { ifname: "net1".to_owned(), ..Pod::new(lab, &format!("c{round}-{card}")) });
        for (pod, config) in pods.iter().zip(&configs) {
            add(pod, config);
        }
        pods.iter().for_each(kill);
        match round {
            // The namespaces can end in any order.
            0 => pods.iter().zip(&configs).for_each(|(pod, config)| del(pod, config)),
            1 => pods.iter().zip(&configs).rev().for_each(|(pod, config)| del(pod, config)),
            _ => {
                testing::wait_until("the kernel to give back both", || {
                    machine.sh("ip -d link").matches("altname").count() == 2
                });
                let list = with(configs[0].clone(), json!({ "cni.dev/valid-attachments": [] }));
                there(lab.plugin("host-device", "GC").stdin(list.to_string())).run().silent();
            }
        }
        machine.assert_given_back(&format!("round {round}"));
    }
}

/// A container with its own devices can do with them whatever it wants.
#[test]
fn a_card_without_its_marks_is_given_back() {
    let lab = &Lab::new();
    let Some(machine) = Machine::new(lab, "a_card_without_its_marks_is_given_back") else { return };
    let [name, other] = [0, 1].map(|card| machine.cards[card].clone());
    let address = machine.address(0);
    for round in 0..3 {
        let pod = Pod::new(lab, &format!("c{round}"));
        add(&pod, &config(json!({ "device": name })));
        let mark = pod.ip("link show eth0")[0]["altnames"][0].as_str().unwrap().to_owned();
        pod.sh(&format!(
            "ip link property del dev eth0 altname {mark}; ip link set eth0 down
             ip link set eth0 name wan alias {other} address 02:00:00:00:00:09
             ip link add eth0 type bridge; ip link property add dev eth0 altname {mark}; ip link set eth0 alias evil"
        ));
        if round > 0 {
            kill(&pod);
        }
        if round > 1 {
            // The next container needs no DEL of the first one.
            testing::wait_until("the kernel to give it back", || machine.sh("ip -br link").contains("wan "));
            let next = Pod::new(lab, "next");
            add(&next, &config(json!({ "pciBusID": address })));
            del(&pod, &config(json!({ "device": name })));
            assert!(next.sh("ip -o link").contains("eth0"), "DEL of another attachment");
            del(&next, &config(json!({ "device": "nope" })));
        }
        del(&pod, &config(json!({ "device": name })));
        machine.assert_given_back(&format!("round {round}"));
        machine.sh(&format!("! ip link show evil 2>/dev/null; ip link set {name} address 52:54:00:12:34:56"));
    }
}

/// A container with two cards exchanges their names, aliases and marks.
#[test]
fn exchanged_marks_mean_nothing() {
    let lab = &Lab::new();
    let Some(machine) = Machine::new(lab, "exchanged_marks_mean_nothing") else { return };
    let configs: Vec<Value> = machine.cards.iter().map(|name| config(json!({ "device": name }))).collect();
    let macs = || {
        machine.cards.iter().map(|card| machine.sh(&format!("cat /sys/class/net/{card}/address"))).collect::<Vec<_>>()
    };
    let before = macs();
    for killed in [false, true] {
        let pod = Pod::new(lab, if killed { "killed" } else { "alive" });
        let pods = ["net1", "net2"].map(|ifname| pod.interface(ifname, &[]));
        for (pod, config) in pods.iter().zip(&configs) {
            add(pod, config);
        }
        let mark = |ifname: &str| pod.ip(&format!("link show {ifname}"))[0]["altnames"][0].as_str().unwrap().to_owned();
        let marks = [mark("net1"), mark("net2")];
        let [first, second] = &machine.cards[..] else { panic!("{:?}", machine.cards) };
        pod.sh(&format!(
            "ip link property del dev net1 altname {0}; ip link property del dev net2 altname {1}
             ip link property add dev net1 altname {1}; ip link property add dev net2 altname {0}
             ip link set net1 down; ip link set net2 down; ip link set net1 name x alias {second}
             ip link set net2 name net1 alias {first}; ip link set x name net2",
            marks[0], marks[1]
        ));
        if killed {
            kill(&pod);
        }
        for (pod, config) in pods.iter().zip(&configs) {
            del(pod, config);
        }
        machine.assert_given_back(&format!("killed: {killed}"));
        assert_eq!(macs(), before, "killed: {killed}");
    }
}

#[test]
fn a_card_is_restored() {
    let lab = &Lab::new();
    let Some(machine) = Machine::new(lab, "a_card_is_restored") else { return };
    let name = machine.cards[1].clone();
    machine.sh(&format!(
        "ip link set {name} mtu 1400 up; ip address add 10.77.0.1/24 brd + dev {name}; ip route add 10.78.0.0/16 via 10.77.0.9"
    ));
    let state = || {
        machine.sh(&format!("ip -4 -o address show dev {name}; ip route; ip link show {name} | grep -o \"mtu [0-9]*\""))
    };
    let before = state();
    let config = config(json!({ "device": name, "restore": true }));
    for killed in [false, true] {
        let pod = Pod::new(lab, if killed { "killed" } else { "alive" });
        add(&pod, &config);
        pod.sh("ip link set eth0 mtu 1300");
        if killed {
            kill(&pod);
        }
        del(&pod, &config);
        let index = |text: String| text.split_once(": ").map(|(_, rest)| rest.to_owned());
        assert_eq!(index(state()), index(before.clone()), "killed: {killed}");
        machine.assert_given_back("DEL");
    }
    machine.sh(&format!("ip address flush dev {name}; ip link set {name} mtu 1500 down"));
}

/// The reference fails for ever, and takes the name in the container for that of the card at the next ADD.
#[test]
fn cards_that_the_reference_lost_get_their_name_again() {
    let test = "cards_that_the_reference_lost_get_their_name_again";
    let lab = &Lab::new();
    let Some(machine) = Machine::new(lab, test) else { return };
    if reference("host-device", test).is_none() {
        return;
    }
    let (name, address) = (machine.cards[0].clone(), machine.address(0));
    let config = with(config(json!({ "pciBusID": address })), json!({ "cniVersion": "1.0.0" }));
    for command in ["DEL", "ADD"] {
        let pod = Pod { ifname: "net1".to_owned(), ..Pod::new(lab, command) };
        there(pod.call_reference("ADD", &config)).run().ok();
        kill(&pod);
        testing::wait_until("the kernel to give it back", || machine.sh("ip -br link").contains("net1 "));
        there(pod.call_reference("DEL", &config)).run().error(999);
        match command {
            "DEL" => del(&pod, &config),
            _ => {
                lab.sh("rm -r /var/lib/cni");
                let next = Pod::new(lab, "next");
                add(&next, &config);
                del(&next, &config);
            }
        }
        machine.assert_given_back(command);
        assert!(machine.sh("ip -br link").contains(&name));
    }
    // And back: what cni0 attached.
    let pod = Pod::new(lab, "back");
    add(&pod, &config);
    there(pod.call_reference("DEL", &config)).run().ok();
    assert!(machine.sh("ip -br link").contains(&name));
    del(&pod, &config);
    machine.assert_given_back("DEL of the reference");
}
