//! Rules of published ports as they are listed, by either implementation: from nf_tables, or from the text of the save
//! tools.

use std::net::{IpAddr, SocketAddr};

use cni::Result;
use linux::ip::Protocol;
use linux::iptables::{self, ListedRule, MAX_PORTS, Match, View, words};
use linux::netlink::nft::{Extension, Family, Rule};

use crate::mapping::{Key, Mapping};
use crate::published::Wanted;

/// A rule in one of the chains of published ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) comment: String,
    pub(super) protocol: Option<Protocol>,
    /// The destination ports; none if the rule matches all.
    pub(super) ports: Vec<u16>,
    /// The address of this host that the rule matches; `None` for all.
    pub(super) destination: Option<IpAddr>,
    /// The chain to which the rule jumps.
    pub(super) jump: Option<String>,
    pub(super) translates_to: Option<SocketAddr>,
    /// The bit of the packet mark that the rule sets.
    pub(super) sets_mark: Option<u32>,
    /// The bit of the packet mark by which the rule masquerades.
    pub(super) masquerades: Option<u32>,
    /// The link of the attachment on this host; empty if unknown.
    pub(super) link: String,
    pub(super) listed: ListedRule,
}

/// Returns the rules of a chain; none if it does not exist.
pub(super) fn list(view: &mut View<'_>, chain: &str) -> Result<Vec<Found>> {
    let family = match view {
        View::Nft(_, table) => table.family,
        View::Legacy(_) => Family::Inet,
    };
    let read = |listed| match listed {
        ListedRule::Nft(rule) => Found::from_rule(rule, family),
        ListedRule::Legacy(text) => Found::from_text(text),
    };
    Ok(view.rules(chain)?.into_iter().map(read).collect())
}

/// Returns the rules of a chain that packets reach: those before a rule by which all leave the chain.
pub(super) fn list_reached(view: &mut View<'_>, chain: &str) -> Result<Vec<Found>> {
    Ok(list(view, chain)?.into_iter().take_while(|rule| !rule.listed.is_return()).collect())
}

impl Found {
    /// Returns whether the rule leads packets to this port into another chain.
    pub(super) fn covers(&self, protocol: Protocol, port: u16) -> bool {
        // Before 0.7.0, the reference had one rule for each container, without ports.
        self.protocol.is_none_or(|own| own == protocol) && (self.ports.is_empty() || self.ports.contains(&port))
    }

    /// Returns whether the rule may lead packets to a port for which `wanted` returns true into another chain.
    pub(super) fn covers_any(&self, wanted: Wanted<'_>) -> bool {
        match self.protocol {
            Some(protocol) if !self.ports.is_empty() => self.ports.iter().any(|port| wanted(protocol, *port)),
            _ => true,
        }
    }

    /// Returns whether this is the given rule, which may lead packets to other ports as well into its chain.
    pub(super) fn is_same_as(&self, rule: &iptables::Rule<'_>, family: Family) -> bool {
        let matches = rule.matches.iter().map(|found| match found {
            Match::Ports(_) => Match::Ports(self.ports.clone()),
            other => other.clone(),
        });
        self.listed.is_same_as(&iptables::Rule { matches: matches.collect(), ..rule.clone() }, family)
    }

    /// Returns the mapping; `None` if the rule does not translate one port.
    pub(super) fn mapping(&self) -> Option<Mapping> {
        let [port] = self.ports[..] else { return None };
        let key = Key { host_ip: self.destination, protocol: self.protocol?, port };
        Some(Mapping { key, target: self.translates_to? })
    }

    /// Returns whether this rule marks packets for a translation.
    pub(super) fn marks_for(&self, mapping: &Mapping) -> bool {
        self.protocol == Some(mapping.key.protocol)
            && self.ports == [mapping.key.port]
            && (self.destination.is_none() || self.destination == mapping.key.host_ip)
    }

    /// Reads a rule of a table of nf_tables of this family.
    fn from_rule(rule: Box<Rule>, family: Family) -> Found {
        let extension = |name: &str| rule.extensions.iter().find(|extension| extension.name == name);
        let protocol = rule.values.iter().find_map(|value| match value[..] {
            [number] => Protocol::numbered(number),
            _ => None,
        });
        let translates_to = extension("DNAT").and_then(|dnat| read_dnat(dnat, family));
        let mut values: Vec<&[u8]> = rule.values.iter().map(Vec::as_slice).filter(|value| value.len() > 1).collect();
        let ports = match (extension("multiport"), extension("sctp").or_else(|| extension("dccp"))) {
            (Some(multiport), _) => read_multiport(multiport),
            (None, Some(port)) => read_u16(&port.info, 0).into_iter().collect(),
            // The port is compared after the addresses. A network can have the same length.
            (None, None) => match values.last().map(|value| <[u8; 2]>::try_from(*value)) {
                Some(Ok(port)) => {
                    values.pop();
                    vec![u16::from_be_bytes(port)]
                }
                _ => vec![],
            },
        };
        // A rule that translates has no source; any other has a source first.
        let destination = match (translates_to, &values[..]) {
            (Some(_), [destination]) | (None, [_, destination]) => read_ip(destination),
            _ => None,
        };
        let bit = |value: &Vec<u8>| <[u8; 4]>::try_from(value.as_slice()).ok().map(u32::from_ne_bytes);
        Found {
            comment: rule.comment.clone(),
            protocol,
            ports,
            destination,
            jump: rule.target().map(str::to_owned),
            translates_to,
            sets_mark: extension("MARK").and_then(|mark| read_u32(&mark.info, 0)),
            masquerades: rule.values.first().filter(|_| rule.masquerades).and_then(bit),
            link: rule.mark.clone(),
            listed: ListedRule::Nft(rule),
        }
    }

    /// Reads the text of a save tool.
    fn from_text(text: String) -> Found {
        let words = words(&text);
        let mut found = Found {
            comment: String::new(),
            protocol: None,
            ports: vec![],
            destination: None,
            jump: None,
            translates_to: None,
            sets_mark: None,
            masquerades: None,
            link: String::new(),
            listed: ListedRule::Legacy(text),
        };
        let mut words = words.iter().map(String::as_str);
        let (mut packet_mark, mut target) = (None, None);
        while let Some(option) = words.next() {
            if option == "!" {
                // A condition, of which only the rule itself needs to know.
                words.nth(1);
                continue;
            }
            match option {
                "-p" => found.protocol = words.next().and_then(read_protocol),
                "-d" => found.destination = words.next().and_then(|net| net.split('/').next()?.parse().ok()),
                "--dport" | "--dports" => {
                    let ports = words.next().unwrap_or_default();
                    found.ports = ports.split(',').filter_map(|port| port.parse().ok()).collect();
                }
                "--comment" => found.comment = words.next().unwrap_or_default().to_owned(),
                "-j" | "-g" => target = words.next(),
                "--to-destination" => found.translates_to = words.next().and_then(|to| to.parse().ok()),
                "--set-xmark" => found.sets_mark = words.next().and_then(read_bit),
                "--mark" => packet_mark = words.next().and_then(read_bit),
                _ => {}
            }
        }
        match target {
            Some("MASQUERADE") => found.masquerades = packet_mark,
            Some("DNAT" | "MARK") | None => {}
            Some(chain) => found.jump = Some(chain.to_owned()),
        }
        found
    }
}

/// Reads struct nf_nat_range of revision 1 and 2, or struct nf_nat_ipv4_multi_range_compat of revision 0, if it has one
/// address and one port.
fn read_dnat(dnat: &Extension, family: Family) -> Option<SocketAddr> {
    const PORT: u32 = 2;
    let info = &dnat.info;
    let (flags, addresses, length, ports) = match dnat.revision {
        0 => (4, 8, 4, 16),
        _ => (0, 4, 16, 36),
    };
    let address = |offset: usize| info.get(offset..offset + length);
    let port = |offset: usize| info.get(offset..offset + 2);
    let is_single = address(addresses)? == address(addresses + length)? && port(ports)? == port(ports + 2)?;
    let is_specified = read_u32(info, flags)? & PORT != 0;
    let address = address(addresses)?;
    let ip = read_ip(if family == Family::Ipv4 { address.get(..4)? } else { address })?;
    let port = u16::from_be_bytes(port(ports)?.try_into().ok()?);
    (is_single && is_specified).then_some(SocketAddr::new(ip, port))
}

/// Reads struct xt_multiport_v1.
fn read_multiport(multiport: &Extension) -> Vec<u16> {
    let count = multiport.info.get(1).copied().map_or(0, usize::from);
    (0..count.min(MAX_PORTS)).filter_map(|index| read_u16(&multiport.info, 2 + 2 * index)).collect()
}

fn read_u16(info: &[u8], offset: usize) -> Option<u16> {
    info.get(offset..offset + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

fn read_u32(info: &[u8], offset: usize) -> Option<u32> {
    info.get(offset..offset + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

fn read_ip(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
        _ => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
    }
}

/// Reads a protocol, which the tools print as a number if `/etc/protocols` does not name it.
fn read_protocol(text: &str) -> Option<Protocol> {
    Protocol::named(text).or_else(|| Protocol::numbered(text.parse().ok()?))
}

/// Reads the value of `0x2000/0x2000`.
fn read_bit(text: &str) -> Option<u32> {
    let value = text.split('/').next()?;
    u32::from_str_radix(value.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMENT: &str = r#"-m comment --comment "dnat name: \"net1\" id: \"id 1\"""#;

    fn read(line: &str, chain: &str) -> Option<Found> {
        list(&mut View::Legacy(&[line.to_owned()]), chain).unwrap().pop()
    }

    fn mapping(line: &str) -> Option<String> {
        let mapping = read(line, "C").unwrap().mapping()?;
        Some(format!("{} to {}", mapping.key, mapping.target))
    }

    #[test]
    fn lines_of_the_save_tools_are_read() {
        let line = format!("-A D ! -d 192.0.2.1/32 -i eth0 -p tcp {COMMENT} -m multiport --dports 80,81 -j CNI-DN-1");
        let found = read(&line, "D").unwrap();
        assert_eq!(found.comment, "dnat name: \"net1\" id: \"id 1\"");
        assert_eq!((found.protocol, found.ports), (Some(Protocol::Tcp), vec![80, 81]));
        assert_eq!((found.destination, found.jump.as_deref()), (None, Some("CNI-DN-1")));
        assert_eq!(found.listed, ListedRule::Legacy(line.strip_prefix("-A D ").unwrap().to_owned()));
        assert_eq!(
            mapping("-A C -p udp -m udp --dport 53 -j DNAT --to-destination 10.9.0.2:53").as_deref(),
            Some("udp port 53 to 10.9.0.2:53")
        );
        assert_eq!(
            mapping("-A C -d fd00::1/128 -p 132 -m sctp --dport 9 -j DNAT --to-destination [fd00::2]:8").as_deref(),
            Some("sctp [fd00::1]:9 to [fd00::2]:8")
        );
        assert_eq!(mapping("-A C -s 10.9.0.0/24 -p tcp -m tcp --dport 80 -j CNI-HOSTPORT-SETMARK"), None);
        assert_eq!(mapping("-A C -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.9.0.2-10.9.0.3:80"), None);
        let found = read("-A M -m mark --mark 0x20/0x20 -j MASQUERADE", "M").unwrap();
        assert_eq!((found.masquerades, found.jump), (Some(0x20), None));
        let found = read("-A M -m comment --comment x -j MARK --set-xmark 0x2000/0x2000", "M").unwrap();
        assert_eq!((found.sets_mark, found.comment.as_str()), (Some(0x2000), "x"));
        for other in [":C - [0:0]", "-A CD -j X", "COMMIT", "", "-A", "-A C"] {
            assert_eq!(read(other, "C"), None, "{other}");
        }
    }

    #[test]
    fn a_rule_before_0_7_0_covers_all_ports() {
        let found = read(&format!("-A D {COMMENT} -j CNI-DN-1"), "D").unwrap();
        assert!(found.covers(Protocol::Tcp, 80) && found.covers(Protocol::Udp, 53));
        let found = read("-A D -p tcp -m multiport --dports 80 -j CNI-DN-1", "D").unwrap();
        assert!(found.covers(Protocol::Tcp, 80));
        assert!(!found.covers(Protocol::Udp, 80) && !found.covers(Protocol::Tcp, 81));
    }

    #[test]
    fn translations_of_all_revisions_are_read() {
        let read_as = |family, revision, info: &[&[u8]]| {
            let dnat = Extension { name: "DNAT".to_owned(), revision, info: info.concat() };
            read_dnat(&dnat, family).map(|to| to.to_string())
        };
        let read = |revision, info: &[&[u8]]| read_as(Family::Ipv4, revision, info);
        let (flags, ports) = (3_u32.to_ne_bytes(), [0, 80, 0, 80]);
        let ip = [10, 9, 0, 2];
        assert_eq!(read(0, &[&1_u32.to_ne_bytes(), &flags, &ip, &ip, &ports, &[0; 4]]).unwrap(), "10.9.0.2:80");
        let wide = [&ip[..], &[0; 12]].concat();
        assert_eq!(read(1, &[&flags, &wide, &wide, &ports]).unwrap(), "10.9.0.2:80");
        assert_eq!(read(2, &[&flags, &wide, &wide, &ports, &[0; 8]]).unwrap(), "10.9.0.2:80");
        let v6 = [&[0xfd][..], &[0; 15]].concat();
        assert_eq!(read_as(Family::Ipv6, 2, &[&flags, &v6, &v6, &ports, &[0; 8]]).unwrap(), "[fd00::]:80");
        assert_eq!(read(2, &[&flags, &v6, &wide, &ports, &[0; 8]]), None, "several addresses");
        assert_eq!(read(2, &[&flags, &wide, &wide, &[0, 80, 0, 90], &[0; 8]]), None, "several ports");
        assert_eq!(read(2, &[&1_u32.to_ne_bytes(), &wide, &wide, &ports, &[0; 8]]), None, "no port");
        for length in 0..40 {
            assert_eq!(read(2, &[&vec![1; length]]), None);
        }
    }
}
