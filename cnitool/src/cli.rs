//! The command line: its parser and its help.

use std::ffi::OsString;
use std::path::PathBuf;

/// A parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help(String),
    Version,
    Add { network: String, netns: PathBuf },
    Del { network: String, netns: PathBuf },
    Check { network: String, netns: PathBuf },
    Gc { network: String },
    Status { network: String },
    Demo,
    Leases { network: Option<String>, json: bool },
    Show { network: Option<String>, json: bool },
    Prune { network: Option<String>, dry_run: bool, force: bool },
    Repair { network: Option<String>, json: bool },
    Doctor { json: bool },
}

/// The help of a command.
struct Page {
    name: &'static str,
    /// The arguments after the name.
    arguments: &'static str,
    /// One line, for the list of all commands.
    summary: &'static str,
    /// The options and their meanings. Options have no value.
    options: &'static [(&'static str, &'static str)],
    /// The description below the summary.
    text: &'static str,
}

const PAGES: [Page; 11] = [
    Page {
        name: "add",
        arguments: "<network> <netns>",
        summary: "attach the namespace to the network",
        options: &[],
        text: "\
Calls ADD of the network's plugins, one after the other. Each plugin gets the
result of the one before. The last result is printed and stored in the cache.

If a plugin fails, cnitool calls DEL of the plugins that ran in reverse order,
starting with the one that failed. If the result cannot be printed, it calls
DEL of all. It does not roll back if the interface existed before, because the
interface belongs to an earlier add.",
    },
    Page {
        name: "del",
        arguments: "<network> <netns>",
        summary: "detach the namespace, even if it is gone",
        options: &[],
        text: "\
Calls DEL of the network's plugins in reverse order, with the cached result,
then removes the attachment from the cache. If the network's file is gone, the
configuration of the add is used. CNI_ARGS and CAP_ARGS default to those of the
add.",
    },
    Page {
        name: "check",
        arguments: "<network> <netns>",
        summary: "check that the attachment is as add created it",
        options: &[],
        text: "\
Calls CHECK of the network's plugins with the cached result. Needs cniVersion
0.4.0 or newer; does nothing for a network with \"disableCheck\".",
    },
    Page {
        name: "gc",
        arguments: "<network> [<netns>]",
        summary: "let plugins remove what belongs to no attachment",
        options: &[],
        text: "\
Calls GC of the network's plugins. Valid attachments are all in the cache, and
those of other runtimes that are alive or whose state is unknown. <netns> is
ignored. To remove cached attachments whose namespace is gone, use prune. Needs
cniVersion 1.1.0; does nothing for a network with \"disableGC\".",
    },
    Page {
        name: "status",
        arguments: "<network> [<netns>]",
        summary: "check whether an add could succeed now",
        options: &[],
        text: "\
Calls STATUS of the network's plugins. A cniVersion before 1.1.0 does not have
STATUS; then only the existence of the plugins is checked.",
    },
    Page {
        name: "demo",
        arguments: "",
        summary: "show how CNI works, without changing this host",
        options: &[],
        text: "\
Creates two containers in separate namespaces, attaches them as kubelet would,
pings between them, and removes everything. Each step is shown with its time
and the ip command that does the same by hand. Needs the plugins bridge,
host-local and loopback in CNI_PATH, and root or user namespaces.",
    },
    Page {
        name: "leases",
        arguments: "[<network>]",
        summary: "list the addresses that host-local has leased",
        options: &[("--json", "print JSON, with ids at full length")],
        text: "\
Shows the usage of the ranges, and each lease with its container, its age and
the state of the container:

  alive    its port is on the bridge, or its namespace exists
  no port  its namespace exists, but its interface does not
  gone     its namespace is gone: prune removes the lease
  unknown  cnitool cannot determine the state, for example without root
  free     the file is empty or garbled: the next add may take the address

Without <network>, shows all networks that have leases, even those without a
configuration. Takes no lock and changes nothing.",
    },
    Page {
        name: "show",
        arguments: "[<network>]",
        summary: "show bridges, containers, rules, published ports",
        options: &[("--json", "print JSON, with ids at full length")],
        text: "\
Shows the bridge with its addresses, and each port with its container, the
container's MAC, addresses and published ports, and its flags:

  down       the port is not up
  hairpin    frames may leave by the port through which they came
  isolated   the port cannot reach other isolated ports
  masq       a rule masquerades its addresses
  spoofchk   a rule drops frames with another source MAC address
  published  a port of this host leads to the container
  vlan N*    untagged frames belong to VLAN N

Then lists rules and published ports that belong to no port of the bridge. A
network without a bridge is shown if it has any.

Without <network>, shows all bridges of configurations and of ports that cni0
created. Changes nothing.",
    },
    Page {
        name: "prune",
        arguments: "[<network>]",
        summary: "remove attachments whose namespace is gone",
        options: &[("--dry-run", "only print what would be removed"), ("--force", "prune even inside a container")],
        text: "\
Calls GC of the network's plugins. Valid attachments are all except those whose
namespace is gone; an attachment of unknown state stays. leases shows the
states. For plugins without GC, prune calls DEL. If nothing is gone, it does
not call any plugin.

While prune runs, adds of cnitool wait. Keep other runtimes idle: GC may remove
an attachment that another runtime creates at the same time.

Without <network>, prunes all networks with a configuration, and skips those
with \"disableGC\". If <network> has \"disableGC\", prune fails.

Inside a container, namespaces of running containers seem to be gone. So prune
refuses to run unless it has the mount, pid and network namespaces of process
1, in the initial pid namespace. Use --force only on a node that is itself a
container, such as a node of kind, and in the namespaces of that container.",
    },
    Page {
        name: "repair",
        arguments: "[<network>]",
        summary: "restore flushed rules and published ports",
        options: &[("--json", "print JSON, with ids at full length")],
        text: "\
Checks every attachment in the cache, adds firewall rules and published ports
that are missing, and calls CHECK of the network's plugins:

  ok        nothing was missing
  repaired  rules or published ports were missing and have been added
  gone      its namespace is gone: prune removes what is left
  wrong     CHECK fails, or something could not be added; the reason follows

They are added only if the container still has the interface and the addresses
of the add. Use repair after a flush or a reload of the host's firewall: an add
restores the chains, but only the rules of its own container.

Without <network>, repairs all attachments. The exit code is 3 if one is wrong,
or if an entry of the cache cannot be read.",
    },
    Page {
        name: "doctor",
        arguments: "",
        summary: "report what would make an add fail, and the remedy",
        options: &[("--json", "print JSON")],
        text: "\
Checks configurations, plugins, leases, bridges, the firewall and the kernel's
settings. Each finding is ok, warn or fail; warn and fail have a remedy. Ends
with a list of what cannot be checked without root. Changes nothing.

The exit code is 3 if any finding is fail, otherwise 0.",
    },
];

const ENVIRONMENT: &str = "\
environment:
  NETCONFPATH  directory of network configurations (/etc/cni/net.d)
  CNI_PATH     directories of plugins (/opt/cni/bin:/usr/lib/cni)
  CNI_IFNAME   name of the interface in the namespace (eth0)
  CNI_ARGS     arguments for all plugins: KEY=VALUE;KEY=VALUE
  CAP_ARGS     arguments for plugins with the capability, as JSON:
               {\"portMappings\": [{\"hostPort\": 8080, \"containerPort\": 80,
               \"protocol\": \"tcp\"}]}
";

const EXIT_CODES: &str = "\
exit codes:
  0  success
  1  failure: one line on stderr gives the reason
  2  invalid command line
  3  doctor found a failure, or repair left something wrong
";

/// Parses the command line. The error is one line for the user.
pub(crate) fn parse(args: impl Iterator<Item = OsString>) -> Result<Command, String> {
    let mut words = Vec::new();
    let mut options = Vec::new();
    let mut only_words = false;
    for arg in args {
        match arg.to_str() {
            Some("--") if !only_words => only_words = true,
            Some(text) if text.len() > 1 && text.starts_with('-') && !only_words => options.push(text.to_owned()),
            _ => words.push(arg),
        }
    }
    let wants = |short: &str, long: &str| options.iter().any(|option| option == short || option == long);
    let mut words = words.into_iter();
    let Some(name) = words.next() else {
        return match options.first() {
            Some(_) if wants("-h", "--help") => Ok(Command::Help(overview())),
            Some(_) if wants("-V", "--version") => Ok(Command::Version),
            Some(option) => Err(format!("unknown option {option} (see --help)")),
            None => Err("no command given (see --help)".to_owned()),
        };
    };
    let name = name.to_string_lossy().into_owned();
    if name == "help" {
        let topic = words.next().map(|word| word.to_string_lossy().into_owned());
        return Ok(Command::Help(topic.map_or_else(|| Ok(overview()), |topic| page(&topic).map(help))?));
    }
    let page = page(&name)?;
    if wants("-h", "--help") {
        return Ok(Command::Help(help(page)));
    }
    if let Some(option) = options.iter().find(|option| !page.options.iter().any(|(known, _)| known == option)) {
        return Err(format!("{name}: unknown option {option} (see {name} --help)"));
    }
    let wants = |wanted: &str| options.iter().any(|option| option == wanted);
    let usage = || format!("{} (see {name} --help)", usage(page));
    let mut word = || words.next();
    let mut network = || word().map(|word| word.to_string_lossy().into_owned());
    let command = match page.name {
        "add" | "del" | "check" => {
            let (Some(network), Some(netns)) = (network(), word()) else { return Err(usage()) };
            if netns.is_empty() {
                return Err(format!("{name}: the path of the namespace is empty; {}", usage()));
            }
            let netns = PathBuf::from(netns);
            match page.name {
                "add" => Command::Add { network, netns },
                "del" => Command::Del { network, netns },
                _ => Command::Check { network, netns },
            }
        }
        "gc" | "status" => {
            let Some(network) = network() else { return Err(usage()) };
            // The reference's tool requires a namespace here and ignores it.
            let _ = word();
            if page.name == "gc" { Command::Gc { network } } else { Command::Status { network } }
        }
        "demo" => Command::Demo,
        "leases" => Command::Leases { network: network(), json: wants("--json") },
        "show" => Command::Show { network: network(), json: wants("--json") },
        "prune" => Command::Prune { network: network(), dry_run: wants("--dry-run"), force: wants("--force") },
        "repair" => Command::Repair { network: network(), json: wants("--json") },
        _ => Command::Doctor { json: wants("--json") },
    };
    match word() {
        None => Ok(command),
        Some(surplus) => Err(format!("{name}: unexpected argument {surplus:?}; {}", usage())),
    }
}

/// Returns the help of the command `name`.
fn page(name: &str) -> Result<&'static Page, String> {
    PAGES.iter().find(|page| page.name == name).ok_or_else(|| {
        let all: Vec<&str> = PAGES.iter().map(|page| page.name).collect();
        format!("unknown command {name:?}; the commands are {}", all.join(", "))
    })
}

fn overview() -> String {
    let mut text = "A CNI runtime for the command line: calls plugins and inspects the node.\n\n".to_owned();
    text += "usage: cnitool <command> [arguments]\n\n";
    for page in &PAGES {
        let call = format!("{} {}", page.name, page.arguments);
        text += &format!("  {:<28}{}\n", call.trim_end(), page.summary);
    }
    text + "\nRun cnitool <command> --help for details.\n\n" + ENVIRONMENT + "\n" + EXIT_CODES
}

fn usage(page: &Page) -> String {
    let flags: String = page.options.iter().map(|(name, _)| format!(" [{name}]")).collect();
    format!("usage: cnitool {}{flags} {}", page.name, page.arguments).trim_end().to_owned()
}

fn help(page: &Page) -> String {
    let mut text = usage(page);
    text += &format!("\n\n{}: {}\n", page.name, page.summary);
    if !page.text.is_empty() {
        text += &format!("\n{}\n", page.text);
    }
    if !page.options.is_empty() {
        text += "\noptions:\n";
    }
    for (name, meaning) in page.options {
        text += &format!("  {name:<11}  {meaning}\n");
    }
    text + "\n" + ENVIRONMENT + "\n" + EXIT_CODES
}
