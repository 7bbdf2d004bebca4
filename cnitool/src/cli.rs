//! The command line: what can be asked for, and the help that says so.

use std::ffi::OsString;
use std::path::PathBuf;

/// What the command line asks for.
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

/// A command as its help describes it.
struct Page {
    name: &'static str,
    /// What follows the name.
    arguments: &'static str,
    /// One line, for the list of all commands.
    summary: &'static str,
    /// The options that it knows, without a value.
    options: &'static [(&'static str, &'static str)],
    /// The rest of its help.
    text: &'static str,
}

const PAGES: [Page; 11] = [
    Page {
        name: "add",
        arguments: "<network> <netns>",
        summary: "attach the namespace to the network",
        options: &[],
        text: "\
Calls ADD of the network's plugins, one after the other; each gets the result
of the one before. The last result is printed, and kept in the cache.

If a plugin fails, those that ran are undone by DEL in reverse order, the
failed one first; all are if the result cannot be printed. Nothing is undone if
the interface was there before: it belongs to an earlier add.",
    },
    Page {
        name: "del",
        arguments: "<network> <netns>",
        summary: "undo an add; the namespace may be gone",
        options: &[],
        text: "\
Calls DEL of the network's plugins in reverse order, with the cached result,
then forgets the attachment. If the network has no configuration any more, the
one it was added with is used. CNI_ARGS and CAP_ARGS are those of the add
unless they are set.",
    },
    Page {
        name: "check",
        arguments: "<network> <netns>",
        summary: "is the attachment still as add made it?",
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
Calls GC of the network's plugins. Valid are all attachments in the cache,
whatever <netns> is, and those of other runtimes that are alive or of which that
cannot be told. prune also removes what the cache knows and is gone. Needs
cniVersion 1.1.0; does nothing for a network with \"disableGC\".",
    },
    Page {
        name: "status",
        arguments: "<network> [<netns>]",
        summary: "could an add succeed now?",
        options: &[],
        text: "\
Calls STATUS of the network's plugins. For a cniVersion before 1.1.0, which
does not have it, finding the plugins is enough.",
    },
    Page {
        name: "demo",
        arguments: "",
        summary: "show how CNI works, touching nothing of this host",
        options: &[],
        text: "\
Makes two containers in namespaces of its own, gives them their interfaces as
kubelet would, lets them talk, and removes everything. Each step is shown with
the ip command that does the same by hand, and its time. Needs the plugins
bridge, host-local and loopback in CNI_PATH; root, or user namespaces.",
    },
    Page {
        name: "leases",
        arguments: "[<network>]",
        summary: "addresses that host-local has given away",
        options: &[("--json", "print JSON, with ids at full length")],
        text: "\
Shows how full the ranges are, and each lease with its container, its age and
whether that is still there:

  alive    its port is on the bridge, or its namespace is there
  no port  its namespace is there, and its interface is not
  gone     no namespace has it: prune removes it
  unknown  this cannot be told, for example without root
  free     the file is empty or garbled: the next add may take the address

Without <network> all that have leases are shown, even if the configuration is
gone. Takes no lock and changes nothing.",
    },
    Page {
        name: "show",
        arguments: "[<network>]",
        summary: "the bridge, its ports and rules, with their owners",
        options: &[("--json", "print JSON, with ids at full length")],
        text: "\
Shows the bridge with its addresses, and each port with its container, the
container's MAC and addresses, and its flags:

  down      the port is not up
  hairpin   what comes in by it may go out by it
  isolated  it does not talk to other isolated ports
  masq      a rule hides its addresses behind the host's
  spoofchk  a rule drops frames with another source than the container's
  vlan N*   untagged frames belong to VLAN N

Without <network> all bridges that configurations or ports name are shown.
Changes nothing.",
    },
    Page {
        name: "prune",
        arguments: "[<network>]",
        summary: "remove attachments whose namespace is gone",
        options: &[
            ("--dry-run", "only say what would be removed"),
            ("--force", "prune even from inside of a container"),
        ],
        text: "\
Calls GC of the network's plugins. Valid are all attachments but those whose
namespace is gone: what is alive stays, and so does what cannot be told; leases
shows which is which. What plugins without GC leave is removed by DEL.

Adds of cnitool wait meanwhile. One of another runtime that begins while GC
runs may be taken for a leftover: let that be idle. Without anything to remove
GC is not called.

Without <network> all networks with a configuration are pruned. One with
\"disableGC\" is left alone, which is a failure if it was asked for by name.

In a container live namespaces look as if they were gone. So prune refuses to
run unless it has the mount, pid and network namespaces of process 1, in the
initial pid namespace. Use --force only on a node that is itself a container,
such as one of kind, and in that container's own namespaces.",
    },
    Page {
        name: "repair",
        arguments: "[<network>]",
        summary: "restore masquerade rules that were flushed",
        options: &[("--json", "print JSON, with ids at full length")],
        text: "\
Checks every attachment in the cache, adds masquerade rules that are missing,
and calls CHECK of the network's plugins:

  ok        nothing was missing
  repaired  masquerade rules were missing and have been added
  gone      its namespace is gone: prune removes what is left
  wrong     CHECK fails, or the rules could not be added; the reason follows

Rules are added only while the container has the interface and the addresses
that add gave it. Use it after a flush or a reload of the host's firewall; adds
repair the chains, but only their own container's rules.

Without <network> all attachments are repaired. The exit code is 3 if one is
wrong, or if an entry of the cache cannot be read.",
    },
    Page {
        name: "doctor",
        arguments: "",
        summary: "what would make an add fail, and the remedy",
        options: &[("--json", "print JSON")],
        text: "\
Looks at configurations, plugins, leases, bridges, the firewall and the
kernel's settings. Each finding is ok, warn or fail; the latter two come with a
remedy. Changes nothing. What cannot be seen without root is said at the end.

The exit code is 3 if anything is fail, and 0 if not.",
    },
];

const ENVIRONMENT: &str = "\
environment:
  NETCONFPATH  directory of network configurations (/etc/cni/net.d)
  CNI_PATH     directories of plugins (/opt/cni/bin:/usr/lib/cni)
  CNI_IFNAME   the interface in the namespace (eth0)
  CNI_ARGS     arguments for all plugins: KEY=VALUE;KEY=VALUE
  CAP_ARGS     arguments for plugins with the capability, as JSON:
               {\"portMappings\": [{\"hostPort\": 80, \"containerPort\": 80}]}
";

const EXIT_CODES: &str = "\
exit codes:
  0  done
  1  failed: one line on stderr says why
  2  the command line is wrong
  3  doctor found a failure, or repair left something wrong
";

/// Reads the command line; the error is one line for the user.
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
            Some(option) => Err(format!("unknown option {option} (--help shows them)")),
            None => Err("a command is missing (--help shows them)".to_owned()),
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
        return Err(format!("{name}: unknown option {option} ({name} --help shows them)"));
    }
    let wants = |wanted: &str| options.iter().any(|option| option == wanted);
    let usage = || format!("{} ({name} --help says more)", usage(page));
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
            // The reference's tool demands a namespace here and has no use for it.
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
        Some(surplus) => Err(format!("{name}: {surplus:?} is one argument too many; {}", usage())),
    }
}

fn page(name: &str) -> Result<&'static Page, String> {
    PAGES.iter().find(|page| page.name == name).ok_or_else(|| {
        let all: Vec<&str> = PAGES.iter().map(|page| page.name).collect();
        format!("unknown command {name:?}; there is {}", all.join(", "))
    })
}

fn overview() -> String {
    let mut text = "The runtime side of CNI: calls plugins, and looks at what they made.\n\n".to_owned();
    text += "usage: cnitool <command> [arguments]\n\n";
    for page in &PAGES {
        let call = format!("{} {}", page.name, page.arguments);
        text += &format!("  {:<28}{}\n", call.trim_end(), page.summary);
    }
    text + "\ncnitool <command> --help says more about each.\n\n" + ENVIRONMENT + "\n" + EXIT_CODES
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
