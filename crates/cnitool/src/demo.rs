//! `cnitool demo`: shows on two containers how CNI works, with real plugins, without changing the host.

mod faults;
mod port;
mod print;
mod stage;

use std::ffi::OsStr;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni::{AddResult, Code, ContainerId, Context, Error, IfName, Program, Result, Version};
use linux::netlink::Netlink;
use linux::netlink::nft::{self, Edit, Hook, Nftables, RuleSpec};
use linux::{Netns, tool};
use serde_json::{Map, json};

use crate::chain::{Chain, Endpoint};
use crate::conf::{self, NetworkList};
use crate::echo::{Echo, Ping};
use crate::table::{Paint, Tone, WIDTH, duration};
use crate::{init, out};
use print::{commands, files, lines, timed, wrapped};

/// The directory of configurations, in place of /etc/cni/net.d.
const CONFIGURATIONS: &str = "/run/net.d";
const CONTAINERS: [&str; 2] = ["blue", "green"];
/// How long a program may take that shows something.
const TIMEOUT: Duration = Duration::from_secs(10);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 22, 0, 1);

const LOOPBACK: &str = r#"{"cniVersion": "1.0.0", "name": "lo", "plugins": [{"type": "loopback"}]}
"#;
/// The port of the host that leads to the port of the first container.
const HOST_PORT: u16 = 8080;
const CONTAINER_PORT: u16 = 80;

/// Runs `cnitool demo` with the plugins in `dirs`.
pub(crate) fn run(dirs: &[PathBuf]) -> Result<()> {
    let dirs: Vec<PathBuf> = dirs.iter().map(|dir| std::path::absolute(dir).unwrap_or_else(|_| dir.clone())).collect();
    for plugin in ["bridge", "firewall", "host-local", "loopback", "portmap"] {
        Program::find(&dirs, plugin)?;
    }
    stage::enter(&dirs)?;
    let has_nftables = has_nftables()?;
    Demo { dirs, has_nftables, step: 0 }.run()
}

struct Demo {
    dirs: Vec<PathBuf>,
    /// Whether the kernel can masquerade and publish ports.
    has_nftables: bool,
    /// The number of the last step.
    step: usize,
}

impl Demo {
    fn run(&mut self) -> Result<()> {
        out::print(
            "How CNI works, shown on two containers. Everything happens in separate\n\
             namespaces that disappear at the end: this host is not changed. Lines that\n\
             start with '$' are commands that do or show the same by hand.\n",
        )?;
        self.containers()?;
        let (lo, pods) = self.networks()?;
        self.loopback(&lo)?;
        let [blue, green] = CONTAINERS;
        let first = self.attach(&pods, blue, true)?;
        let second = self.attach(&pods, green, false)?;
        self.kernel()?;
        self.pings(address(&second)?)?;
        self.files()?;
        if self.has_nftables {
            self.masquerade()?;
            self.published_port()?;
        }
        if self.has_nftables {
            self.repair()?;
        }
        self.check(&pods, &first)?;
        self.garbage()?;
        self.removal(&lo, &pods)?;
        self.error_example(&pods)?;
        self.next()
    }

    /// Prints the title of a step and the time it took.
    fn title(&mut self, text: &str, time: Option<Duration>) -> Result<()> {
        self.step += 1;
        let time = time.map(duration).unwrap_or_default();
        let text = format!("{:2}  {text}", self.step);
        let gap = WIDTH.saturating_sub(text.chars().count() + time.len());
        let time = if time.is_empty() { time } else { " ".repeat(gap) + &time };
        out::print(format!("\n{}{time}\n", Paint::of_stdout().paint(Tone::Bold, &text)))
    }

    fn containers(&mut self) -> Result<()> {
        let (_, time) = timed(|| {
            CONTAINERS.iter().try_for_each(|name| Netns::create(&netns(name)).map(drop).map_err(Error::from))
        })?;
        self.title("Two containers. For CNI, a container is a network namespace", Some(time))?;
        commands(CONTAINERS.map(|name| format!("ip netns add {name}")))
    }

    /// Writes and reads the configurations of the networks `lo` and `pods`.
    fn networks(&mut self) -> Result<(NetworkList, NetworkList)> {
        let dir = Path::new(CONFIGURATIONS);
        let pods = if self.has_nftables { init::EXAMPLE.to_owned() } else { without_firewall(init::EXAMPLE) };
        fs::create_dir(dir).context(|| format!("create {dir:?}"))?;
        for (name, text) in [("10-pods.conflist", pods.as_str()), ("99-lo.conflist", LOOPBACK)] {
            fs::write(dir.join(name), text).context(|| format!("write {name:?}"))?;
        }
        let ((lo, _), (pods_list, _)) = (conf::find(dir, "lo")?, conf::find(dir, "pods")?);
        self.title("A network is a file, usually in /etc/cni/net.d", None)?;
        out::print("    Its plugins run one after the other. A \"type\" is the name of a program, and\n")?;
        out::print("    a plugin may call others: bridge calls host-local to lease an address.\n")?;
        lines(&pods)?;
        if !self.has_nftables {
            out::print("    (This kernel has no nf_tables: masquerade, published ports, the plugin\n")?;
            out::print("    firewall and repairs are not shown.)\n")?;
        }
        Ok((lo, pods_list))
    }

    fn loopback(&mut self, lo: &NetworkList) -> Result<()> {
        let chain = Chain::find(lo, &self.dirs)?;
        let (_, time) = timed(|| CONTAINERS.iter().try_for_each(|name| chain.add(&endpoint(name, "lo")?).map(drop)))?;
        self.title("ADD lo: a runtime executes a plugin for each container", Some(time))?;
        out::print("    Environment variables describe the call; the configuration is on stdin:\n")?;
        lines(
            "CNI_COMMAND=ADD CNI_CONTAINERID=blue CNI_NETNS=/run/netns/blue \\\n\
             CNI_IFNAME=lo CNI_PATH=... loopback <configuration\n",
        )?;
        out::print("    What it does:\n")?;
        commands(CONTAINERS.map(|name| format!("ip -n {name} link set lo up")))
    }

    /// Calls ADD for eth0, and shows the equivalent commands.
    fn attach(&mut self, pods: &NetworkList, container: &str, is_first: bool) -> Result<AddResult> {
        let chain = Chain::find(pods, &self.dirs)?;
        let at = self.endpoint_of(container)?;
        let (result, time) = timed(|| chain.add(&at))?;
        let plugins = if self.has_nftables { "bridge, portmap, firewall" } else { "bridge" };
        self.title(&format!("ADD eth0 of {container}: {plugins}"), Some(time))?;
        let ours = address(&result)?;
        let port = result.interfaces.get(1).map(|link| link.name.clone()).unwrap_or_default();
        let mut typed = Vec::new();
        if is_first {
            typed.extend(["ip link add cni0 type bridge".to_owned(), "ip link set cni0 up".to_owned()]);
        }
        typed.push(format!("ip link add {port} type veth peer name eth0 netns {container}"));
        typed.push(format!("ip link set {port} master cni0 up"));
        typed.push(format!("bridge link set dev {port} hairpin on"));
        typed.push(format!("ip -n {container} link set eth0 up"));
        typed.push(format!("ip -n {container} address add {ours}/16 dev eth0"));
        typed.push(format!("ip -n {container} route add default via {GATEWAY}"));
        if is_first {
            typed.push(format!("ip address add {GATEWAY}/16 dev cni0"));
            typed.push("sysctl -w net.ipv4.ip_forward=1".to_owned());
        }
        commands(typed)?;
        if is_first {
            out::print("    Leases and firewall rules are shown below.\n")?;
            out::print("    The plugin prints a result. The next plugin in the list gets it as\n")?;
            out::print("    \"prevResult\"; the runtime stores it for CHECK and DEL.\n")?;
            lines(&String::from_utf8_lossy(&result.print(Version::NEWEST)?))?;
        }
        Ok(result)
    }

    /// Shows the bridge and its ports as the kernel reports them.
    fn kernel(&mut self) -> Result<()> {
        let mut host = Netlink::open()?;
        let bridge = host.link("cni0")?.ok_or_else(|| Error::new(Code::INTERNAL, "the bridge is gone"))?;
        let addresses = host.addresses(bridge.index)?;
        let ports = host.links(Some(bridge.index))?;
        self.title("The kernel now has the gateway address and a port for each container", None)?;
        commands(["ip address show cni0; ip link show master cni0"])?;
        let shown: Vec<String> = addresses.iter().map(|address| address.cidr.to_string()).collect();
        lines(&format!("cni0  {}\n", shown.join(" ")))?;
        ports.iter().try_for_each(|port| lines(&format!("  {}  {}\n", port.name, port.alias)))
    }

    fn pings(&mut self, green: Ipv4Addr) -> Result<()> {
        let home = Netns::current()?;
        for (title, from, to) in [("Container to container", "blue", green), ("Container to gateway", "green", GATEWAY)]
        {
            let time = Netns::open(&netns(from))?.run(&home, || Echo::open(to.into()))?.ping(&Ping::to(to.into()))?;
            let time = time.ok_or_else(|| Error::new(Code::TRY_LATER, format!("ping {to}: no answer")))?;
            self.title(title, Some(time))?;
            commands([format!("ip netns exec {from} ping -c 1 {to}")])?;
            lines("1 packet sent, 1 received, 0% packet loss\n")?;
        }
        Ok(())
    }

    /// Shows the files of plugin and runtime.
    fn files(&mut self) -> Result<()> {
        self.title("Leases: host-local writes one file per address", None)?;
        commands(["grep . /var/lib/cni/networks/pods/10.*"])?;
        for (path, text) in files("/var/lib/cni/networks/pods")? {
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("10.")) {
                let words: Vec<&str> = text.split_whitespace().collect();
                lines(&format!("{}  {}\n", path.display(), words.join(" ")))?;
            }
        }
        self.title("Attachments: the runtime stores the results in a cache", None)?;
        commands(["ls /var/lib/cni/results"])?;
        files("/var/lib/cni/results")?.iter().try_for_each(|(path, _)| lines(&format!("{}\n", path.display())))
    }

    fn masquerade(&mut self) -> Result<()> {
        self.title("Masquerade: packets that leave the network get the host's address", None)?;
        let arguments = ["list", "chain", "inet", "cni_plugins_masquerade", "masq_checks"];
        commands([format!("nft {}", arguments.join(" "))])?;
        if tool::find("nft").is_none() {
            return lines("(this host has no nft program to show it)\n");
        }
        let Ok(chain) = tool::run("nft", &arguments, "", TIMEOUT) else {
            return lines("(these plugins do not use nftables: see iptables-save)\n");
        };
        chain.lines().filter(|line| line.contains(" masquerade ")).try_for_each(wrapped)
    }

    fn removal(&mut self, lo: &NetworkList, pods: &NetworkList) -> Result<()> {
        let (lo, pods) = (Chain::find(lo, &self.dirs)?, Chain::find(pods, &self.dirs)?);
        let [blue, _] = CONTAINERS;
        let (_, time) = timed(|| {
            pods.del(&self.endpoint_of(blue)?)?;
            lo.del(&endpoint(blue, "lo")?)
        })?;
        self.title("DEL: the same calls, in reverse order, remove everything", Some(time))?;
        commands([format!("ip -n {blue} link del eth0; ip -n {blue} link set lo down")])?;
        out::print("    The plugins also delete the leases and the firewall rules.\n")?;
        let mut host = Netlink::open()?;
        let bridge = host.link("cni0")?.ok_or_else(|| Error::new(Code::INTERNAL, "the bridge is gone"))?;
        let ports = host.links(Some(bridge.index))?.len();
        let leases = files("/var/lib/cni/networks/pods")?;
        let is_lease = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("10."));
        let leases = leases.iter().filter(|(path, _)| is_lease(path)).count();
        let results = files("/var/lib/cni/results")?.len();
        lines(&format!("Left: {ports} ports, {leases} leases, {results} results. The bridge stays.\n"))?;
        if (ports, leases, results) != (0, 0, 0) {
            return Err(Error::new(Code::INTERNAL, "DEL has left something behind"));
        }
        Ok(())
    }

    /// Returns the endpoint for eth0. A port of the host leads to the first container.
    fn endpoint_of(&self, container: &str) -> Result<Endpoint> {
        let [blue, _] = CONTAINERS;
        let mut at = endpoint(container, "eth0")?;
        if container == blue && self.has_nftables {
            let port = json!({ "hostPort": HOST_PORT, "containerPort": CONTAINER_PORT, "protocol": "tcp" });
            at.capabilities.insert("portMappings".to_owned(), json!([port]));
        }
        Ok(at)
    }

    /// Says what comes after the demonstration.
    fn next(&self) -> Result<()> {
        out::print(format!(
            "\nThe containers are deleted when this program ends. The plugins are in\n{}\n",
            self.path()
        ))?;
        out::print(format!(
            "\n{}\n  \
               cnitool init pods        # writes this network to /etc/cni/net.d\n  \
               ip netns add blue\n  \
               cnitool add pods blue    # attaches it\n  \
               cnitool doctor           # checks the host\n  \
               cnitool --help           # lists all commands\n",
            Paint::of_stdout().paint(Tone::Bold, "What you can do next, as root, with installed plugins:")
        ))
    }

    fn path(&self) -> String {
        self.dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(":")
    }
}

fn netns(container: &str) -> PathBuf {
    Path::new("/run/netns").join(container)
}

fn endpoint(container: &str, ifname: &str) -> Result<Endpoint> {
    Ok(Endpoint {
        container: ContainerId::parse(OsStr::new(container))?,
        ifname: IfName::parse(OsStr::new(ifname))?,
        netns: netns(container),
        args: Vec::new(),
        capabilities: Map::new(),
    })
}

fn first_cidr(result: &AddResult) -> Result<linux::ip::Cidr> {
    let first = result.ips.first().map(|ip| ip.address);
    first.ok_or_else(|| Error::new(Code::INTERNAL, "the result has no address"))
}

fn address(result: &AddResult) -> Result<Ipv4Addr> {
    match first_cidr(result)?.ip() {
        IpAddr::V4(address) => Ok(address),
        IpAddr::V6(address) => Err(Error::new(Code::INTERNAL, format!("{address} is not an IPv4 address"))),
    }
}

/// Returns the network without the plugins and keys that need nf_tables.
fn without_firewall(network: &str) -> String {
    let lines = network.lines().filter(|line| !["portmap", "firewall"].iter().any(|plugin| line.contains(plugin)));
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    text.replace("\"ipMasq\": true, ", "").replace(" } },\n", " } }\n")
}

/// Returns whether the kernel has nf_tables with NAT.
fn has_nftables() -> Result<bool> {
    let table = nft::Table { family: nft::Family::Inet, name: "try" };
    let chain = table.chain("try");
    let rule = Edit::add_rule(&RuleSpec::new(chain).masquerade());
    match Nftables::open()?.dry_run(&[Edit::add_table(table), Edit::add_base_chain(chain, Hook::SOURCE_NAT), rule]) {
        Err(error) if nft::is_unavailable(&error) => Ok(false),
        outcome => Ok(outcome.map(|()| true)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_without_a_firewall_is_valid() {
        let list = conf::parse(Path::new("/x/pods.conflist"), without_firewall(init::EXAMPLE).as_bytes()).unwrap();
        let [bridge] = list.plugins.as_slice() else { panic!("{:?}", list.plugins) };
        assert!(bridge.kind == "bridge" && !bridge.config.contains_key("ipMasq"), "{bridge:?}");
    }
}
