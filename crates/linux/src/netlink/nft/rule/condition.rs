//! The conditions of a listed rule, as far as they are about links, addresses and protocols.

use std::net::IpAddr;

use super::{Extension, FieldComparison, Lookup, Rule};
use crate::ip::Cidr;
use crate::netlink::nft::expression::{Comparison, Field, Header, Origin};
use crate::netlink::nft::table::Family;
use crate::netlink::wire;

/// A condition of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Whether the packet must not have the property.
    pub is_negated: bool,
    /// The property of the packet.
    pub property: Property,
}

/// A property of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Property {
    /// The link on which the packet arrives or leaves. In a table of family `bridge`, that is a port.
    Link(Side, LinkPattern),
    /// The bridge on whose ports the frame arrives or leaves.
    Bridge(Side, LinkPattern),
    /// The address is in this network.
    Address(Side, Cidr),
    /// The packet is of this family.
    Family(Family),
    /// The address is one of these, the first and the last included.
    AddressRange(Side, IpAddr, IpAddr),
    /// The transport protocol has this number.
    TransportProtocol(u8),
    /// A source port or type of the transport protocol, or several of its ports.
    Protocol,
    /// The destination port is one of these, the first and the last included.
    DestinationPort(u16, u16),
    /// The connection is in one of these states.
    State(ConnectionStates),
    /// The destination is an address of this host.
    ToHost,
    /// The packet has one of these properties.
    AnyOf(Vec<Property>),
    /// The set has a field of the packet; [`Lookup::property`] resolves it.
    InSet(Lookup),
    /// Anything else, such as the state of the connection.
    Other,
}

/// States of connections, as bits of connection tracking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionStates(pub u32);

impl ConnectionStates {
    /// Packets that belong to no connection, and to no possible one.
    pub const INVALID: u32 = 1;
    /// Packets of a connection that has seen packets in both directions.
    pub const ESTABLISHED: u32 = 1 << 1;
    /// The first packets of a connection that belongs to another one, and errors.
    pub const RELATED: u32 = 1 << 2;
    /// The first packets of a connection.
    pub const NEW: u32 = 1 << 3;
}

/// The side of a packet that a property is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Where it comes from: the input link, the source address.
    From,
    /// Where it goes: the output link, the destination address.
    To,
}

/// Which links a condition is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkPattern {
    /// The link of this name.
    Name(String),
    /// The links whose names begin with this text.
    Prefix(String),
    /// The link with this index.
    Index(u32),
}

/// linux/netfilter/nf_tables.h: NFT_META_*
const META_PROTOCOL: u32 = 1;
const META_INPUT_INDEX: u32 = 4;
const META_OUTPUT_INDEX: u32 = 5;
const META_INPUT_BRIDGE: u32 = 17;
const META_OUTPUT_BRIDGE: u32 = 18;
/// linux/if_ether.h: ETH_P_*
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
/// The offset of the protocol in an IPv4 header, and of the next header in an IPv6 header.
const PROTOCOL_OFFSETS: [u32; 2] = [9, 6];

impl Rule {
    /// Returns the conditions under which the rule decides about a packet; none if it decides about all packets.
    pub fn conditions(&self) -> Vec<Condition> {
        // By convention, targets are in upper case.
        let is_match = |name: &&str| name.chars().any(char::is_lowercase);
        let matches = self.extensions.iter().filter(|extension| is_match(&extension.name.as_str()));
        let matches = matches.filter(|extension| extension.name != "comment").map(Extension::condition);
        let is_condition = |name: &&String| !STATEMENTS.contains(&name.as_str());
        let others = self.others.iter().filter(is_condition).map(|_| Property::Other);
        let others = others.map(|property| Condition { is_negated: false, property });
        let sets = self
            .lookups
            .iter()
            .filter(|lookup| !lookup.is_verdict_map())
            .map(|lookup| Condition { is_negated: lookup.is_negated, property: Property::InSet(lookup.clone()) });
        self.comparisons.iter().map(FieldComparison::condition).chain(matches).chain(others).chain(sets).collect()
    }
}

/// Expressions that act on a packet or decide about it. Lookups are conditions of their own.
const STATEMENTS: [&str; 11] =
    ["reject", "log", "nat", "masq", "redir", "notrack", "dup", "fwd", "meta", "ct", "lookup"];

impl Extension {
    /// Returns the condition of a match of iptables.
    fn condition(&self) -> Condition {
        let number = |at: usize| {
            let bytes = self.info.get(at..at + 2).and_then(|bytes| <[u8; 2]>::try_from(bytes).ok());
            bytes.map_or(0, u16::from_ne_bytes)
        };
        let is_set = |at: usize, bit: u8| self.info.get(at).is_some_and(|flags| flags & bit != 0);
        let states = |states: u32| Property::State(ConnectionStates(states));
        // linux/netfilter/xt_tcpudp.h: source ports, destination ports, …, flags that invert
        let of_ports = |inverted: usize| match (number(4), number(6)) {
            (0, u16::MAX) | (0, 0) => (false, Property::Protocol),
            // With other conditions too, such as a source port, it is about some of these packets.
            (first, last) => (is_set(inverted, 2), Property::DestinationPort(first, last)),
        };
        let (is_negated, property) = match (self.name.as_str(), self.revision) {
            ("tcp", 0) => of_ports(11),
            ("udp", 0) => of_ports(8),
            ("tcp" | "udp" | "udplite" | "sctp" | "dccp" | "icmp" | "icmp6" | "multiport", _) => {
                (false, Property::Protocol)
            }
            // linux/netfilter/xt_conntrack.h: only the state is compared; the other bit is for `iptables -m state`
            ("conntrack", 2 | 3) if number(146) & !(1 << 13) == 1 => (number(148) & 1 != 0, states(number(150).into())),
            // linux/netfilter/xt_state.h
            ("state", 0) => (false, states(number(0).into())),
            // linux/netfilter/xt_addrtype.h: the destination, of type RTN_LOCAL
            ("addrtype", 1) if number(0) == 0 && number(2) == 1 << 2 && !is_set(4, 4 | 8) => {
                (is_set(4, 2), Property::ToHost)
            }
            _ => (false, Property::Other),
        };
        Condition { is_negated, property }
    }
}

impl FieldComparison {
    fn condition(&self) -> Condition {
        // `ct state new,established` masks the states, and compares the rest with zero.
        let is_masked_state = self.origin == Some(Field::CONNECTION_STATE.origin) && !self.mask.is_empty();
        Condition { is_negated: (self.how == Comparison::NotEqual) != is_masked_state, property: self.property() }
    }

    /// Returns the property of a packet whose field has the value.
    pub(super) fn property(&self) -> Property {
        let sides = [
            (Side::From, Field::INPUT_LINK, META_INPUT_INDEX, META_INPUT_BRIDGE),
            (Side::To, Field::OUTPUT_LINK, META_OUTPUT_INDEX, META_OUTPUT_BRIDGE),
        ];
        for (side, link, index, bridge) in sides {
            match self.origin {
                Some(origin) if origin == link.origin => return Property::Link(side, self.name_pattern()),
                Some(Origin::Meta(key)) if key == bridge => return Property::Bridge(side, self.name_pattern()),
                Some(Origin::Meta(key)) if key == index => {
                    let index = wire::number(&self.value, 0).map(LinkPattern::Index);
                    return index.map_or(Property::Other, |index| Property::Link(side, index));
                }
                _ => {}
            }
        }
        if let Some(net) = self.source() {
            return Property::Address(Side::From, net);
        }
        if let Some(net) = self.destination() {
            return Property::Address(Side::To, net);
        }
        match self.origin {
            Some(origin) if origin == Field::NETWORK_PROTOCOL.origin => match self.value.as_slice() {
                [number] => Family::numbered(*number).map_or(Property::Other, Property::Family),
                _ => Property::Other,
            },
            Some(Origin::Meta(META_PROTOCOL)) if self.value == ETHERTYPE_IPV4 => Property::Family(Family::Ipv4),
            Some(Origin::Meta(META_PROTOCOL)) if self.value == ETHERTYPE_IPV6 => Property::Family(Family::Ipv6),
            Some(origin) if origin == Field::CONNECTION_STATE.origin => {
                let states = match (self.mask.as_slice(), self.value.iter().all(|byte| *byte == 0)) {
                    ([], _) => wire::number(&self.value, 0),
                    (mask, true) => wire::number(mask, 0),
                    _ => return Property::Other,
                };
                states.map_or(Property::Other, |states| Property::State(ConnectionStates(states)))
            }
            Some(origin) if origin == Field::DESTINATION_TYPE.origin => match wire::number(&self.value, 0) {
                Ok(Field::LOCAL) if self.mask.is_empty() => Property::ToHost,
                _ => Property::Other,
            },
            Some(origin) if origin == Field::DESTINATION_PORT.origin => match self.value.as_slice() {
                [high, low] if self.mask.is_empty() => {
                    let port = u16::from_be_bytes([*high, *low]);
                    Property::DestinationPort(port, port)
                }
                _ => Property::Protocol,
            },
            Some(origin) if origin == Field::PROTOCOL.origin => self.protocol(),
            Some(Origin::Payload(Header::Transport, _)) => Property::Protocol,
            Some(Origin::Payload(Header::Network, offset)) if PROTOCOL_OFFSETS.contains(&offset) => self.protocol(),
            _ => Property::Other,
        }
    }

    fn protocol(&self) -> Property {
        match self.value.as_slice() {
            [number] if self.mask.is_empty() => Property::TransportProtocol(*number),
            _ => Property::Protocol,
        }
    }

    /// Returns the links of a comparison of names: without a NUL, it compares the beginning.
    fn name_pattern(&self) -> LinkPattern {
        let name = wire::text(&self.value);
        if self.value.contains(&0) { LinkPattern::Name(name) } else { LinkPattern::Prefix(name) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::read_back;
    use super::*;
    use crate::netlink::nft::{RuleSpec, Table, Verdict};

    fn conditions(spec: &RuleSpec<'_>) -> Vec<Condition> {
        read_back(spec).conditions()
    }

    fn rule(family: Family) -> RuleSpec<'static> {
        RuleSpec::new(Table { family, name: "t" }.chain("c"))
    }

    fn has(property: Property) -> Condition {
        Condition { is_negated: false, property }
    }

    fn has_not(property: Property) -> Condition {
        Condition { is_negated: true, property }
    }

    #[test]
    fn links_and_addresses_are_distinguished_by_side() {
        let net: Cidr = "10.1.0.0/16".parse().unwrap();
        let name = |name: &str| LinkPattern::Name(name.to_owned());
        let spec = rule(Family::Ipv4).input_link("br0").output_link_not("br1").source_in(net);
        assert_eq!(
            conditions(&spec.verdict(Verdict::Drop)),
            [
                has(Property::Link(Side::From, name("br0"))),
                has_not(Property::Link(Side::To, name("br1"))),
                has(Property::Address(Side::From, net)),
            ]
        );
        let spec = rule(Family::Inet).destination_outside(net).verdict(Verdict::Drop);
        let expected = [has(Property::Family(Family::Ipv4)), has_not(Property::Address(Side::To, net))];
        assert_eq!(conditions(&spec), expected);
        let spec = rule(Family::Ipv4).matches(Field::INPUT_LINK, Comparison::Equal, b"br");
        assert_eq!(conditions(&spec), [has(Property::Link(Side::From, LinkPattern::Prefix("br".to_owned())))]);
        let index = 7_u32.to_ne_bytes();
        let spec = rule(Family::Ipv4).matches(Field::meta(META_OUTPUT_INDEX, 4), Comparison::Equal, &index);
        assert_eq!(conditions(&spec), [has(Property::Link(Side::To, LinkPattern::Index(7)))]);
        let spec = rule(Family::Bridge).matches(Field::meta(META_INPUT_BRIDGE, 16), Comparison::Equal, b"br0\0");
        assert_eq!(conditions(&spec), [has(Property::Bridge(Side::From, name("br0")))]);
        let spec = rule(Family::Bridge).matches(Field::meta(META_PROTOCOL, 2), Comparison::Equal, &ETHERTYPE_IPV6);
        assert_eq!(conditions(&spec), [has(Property::Family(Family::Ipv6))]);
    }

    #[test]
    fn other_conditions_are_not_taken_for_known_ones() {
        let spec = rule(Family::Ipv4).destination_port(6, 80).verdict(Verdict::Drop);
        assert_eq!(conditions(&spec), [has(Property::TransportProtocol(6)), has(Property::DestinationPort(80, 80))]);
        let spec = rule(Family::Ipv4).compat_match("conntrack", 3, &[1, 0]).verdict(Verdict::Drop);
        assert_eq!(conditions(&spec), [has(Property::Other)]);
        let spec = rule(Family::Ipv4).compat_match("tcp", 0, &[1, 0]).compat_match("comment", 0, b"c\0");
        assert_eq!(conditions(&spec.compat_target("REJECT", 0, &[0; 4])), [has(Property::Protocol)]);
        let state = rule(Family::Ipv4).matches(Field::CONNECTION_STATUS, Comparison::Equal, &[0, 0, 0, 1]);
        assert_eq!(conditions(&state), [has(Property::Other)]);
        assert_eq!(conditions(&rule(Family::Ipv4).expression("reject", |_| ())), []);
    }
}
