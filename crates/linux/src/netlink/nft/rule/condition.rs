//! The conditions of a listed rule, as far as they are about links, addresses and protocols.

use super::{FieldComparison, Rule};
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
    /// The transport protocol, or a port or type of it.
    Protocol,
    /// Anything else, such as the state of the connection.
    Other,
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
        let matches = self.extensions.iter().map(|extension| extension.name.as_str()).filter(is_match);
        let matches = matches.filter(|name| *name != "comment").map(|name| match name {
            "tcp" | "udp" | "udplite" | "sctp" | "dccp" | "icmp" | "icmp6" | "multiport" => Property::Protocol,
            _ => Property::Other,
        });
        let is_condition = |name: &&String| !STATEMENTS.contains(&name.as_str());
        let others = self.others.iter().filter(is_condition).map(|_| Property::Other);
        let unnegated = matches.chain(others).map(|property| Condition { is_negated: false, property });
        self.comparisons.iter().map(FieldComparison::condition).chain(unnegated).collect()
    }
}

/// Expressions that act on a packet or decide about it.
const STATEMENTS: [&str; 9] = ["reject", "log", "nat", "masq", "redir", "notrack", "dup", "fwd", "meta"];

impl FieldComparison {
    fn condition(&self) -> Condition {
        Condition { is_negated: self.how == Comparison::NotEqual, property: self.property() }
    }

    fn property(&self) -> Property {
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
            Some(origin) if origin == Field::PROTOCOL.origin => Property::Protocol,
            Some(Origin::Payload(Header::Transport, _)) => Property::Protocol,
            Some(Origin::Payload(Header::Network, offset)) if PROTOCOL_OFFSETS.contains(&offset) => Property::Protocol,
            _ => Property::Other,
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
        assert!(conditions(&spec).iter().all(|condition| condition.property == Property::Protocol));
        let spec = rule(Family::Ipv4).compat_match("conntrack", 3, &[1, 0]).verdict(Verdict::Drop);
        assert_eq!(conditions(&spec), [has(Property::Other)]);
        let spec = rule(Family::Ipv4).compat_match("tcp", 0, &[1, 0]).compat_match("comment", 0, b"c\0");
        assert_eq!(conditions(&spec.compat_target("REJECT", 0, &[0; 4])), [has(Property::Protocol)]);
        let spec = rule(Family::Ipv4).in_set(&[Field::DESTINATION_V4], "s").verdict(Verdict::Drop);
        assert_eq!(conditions(&spec), [has(Property::Other)]);
        let state = rule(Family::Ipv4).matches(Field::CONNECTION_STATE, Comparison::Equal, &[0, 0, 0, 1]);
        assert!(conditions(&state).contains(&has(Property::Other)));
        assert_eq!(conditions(&rule(Family::Ipv4).expression("reject", |_| ())), []);
    }
}
