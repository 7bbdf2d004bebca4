//! `cnitool init`: the first network.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};
use testing::{Outcome, Process, copy_program, document, parallel, program_path};

use crate::support::{Host, failure, messages};

#[track_caller]
fn success(outcome: &Outcome) -> String {
    assert_eq!((outcome.status, messages(outcome).as_str()), (Some(0), ""), "{outcome:?}");
    outcome.stdout.clone()
}

fn files(host: &Host) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(host.conf_dir()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn read(host: &Host, name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(host.conf_dir().join(name)).unwrap()).unwrap()
}

#[test]
fn a_first_network_works_with_everything_that_a_newcomer_tries() {
    let host = Host::new();
    host.lab.sh("ip link set lo up");
    let path = host.conf_dir().join("10-pods.conflist");
    fs::remove_dir(host.conf_dir()).unwrap();
    let namespace = host.lab.netns("blue");
    let said = success(&host.run("init pods"));
    assert!(
        said.starts_with(&format!("network pods is configured in {}: bridge cni0, 10.22.0.0/16\n", path.display()))
    );
    assert!(said.contains("cnitool add pods blue") && !said.contains("the first file"), "{said}");
    assert_eq!(files(&host), ["10-pods.conflist"], "no draft");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o644);
    success(&host.run("validate --strict"));

    let ports = r#"{"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}"#;
    let at = namespace.display();
    success(&host.call(&format!("add pods {at}")).env("CAP_ARGS", ports).run());
    assert!(host.lab.sh("nft list ruleset").contains("8080"));
    for command in ["check", "status", "gc", "del"] {
        let operand = if ["check", "del"].contains(&command) { format!(" {at}") } else { String::new() };
        success(&host.run(&format!("{command} pods{operand}")));
    }
    assert!(!host.lab.sh("nft list ruleset").contains("8080"));
}

#[test]
fn given_subnets_are_used_and_the_bridge_is_another_one() {
    let host = Host::new();
    host.lab.sh("ip link add cni0 type bridge");
    host.configure("00-first.conf", r#"{"cniVersion": "1.0.0", "name": "first", "type": "bridge", "bridge": "cni1"}"#);
    let said = success(&host.run("init both --subnet 10.198.0.0/24 --subnet=fd98::/64"));
    assert!(said.contains("bridge cni2, 10.198.0.0/24, fd98::/64\n"), "{said}");
    assert!(said.contains("which is still 00-first.conf\n"), "{said}");
    let ranges = json!([[{ "subnet": "10.198.0.0/24" }], [{ "subnet": "fd98::/64" }]]);
    assert_eq!(read(&host, "10-both.conflist")["plugins"][0]["ipam"]["ranges"], ranges);
    success(&host.run("validate --strict"));
}

/// The first file is the network of runtimes that use only one.
#[test]
fn a_second_network_does_not_become_the_first() {
    let host = Host::new();
    for (name, file) in [("zebra", "10-zebra.conflist"), ("pods", "20-pods.conflist"), ("zoo", "10-zoo.conflist")] {
        success(&host.run(&format!("init {name}")));
        assert!(files(&host).contains(&file.to_owned()), "{:?}", files(&host));
    }
    let subnet = |file: &str| read(&host, file)["plugins"][0]["ipam"]["subnet"].clone();
    assert_eq!(subnet("10-zebra.conflist"), "10.22.0.0/16");
    assert_eq!(subnet("20-pods.conflist"), "10.23.0.0/16");
    assert_eq!(subnet("10-zoo.conflist"), "10.24.0.0/16");
}

#[test]
fn a_free_subnet_has_no_route_and_no_address() {
    let host = Host::new();
    host.lab.sh("ip link set lo up; ip link add d0 type bridge; ip link set d0 up; ip address add 10.22.7.1/24 dev d0
         ip route add 10.23.0.0/17 dev d0; ip route add blackhole 10.24.1.0/24; ip route add default dev d0
         ip route add 10.25.0.0/16 dev d0 table 7");
    success(&host.run("init pods"));
    assert_eq!(read(&host, "10-pods.conflist")["plugins"][0]["ipam"]["subnet"], "10.26.0.0/16");
}

#[test]
fn bad_input_is_refused_and_changes_nothing() {
    let host = Host::new();
    host.lab.sh("ip link set lo up; ip link add d0 type bridge; ip address add 10.22.7.1/24 dev d0");
    host.lab.sh("ip route add blackhole 10.24.1.0/24");
    host.configure(
        "50-net.conflist",
        &format!(
            r#"{{"cniVersion": "1.0.0", "name": "net", "plugins": [{{"type": "ptp", "ipam": {}}}]}}"#,
            r#"{"type": "whereabouts", "range": "10.50.0.0/16"}"#,
        ),
    );
    let before = files(&host);
    for (words, want) in [
        ("init a/b", "invalid network name \"a/b\""),
        ("init ..", "invalid network name \"..\""),
        ("init net", "create network \"net\": "),
        ("init new --subnet 10.50.1.0", "--subnet: invalid CIDR address: \"10.50.1.0\": append the length"),
        ("init new --subnet x", "--subnet: invalid CIDR address: \"x\""),
        ("init new --subnet 10.51.0.1/16", "--subnet: 10.51.0.1/16 has host bits set (write 10.51.0.0/16)"),
        ("init new --subnet 224.1.0.0/16", "--subnet: 224.1.0.0/16 is for multicast"),
        ("init new --subnet 10.51.0.0/31", "plugin \"bridge\": key \"ipam\": \"subnet\" 10.51.0.0/31 cannot"),
        ("init new --subnet 10.50.128.0/17", "--subnet: 10.50.128.0/17 is in use: network \"net\" in "),
        ("init new --subnet 10.0.0.0/8", "--subnet: 10.0.0.0/8 is in use: link d0 has the address 10.22.7.1/24"),
        ("init new --subnet 10.24.0.0/16", "--subnet: 10.24.0.0/16 is in use: this host has a route to 10.24.1.0/24"),
        ("init new --subnet 127.1.0.0/16", "--subnet: 127.1.0.0/16 is in use: link lo"),
        ("init new --subnet 10.51.0.0/24 --subnet 10.52.0.0/24", "--subnet: 10.51.0.0/24 and 10.52.0.0/24 are of the"),
    ] {
        let why = failure(&host.run(words));
        assert!(why.starts_with(want), "{words}: {why}");
        assert_eq!(files(&host), before, "{words}");
    }
    // Without a directory, bad input does not create it.
    let missing = host.lab.dir().join("missing/net.d");
    for subnet in ["10.0.0.0/8", "10.51.0.0/31"] {
        let outcome = host.call(&format!("init new --subnet {subnet}")).env("NETCONFPATH", &missing).run();
        assert!(failure(&outcome).contains(subnet) && !missing.parent().unwrap().exists());
    }
}

#[test]
fn a_file_is_never_replaced() {
    let host = Host::new();
    let path = host.conf_dir().join("10-pods.conflist");
    fs::write(&path, "not JSON").unwrap();
    let outcome = host.run("init pods");
    assert_eq!(outcome.status, Some(0), "{outcome:?}");
    assert!(outcome.stderr.contains("ignored: "), "{outcome:?}");
    assert_eq!(
        (files(&host), fs::read_to_string(path).unwrap()),
        (vec!["10-pods.conflist".to_owned(), "20-pods.conflist".to_owned(),], "not JSON".to_owned())
    );
    // A directory with the name of the file is not listed as a network.
    let host = Host::new();
    fs::create_dir(host.conf_dir().join("10-pods.conflist")).unwrap();
    assert!(failure(&host.run("init pods")).contains("File exists"));
    assert_eq!(files(&host), ["10-pods.conflist"]);
}

#[test]
fn concurrent_calls_take_different_subnets() {
    let host = Host::new();
    let outcomes = parallel::run((0..8).map(|n| host.call(&format!("init net{n}"))).collect());
    outcomes.iter().for_each(|outcome| drop(success(outcome)));
    let mut subnets: Vec<String> = files(&host)
        .iter()
        .map(|file| read(&host, file)["plugins"][0]["ipam"]["subnet"].as_str().unwrap().to_owned())
        .collect();
    subnets.sort();
    subnets.dedup();
    assert_eq!(subnets.len(), 8);
    let outcomes = parallel::run((0..8).map(|_| host.call("init same")).collect());
    assert_eq!(outcomes.iter().filter(|outcome| outcome.status == Some(0)).count(), 1, "{outcomes:?}");
}

#[test]
fn without_permission_the_error_says_what_to_do() {
    let host = Host::new();
    let tool = host.lab.bin().join("cnitool");
    copy_program(&program_path("cnitool"), &tool);
    let setpriv = Process::new("setpriv").arg("--reuid=65534").arg("--regid=65534").arg("--clear-groups");
    let outcome = setpriv.arg(tool).arg("init").arg("pods").env("NETCONFPATH", host.conf_dir()).run();
    let why = failure(&outcome);
    assert!(why.contains("Permission denied") && why.contains("run as root, or set NETCONFPATH"), "{why}");
    assert!(files(&host).is_empty());
}

#[test]
fn missing_plugins_are_reported() {
    let host = Host::new();
    fs::remove_file(host.lab.bin().join("portmap")).unwrap();
    let outcome = host.run("init pods");
    assert_eq!(outcome.status, Some(0));
    assert!(outcome.stderr.starts_with("cnitool: failed to find plugin \"portmap\""), "{outcome:?}");
}

#[test]
fn the_readme_shows_the_network() {
    assert!(document::read("README.md").contains(&document::read("docs/example.conflist")));
}
