//! The table of commands: operands, options and descriptions. Parser, help, man pages and completion derive from it.

use std::num::NonZeroUsize;

use crate::trial;

use super::{Command, Occurs, Operand, Opt, Spec, Value, Variable, completion, man};

const NETWORK: Operand = Operand { value: Value::Network, occurs: Occurs::Once };
const WHAT: Operand = Operand { value: Value::What, occurs: Occurs::AtMostOnce };
const OPTIONAL_NETWORK: Operand = Operand { value: Value::Network, occurs: Occurs::AtMostOnce };
const NETNS: Operand = Operand { value: Value::Netns, occurs: Occurs::Once };
/// The reference's tool requires a namespace and ignores it.
const OPTIONAL_NETNS: Operand = Operand { value: Value::Netns, occurs: Occurs::AtMostOnce };

const JSON: Opt = flag("--json", "print JSON, with IDs at full length");

const fn flag(name: &'static str, meaning: &'static str) -> Opt {
    Opt { name, value: None, meaning }
}

const NETCONFPATH: Variable =
    Variable { name: "NETCONFPATH", meaning: "directory of network configurations (/etc/cni/net.d)" };
const CNI_PATH: Variable =
    Variable { name: "CNI_PATH", meaning: "directories of plugins\n(/opt/cni/bin:/usr/lib/cni:/usr/libexec/cni)" };
const CNI_IFNAME: Variable = Variable { name: "CNI_IFNAME", meaning: "name of the interface in the namespace (eth0)" };
const CNI_ARGS: Variable = Variable { name: "CNI_ARGS", meaning: "arguments for all plugins: KEY=VALUE;KEY=VALUE" };
const CAP_ARGS: Variable = Variable {
    name: "CAP_ARGS",
    meaning: "\
arguments for plugins with the capability, as JSON:
{\"portMappings\": [{\"hostPort\": 8080, \"containerPort\": 80,
\"protocol\": \"tcp\"}]}",
};
const COLUMNS: Variable = Variable { name: "COLUMNS", meaning: "width of tables (that of the terminal, else 80)" };
const NO_COLOR: Variable = Variable { name: "NO_COLOR", meaning: "if set, no colours on a terminal" };

/// All variables, in the order of the help.
pub(super) const ENVIRONMENT: &[Variable] = &[NETCONFPATH, CNI_PATH, CNI_IFNAME, CNI_ARGS, CAP_ARGS, COLUMNS, NO_COLOR];
/// Those of commands for one attachment.
const OF_ATTACHMENT: &[Variable] = &[NETCONFPATH, CNI_PATH, CNI_IFNAME, CNI_ARGS, CAP_ARGS];
/// Those of commands that call the plugins of a network.
const OF_NETWORK: &[Variable] = &[NETCONFPATH, CNI_PATH];
/// Those of commands that print tables about networks.
const OF_TABLES: &[Variable] = &[NETCONFPATH, COLUMNS, NO_COLOR];
/// Those of commands that print tables, and look up or call plugins.
const OF_TABLES_AND_PLUGINS: &[Variable] = &[NETCONFPATH, CNI_PATH, COLUMNS, NO_COLOR];

/// The meaning of exit code 3 in the list of all exit codes.
pub(super) const UNHEALTHY: &str =
    "doctor found a failure, a probe of test failed, validate found a mistake,\nor repair left something wrong";

pub(super) const COMMANDS: &[Spec] = &[
    Spec {
        name: "add",
        operands: &[NETWORK, NETNS],
        build: |args| Ok(Command::Add { network: args.text(), netns: args.path() }),
        summary: "attach the namespace to the network",
        options: &[],
        text: "\
Calls ADD of the network's plugins, one after the other. Each plugin gets the
result of the one before. The last result is printed and stored in the cache.

If a plugin fails, cnitool calls DEL of the plugins that ran in reverse order,
starting with the one that failed. If the result cannot be printed, it calls
DEL of all. It does not roll back if the interface existed before, because the
interface belongs to an earlier add.

<netns> is a path, or a name: blue means /run/netns/blue. A number is a name,
too. For the namespace of process 42, write /proc/42/ns/net; for a file in the
current directory, ./blue.",
        environment: OF_ATTACHMENT,
        unhealthy: None,
    },
    Spec {
        name: "del",
        operands: &[NETWORK, NETNS],
        build: |args| Ok(Command::Del { network: args.text(), netns: args.path() }),
        summary: "detach the namespace, even if it is gone",
        options: &[],
        text: "\
Calls DEL of the network's plugins in reverse order, with the cached result,
then removes the attachment from the cache. If the network's file is gone, the
configuration of the add is used. CNI_ARGS and CAP_ARGS default to those of the
add. <netns> is a path or a name, as for add.",
        environment: OF_ATTACHMENT,
        unhealthy: None,
    },
    Spec {
        name: "check",
        operands: &[NETWORK, NETNS],
        build: |args| Ok(Command::Check { network: args.text(), netns: args.path() }),
        summary: "check that the attachment is as add created it",
        options: &[],
        text: "\
Calls CHECK of the network's plugins with the cached result. Needs cniVersion
0.4.0 or newer; does nothing for a network with \"disableCheck\". <netns> is a
path or a name, as for add.",
        environment: OF_ATTACHMENT,
        unhealthy: None,
    },
    Spec {
        name: "gc",
        operands: &[NETWORK, OPTIONAL_NETNS],
        build: |args| Ok(Command::Gc { network: args.text() }),
        summary: "remove what belongs to no attachment",
        options: &[],
        text: "\
Removes leases, rules and other objects of attachments that are gone. Keeps all
attachments in the cache, and those of other runtimes that are alive or whose
state is unknown. <netns> is ignored. To remove cached attachments whose
namespace is gone, use prune. Does nothing for a network with \"disableGC\".",
        environment: OF_NETWORK,
        unhealthy: None,
    },
    Spec {
        name: "status",
        operands: &[NETWORK, OPTIONAL_NETNS],
        build: |args| Ok(Command::Status { network: args.text() }),
        summary: "check whether an add could succeed now",
        options: &[],
        text: "\
Calls STATUS of the network's plugins. A cniVersion before 1.1.0 does not have
STATUS; then only the existence of the plugins is checked.",
        environment: OF_NETWORK,
        unhealthy: None,
    },
    Spec {
        name: "init",
        operands: &[Operand { value: Value::Name, occurs: Occurs::Once }],
        build: |args| Ok(Command::Init { subnets: args.values("--subnet"), network: args.text() }),
        summary: "write the configuration of a new network",
        options: &[Opt {
            name: "--subnet",
            value: Some(Value::Subnet),
            meaning: "its addresses, such as 10.22.0.0/16; once per family",
        }],
        text: "\
Writes a network of bridge, portmap and firewall to NETCONFPATH, with a bridge
of its own: cni0, or the first cniN that does not exist. Without --subnet, it
takes a private IPv4 subnet that no route, no address of this host and no other
network has. A second --subnet can add IPv6.

Never replaces a file, and refuses a name or a subnet that is in use. The file
does not become the first of several in the directory: that one is the network
of containerd and CRI-O. Changes nothing else.",
        environment: OF_NETWORK,
        unhealthy: None,
    },
    Spec {
        name: "demo",
        operands: &[],
        build: |_| Ok(Command::Demo),
        summary: "show how CNI works, without changing this host",
        options: &[],
        text: "\
Creates two containers in separate namespaces, attaches them as kubelet would,
sends packets between them, to a published port too, lets doctor and repair
find and restore flushed rules, collects garbage, and removes everything. Each
step is shown with its time and the command that does the same by hand. Needs
the plugins bridge, firewall, host-local, loopback and portmap in CNI_PATH, and
root or user namespaces. On a kernel without nf_tables, it omits what needs it.",
        environment: &[CNI_PATH, NO_COLOR],
        unhealthy: None,
    },
    Spec {
        name: "networks",
        operands: &[],
        build: |args| Ok(Command::Networks { json: args.has("--json") }),
        summary: "list the networks, their plugins and addresses",
        options: &[JSON],
        text: "\
Lists the networks of the configuration directory in the order in which they
are read: file, cniVersion, bridge, ranges with used and free addresses, number
of attachments, and the file of each plugin. Broken files come last. If several
files define the same name, only the first one is used; the others are marked.
Changes nothing.",
        environment: OF_TABLES_AND_PLUGINS,
        unhealthy: None,
    },
    Spec {
        name: "leases",
        operands: &[OPTIONAL_NETWORK],
        build: |args| {
            Ok(Command::Leases { json: args.has("--json"), watch: args.has("--watch"), network: args.optional_text() })
        },
        summary: "list the leased addresses",
        options: &[JSON, flag("--watch", "print changes as they happen")],
        text: "\
Shows the usage of the ranges, and each lease with its container, its age and
the state of the container. If dhcp has leased some, SERVER has granted them,
and LEFT is the time until their end. The states:

  alive    its port is on the bridge, or its namespace exists
  no port  its namespace exists, but its interface does not
  gone     its namespace is gone: prune removes the lease
  unknown  cnitool cannot determine the state, for example without root
  free     the file is empty or garbled: the next add may take the address

Without <network>, shows all networks that have leases, even those without a
configuration. Takes no lock and changes nothing.

With --watch, prints one line for each lease that is added or removed from now
on, until it is interrupted: time, + or -, network, address, container and
interface. With --json, each line is an object.",
        environment: OF_TABLES,
        unhealthy: None,
    },
    Spec {
        name: "show",
        operands: &[WHAT],
        build: |args| Ok(Command::Show { json: args.has("--json"), what: args.optional_text() }),
        summary: "show bridges, containers, rules, published ports",
        options: &[JSON],
        text: "\
Shows the bridge with its addresses, and each port with its container, the
container's MAC, addresses and published ports, and its flags:

  down       the port is not up
  hairpin    frames may leave by the port through which they came
  isolated   the port cannot reach other isolated ports
  masq       a rule masquerades its addresses
  spoofchk   a rule drops frames with another source MAC address
  published  a port of this host leads to the container
  accepted   the plugin firewall accepts the traffic of its container
  policy     its bridge has an ingress policy
  limited    the plugin bandwidth limits its rate
  tuned      the plugin tuning changed its container's interface
  state      the plugin flannel has a state file of its container
  device     the plugin host-device gave its container a device
  vlan N*    untagged frames belong to VLAN N

A foreign port is one that no plugin created, such as another interface that
was added to the bridge. Below the network are its detached ports, which exist
but are not on a bridge, for example because their bridge was deleted.

Then lists rules and published ports that belong to no port of the bridge. A
network without a bridge is shown if it has any.

Without <what>, shows all bridges of configurations and of ports that cni0
created. Otherwise <what> is the name of a network or of its bridge, or means
one container: its ID or the beginning of it, an address, a published port, its
namespace, its interface or the host side of it. Then everything about it fits
on one screen: state, addresses, leases, host side, the MTU of each link on the
way to the outside, rules, ports, limits, and the file in the cache. Changes
nothing.",
        environment: OF_TABLES,
        unhealthy: None,
    },
    Spec {
        name: "prune",
        operands: &[OPTIONAL_NETWORK],
        build: |args| {
            Ok(Command::Prune {
                dry_run: args.has("--dry-run"),
                force: args.has("--force"),
                json: args.has("--json"),
                network: args.optional_text(),
            })
        },
        summary: "remove attachments whose namespace is gone",
        options: &[
            flag("--dry-run", "only print what would be removed"),
            flag("--force", "prune even inside a container"),
            JSON,
        ],
        text: "\
Removes leases, rules and other objects of attachments whose namespace is gone;
an attachment of unknown state stays. leases shows the states. Plugins of other
projects get a DEL for each of them.

While prune runs, adds of cnitool wait. Other runtimes may attach containers:
prune looks at each attachment again before it removes something of it.

Without <network>, prunes all networks with a configuration, and skips those
with \"disableGC\". If <network> has \"disableGC\", prune fails.

Inside a container, namespaces of running containers seem to be gone. So prune
refuses to run unless it has the mount, pid and network namespaces of process
1, in the initial pid namespace. Use --force only on a node that is itself a
container, such as a node of kind, and in the namespaces of that container.",
        environment: OF_TABLES_AND_PLUGINS,
        unhealthy: None,
    },
    Spec {
        name: "repair",
        operands: &[OPTIONAL_NETWORK],
        build: |args| Ok(Command::Repair { json: args.has("--json"), network: args.optional_text() }),
        summary: "restore rules, published ports and limits",
        options: &[JSON],
        text: "\
Checks every attachment in the cache, adds firewall rules, published ports and
bandwidth limits that are missing, and calls CHECK of the network's plugins:

  ok        nothing was missing
  repaired  something was missing and has been added
  gone      its namespace is gone: prune removes what is left
  wrong     CHECK fails, or something could not be added; the reason follows

They are added only if the container still has the interface and the addresses
of the add. Use repair after a flush or a reload of the host's firewall: an add
restores the chains, but only the rules of its own container.

Without <network>, repairs all attachments.",
        environment: OF_TABLES_AND_PLUGINS,
        unhealthy: Some("an attachment is wrong, or an entry of the cache cannot be read"),
    },
    Spec {
        name: "doctor",
        operands: &[OPTIONAL_NETWORK],
        build: |args| {
            let (quiet, json) = (args.has("--quiet"), args.has("--json"));
            Ok(Command::Doctor { quiet, json, network: args.optional_text() })
        },
        summary: "report what is wrong on this host, and the remedy",
        options: &[
            flag("--quiet", "print only warn and fail, and nothing if all is ok"),
            flag("--json", "print JSON, with all subjects and commands"),
        ],
        text: "\
Checks configurations, plugins, leases, bridges, containers, the firewall and
the kernel's settings, and calls CHECK for each attachment in the cache. Each
finding is ok, warn or fail. The last two have:

  subjects  what it is about, such as containers, addresses, rules and files
  remedy    what to do
  run       the command that repairs it without a restart of the container

Calls plugins last: VERSION, CHECK and STATUS. A plugin that has not answered
after 5 s, or 20 s for CHECK, is killed and reported. Ends with a list of what
cannot be checked, for example without root. Changes nothing.

With <network>, reports only findings about this network and about the host.",
        environment: OF_TABLES_AND_PLUGINS,
        unhealthy: Some("a finding is fail"),
    },
    Spec {
        name: "test",
        operands: &[OPTIONAL_NETWORK],
        build: |args| {
            let number =
                |name| args.parsed::<NonZeroUsize>(name, "a number from 1").map(|value| value.map(usize::from));
            let (count, parallel) = (number("--count")?, number("--parallel")?);
            if parallel.is_some() && count.is_none() {
                return Err("test: --parallel needs --count (see test --help)".to_owned());
            }
            Ok(Command::Test(trial::Options {
                outside: args.parsed("--outside", "an IP address")?,
                count,
                parallel,
                json: args.has("--json"),
                network: args.optional_text(),
            }))
        },
        summary: "prove that a network works, explain what does not",
        options: &[
            Opt { name: "--outside", value: Some(Value::Address), meaning: "an address that containers must reach" },
            Opt { name: "--count", value: Some(Value::Number), meaning: "attach this many containers, and measure" },
            Opt { name: "--parallel", value: Some(Value::Number), meaning: "attach so many at a time (processors)" },
            flag("--json", "print JSON"),
        ],
        text: "\
Attaches two temporary containers through the plugins of the network, sends
packets between them, this host and the outside, and removes them. If packets
do not arrive, they are sent again and traced: the report names the rule, route,
neighbour entry, link or setting that stops them, and the program that usually
owns it. docs/cnitool.md describes all probes.

The outside is the next hop of this host's default route, unless --outside
gives another address.

With --count, attaches containers, several at a time, detaches them, and prints
the times of ADD, of the first packet and of DEL.

Removes everything also if it is interrupted. What a killed test has left, the
next one removes. Other containers are never touched. Works with plugins of
other projects, too. Without <network>, tests all networks.",
        environment: OF_TABLES_AND_PLUGINS,
        unhealthy: Some("a probe failed, or something was left"),
    },
    Spec {
        name: "metrics",
        operands: &[],
        build: |args| match (args.has("--enable"), args.has("--disable"), args.value("--output")) {
            (false, false, output) => Ok(Command::Metrics { output }),
            (enable, disable, None) if enable != disable => Ok(Command::CountCalls { enable }),
            _ => Err("metrics: give only one of --output, --enable and --disable (see metrics --help)".to_owned()),
        },
        summary: "print numbers about this node for Prometheus",
        options: &[
            Opt { name: "--output", value: Some(Value::File), meaning: "replace this file atomically, mode 644" },
            flag("--enable", "let plugins count calls from now on, until a reboot"),
            flag("--disable", "stop that, and delete what was counted"),
        ],
        text: "\
Prints the text format of Prometheus: used and free addresses, attachments by
state, stale leases, published ports, and whether everything could be
inspected. For the textfile collector of node_exporter, write the output to a
file whose name ends in .prom:

  cnitool metrics --output /var/lib/prometheus/node-exporter/cnitool.prom

A reader sees the old file or the new one, never a part. Changes nothing else.

With --enable, each plugin also counts its calls, failures and durations, in
files in /run/cni0/calls. This takes a few microseconds per call.",
        environment: &[NETCONFPATH],
        unhealthy: None,
    },
    Spec {
        name: "validate",
        operands: &[Operand { value: Value::File, occurs: Occurs::Repeatedly }],
        build: |args| {
            let (strict, json) = (args.has("--strict"), args.has("--json"));
            Ok(Command::Validate { strict, json, paths: args.paths() })
        },
        summary: "report mistakes in configurations",
        options: &[flag("--strict", "treat warnings as errors"), flag("--json", "print JSON")],
        text: "\
Reports what the plugins would refuse in an add as errors, and misspelt or
unknown keys and unknown plugins as warnings. <file> can also be a directory, or
- for stdin. Without <file>, checks the directory of network configurations.
Needs no root and no installed plugins. Changes nothing.

If a file cannot be read, the others are checked, and the exit code is 1.",
        environment: &[NETCONFPATH, CNI_PATH, NO_COLOR],
        unhealthy: Some("there is an error; with --strict, also if there is a warning"),
    },
    Spec {
        name: "schema",
        operands: &[Operand { value: Value::Plugin, occurs: Occurs::AtMostOnce }],
        build: |args| Ok(Command::Schema { single: args.has("--single"), plugin: args.optional_text() }),
        summary: "print the JSON Schema of configurations",
        options: &[flag("--single", "for a file with a single plugin (*.conf)")],
        text: "\
Prints the JSON Schema of network lists (*.conflist) for editors and validators.
With <plugin>, prints that of the configuration of one plugin.",
        environment: &[],
        unhealthy: None,
    },
    Spec {
        name: "man",
        operands: &[Operand { value: Value::Command, occurs: Occurs::AtMostOnce }],
        build: |args| man::print(args.optional_text().as_deref()).map(Command::Print),
        summary: "print the manual page, for man -l -",
        options: &[],
        text: "\
Prints cnitool(1) with all commands, or cnitool-COMMAND(1) for one, in the
format of man(7).",
        environment: &[],
        unhealthy: None,
    },
    Spec {
        name: "completion",
        operands: &[Operand { value: Value::Shell, occurs: Occurs::Once }],
        build: |args| completion::script(&args.text()).map(|script| Command::Print(script.to_owned())),
        summary: "print the completion script for a shell",
        options: &[],
        text: "\
Prints a script for bash, zsh or fish that completes commands, options,
networks and namespaces. For the current bash:

  source <(cnitool completion bash)",
        environment: &[],
        unhealthy: None,
    },
];
