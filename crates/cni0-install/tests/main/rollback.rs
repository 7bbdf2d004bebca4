//! Going back on a node with running containers: no rule of cni0 is left that the restored plugins do not know.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use linux::netlink::Conntrack;
use serde_json::{Value, json};
use testing::{Lab, Outcome, Process, copy_program, program_path, reference, wait_until, write_script};

use crate::support::{Host, command, failure, program, success};

const PLUGINS: [&str; 4] = ["bridge", "firewall", "host-local", "portmap"];

/// A node with the plugins of the reference, and those of cni0 in their place.
struct Node {
    lab: Lab,
}

impl Node {
    fn new(test: &str) -> Option<Node> {
        let theirs = PLUGINS.map(|plugin| reference(plugin, test));
        let node = Node { lab: Lab::without_plugins() };
        fs::create_dir_all(node.dir()).unwrap();
        fs::create_dir(node.payload()).unwrap();
        for (plugin, theirs) in PLUGINS.into_iter().zip(theirs) {
            let place = node.dir().join(plugin);
            // Which tables the bridge plugin knows is read from its program.
            if plugin == "bridge" {
                copy_program(&theirs?, &place)
            } else {
                write_script(&place, &run(&theirs?))
            }
            write_script(&node.payload().join(plugin), &run(&program_path(plugin)));
        }
        node.lab.sh("ip link set lo up");
        Some(node)
    }

    fn dir(&self) -> PathBuf {
        Path::new("/run/opt/cni/bin").to_owned()
    }

    fn payload(&self) -> PathBuf {
        self.lab.dir().join("payload")
    }

    fn install(&self) {
        success(&command("install", &self.dir()).arg("--from").arg(self.payload()).run());
    }

    fn call(&self, command: &str, plugin: &str, container: &str, config: &Value) -> Outcome {
        Process::plugin(&self.dir().join(plugin), command)
            .env("CNI_CONTAINERID", container)
            .env("CNI_NETNS", format!("/run/netns/{container}"))
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", self.dir())
            .stdin(config.to_string())
            .run()
    }

    /// Attaches a container to a network with a single address, and publishes ports. Returns the result.
    fn add(&self, container: &str) -> Value {
        self.lab.netns(container);
        let added = self.call("ADD", "bridge", container, &bridge()).ok();
        let config = |plugin: Value| with_previous(plugin, &added);
        self.call("ADD", "firewall", container, &config(firewall())).ok();
        self.call("ADD", "portmap", container, &config(portmap())).ok();
        added
    }
}

/// Returns a script that runs a program. The checksum of a short file takes no time.
fn run(program: &Path) -> String {
    format!("exec {}", program.display())
}

fn with_previous(mut config: Value, result: &Value) -> Value {
    config["prevResult"] = result.clone();
    config
}

fn bridge() -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "pods", "type": "bridge", "bridge": "br-pods", "isGateway": true, "ipMasq": true,
        "ipam": { "type": "host-local",
                  "ranges": [[{ "subnet": "10.7.0.0/24", "rangeStart": "10.7.0.9", "rangeEnd": "10.7.0.9" }]] },
    })
}

fn portmap() -> Value {
    let ports = json!([
        { "hostPort": 8080, "containerPort": 80, "protocol": "tcp" },
        { "hostPort": 8081, "containerPort": 81, "protocol": "udp" },
    ]);
    json!({ "cniVersion": "1.0.0", "name": "pods", "type": "portmap", "runtimeConfig": { "portMappings": ports } })
}

fn firewall() -> Value {
    json!({ "cniVersion": "1.0.0", "name": "pods", "type": "firewall" })
}

#[test]
fn a_later_container_gets_no_port_of_an_earlier_one() {
    let Some(node) = Node::new("rollback::a_later_container_gets_no_port_of_an_earlier_one") else { return };
    let outside = node.lab.outside();
    node.install();
    let added = node.add("old");
    let rules = || node.lab.sh("nft list ruleset");
    assert!(rules().contains("8080") && rules().contains("cni_firewall"), "{}", rules());
    // A flow of UDP through the port, which its client could continue.
    let (client, server) = ("192.0.2.2".parse().unwrap(), "192.0.2.1".parse().unwrap());
    testing::packets::udp(Some(&outside), "192.0.2.2", 0).send_to(b"?", "192.0.2.1:8081").unwrap();
    let flow = || Conntrack::open().unwrap().reply_destination(client, server).unwrap();
    assert_eq!(flow(), Some(client));
    let said = success(&command("rollback", &node.dir()).run());
    for line in ["files restored: 4", "published ports of 1 attachments", "accepted addresses of 1 attachments"] {
        assert!(said.contains(line), "{line}: {said}");
    }
    let known = fs::read(node.dir().join("bridge")).unwrap();
    let knows = known.windows(22).any(|window| window == b"cni_plugins_masquerade");
    assert_eq!(said.contains("kept: masquerade rules"), knows, "{said}");
    let is_clean = |rules: &str| !rules.contains("8080") && !rules.contains("8081") && !rules.contains("cni_firewall");
    assert!(is_clean(&rules()), "{}", rules());
    assert_eq!(flow(), None);
    // The reference detaches the old container: an old version fails at the first DEL, which runtimes repeat.
    let previous = |config| with_previous(config, &added);
    for _ in 0..2 {
        for (plugin, config) in [("portmap", portmap()), ("firewall", firewall()), ("bridge", bridge())] {
            node.call("DEL", plugin, "old", &previous(config));
        }
    }
    node.lab.netns("new");
    let result = node.call("ADD", "bridge", "new", &bridge()).ok();
    assert_eq!(result["ips"][0]["address"], "10.7.0.9/24", "{result}");
    assert!(is_clean(&rules()), "{}", rules());
    // A pod of the DaemonSet can start again.
    assert!(success(&command("rollback", &node.dir()).run()).contains("nothing is installed"));
}

#[test]
fn rules_stay_if_the_plugins_are_of_cni0() {
    let Some(node) = Node::new("rollback::rules_stay_if_the_plugins_are_of_cni0") else { return };
    for plugin in PLUGINS {
        write_script(&node.dir().join(plugin), &format!("{} # v1.9.1+cni0.0.1.0", run(&program_path(plugin))));
    }
    node.install();
    node.add("old");
    let before = node.lab.sh("nft list ruleset");
    // A directory of another name changes nothing.
    success(&command("rollback", &node.payload().join("other")).run());
    success(&command("rollback", node.lab.dir()).run());
    assert_eq!(node.lab.sh("nft list ruleset"), before);
    let said = success(&command("rollback", &node.dir()).run());
    assert!(said.contains("kept: published ports") && !said.contains("removed: "), "{said}");
    assert_eq!(node.lab.sh("nft list ruleset"), before);
}

#[test]
fn a_node_is_not_left_without_plugins() {
    let host = Host::new();
    for name in ["bridge", "sbr"] {
        fs::remove_file(host.dir().join(name)).unwrap();
    }
    host.install();
    let before = host.state();
    let line = failure(&command("rollback", &host.dir()).run());
    assert!(line.contains("would have no plugins") && line.contains("--allow-empty"), "{line}");
    assert_eq!(host.state(), before);
    success(&command("rollback", &host.dir()).arg("--allow-empty").run());
    assert_eq!(host.state(), []);
    // A program of others is enough.
    host.install();
    write_script(&host.dir().join("other"), "exit 0");
    success(&command("rollback", &host.dir()).run());
}

/// A call that is running may add rules until it ends.
#[test]
fn running_calls_are_awaited() {
    let host = Host::new();
    let fifo = |name: &str| host.lab.dir().join(name);
    host.lab.sh(&format!("mkfifo {} {}", fifo("begun").display(), fifo("go").display()));
    let slow = format!(
        "if [ \"$CNI_COMMAND\" = ADD ]; then
             echo >{}; read go <{}; nft 'table inet cni_hostport {{ set attachments {{ type ifname; }}; }}'
         fi
         {}",
        fifo("begun").display(),
        fifo("go").display(),
        program("bridge", "slow")
    );
    write_script(&host.payload().join("bridge"), &slow);
    host.install();
    thread::scope(|scope| {
        scope.spawn(|| Process::plugin(&host.dir().join("bridge"), "ADD").run());
        fs::read(fifo("begun")).unwrap();
        let rollback = scope.spawn(|| success(&command("rollback", &host.dir()).run()));
        let is_restored = || fs::read_to_string(host.dir().join("bridge")).unwrap().contains("bridge other");
        wait_until("the previous plugin", is_restored);
        fs::write(fifo("go"), "\n").unwrap();
        let said = rollback.join().unwrap();
        assert!(said.contains("removed: published ports of 0 attachments"), "{said}");
    });
    assert_eq!(host.lab.sh("nft list tables"), "");
}
