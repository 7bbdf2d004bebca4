//! The real firewalld on a real bus, both private to a lab.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::{Lab, PATH, skip, wait_until};

/// The address of the bus.
pub const ADDRESS: &str = "unix:path=/run/bus";
/// The directory of services that the bus starts if a client asks for them.
pub const SERVICES: &str = "/run/services";

/// Everyone may do everything on the bus.
const BUS_CONFIG: &str = r#"<busconfig>
  <type>system</type>
  <listen>unix:path=/run/bus</listen>
  <servicedir>/run/services</servicedir>
  <policy context="default">
    <allow user="*"/>
    <allow own="*"/>
    <allow send_destination="*"/>
    <allow receive_sender="*"/>
  </policy>
</busconfig>
"#;

/// A process that ends with the test, even if the test is killed.
#[derive(Debug)]
struct Daemon(Child);

impl Daemon {
    fn start(program: &str, arguments: &[&str]) -> Daemon {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", program]).args(arguments).env_clear();
        command.env("PATH", PATH).env("DBUS_SYSTEM_BUS_ADDRESS", ADDRESS);
        Daemon(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A bus on the host of a lab, and firewalld if it was started.
#[derive(Debug)]
pub struct Firewalld<'a> {
    lab: &'a Lab,
    _bus: Daemon,
    firewalld: Option<Daemon>,
}

impl<'a> Firewalld<'a> {
    /// Starts a bus without firewalld; skips the test if that is not possible here.
    pub fn prepare(lab: &'a Lab, test: &str) -> Option<Firewalld<'a>> {
        for (program, package) in [("/usr/bin/dbus-daemon", "dbus-daemon"), ("/usr/sbin/firewalld", "firewalld")] {
            if !Path::new(program).exists() {
                skip(test, &format!("{program} is missing (apt-get install {package})"));
                return None;
            }
        }
        if let Err(error) = fs::read_dir("/etc/firewalld") {
            skip(test, &format!("an ordinary user cannot read firewalld's configuration: {error}"));
            return None;
        }
        lab.sh(&format!("ip link set lo up; mkdir -p {SERVICES}; cp -a /etc/firewalld /run/config"));
        fs::write("/run/bus.conf", BUS_CONFIG).unwrap();
        let mut bus = Daemon::start("dbus-daemon", &["--config-file=/run/bus.conf", "--nofork", "--print-address"]);
        // The bus prints its address when it listens.
        let mut line = String::new();
        BufReader::new(bus.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with(ADDRESS), "{line:?}");
        Some(Firewalld { lab, _bus: bus, firewalld: None })
    }

    /// Starts firewalld, and waits until it answers.
    pub fn start(&mut self) {
        let arguments = ["--nofork", "--nopid", "--system-config=/run/config", "--log-target=file"];
        let log = ["--log-file=/run/firewalld.log"];
        self.firewalld = Some(Daemon::start("firewalld", &[&arguments[..], &log].concat()));
        wait_until("firewalld on the bus", || self.is_registered());
        assert_eq!(self.firewall_cmd("--state"), "running");
    }

    /// Stops firewalld, which leaves its rules.
    pub fn stop(&mut self) {
        drop(self.firewalld.take());
        wait_until("the end of firewalld's registration", || !self.is_registered());
    }

    /// Returns the process ID of firewalld, which must have been started.
    pub fn pid(&self) -> u32 {
        self.firewalld.as_ref().unwrap().0.id()
    }

    /// Returns whether firewalld is on the bus. Unlike `firewall-cmd --state`, the question does not make the bus start
    /// it.
    fn is_registered(&self) -> bool {
        let question = format!(
            "dbus-send --bus={ADDRESS} --print-reply=literal --dest=org.freedesktop.DBus /org/freedesktop/DBus \
             org.freedesktop.DBus.NameHasOwner string:org.fedoraproject.FirewallD1"
        );
        self.lab.sh(&question).trim().ends_with("true")
    }

    /// Runs the administrator's tool.
    pub fn firewall_cmd(&self, arguments: &str) -> String {
        self.lab.sh(&format!("DBUS_SYSTEM_BUS_ADDRESS={ADDRESS} firewall-cmd {arguments} 2>&1")).trim().to_owned()
    }

    /// Returns the addresses in a zone, sorted.
    pub fn sources(&self, zone: &str) -> Vec<String> {
        let listed = self.firewall_cmd(&format!("--zone={zone} --list-sources"));
        let mut sources: Vec<String> = listed.split_whitespace().map(str::to_owned).collect();
        sources.sort();
        sources
    }
}
