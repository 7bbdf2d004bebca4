//! The commands that findings recommend.

use std::fmt;

/// Defines the commands of a shell, each with its text. Names in braces stand for values; one with an asterisk stands
/// for several words.
macro_rules! commands {
    ($($(#[$doc:meta])+ $name:ident = $text:literal,)+) => {
        /// A command of a shell that a finding recommends. All of them are listed here, and a test runs each of them.
        ///
        /// It removes the finding, and changes nothing of another program. Otherwise a finding has only a remedy in
        /// words: it says what to decide.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Command {
            $($(#[$doc])+ $name,)+
        }

        impl Command {
            /// All commands.
            pub const ALL: &'static [Command] = &[$(Command::$name,)+];

            /// Returns the text, with names in braces for values.
            pub fn template(self) -> &'static str {
                match self {
                    $(Command::$name => $text,)+
                }
            }
        }
    };
}

commands! {
    /// Restores what plugins find missing of the attachments to a network.
    Repair = "cnitool repair {network}",
    /// Removes what containers that are gone have left on a network.
    Prune = "cnitool prune {network}",
    /// Removes what containers that are gone have left on all networks.
    PruneAll = "cnitool prune",
    /// Turns forwarding of IPv4 on.
    ForwardIpv4 = "sysctl -w net.ipv4.ip_forward=1",
    /// Turns forwarding of IPv6 on.
    ForwardIpv6 = "sysctl -w net.ipv6.conf.all.forwarding=1",
    /// Turns forwarding of IPv4 on for packets from a link. After a slash, dots are part of a name.
    ForwardFrom = "sysctl -w net/ipv4/conf/{link}/forwarding=1",
    /// Accepts router advertisements although IPv6 is forwarded.
    AcceptAdvertisements = "sysctl -w net/ipv6/conf/{link}/accept_ra=2",
    /// Accepts packets that arrive on another link than replies leave by.
    FilterLoosely = "sysctl -w net/ipv4/conf/{link}/rp_filter=2",
    /// Accepts forwarded packets from a bridge that no rule has decided about.
    AcceptFrom = "{iptables} -A FORWARD -i {bridge} -j ACCEPT",
    /// Accepts forwarded packets to a bridge that no rule has decided about.
    AcceptTo = "{iptables} -A FORWARD -o {bridge} -j ACCEPT",
    /// Accepts forwarded packets from a bridge before the rule that drops them.
    AcceptFromBefore = "{iptables} -I FORWARD {number} -i {bridge} -j ACCEPT",
    /// Accepts forwarded packets to a bridge before the rule that drops them.
    AcceptToBefore = "{iptables} -I FORWARD {number} -o {bridge} -j ACCEPT",
    /// Sets a link up.
    SetUp = "ip link set {link} up",
    /// Makes a link a port of a bridge.
    SetMaster = "ip link set {port} master {bridge}",
    /// Lets a port send frames back to where they come from.
    SetHairpin = "ip link set {port} type bridge_slave hairpin on",
    /// Isolates a port.
    Isolate = "ip link set {port} type bridge_slave isolated on",
    /// Sets the MTU of a bridge.
    SetMtu = "ip link set {bridge} mtu {mtu}",
    /// Adds an IPv4 address to a link.
    AddAddress = "ip address add {address} dev {link}",
    /// Adds an IPv6 address to a link that no other one has: duplicate address detection would delay its use.
    AddAddressIpv6 = "ip address add {address} dev {link} nodad",
    /// Deletes a link.
    DeleteLink = "ip link delete {link}",
    /// Sets the interface of a container up.
    SetGuestUp = "nsenter --net={netns} ip link set {interface} up",
    /// Sets the MTU of the interface of a container.
    SetGuestMtu = "nsenter --net={netns} ip link set {interface} mtu {mtu}",
    /// Sets another attribute of the interface of a container.
    SetGuestAttribute = "nsenter --net={netns} ip link set {interface} {attribute} {value}",
    /// Sets a sysctl of a container.
    SetGuestSysctl = "nsenter --net={netns} sysctl -w {setting}",
    /// Adds an IPv4 address to the interface of a container.
    AddGuestAddress = "nsenter --net={netns} ip address add {address} dev {interface}",
    /// Adds an IPv6 address to the interface of a container.
    AddGuestAddressIpv6 = "nsenter --net={netns} ip address add {address} dev {interface} nodad",
    /// Deletes an address of the interface of a container.
    DeleteGuestAddress = "nsenter --net={netns} ip address del {address} dev {interface}",
    /// Adds a route to a container.
    AddGuestRoute = "nsenter --net={netns} ip route add {route*}",
    /// Writes the missing lease of an attachment, under the lock of the directory.
    RestoreLease = "mkdir -p {directory} && flock {lock} sh -c {script}",
}

impl Command {
    /// Returns the command with these values, each quoted for a shell. Those of a name with an asterisk are several
    /// words, and quoted already.
    pub fn line(self, values: &[&str]) -> CommandLine {
        let mut values = values.iter();
        let fill = |word: &str| {
            let (Some((start, rest)), Some(end)) = (word.split_once('{'), word.find('}')) else {
                return word.to_owned();
            };
            let value = values.next().copied().unwrap_or_default();
            match rest.ends_with("*}") {
                true => value.to_owned(),
                false => shell_word(&format!("{start}{value}{}", word.get(end + 1..).unwrap_or_default())),
            }
        };
        CommandLine(self.template().split(' ').map(fill).collect::<Vec<_>>().join(" "))
    }
}

/// A [`Command`] with its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLine(String);

impl fmt::Display for CommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns a word as a shell reads it. Names of links and paths can contain any character.
pub fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./:@%+=,-".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_read_as_more_than_one_word() {
        assert_eq!(shell_word("br-pods"), "br-pods");
        assert_eq!(shell_word("/run/netns/a b"), "'/run/netns/a b'");
        assert_eq!(shell_word("x;reboot"), "'x;reboot'");
        assert_eq!(shell_word("it's"), r"'it'\''s'");
        assert_eq!(shell_word(""), "''");
    }

    #[test]
    fn values_are_quoted_with_the_word_that_contains_them() {
        let line = |command: Command, values: &[&str]| command.line(values).to_string();
        assert_eq!(line(Command::PruneAll, &[]), "cnitool prune");
        assert_eq!(line(Command::SetMaster, &["a;b", "br0"]), "ip link set 'a;b' master br0");
        assert_eq!(line(Command::ForwardFrom, &["br.1"]), "sysctl -w net/ipv4/conf/br.1/forwarding=1");
        assert_eq!(line(Command::ForwardFrom, &["a b"]), "sysctl -w 'net/ipv4/conf/a b/forwarding=1'");
        let route = line(Command::AddGuestRoute, &["/run/netns/a b", "default via 10.1.0.1 dev eth0"]);
        assert_eq!(route, "nsenter '--net=/run/netns/a b' ip route add default via 10.1.0.1 dev eth0");
    }
}
