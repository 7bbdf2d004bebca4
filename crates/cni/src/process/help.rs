//! The help of a plugin, for a user who starts it on the command line.

use crate::plugin::Plugin;

const PROTOCOL: &str = "\
A container runtime calls a plugin: it sets these variables, and writes the
network configuration to stdin as JSON. The plugin prints a result or an error
to stdout, also as JSON. A plugin has no options.

  CNI_COMMAND      ADD, DEL, CHECK, GC, STATUS or VERSION
  CNI_CONTAINERID  id of the container (ADD, DEL, CHECK)
  CNI_NETNS        path of its network namespace (ADD, CHECK; optional for DEL)
  CNI_IFNAME       name of the interface in the container (ADD, DEL, CHECK)
  CNI_PATH         directories of plugins, separated by ':' (all but VERSION)
  CNI_ARGS         arguments of the runtime: KEY=VALUE;KEY=VALUE (optional)
  CNI_LOG          level of the log on stderr: error, warn, info or debug
";

const CNITOOL: &str = "\
cnitool is a runtime for the command line. To attach a network namespace to the
network \"pods\", which a file in /etc/cni/net.d defines:

  # ip netns add blue
  # cnitool add pods blue
";

const DOCUMENTS: &str = "\
documents: docs/configuration.md of cni0 (all keys and variables),
           https://www.cni.dev/docs/spec/ (the protocol)
";

/// Returns the part of the help that follows the description of the program.
pub(super) fn text(plugin: &dyn Plugin) -> String {
    let name = plugin.name();
    let example =
        format!("For example, print the supported versions:\n\n  $ CNI_COMMAND=VERSION /opt/cni/bin/{name}\n");
    ["", PROTOCOL, &example, CNITOOL, DOCUMENTS].join("\n")
}
