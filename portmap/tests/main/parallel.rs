//! Many calls at the same time, first on a host without the table.

use serde_json::{Value, json};
use testing::config::{on_network, with};
use testing::parallel::{assert_added, assert_silent};
use testing::{Lab, Outcome, Pod, parallel};

use crate::differential::nat;
use crate::support::{assert_clean, config, entries, forget_inventory, published, table};

const PODS: usize = 100;

/// Starts one call for each line `COMMAND CONTAINER PORT` at the same time, and returns their outcomes, in that order.
fn all_at_once(lab: &Lab, calls: &[String], config: impl Fn(&str, &str) -> Value) -> Vec<Outcome> {
    let call = |call: &String| {
        let [command, id, port] = call.split(' ').collect::<Vec<_>>()[..] else { panic!("{call}") };
        Pod::absent(lab, id, &[]).call(command, &config(id, port))
    };
    parallel::run(calls.iter().map(call).collect())
}

/// Returns the configuration for a container with the number at the end of its ID.
fn numbered(id: &str, port: &str) -> Value {
    let number: usize = id.trim_start_matches(|letter: char| letter.is_alphabetic()).parse().unwrap();
    let result = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{ "name": "host" }, { "name": "eth0", "sandbox": "/run/netns/x" }],
        "ips": [{ "address": format!("10.1.0.{number}/24"), "interface": 1 }, { "address": format!("fd01::{number}/64"), "interface": 1 }],
    });
    with(config(&[&format!("{port}:80/tcp")]), json!({ "prevResult": result }))
}

#[test]
fn a_hundred_adds_on_a_host_without_rules_and_a_hundred_dels() {
    for conditions in [json!([]), json!(["-i", "uplink"])] {
        let lab = &Lab::new();
        lab.sh("ip link add host type bridge");
        let calls = |command: &str| (1..=PODS).map(|n| format!("{command} c{n} {}", 8000 + n)).collect::<Vec<_>>();
        let config = |id: &str, port: &str| with(numbered(id, port), json!({ "conditionsV4": conditions }));
        assert_added(&all_at_once(lab, &calls("ADD"), config));
        assert_eq!(published(lab).len(), 2 * PODS);
        assert!(entries(lab).len() >= 7 * PODS);
        // One set of chains and rules, as after a single ADD.
        let rules = |lab: &Lab| {
            let is_rule = |line: &&str| !line.contains(", net: ") && !line.contains(" : goto ");
            table(lab).lines().filter(is_rule).map(str::to_owned).collect::<Vec<_>>()
        };
        let many = rules(lab);
        assert_eq!(lab.sh("nft list ruleset | grep -c ^table"), "1\n");
        assert_silent(&all_at_once(lab, &calls("CHECK"), config));
        assert_silent(&all_at_once(lab, &calls("DEL"), config));
        assert_clean(lab);
        lab.sh("nft flush ruleset");
        assert_added(&all_at_once(lab, &calls("ADD")[..1], config));
        assert_eq!(many, rules(lab));
    }
}

#[test]
fn adds_and_dels_race() {
    let lab = &Lab::new();
    lab.sh("ip link add host type bridge");
    // The conditions have a scope that comes and goes.
    let config = |id: &str, port: &str| match id.starts_with('x') {
        true => {
            let conditions = ["-i", "uplink"];
            let more = json!({ "conditionsV4": conditions, "conditionsV6": conditions, "name": "net2" });
            with(numbered(id, port), more)
        }
        false => numbered(id, port),
    };
    let calls = |command: &str, letter: &str, first: usize| -> Vec<String> {
        (first..first + 25).map(|n| format!("{command} {letter}{n} {}", 8000 + n)).collect()
    };
    assert_added(&all_at_once(lab, &[calls("ADD", "c", 1), calls("ADD", "x", 1)].concat(), config));
    for round in 0..4 {
        let (old, new) = (1 + 25 * (round % 2), 1 + 25 * ((round + 1) % 2));
        let dels = [calls("DEL", "c", old), calls("DEL", "x", old)].concat();
        let adds = [calls("ADD", "c", new), calls("ADD", "x", new)].concat();
        let mixed: Vec<String> = dels.iter().zip(&adds).flat_map(|(del, add)| [del.clone(), add.clone()]).collect();
        for (n, outcome) in all_at_once(lab, &mixed, config).iter().enumerate() {
            if n % 2 == 0 { outcome.silent() } else { assert_added(std::slice::from_ref(outcome)) }
        }
        let checks = [calls("CHECK", "c", new), calls("CHECK", "x", new)].concat();
        assert_silent(&all_at_once(lab, &checks, config));
        assert_eq!(published(lab).len(), 100, "{:#?}", published(lab));
    }
}

#[test]
fn of_many_adds_for_one_port_exactly_one_wins() {
    let lab = &Lab::new();
    lab.sh("ip link add host type bridge");
    for round in 0..5 {
        // The first round also creates the table.
        let adds: Vec<String> = (1..=20).map(|n| format!("ADD c{n} {}", 8080 + round)).collect();
        let outcomes = all_at_once(lab, &adds, numbered);
        let won = outcomes.iter().filter(|outcome| outcome.stdout.contains("\"ips\"")).count();
        let lost = outcomes.iter().filter(|outcome| outcome.stdout.contains("\"code\": 101")).count();
        assert_eq!((won, lost), (1, 19), "{outcomes:#?}");
        let mappings = published(lab);
        assert_eq!(mappings.len(), 2, "{mappings:#?}");
        let dels: Vec<String> = (1..=20).map(|n| format!("DEL c{n} 1")).collect();
        all_at_once(lab, &dels, numbered);
        assert_clean(lab);
    }
}

/// Different keys: a port of all addresses, and the same port of one address.
#[test]
fn of_many_adds_for_overlapping_ports_only_those_that_do_not_overlap_win() {
    let lab = &Lab::new();
    lab.sh("ip link add host type bridge");
    let config = |id: &str, port: &str| {
        let n: usize = id[1..].parse().unwrap();
        let host = if n.is_multiple_of(2) { String::new() } else { format!("10.0.0.{n} ") };
        let more = json!({ "runtimeConfig": config(&[&format!("{host}{port}:80/tcp")])["runtimeConfig"] });
        with(numbered(id, port), more)
    };
    // The first round also creates the table.
    for round in 0..12 {
        let adds: Vec<String> = (1..=12).map(|n| format!("ADD c{n} {}", 8080 + round)).collect();
        let outcomes = all_at_once(lab, &adds, config);
        let won: Vec<_> = adds.iter().zip(&outcomes).filter(|(_, outcome)| outcome.status == Some(0)).collect();
        let is_for_all =
            |call: &String| call.split(' ').nth(1).unwrap()[1..].parse::<usize>().unwrap().is_multiple_of(2);
        let for_all = won.iter().filter(|(call, _)| is_for_all(call)).count();
        assert!(for_all <= 1 && (for_all == 1) == (won.len() == 1) && !won.is_empty(), "{won:#?}");
        assert!(outcomes.iter().all(|outcome| outcome.status == Some(0) || outcome.stdout.contains("\"code\": 101")));
        let dels: Vec<String> = (1..=12).map(|n| format!("DEL c{n} 1")).collect();
        assert_silent(&all_at_once(lab, &dels, config));
        assert_clean(lab);
    }
    // Of several DELs at the same time, none may notice that it was the last one.
    assert_added(&all_at_once(lab, &["ADD c1 8080".to_owned()], config));
    assert_silent(&all_at_once(lab, &["DEL c1 8080".to_owned()], config));
    assert!(!table(lab).contains("host-addresses"), "{}", table(lab));
}

/// No key excludes two rules of iptables, or a rule and an element. The first container creates the table `nat`.
#[test]
fn of_many_adds_for_one_port_in_any_form_exactly_one_wins() {
    let lab = &Lab::new();
    lab.sh("ip link add host type bridge");
    let in_chains = |id: &str, port: &str| with(numbered(id, port), json!({ "backend": "iptables" }));
    let mixed = |id: &str, port: &str| match id.ends_with(['0', '2', '4', '6', '8']) {
        true => numbered(id, port),
        false => in_chains(id, port),
    };
    assert_added(&all_at_once(lab, &["ADD c99 9999".to_owned()], in_chains));
    for round in 0..12 {
        let config = |id: &str, port: &str| if round % 2 == 0 { in_chains(id, port) } else { mixed(id, port) };
        let adds: Vec<String> = (1..=12).map(|n| format!("ADD c{n} {}", 8080 + round)).collect();
        let outcomes = all_at_once(lab, &adds, config);
        let won = outcomes.iter().filter(|outcome| outcome.stdout.contains("\"ips\"")).count();
        let lost = outcomes.iter().filter(|outcome| outcome.stdout.contains("\"code\": 101")).count();
        assert_eq!((won, lost), (1, 11), "{outcomes:#?}");
        let dels: Vec<String> = (1..=12).map(|n| format!("DEL c{n} 1")).collect();
        assert_silent(&all_at_once(lab, &dels, config));
    }
    assert_clean(lab);
    assert_eq!(nat(lab).matches("--to-destination").count(), 2, "{}", nat(lab));
}

/// The same attachment, as if a runtime repeated a call that it thinks lost.
#[test]
fn repeated_calls_for_one_attachment_race() {
    let lab = &Lab::new();
    lab.sh("ip link add host type bridge");
    let adds: Vec<String> = (0..20).map(|n| format!("ADD c1 {}", 8080 + n % 2)).collect();
    assert_added(&all_at_once(lab, &adds, numbered));
    assert_eq!(published(lab).len(), 2, "{:#?}", published(lab));
    let mixed: Vec<String> = (0..20).map(|n| format!("{} c1 8080", ["ADD", "DEL"][n % 2])).collect();
    for (n, outcome) in all_at_once(lab, &mixed, numbered).iter().enumerate() {
        if n % 2 == 0 { assert_added(std::slice::from_ref(outcome)) } else { outcome.silent() }
    }
    let pod = Pod::absent(lab, "c1", &[]);
    pod.del(&config(&[]));
    assert_clean(lab);
}

/// While a late DEL runs, another container takes over the port of its container, which is gone. That must stay,
/// whenever it happens.
#[test]
fn a_port_that_another_container_gets_meanwhile_stays() {
    let lab = &Lab::new();
    for (n, is_old) in (1..).flat_map(|n| [(n, false), (n, true)]) {
        let a = Pod::with_port(lab, "a", &["10.1.0.2/24"]);
        let b = Pod::with_port(lab, "b", &["10.1.0.3/24"]);
        let (old, new) = (config(&["8080:80/tcp", "8081:80/tcp"]), config(&["8081:80/tcp", "8080:90/tcp"]));
        a.add(&old);
        if is_old {
            forget_inventory(lab);
        }
        let outcome = parallel::stopped_after(lab, a.call("DEL", &old), "sendto", n, || {
            lab.sh("ip link del vetha");
            b.add(&new);
        });
        if outcome.is_none() {
            assert!(n > 5, "only {n} messages");
            break;
        }
        outcome.unwrap().ok();
        b.check(&new).ok();
        assert_eq!(published(lab).len(), 2, "{:#?}", published(lab));
        a.del(&old);
        b.check(&new).ok();
        b.del(&new);
        assert_clean(lab);
        lab.sh("ip link del vethb");
    }
}

/// While an ADD runs, the same attachment is added or removed. Then a DEL finds everything.
#[test]
fn nothing_is_lost_if_calls_for_one_attachment_overlap() {
    let lab = &Lab::new();
    let pod = Pod::with_port(lab, "a", &["10.1.0.2/24"]);
    let [one, two] = [config(&["8080:80/tcp", "8081:80/tcp"]), config(&["8081:81/tcp", "8082:80/tcp"])];
    for [first, second] in [["ADD", "ADD"], ["ADD", "DEL"], ["DEL", "ADD"]] {
        for n in 1.. {
            pod.add(&one);
            let outcome = parallel::stopped_after(lab, pod.call(first, &two), "sendto", n, || {
                pod.call(second, &one).run().ok();
            });
            let is_reached = outcome.is_some();
            outcome.inspect(|outcome| drop(outcome.ok()));
            pod.del(&config(&[]));
            assert_clean(lab);
            if !is_reached {
                assert!(n > 5, "only {n} messages");
                break;
            }
        }
    }
}

/// Another program changes rules all the time, and other containers have thousands of ports.
#[test]
fn foreign_transactions_do_not_disturb_beside_many_ports() {
    let lab = &Lab::new();
    let other = Pod::with_port(lab, "other", &["10.1.0.2/24", "fd01::2/64"]);
    let ports: Vec<String> = (20_000..36_000).map(|n| format!("{n}:80/tcp")).collect();
    let ports: Vec<&str> = ports.iter().map(String::as_str).collect();
    other.add(&config(&ports));
    let pod = Pod::with_port(lab, "a", &["10.1.0.3/24"]);
    parallel::beside(lab, "nft 'add table inet other; delete table inet other'", || {
        for _ in 0..3 {
            pod.add(&config(&["8080:80/tcp"]));
            pod.add(&config(&["8081:80/tcp"]));
            pod.check(&config(&["8081:80/tcp"])).ok();
            pod.del(&config(&[]));
            // What earlier versions added is listed.
            pod.add(&config(&["8080:80/tcp"]));
            forget_inventory(lab);
            pod.del(&config(&[]));
        }
        // All attachments of other networks stay.
        let gc = with(on_network("net2", config(&[])), json!({ "cni.dev/valid-attachments": [] }));
        lab.plugin("portmap", "GC").stdin(gc.to_string()).run().ok();
        other.check(&config(&ports)).ok();
        other.del(&config(&[]));
    });
    assert_clean(lab);
}

/// Another program changes rules all the time.
#[test]
fn foreign_transactions_do_not_disturb() {
    let lab = &Lab::new();
    lab.sh("ip link add host type bridge");
    parallel::beside(lab, "nft 'add table inet other; delete table inet other'", || {
        for n in 1..6 {
            assert_added(&all_at_once(lab, &[format!("ADD c{n} 8080")], numbered));
            assert_added(&all_at_once(lab, &[format!("ADD c{n} 8081")], numbered));
            assert_silent(&all_at_once(lab, &[format!("DEL c{n} 8081")], numbered));
            assert_clean(lab);
        }
    });
}
