//! The whole plugin with the real firewalld on a real bus.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use testing::{Lab, Outcome, REFERENCE, reference, skip, wait_until};

use crate::pod::{Pod, accepted_all, config, containers, with};

const ADDRESS: &str = "unix:path=/run/bus";
/// Everyone may do everything on the bus.
const BUS_CONFIG: &str = r#"<busconfig>
  <type>system</type>
  <listen>unix:path=/run/bus</listen>
  <policy context="default">
    <allow user="*"/>
    <allow own="*"/>
    <allow send_destination="*"/>
    <allow receive_sender="*"/>
  </policy>
</busconfig>
"#;

/// A process that ends with the test, even if the test is killed.
struct Daemon(Child);

impl Daemon {
    fn start(program: &str, arguments: &[&str]) -> Daemon {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", program]).args(arguments).env_clear();
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("DBUS_SYSTEM_BUS_ADDRESS", ADDRESS);
        Daemon(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A bus, and firewalld if it was started.
struct Host<'a> {
    lab: &'a Lab,
    _bus: Daemon,
    firewalld: Option<Daemon>,
}

impl<'a> Host<'a> {
    /// Starts a bus; `None` if that is not possible here.
    fn new(lab: &'a Lab, test: &str) -> Option<Host<'a>> {
        for (program, package) in [("/usr/bin/dbus-daemon", "dbus-daemon"), ("/usr/sbin/firewalld", "firewalld")] {
            if !Path::new(program).exists() {
                skip(test, &format!("{program} is missing (apt-get install {package})"));
                return None;
            }
        }
        lab.sh("ip link set lo up; cp -a /etc/firewalld /run/config");
        fs::write("/run/bus.conf", BUS_CONFIG).unwrap();
        let mut bus = Daemon::start("dbus-daemon", &["--config-file=/run/bus.conf", "--nofork", "--print-address"]);
        // The bus prints its address when it listens.
        let mut line = String::new();
        BufReader::new(bus.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with(ADDRESS), "{line:?}");
        Some(Host { lab, _bus: bus, firewalld: None })
    }

    fn start(&mut self) {
        let arguments = ["--nofork", "--nopid", "--system-config=/run/config", "--log-target=file"];
        let log = ["--log-file=/run/firewalld.log"];
        self.firewalld = Some(Daemon::start("firewalld", &[&arguments[..], &log].concat()));
        wait_until("firewalld", || self.firewall_cmd("--state || true") == "running");
    }

    /// Stops firewalld, which leaves its rules.
    fn stop(&mut self) {
        drop(self.firewalld.take());
        wait_until("the end of firewalld", || self.firewall_cmd("--state || true") != "running");
    }

    /// Runs the administrator's tool.
    fn firewall_cmd(&self, arguments: &str) -> String {
        self.lab.sh(&format!("DBUS_SYSTEM_BUS_ADDRESS={ADDRESS} firewall-cmd {arguments} 2>&1")).trim().to_owned()
    }

    /// Returns the addresses in a zone.
    fn sources(&self, zone: &str) -> Vec<String> {
        let listed = self.firewall_cmd(&format!("--zone={zone} --list-sources"));
        let mut sources: Vec<String> = listed.split_whitespace().map(str::to_owned).collect();
        sources.sort();
        sources
    }
}

fn ours(pod: &Pod<'_>, command: &str, config: &Value) -> Outcome {
    pod.call(command, config).env("DBUS_SYSTEM_BUS_ADDRESS", ADDRESS).run()
}

fn theirs(pod: &Pod<'_>, command: &str, config: &Value) -> Outcome {
    let call = pod.call_program(&Path::new(REFERENCE).join("firewall"), command, config);
    call.env("DBUS_SYSTEM_BUS_ADDRESS", ADDRESS).run()
}

#[test]
fn addresses_are_bound_to_the_zone() {
    let lab = &Lab::new();
    let Some(mut host) = Host::new(lab, "addresses_are_bound_to_the_zone") else { return };
    host.start();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24", "fd00::2/64"]);
    for (keys, zone) in [
        (json!({}), "trusted"),
        (json!({ "backend": "firewalld" }), "trusted"),
        (json!({ "backend": "firewalld", "firewalldZone": "work" }), "work"),
    ] {
        let config = config(keys);
        ours(&pod, "CHECK", &config).error(999);
        for _ in 0..2 {
            assert_eq!(ours(&pod, "ADD", &config).ok(), pod.result("1.1.0"));
            ours(&pod, "CHECK", &config).ok();
            assert_eq!(host.sources(zone), ["10.9.0.2/32", "fd00::2/128"]);
        }
        assert_eq!(containers(lab), [] as [&str; 0]);
        // A reload forgets them.
        host.firewall_cmd("--reload");
        ours(&pod, "CHECK", &config).error(999);
        ours(&pod, "ADD", &config).ok();
        ours(&pod, "CHECK", &config).ok();
        for _ in 0..2 {
            ours(&pod, "DEL", &config).ok();
            assert_eq!(host.sources(zone), [] as [&str; 0]);
        }
    }
    let mistake = config(json!({ "firewalldZone": "nonexistent" }));
    ours(&pod, "ADD", &mistake).error(7);
    assert_eq!(host.sources("trusted"), [] as [&str; 0]);
    lab.plugin("firewall", "STATUS")
        .env("DBUS_SYSTEM_BUS_ADDRESS", ADDRESS)
        .stdin(config(json!({ "backend": "firewalld" })).to_string())
        .run()
        .ok();
}

#[test]
fn firewalld_may_start_between_add_and_del() {
    let lab = &Lab::new();
    let Some(mut host) = Host::new(lab, "firewalld_may_start_between_add_and_del") else { return };
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24", "fd00::2/64"]);
    let config = config(json!({}));
    ours(&pod, "ADD", &config).ok();
    assert_eq!(containers(lab), accepted_all(&["10.9.0.2", "fd00::2"]));
    host.start();
    // It flushes all rules of iptables when it starts.
    assert_eq!(containers(lab), [] as [&str; 0]);
    ours(&pod, "CHECK", &config).error(999);
    // Rules that were added beside it are found, whatever the backend is later.
    let iptables = with(config.clone(), json!({ "backend": "iptables" }));
    ours(&pod, "ADD", &iptables).ok();
    ours(&pod, "CHECK", &config).ok();
    ours(&pod, "DEL", &config).ok();
    assert_eq!(containers(lab), [] as [&str; 0]);
    // And bindings.
    ours(&pod, "ADD", &config).ok();
    ours(&pod, "DEL", &iptables).ok();
    assert_eq!(host.sources("trusted"), [] as [&str; 0]);

    // And it may stop.
    ours(&pod, "ADD", &config).ok();
    assert_eq!(host.sources("trusted").len(), 2);
    host.stop();
    ours(&pod, "CHECK", &config).error(999);
    ours(&pod, "ADD", &config).ok();
    ours(&pod, "CHECK", &config).ok();
    ours(&pod, "DEL", &config).ok();
    assert_eq!(containers(lab), [] as [&str; 0]);
    ours(&pod, "ADD", &with(config, json!({ "backend": "firewalld" }))).error(11);
}

#[test]
fn the_next_owner_of_an_address_keeps_it() {
    let lab = &Lab::new();
    let Some(mut host) = Host::new(lab, "the_next_owner_of_an_address_keeps_it") else { return };
    host.start();
    let (first, second) = (Pod::absent(lab, "c1", &["10.9.0.2/24"]), Pod::absent(lab, "c2", &["10.9.0.2/24"]));
    let config = config(json!({}));
    crate::pod::lease("net1", "10.9.0.2", "c2");
    ours(&second, "ADD", &config).ok();
    ours(&first, "DEL", &config).ok();
    ours(&second, "CHECK", &config).ok();
    // Without a previous result, the lease names the address.
    ours(&second, "DEL", &with(config, json!({ "prevResult": null }))).ok();
    assert_eq!(host.sources("trusted"), [] as [&str; 0]);
}

#[test]
fn bindings_of_either_implementation_are_removed_by_the_other() {
    let test = "bindings_of_either_implementation_are_removed_by_the_other";
    let lab = &Lab::new();
    let Some(mut host) = Host::new(lab, test) else { return };
    if reference("firewall", test).is_none() {
        return;
    }
    host.start();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24", "fd00::2/64"]);
    let config = config(json!({ "cniVersion": "1.0.0" }));
    ours(&pod, "ADD", &config).ok();
    theirs(&pod, "CHECK", &config).ok();
    theirs(&pod, "DEL", &config).ok();
    assert_eq!(host.sources("trusted"), [] as [&str; 0]);
    theirs(&pod, "ADD", &config).ok();
    assert_eq!(host.sources("trusted").len(), 2);
    ours(&pod, "CHECK", &config).ok();
    ours(&pod, "DEL", &config).ok();
    assert_eq!(host.sources("trusted"), [] as [&str; 0]);
}
