//! The steps that show what happens when something is wrong.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Instant;

use cni::{AddResult, Code, Context, Error, Result};
use linux::netlink::nft::{Edit, Family, Nftables, Table};
use linux::netlink::{Event, Netlink, Watch};
use linux::{Deadline, Netns};
use nix::mount::{MntFlags, umount2};

use super::print::{commands, files, lines, timed, wrapped};
use super::{CONFIGURATIONS, CONTAINERS, Demo, TIMEOUT, first_cidr, netns};
use crate::cache::Cache;
use crate::chain::Chain;
use crate::conf::NetworkList;
use crate::{DONE, UNHEALTHY, out};

/// The chain that `bridge` fills. It is flushed as an administrator or another firewall might do.
const RULES: &str = "inet cni_plugins_masquerade masq_checks";

impl Demo {
    /// Shows that CHECK notices a deleted address.
    pub(super) fn check(&mut self, pods: &NetworkList, first: &AddResult) -> Result<()> {
        let chain = Chain::find(pods, &self.dirs)?;
        let [blue, _] = CONTAINERS;
        let at = self.endpoint_of(blue)?;
        let (_, time) = timed(|| chain.check(&at))?;
        self.title("CHECK: is everything still as ADD created it?", Some(time))?;
        let home = Netns::current()?;
        let mut inside = Netns::open(&netns(blue))?.run(&home, Netlink::open)?;
        let eth0 = inside.link("eth0")?.ok_or_else(|| Error::new(Code::INTERNAL, "eth0 is gone"))?;
        inside.apply(&[linux::netlink::Change::delete_address(eth0.index, first_cidr(first)?)])?;
        let complaint = match chain.check(&at) {
            Err(error) => error,
            Ok(()) => return Err(Error::new(Code::INTERNAL, "CHECK did not report the missing address")),
        };
        lines("Yes. CHECK after the address is deleted:\n")?;
        commands([format!("ip -n {blue} address del {} dev eth0", first_cidr(first)?)])?;
        wrapped(&out::one_line(&complaint))
    }

    /// Shows that doctor finds what a flush of the firewall removed, and that repair restores it.
    pub(super) fn repair(&mut self) -> Result<()> {
        let table = Table { family: Family::Inet, name: "cni_plugins_masquerade" };
        let flushed = Nftables::open()?.apply(&[Edit::flush(table.chain("masq_checks"))]);
        if flushed.is_err() {
            // Plugins of another project masquerade in their own way.
            return Ok(());
        }
        let (found, time) = timed(|| self.cnitool(&["doctor", "--quiet", "pods"]))?;
        self.title("doctor: what is wrong after the rules were flushed?", Some(time))?;
        commands([&format!("nft flush chain {RULES}"), "cnitool doctor --quiet pods"])?;
        lines(&found)?;
        commands(["cnitool repair pods"])?;
        lines(&self.cnitool(&["repair", "pods"])?)?;
        commands(["cnitool doctor --quiet pods"])?;
        match self.cnitool(&["doctor", "--quiet", "pods"])?.as_str() {
            "" => lines("(nothing: all is well again)\n"),
            left => lines(left),
        }
    }

    /// Shows that GC removes what a container has left whose DEL was never called.
    pub(super) fn garbage(&mut self) -> Result<()> {
        let [_, green] = CONTAINERS;
        let mut host = Netlink::open()?;
        let bridge = host.link("cni0")?.ok_or_else(|| Error::new(Code::INTERNAL, "the bridge is gone"))?.index;
        let before = host.links(Some(bridge))?.len();
        let mut watch = Watch::open(Event::Link)?;
        let path = netns(green);
        umount2(&path, MntFlags::MNT_DETACH).context(|| format!("unmount {path:?}"))?;
        fs::remove_file(&path).context(|| format!("remove {path:?}"))?;
        for ifname in ["eth0", "lo"] {
            let network = if ifname == "lo" { "lo" } else { "pods" };
            Cache::of_host().remove(network, green, ifname)?;
        }
        // The kernel deletes the interface of a namespace, and with it the port, only after the namespace.
        watch.wait_for("port of the deleted container to disappear", Deadline::after(TIMEOUT), || {
            Ok((host.links(Some(bridge))?.len() < before).then_some(()))
        })?;
        let (_, time) = timed(|| self.cnitool(&["gc", "pods"]))?;
        self.title("GC: green is gone without a DEL, for example after a crash", Some(time))?;
        commands([&format!("ip netns del {green}; rm /var/lib/cni/results/*-{green}-*"), "cnitool gc pods"])?;
        let leases = files("/var/lib/cni/networks/pods")?;
        let is_left = leases.iter().any(|(_, text)| text.starts_with(green));
        if is_left {
            return Err(Error::new(Code::INTERNAL, "GC has left a lease"));
        }
        lines("Its lease and its rules are removed. blue stays attached.\n")
    }

    /// Shows the error of an ADD with a mistake.
    pub(super) fn error_example(&mut self, pods: &NetworkList) -> Result<()> {
        let mut broken = pods.clone();
        for plugin in &mut broken.plugins {
            let text = serde_json::to_string(&plugin.config).unwrap_or_default().replace("10.22.0.0", "10.22.0.1");
            plugin.config = serde_json::from_str(&text).unwrap_or_default();
        }
        let [blue, _] = CONTAINERS;
        let at = self.endpoint_of(blue)?;
        let chain = Chain::find(&broken, &self.dirs)?;
        let began = Instant::now();
        let Err(error) = chain.add(&at) else {
            return Err(Error::new(Code::INTERNAL, "ADD accepted an invalid subnet"));
        };
        self.title("An invalid subnet, here 10.22.0.1/16: ADD fails, DEL follows", Some(began.elapsed()))?;
        wrapped(&out::one_line(&error))
    }

    /// Runs this program with other arguments, and returns what it prints.
    fn cnitool(&self, arguments: &[&str]) -> Result<String> {
        let what = || format!("run cnitool {}", arguments.join(" "));
        let mut command = Command::new("/proc/self/exe");
        command.args(arguments).env("NETCONFPATH", CONFIGURATIONS).env("CNI_PATH", self.path());
        // Output is indented by 6 columns.
        command.env("COLUMNS", "74").env("NO_COLOR", "1").stdin(Stdio::null());
        let output = command.output().context(what)?;
        match output.status.code() {
            Some(code) if [DONE, UNHEALTHY].map(i32::from).contains(&code) => {
                Ok(String::from_utf8_lossy(&output.stdout).into_owned())
            }
            _ => {
                Err(Error::new(Code::INTERNAL, String::from_utf8_lossy(&output.stderr).trim().to_owned())).context(what)
            }
        }
    }
}
