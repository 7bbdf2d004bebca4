//! Two attachments want the same port: the first keeps it as long as it exists.

use serde_json::{Value, json};
use testing::config::{on_network, with};
use testing::packets::{Client, HOST, Server, from};
use testing::{Lab, Pod};

use crate::differential::nat;
use crate::support::{assert_clean, config, lease, port, published, table};

/// Asserts that an ADD is refused because of a port, with a message that contains all of `texts`, and changes nothing.
#[track_caller]
fn assert_refused(pod: &Pod<'_>, config: &Value, texts: &[&str]) {
    let before = table(pod.lab);
    let error = pod.call("ADD", config).run().error(101);
    for text in texts {
        assert!(error["msg"].as_str().unwrap().contains(text), "{text}: {error}");
    }
    assert!(error["details"].as_str().unwrap().contains("use another host port"), "{error}");
    assert_eq!(table(pod.lab), before);
}

#[test]
fn a_port_of_a_live_attachment_is_refused() {
    let lab = &Lab::new();
    let a = Pod::with_port(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
    let b = Pod::with_port(lab, "b", &["10.1.0.3/24", "fd01::3/64"]);
    a.add(&config(&["8080:80/tcp", "10.0.0.1 8081:81/udp", "fd01::1 8082:82/tcp", "8083:83/sctp"]));
    let owner = "net: net1, if: eth0, id: a";
    for (ports, key, target) in [
        (&["8080:80/tcp"][..], "tcp port 8080", "10.1.0.2:80"),
        (&["9000:80/tcp", "9001:80/tcp", "8080:90/tcp", "9002:80/tcp"], "tcp port 8080", "10.1.0.2:80"),
        (&["0.0.0.0 8080:1/tcp"], "tcp port 8080", "10.1.0.2:80"),
        (&[":: 8080:1/tcp"], "tcp port 8080", "[fd01::2]:80"),
        (&["10.0.0.1 8081:1/udp"], "udp 10.0.0.1:8081", "10.1.0.2:81"),
        (&["fd01::1 8082:1/tcp"], "tcp [fd01::1]:8082", "[fd01::2]:82"),
        (&["8083:1/sctp"], "sctp port 8083", "10.1.0.2:83"),
    ] {
        assert_refused(&b, &config(ports), &[key, target, owner]);
        assert_refused(&b, &on_network("net2", config(ports)), &[key, target, owner]);
    }
    // Other addresses, protocols and numbers are free.
    let others = [
        "8080:1/udp",
        "10.0.0.2 8081:1/udp",
        "8081:1/tcp",
        "fd01::2 8082:1/tcp",
        "0.0.0.0 8082:1/tcp",
        ":: 8081:1/udp",
    ];
    b.add(&config(&others));
    a.check(&config(&["8080:80/tcp", "10.0.0.1 8081:81/udp", "fd01::1 8082:82/tcp", "8083:83/sctp"])).ok();
    b.check(&config(&others)).ok();
    b.del(&config(&[]));
    a.del(&config(&[]));
    b.add(&config(&["8080:80/tcp"]));
}

/// A port of all addresses and the same port of one address, of different containers, whichever comes first and
/// whatever forms they have.
#[test]
fn a_port_of_one_address_and_of_all_addresses_exclude_each_other() {
    let lab = &Lab::new();
    let a = Pod::with_port(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
    let b = Pod::with_port(lab, "b", &["10.1.0.3/24", "fd01::3/64"]);
    let forms = ["nftables", "iptables"];
    for [first, second] in forms.map(|x| forms.map(|y| [x, y])).as_flattened() {
        let of = |ports: &[&str], backend: &str| with(config(ports), json!({ "backend": backend }));
        for (all, one, names) in [
            ("8080:80/tcp", "10.0.0.1 8080:81/tcp", ["tcp port 8080", "tcp 10.0.0.1:8080"]),
            ("8080:80/tcp", "127.0.0.1 8080:81/tcp", ["tcp port 8080", "tcp 127.0.0.1:8080"]),
            ("0.0.0.0 8080:80/udp", "10.0.0.1 8080:81/udp", ["udp port 8080", "udp 10.0.0.1:8080"]),
            ("8080:80/sctp", "fd01::1 8080:81/sctp", ["sctp port 8080", "sctp [fd01::1]:8080"]),
        ] {
            for (taken, wanted, [taken_name, wanted_name]) in [(all, one, names), (one, all, [names[1], names[0]])] {
                let others = ["7000:80/tcp", wanted, "10.0.0.1 7001:80/tcp"];
                a.add(&of(&[taken], first));
                let text = format!("publish {wanted_name}: {taken_name} is already published");
                assert_refused(&b, &of(&others, second), &[&text, "id: a"]);
                a.check(&of(&[taken], first)).ok();
                // The error ends with the cause.
                a.del(&of(&[taken], first));
                b.add(&of(&others, second));
                b.check(&of(&others, second)).ok();
                b.del(&config(&[]));
            }
        }
        // Different addresses, other families, protocols and numbers do not overlap.
        a.add(&of(&["10.0.0.1 8080:80/tcp", ":: 8081:80/tcp"], first));
        let others = ["10.0.0.2 8080:80/tcp", "8080:80/udp", "10.0.0.1 8081:80/tcp", "10.0.0.1 8082:80/tcp"];
        b.add(&of(&others, second));
        a.check(&of(&["10.0.0.1 8080:80/tcp", ":: 8081:80/tcp"], first)).ok();
        b.check(&of(&others, second)).ok();
        a.del(&config(&[]));
        b.del(&config(&[]));
    }
    assert_clean(lab);
}

/// The more specific address wins.
#[test]
fn a_container_may_have_a_port_of_one_address_and_of_all_addresses() {
    let lab = &Lab::new();
    let outside = lab.outside();
    let a = Pod::on_bridge(lab, "br0", "a", &["10.1.0.2/24"]);
    let again = a.interface("eth1", &["10.9.0.2/24"]);
    lab.sh("ip link add vethaeth1 type bridge");
    let both = config(&["192.0.2.1 8080:81/tcp", "8080:80/tcp"]);
    let [one, all] = [["192.0.2.1 8080:81/tcp"], ["8080:80/tcp"]].map(|ports| config(&ports));
    let servers = [80, 81].map(|port| Server::start("tcp", Some(&a.netns), "0.0.0.0", port));
    let expect = |one: &Server, other: &Server| {
        Client::in_netns(&outside).expect(&from("192.0.2.2"), "192.0.2.1", 8080, one);
        Client::in_netns(&outside).expect(&from("192.0.2.2"), "192.0.2.9", 8080, other);
    };
    for _ in 0..2 {
        a.add(&both);
        a.check(&both).ok();
        expect(&servers[1], &servers[0]);
    }
    // A repeated ADD with one of them, in any order.
    for config in [&one, &both, &all, &both, &all, &one] {
        a.add(config);
        a.check(config).ok();
    }
    a.del(&both);
    // Through two networks.
    for (first, second) in [(&one, &all), (&all, &one)] {
        let second = on_network("net2", second.clone());
        a.add(first);
        again.add(&second);
        a.check(first).ok();
        again.check(&second).ok();
        again.del(&second);
        a.check(first).ok();
        a.del(first);
    }
    assert_clean(lab);
}

/// A container that is gone does not keep a port from others.
#[test]
fn an_overlapping_port_of_an_attachment_that_is_gone_is_replaced() {
    for (old, new) in [("10.0.0.1 8080:80/tcp", "8080:80/tcp"), ("8080:80/tcp", "10.0.0.1 8080:80/tcp")] {
        let lab = &Lab::new();
        let a = Pod::with_port(lab, "a", &["10.1.0.2/24"]);
        let b = Pod::with_port(lab, "b", &["10.1.0.3/24"]);
        a.add(&config(&[old, "9090:80/tcp"]));
        assert_refused(&b, &config(&[new]), &["id: a"]);
        lab.sh("ip link del vetha");
        b.add(&config(&[new]));
        b.check(&config(&[new])).ok();
        assert_eq!(published(lab).len(), 1, "{:#?}", published(lab));
        b.del(&config(&[new]));
        assert_clean(lab);
    }
}

/// podman and nerdctl pass the ports of a container to all its networks. The first one publishes them.
#[test]
fn a_container_publishes_its_ports_through_one_of_its_networks() {
    let lab = &Lab::new();
    let a = Pod::with_port(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
    let b = Pod::with_port(lab, "b", &["10.1.0.3/24"]);
    let again = a.interface("eth1", &["10.9.0.2/24", "fd09::2/64"]);
    lab.sh("ip link add vethaeth1 type bridge");
    let forms = ["nftables", "iptables"];
    for [first, second] in forms.map(|x| forms.map(|y| [x, y])).as_flattened() {
        let of = |network: &str, backend: &str| {
            on_network(network, with(config(&["8080:80/tcp", "8081:80/udp"]), json!({ "backend": backend })))
        };
        let (one, two) = (of("net1", first), of("net2", second));
        a.add(&one);
        again.add(&two);
        a.check(&one).ok();
        again.check(&two).ok();
        assert_refused(&b, &one, &["tcp port 8080", "id: a"]);
        again.del(&two);
        a.check(&one).ok();
        again.add(&two);
        a.del(&one);
        // Another ADD, or `cnitool repair`, publishes the ports through the other network.
        again.add(&two);
        again.check(&two).ok();
        assert_refused(&b, &one, &["tcp port 8080", "10.9.0.2:80"]);
        again.del(&two);
        assert_clean(lab);
        assert!(!nat(lab).contains("CNI-DN"), "{first}, {second}: {}", nat(lab));
    }
}

/// A refused ADD of an attachment that has other ports.
#[test]
fn a_refused_add_keeps_what_the_attachment_has() {
    let lab = &Lab::new();
    let a = Pod::with_port(lab, "a", &["10.1.0.2/24"]);
    let b = Pod::with_port(lab, "b", &["10.1.0.3/24"]);
    a.add(&config(&["8080:80/tcp"]));
    b.add(&config(&["8081:80/tcp"]));
    assert_refused(&b, &config(&["8082:80/tcp", "8080:80/tcp"]), &["tcp port 8080"]);
    b.check(&config(&["8081:80/tcp"])).ok();
}

/// Whatever forms the ports of both have.
#[test]
fn a_refused_add_keeps_what_the_attachment_has_in_other_forms() {
    let lab = &Lab::new();
    let a = Pod::with_port(lab, "a", &["10.1.0.2/24"]);
    let b = Pod::with_port(lab, "b", &["10.1.0.3/24"]);
    let of = |ports: &[&str], backend: &str| with(config(ports), json!({ "backend": backend }));
    let forms = ["iptables", "nftables"];
    for [first, second, third] in forms.map(|x| forms.map(|y| forms.map(|z| [x, y, z]))).as_flattened().as_flattened() {
        a.add(&of(&["9090:80/tcp"], first));
        b.add(&of(&["8080:80/tcp"], second));
        let before = nat(lab);
        assert_refused(&b, &of(&["8080:80/tcp", "9090:80/tcp"], third), &["tcp port 9090", "id: a"]);
        assert_eq!(nat(lab), before);
        b.check(&of(&["8080:80/tcp"], second)).ok();
        a.check(&of(&["9090:80/tcp"], first)).ok();
        // Without the clash, the form changes.
        b.add(&of(&["8080:80/tcp", "9091:80/tcp"], third));
        b.check(&of(&["8080:80/tcp", "9091:80/tcp"], third)).ok();
        assert_eq!(nat(lab).matches("10.1.0.3:80").count() + table(lab).matches(": 10.1.0.3 . 80").count(), 2);
        b.del(&config(&[]));
        a.del(&config(&[]));
    }
    assert_clean(lab);
    assert!(!nat(lab).contains("CNI-DN"), "{}", nat(lab));
}

/// A container that died without a DEL, for example when the host's runtime was killed.
#[test]
fn a_port_of_an_attachment_that_is_gone_is_replaced() {
    let lab = &Lab::new();
    let a = Pod::with_port(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
    // It also gets the address.
    let b = Pod::on_bridge(lab, "br0", "b", &["10.1.0.2/24", "fd01::2/64"]);
    a.add(&config(&["8080:80/tcp", "8081:80/tcp"]));
    lab.sh("ip link del vetha");
    let outcome = b.call("ADD", &config(&["8080:90/tcp"])).env("CNI_LOG", "info").run();
    outcome.ok();
    assert!(outcome.stderr.contains("net: net1, if: eth0, id: a"), "{}", outcome.stderr);
    let want = ["tcp 8080 to 10.1.0.2 90", "tcp 8080 to fd01::2 90"].map(|mapping| port(mapping, "b"));
    assert_eq!(published(lab), want);
    b.check(&config(&["8080:90/tcp"])).ok();
    let server = Server::start("tcp", Some(&b.netns), "0.0.0.0", 90);
    HOST.expect(&from("10.1.0.1"), "127.0.0.1", 8080, &server);
    // The late DEL of the first leaves the second alone.
    a.del(&config(&["8080:80/tcp"]));
    b.check(&config(&["8080:90/tcp"])).ok();
    HOST.expect(&from("10.1.0.1"), "127.0.0.1", 8080, &server);
}

#[test]
fn an_attachment_whose_link_belongs_to_another_is_gone() {
    let lab = &Lab::new();
    let a = Pod::with_port(lab, "a", &["10.1.0.2/24"]);
    let b = Pod::with_port(lab, "b", &["10.1.0.3/24"]);
    a.add(&config(&["8080:80/tcp"]));
    // Aliases that name the owner, or nothing, or something else.
    for alias in ["cni-attachment net1 a eth0", "cni0 net1 a eth0", "", "uplink to rack 4", "cni-attachment net1"] {
        lab.sh(&format!("ip link set vetha alias '{alias}'"));
        assert_refused(&b, &config(&["8080:80/tcp"]), &["id: a"]);
    }
    lab.sh("ip link set vetha alias 'cni-attachment net1 later eth0'");
    b.add(&config(&["8080:80/tcp"]));
    assert_eq!(published(lab), [port("tcp 8080 to 10.1.0.3 80", "b")]);
}

/// Without the link that the previous result named, the alias of another link or a lease shows that the container
/// lives.
#[test]
fn an_attachment_with_a_renamed_link_keeps_its_port() {
    for backend in ["nftables", "iptables"] {
        let lab = &Lab::new();
        let config = with(config(&["8080:80/tcp"]), json!({ "backend": backend }));
        let a = Pod::absent(lab, "a", &["10.1.0.2/24"]);
        let b = Pod::with_port(lab, "b", &["10.1.0.3/24"]);
        lab.sh("ip link add vetha type veth peer name peer; ip link set vetha alias 'cni-attachment net1 a eth0'");
        a.add(&config);
        // A link that is not up can be renamed on every kernel.
        lab.sh("ip link set vetha name renamed");
        assert_refused(&b, &config, &["tcp port 8080", "id: a"]);
        // The alias of a long name is cut. It names only the network.
        lab.sh("ip link set renamed alias 'cni-attachment net1 a'");
        assert_refused(&b, &config, &["tcp port 8080", "id: a"]);
        lab.sh("ip link del renamed");
        lease("net1", "10.1.0.2", "a", "eth0");
        assert_refused(&b, &config, &["tcp port 8080", "id: a"]);
        lease("net1", "10.1.0.2", "other", "eth0");
        b.add(&config);
        b.check(&config).ok();
    }
}

/// A writer may never come. The owner of the port is gone, as if the lease directory was empty.
#[test]
fn a_named_pipe_in_the_lease_directory_is_not_waited_for() {
    for backend in ["nftables", "iptables"] {
        let lab = &Lab::new();
        let config = with(config(&["8080:80/tcp"]), json!({ "backend": backend }));
        let a = Pod::with_port(lab, "a", &["10.1.0.2/24"]);
        let b = Pod::with_port(lab, "b", &["10.1.0.3/24"]);
        a.add(&config);
        lease("net1", "10.1.0.4", "c", "eth0");
        lab.sh("ip link del vetha; mkfifo /var/lib/cni/networks/net1/10.1.0.2");
        b.add(&config);
        b.check(&config).ok();
        b.del(&config);
    }
}

/// Without a link on this host in the previous result, for example of macvlan.
#[test]
fn an_attachment_that_may_exist_keeps_its_port() {
    let lab = &Lab::new();
    let a = Pod::absent(lab, "a", &["10.1.0.2/24"]);
    let b = Pod::with_port(lab, "b", &["10.1.0.3/24"]);
    let result = json!({
        "cniVersion": "1.1.0", "interfaces": [{ "name": "eth0", "sandbox": "/run/netns/a" }],
        "ips": [{ "address": "10.1.0.2/24", "interface": 0 }],
    });
    a.add(&with(config(&["8080:80/tcp"]), json!({ "prevResult": result })));
    assert_refused(&b, &config(&["8080:80/tcp"]), &["tcp port 8080", "id: a"]);
    // Nor is the owner known if the entry of the attachment is lost.
    lab.sh("nft flush set inet cni_hostport attachments");
    assert_refused(&b, &config(&["8080:80/tcp"]), &["tcp port 8080", "id: a"]);
    a.del(&config(&[]));
    b.add(&config(&["8080:80/tcp"]));
}

/// An element that the administrator added.
#[test]
fn a_port_without_an_owner_is_refused() {
    let lab = &Lab::new();
    let a = Pod::with_port(lab, "a", &["10.1.0.2/24"]);
    a.add(&config(&["8080:80/tcp"]));
    let long = "a long text that names no attachment at all";
    for (comment, owner) in [("", "unknown owner"), ("short", "short"), (long, long)] {
        let comment = if comment.is_empty() { String::new() } else { format!("comment \"{comment}\"") };
        lab.sh(&format!("nft 'add element inet cni_hostport ipv4_ports {{ tcp . 9000 {comment} : 10.7.0.7 . 70 }}'"));
        assert_refused(&a, &config(&["8080:80/tcp", "9000:80/tcp"]), &["tcp port 9000", "10.7.0.7:70", owner]);
        a.check(&config(&["8080:80/tcp"])).ok();
        let error = a.check(&config(&["9000:80/tcp"])).error(999);
        let (message, details) = (error["msg"].as_str().unwrap(), error["details"].as_str().unwrap());
        assert!(message.contains(&format!("published by another program ({owner})")), "{error}");
        assert!(details.contains("delete the element") && !details.contains("another ADD"), "{error}");
        // No call removes it.
        a.del(&config(&["9000:80/tcp"]));
        let gc = with(config(&[]), json!({ "cni.dev/valid-attachments": [] }));
        lab.plugin("portmap", "GC").stdin(gc.to_string()).run().ok();
        assert_eq!(published(lab).len(), 1);
        a.add(&config(&["8080:80/tcp"]));
        lab.sh("nft delete element inet cni_hostport ipv4_ports '{ tcp . 9000 }'");
    }
}

/// Two attachments with the same address, such as those of two bridges with the same subnet.
#[test]
fn attachments_with_the_same_address_do_not_exclude_each_other() {
    let lab = &Lab::new();
    let a = Pod::with_port(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
    let b = Pod::with_port(lab, "b", &["10.1.0.2/16", "fd01::2/64"]);
    let (first, second) = (config(&["8080:80/tcp"]), on_network("net2", config(&["8081:80/tcp"])));
    a.add(&first);
    b.add(&second);
    a.check(&first).ok();
    b.check(&second).ok();
    b.del(&second);
    a.check(&first).ok();
    b.add(&second);
    a.del(&first);
    b.check(&second).ok();
    b.del(&second);
    assert_clean(lab);
}
