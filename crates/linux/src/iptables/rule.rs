//! Rules of iptables. The same rule can be written in two ways: through nf_tables, as `iptables-nft` encodes it, and as
//! text for the restore tools.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use crate::ip::{Cidr, Protocol, octets};
use crate::netlink::nft::{Comparison, Family, Field, RuleSpec, Table, Verdict};

/// The most ports that one rule can match.
pub const MAX_PORTS: usize = 15;
/// The longest comment, in bytes. The tools cut a longer one.
pub const MAX_COMMENT: usize = 255;

/// A rule of a table.
#[derive(Clone, Debug)]
pub struct Rule<'a> {
    /// The chain.
    pub chain: &'a str,
    /// The properties that packets must have, in the order of `iptables-save`.
    pub matches: Vec<Match<'a>>,
    /// What happens to packets with all properties.
    pub target: Target<'a>,
    /// The mark of the rule, which the tools do not show. Legacy tables have no place for it.
    pub mark: Option<&'a str>,
}

/// A property that packets must have.
#[derive(Clone, Debug)]
pub enum Match<'a> {
    /// The source is, or is not, in this network.
    Source(Comparison, Cidr),
    /// The destination is, or is not, in this network.
    Destination(Comparison, Cidr),
    /// The packet arrived on one of these links, or on another.
    InputLink(Comparison, Links<'a>),
    /// The packet leaves on one of these links, or on another.
    OutputLink(Comparison, Links<'a>),
    /// The transport protocol.
    Protocol(Protocol),
    /// A destination port. The rule must match the protocol before.
    Port(Protocol, u16),
    /// One of at most [`MAX_PORTS`] destination ports.
    Ports(Vec<u16>),
    /// The destination is an address of this host.
    ToThisHost,
    /// This bit of the packet mark is set.
    PacketMark(u32),
    /// The state of the packet's connection.
    Connection(ConnectionState),
    /// Every packet. `iptables` treats comments as matches, and compares their order with that of others.
    Comment(&'a str),
}

/// Links by their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Links<'a> {
    /// The link with this name.
    Named(Cow<'a, str>),
    /// All links whose names begin with this text.
    WithPrefix(Cow<'a, str>),
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// Packets were seen in both directions, or the connection belongs to such a connection.
    Established,
    /// The destination was translated.
    Translated,
}

/// What happens to packets with all properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// The packet continues in another chain, and then after the rule.
    Jump(&'a str),
    /// The packet passes the table.
    Accept,
    /// The packet is dropped.
    Drop,
    /// The packet leaves the chain.
    Return,
    /// The destination is replaced.
    Translate(SocketAddr),
    /// The source is replaced by the address of the outgoing link.
    Masquerade,
    /// This bit of the packet mark is set.
    SetMark(u32),
}

impl<'a> Rule<'a> {
    /// Creates a rule without a mark.
    pub fn new(chain: &'a str, matches: Vec<Match<'a>>, target: Target<'a>) -> Rule<'a> {
        Rule { chain, matches, target, mark: None }
    }

    /// Returns the rule as `iptables-nft` encodes it, so that it lists the rule, and finds it for deletion.
    pub fn spec<'t>(&self, table: Table<'t>) -> RuleSpec<'t>
    where
        'a: 't,
    {
        let rule = RuleSpec::new(table.chain(self.chain));
        let rule = self.matches.iter().fold(rule, |rule, found| found.append_to(rule));
        let protocol = self.matches.iter().find_map(|found| match found {
            Match::Protocol(protocol) => Some(protocol.number()),
            _ => None,
        });
        // The kernel compares it with the protocols that the extensions support.
        let rule = rule.counter().compat_protocol(protocol.unwrap_or_default());
        self.target.append_to(rule, table.family).mark(self.mark.unwrap_or_default())
    }

    /// Returns the rule without its chain, in the format of `iptables-save`.
    pub fn text(&self) -> String {
        let mut words: Vec<String> = self.matches.iter().map(Match::text).collect();
        words.push(self.target.text());
        words.join(" ")
    }
}

impl<'a> Match<'a> {
    /// Matches packets from this network.
    pub fn source(net: Cidr) -> Match<'a> {
        Match::Source(Comparison::Equal, net)
    }

    /// Matches packets to this address.
    pub fn destination(ip: IpAddr) -> Match<'a> {
        Match::Destination(Comparison::Equal, Cidr::host(ip))
    }

    /// Matches packets that arrived on this link.
    pub fn input_link(name: &'a str) -> Match<'a> {
        Match::InputLink(Comparison::Equal, Links::Named(name.into()))
    }

    /// Matches packets that leave on this link.
    pub fn output_link(name: &'a str) -> Match<'a> {
        Match::OutputLink(Comparison::Equal, Links::Named(name.into()))
    }

    /// Appends the expressions of the match to a rule.
    pub fn append_to<'t>(&self, rule: RuleSpec<'t>) -> RuleSpec<'t> {
        match self {
            Match::Source(Comparison::Equal, net) => rule.source_in(*net),
            Match::Source(Comparison::NotEqual, net) => rule.source_outside(*net),
            Match::Destination(Comparison::Equal, net) => rule.destination_in(*net),
            Match::Destination(Comparison::NotEqual, net) => rule.destination_outside(*net),
            Match::InputLink(how, links) => rule.matches(Field::INPUT_LINK, *how, &links.bytes()),
            Match::OutputLink(how, links) => rule.matches(Field::OUTPUT_LINK, *how, &links.bytes()),
            Match::Protocol(protocol) => rule.matches(Field::PROTOCOL, Comparison::Equal, &[protocol.number()]),
            Match::Port(Protocol::Tcp | Protocol::Udp, port) => {
                rule.matches(Field::DESTINATION_PORT, Comparison::Equal, &port.to_be_bytes())
            }
            Match::Port(protocol, port) => rule.compat_match(protocol.name(), 0, &port_info(*protocol, *port)),
            Match::Ports(ports) => rule.compat_match("multiport", 1, &multiport_info(ports)),
            Match::ToThisHost => rule.compat_match("addrtype", 1, &ADDRTYPE.concat()),
            Match::PacketMark(bit) => rule.matches_bits(Field::PACKET_MARK, *bit, *bit),
            Match::Connection(state) => rule.compat_match("conntrack", 3, &state.info()),
            Match::Comment(comment) => {
                let mut info = comment.as_bytes().to_vec();
                info.truncate(MAX_COMMENT);
                info.resize(MAX_COMMENT + 1, 0);
                rule.compat_match("comment", 0, &info)
            }
        }
    }

    /// Returns the match in the format of `iptables-save`.
    pub fn text(&self) -> String {
        match self {
            Match::Source(how, net) => format!("{}-s {net}", negation(*how)),
            Match::Destination(how, net) => format!("{}-d {net}", negation(*how)),
            Match::InputLink(how, links) => format!("{}-i {}", negation(*how), links.text()),
            Match::OutputLink(how, links) => format!("{}-o {}", negation(*how), links.text()),
            Match::Protocol(protocol) => format!("-p {protocol}"),
            Match::Port(protocol, port) => format!("-m {protocol} --dport {port}"),
            Match::Ports(ports) => {
                let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
                format!("-m multiport --dports {}", ports.join(","))
            }
            Match::ToThisHost => "-m addrtype --dst-type LOCAL".to_owned(),
            Match::PacketMark(bit) => format!("-m mark --mark {bit:#x}/{bit:#x}"),
            Match::Connection(ConnectionState::Established) => "-m conntrack --ctstate RELATED,ESTABLISHED".to_owned(),
            Match::Connection(ConnectionState::Translated) => "-m conntrack --ctstate DNAT".to_owned(),
            // Quotes are the only characters in valid names that need escaping.
            Match::Comment(comment) => format!("-m comment --comment \"{}\"", comment.replace('"', "\\\"")),
        }
    }
}

fn negation(how: Comparison) -> &'static str {
    match how {
        Comparison::Equal => "",
        Comparison::NotEqual => "! ",
    }
}

impl Links<'_> {
    /// Returns what the kernel compares with the beginning of a name that is padded with NULs.
    fn bytes(&self) -> Vec<u8> {
        match self {
            Links::Named(name) => {
                let mut bytes = name.as_bytes().to_vec();
                bytes.resize(libc::IFNAMSIZ, 0);
                bytes
            }
            Links::WithPrefix(prefix) => prefix.as_bytes().to_vec(),
        }
    }

    fn text(&self) -> String {
        match self {
            Links::Named(name) => name.clone().into_owned(),
            Links::WithPrefix(prefix) => format!("{prefix}+"),
        }
    }
}

impl ConnectionState {
    /// Returns struct xt_conntrack_mtinfo3 that compares only the state.
    fn info(self) -> Vec<u8> {
        /// XT_CONNTRACK_STATE
        const STATE: u8 = 1;
        let bits = match self {
            // XT_CONNTRACK_STATE_BIT of IP_CT_ESTABLISHED and IP_CT_RELATED
            ConnectionState::Established => 1 << 1 | 1 << 2,
            // XT_CONNTRACK_STATE_DNAT
            ConnectionState::Translated => 1 << 7,
        };
        blob(168, &[], &[short_number(146, STATE), short_number(150, bits)].concat())
    }
}

impl Target<'_> {
    /// Returns what the rule decides; `None` if it acts instead.
    pub fn verdict(&self) -> Option<Verdict> {
        Some(match self {
            Target::Jump(chain) => Verdict::Jump((*chain).to_owned()),
            Target::Accept => Verdict::Accept,
            Target::Drop => Verdict::Drop,
            Target::Return => Verdict::Return,
            Target::Translate(_) | Target::Masquerade | Target::SetMark(_) => return None,
        })
    }

    fn append_to<'t>(&self, rule: RuleSpec<'t>, family: Family) -> RuleSpec<'t> {
        match self {
            Target::Jump(_) | Target::Accept | Target::Drop | Target::Return => {
                self.verdict().into_iter().fold(rule, RuleSpec::verdict)
            }
            Target::Translate(to) => rule.compat_target("DNAT", 2, &dnat_info(*to)),
            // struct nf_nat_ipv4_multi_range_compat with one range, or struct nf_nat_range
            Target::Masquerade if family == Family::Ipv4 => {
                let mut info = [0; 24].to_vec();
                info.splice(..4, 1_u32.to_ne_bytes());
                rule.compat_target("MASQUERADE", 0, &info)
            }
            Target::Masquerade => rule.compat_target("MASQUERADE", 0, &[0; 40]),
            // struct xt_mark_tginfo2: mark, mask
            Target::SetMark(bit) => rule.compat_target("MARK", 2, &[bit.to_ne_bytes(); 2].concat()),
        }
    }

    fn text(&self) -> String {
        match self {
            Target::Jump(chain) => format!("-j {chain}"),
            Target::Accept => "-j ACCEPT".to_owned(),
            Target::Drop => "-j DROP".to_owned(),
            Target::Return => "-j RETURN".to_owned(),
            Target::Translate(to) => format!("-j DNAT --to-destination {to}"),
            Target::Masquerade => "-j MASQUERADE".to_owned(),
            Target::SetMark(bit) => format!("-j MARK --set-xmark {bit:#x}/{bit:#x}"),
        }
    }
}

/// struct xt_addrtype_info_v1: source types, destination types, flags. The bit 1 << RTN_LOCAL stands for this host.
const ADDRTYPE: [[u8; 2]; 4] = [0_u16.to_ne_bytes(), (1_u16 << 2).to_ne_bytes(), [0; 2], [0; 2]];

/// Returns struct xt_sctp_info or struct xt_dccp_info. `iptables` encodes a port of TCP or UDP without such a match.
fn port_info(protocol: Protocol, port: u16) -> Vec<u8> {
    /// XT_SCTP_DEST_PORTS and XT_DCCP_DEST_PORTS: the destination port is compared.
    const DESTINATION: u8 = 2;
    let range = [port.to_ne_bytes(); 2].concat();
    match protocol {
        Protocol::Sctp => {
            // The types of chunks with flags, of which there are none, are 255.
            let chunks = [268, 271, 274, 277].map(|offset| (offset, u8::MAX));
            blob(296, &range, &[&chunks[..], &number(284, DESTINATION)].concat())
        }
        _ => blob(16, &range, &short_number(8, DESTINATION)),
    }
}

/// Returns `len` bytes: `start`, then zeros except at the given offsets.
fn blob(len: usize, start: &[u8], others: &[(usize, u8)]) -> Vec<u8> {
    let mut info = start.to_vec();
    info.resize(len, 0);
    for (offset, value) in others {
        if let Some(byte) = info.get_mut(*offset) {
            *byte = *value;
        }
    }
    info
}

/// Returns the byte of a small number of four bytes.
fn number(offset: usize, value: u8) -> [(usize, u8); 1] {
    [(if cfg!(target_endian = "little") { offset } else { offset + 3 }, value)]
}

/// Returns the byte of a small number of two bytes.
fn short_number(offset: usize, value: u8) -> [(usize, u8); 1] {
    [(if cfg!(target_endian = "little") { offset } else { offset + 1 }, value)]
}

/// Returns struct xt_multiport_v1: flags, count, ports, and zeros for ports that are no ranges and not inverted.
fn multiport_info(ports: &[u16]) -> Vec<u8> {
    /// XT_MULTIPORT_DESTINATION
    const DESTINATION: u8 = 1;
    let ports = ports.get(..MAX_PORTS).unwrap_or(ports);
    let mut info = vec![DESTINATION, u8::try_from(ports.len()).unwrap_or_default()];
    info.extend(ports.iter().flat_map(|port| port.to_ne_bytes()));
    info.resize(48, 0);
    info
}

/// Returns struct nf_nat_range2: flags, first and last address, first and last port, base port.
fn dnat_info(to: SocketAddr) -> Vec<u8> {
    /// NF_NAT_RANGE_MAP_IPS | NF_NAT_RANGE_PROTO_SPECIFIED
    const ADDRESS_AND_PORT: u32 = 3;
    let mut address = octets(to.ip());
    address.resize(16, 0);
    let mut info = ADDRESS_AND_PORT.to_ne_bytes().to_vec();
    info.extend([&address[..], &address].concat());
    info.extend([to.port().to_be_bytes(); 2].concat());
    info.resize(48, 0);
    info
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_written_as_iptables_save_prints_them() {
        let comment = Match::Comment("dnat name: \"net1\" id: \"id1\"");
        let matches = vec![Match::Protocol(Protocol::Tcp), comment, Match::Ports(vec![8080, 9001])];
        assert_eq!(
            Rule::new("A", matches, Target::Jump("B")).text(),
            r#"-p tcp -m comment --comment "dnat name: \"net1\" id: \"id1\"" -m multiport --dports 8080,9001 -j B"#
        );
        let source = Match::source("10.9.0.0/24".parse().unwrap());
        let matches = vec![
            source,
            Match::destination([10, 9, 0, 1].into()),
            Match::Protocol(Protocol::Sctp),
            Match::Port(Protocol::Sctp, 53),
        ];
        assert_eq!(
            Rule::new("A", matches, Target::Translate("[fd00::2]:53".parse().unwrap())).text(),
            "-s 10.9.0.0/24 -d 10.9.0.1/32 -p sctp -m sctp --dport 53 -j DNAT --to-destination [fd00::2]:53"
        );
        assert_eq!(
            Rule::new("A", vec![Match::PacketMark(0x20)], Target::Masquerade).text(),
            "-m mark --mark 0x20/0x20 -j MASQUERADE"
        );
        assert_eq!(
            Rule::new("A", vec![Match::ToThisHost], Target::SetMark(1 << 31)).text(),
            "-m addrtype --dst-type LOCAL -j MARK --set-xmark 0x80000000/0x80000000"
        );
        let matches = vec![
            Match::input_link("br0"),
            Match::OutputLink(Comparison::NotEqual, Links::WithPrefix("br".into())),
            Match::Connection(ConnectionState::Established),
        ];
        assert_eq!(
            Rule::new("A", matches, Target::Drop).text(),
            "-i br0 ! -o br+ -m conntrack --ctstate RELATED,ESTABLISHED -j DROP"
        );
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn structures_have_the_layout_of_the_kernel() {
        let info = multiport_info(&[8080, 9001]);
        assert_eq!((info.len(), &info[..7]), (48, &[1, 2, 0x90, 0x1f, 0x29, 0x23, 0][..]));
        assert_eq!(multiport_info(&[1; 20])[1], 15);
        let info = port_info(Protocol::Dccp, 98);
        assert_eq!(info, [98, 0, 98, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        let info = port_info(Protocol::Sctp, 99);
        let set: Vec<usize> = (0..info.len()).filter(|offset| info[*offset] != 0).collect();
        assert_eq!((info.len(), set), (296, vec![0, 2, 268, 271, 274, 277, 284]));
        let info = dnat_info("[fd00::2]:80".parse().unwrap());
        assert_eq!((info.len(), info[19], info[35], &info[36..40]), (48, 2, 2, &[0, 80, 0, 80][..]));
        for (state, bits) in [(ConnectionState::Established, 0x06), (ConnectionState::Translated, 0x80)] {
            let info = state.info();
            let set: Vec<(usize, u8)> = info.iter().copied().enumerate().filter(|(_, byte)| *byte != 0).collect();
            assert_eq!((info.len(), set), (168, vec![(146, 1), (150, bits)]));
        }
    }
}
