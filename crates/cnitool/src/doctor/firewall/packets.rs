//! The packets of containers, as far as their properties are known, and which of them a rule matches. Without I/O.

use std::net::IpAddr;

use linux::ip::Cidr;
use linux::netlink::nft::{Condition, ConnectionStates, Family, LinkPattern, Property, Side};

use super::PacketPath;
use super::path::Rule;
use crate::node::{Network, Node};

/// The priority of the chains that replace the source of packets. Later chains see the address of the host.
const SOURCE_NAT: i32 = 100;

/// Packets from or to the containers on a bridge, as far as their properties are known.
#[derive(Clone, Debug, Default)]
pub(super) struct Packets {
    /// The links on which they arrive and leave.
    pub(super) links: [Option<Vec<String>>; 2],
    /// The bridges on whose ports they arrive and leave.
    pub(super) bridges: [Option<Vec<String>>; 2],
    /// The networks of their source and destination.
    pub(super) addresses: [Option<Vec<Cidr>>; 2],
    pub(super) families: Vec<Family>,
    /// The states of their connections.
    pub(super) states: Option<ConnectionStates>,
    /// Their destination port. Rules are about these packets only if they name it.
    pub(super) port: Option<u16>,
    /// The number of their transport protocol.
    pub(super) protocol: Option<u8>,
    /// Whether their destination is an address of this host.
    pub(super) to_host: Option<bool>,
}

/// Which packets a condition or a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Match {
    All,
    Part,
    /// It depends on something that is not examined, such as the state of the connection.
    Unknown,
    None,
}

impl Match {
    /// Returns the match of a packet that has any of several properties.
    fn any(outcomes: impl Iterator<Item = Match>) -> Match {
        outcomes.min().unwrap_or(Match::None)
    }

    /// Returns the match of a property that these packets have or not.
    fn of(outcomes: impl Iterator<Item = Match>) -> Match {
        let outcomes: Vec<Match> = outcomes.collect();
        match () {
            () if outcomes.iter().all(|outcome| *outcome == Match::None) => Match::None,
            () if outcomes.iter().all(|outcome| *outcome == Match::All) => Match::All,
            () => Match::Part,
        }
    }

    fn negate(self) -> Match {
        match self {
            Match::All => Match::None,
            Match::None => Match::All,
            other => other,
        }
    }
}

impl From<bool> for Match {
    fn from(is_matched: bool) -> Match {
        if is_matched { Match::All } else { Match::None }
    }
}

impl Packets {
    /// Returns which packets a rule matches, and whether it is about containers: about their links or addresses.
    pub(super) fn compare(&self, rule: &Rule) -> (Match, bool) {
        let mut is_about = false;
        let mut all = Match::All;
        for Condition { is_negated, property } in &rule.conditions {
            let (outcome, names) = self.compare_property(property);
            let names = names && (self.port.is_none() || is_port(property));
            is_about |= names && !is_negated && outcome < Match::Unknown;
            // One condition that no packet has decides.
            all = all.max(if *is_negated { outcome.negate() } else { outcome });
        }
        (all, is_about)
    }

    fn compare_property(&self, property: &Property) -> (Match, bool) {
        match property {
            Property::Link(side, pattern) => compare_links(of_side(&self.links, *side), pattern),
            Property::Bridge(side, pattern) => compare_links(of_side(&self.bridges, *side), pattern),
            Property::Address(side, net) => match of_side(&self.addresses, *side) {
                Some(own) => (Match::of(own.iter().map(|own| compare_networks(*own, *net))), net.prefix() > 0),
                None => (Match::Part, false),
            },
            Property::Family(family) => {
                let is_same = |own: &Family| Match::from(own == family || *family == Family::Inet);
                (Match::of(self.families.iter().map(is_same)), false)
            }
            Property::AddressRange(side, first, last) => match of_side(&self.addresses, *side) {
                Some(own) => (Match::of(own.iter().map(|own| compare_range(*own, *first, *last))), true),
                None => (Match::Part, false),
            },
            Property::Protocol => (Match::Part, false),
            Property::TransportProtocol(number) => {
                (self.protocol.map_or(Match::Part, |own| Match::from(own == *number)), false)
            }
            Property::DestinationPort(first, last) => match self.port {
                Some(port) => (Match::from((*first..=*last).contains(&port)), true),
                None => (Match::Part, false),
            },
            Property::State(states) => match self.states {
                Some(own) => (Match::from(own.0 & states.0 != 0), false),
                None => (Match::Unknown, false),
            },
            Property::ToHost => (self.to_host.map_or(Match::Unknown, Match::from), false),
            Property::AnyOf(properties) => {
                let outcomes: Vec<_> = properties.iter().map(|property| self.compare_property(property)).collect();
                let names = outcomes.iter().any(|(outcome, names)| *names && *outcome < Match::Unknown);
                (Match::any(outcomes.into_iter().map(|(outcome, _)| outcome)), names)
            }
            Property::InSet(_) | Property::Other => (Match::Unknown, false),
        }
    }
}

/// Returns whether the property is a destination port, or one of several.
fn is_port(property: &Property) -> bool {
    match property {
        Property::AnyOf(all) => all.iter().all(is_port),
        property => matches!(property, Property::DestinationPort(..)),
    }
}

fn of_side<T>([from, to]: &[Option<T>; 2], side: Side) -> Option<&T> {
    match side {
        Side::From => from.as_ref(),
        Side::To => to.as_ref(),
    }
}

/// Compares the names of links. A prefix that every name has says nothing about containers.
fn compare_links(own: Option<&Vec<String>>, pattern: &LinkPattern) -> (Match, bool) {
    let Some(own) = own else { return (Match::Part, false) };
    match pattern {
        LinkPattern::Name(name) => (Match::of(own.iter().map(|link| Match::from(link == name))), true),
        LinkPattern::Prefix(start) => {
            (Match::of(own.iter().map(|link| Match::from(link.starts_with(start)))), !start.is_empty())
        }
        LinkPattern::Index(_) => (Match::Unknown, false),
    }
}

/// Compares the network of packets with that of a condition.
fn compare_networks(own: Cidr, net: Cidr) -> Match {
    match (net.contains(own.ip()) && net.prefix() <= own.prefix(), own.contains(net.ip())) {
        (true, _) => Match::All,
        (false, true) => Match::Part,
        (false, false) => Match::None,
    }
}

/// Compares the network of packets with the addresses from the first to the last.
fn compare_range(own: Cidr, first: IpAddr, last: IpAddr) -> Match {
    let number = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    if own.ip().is_ipv4() != first.is_ipv4() {
        return Match::None;
    }
    let bits = Cidr::host(own.ip()).prefix() - own.prefix();
    let start = number(own.network().ip());
    let end = start | 1_u128.checked_shl(bits.into()).map_or(u128::MAX, |size| size - 1);
    match (number(first), number(last)) {
        (first, last) if first <= start && end <= last => Match::All,
        (first, last) if last < start || end < first => Match::None,
        _ => Match::Part,
    }
}

/// What decides which packets pass a chain.
pub(super) struct Surroundings<'a> {
    pub(super) node: &'a Node,
    /// The link of the preferred default route.
    pub(super) uplink: Option<&'a str>,
    /// The priority of the chain.
    pub(super) priority: i32,
}

impl Surroundings<'_> {
    /// Returns the packets of a network that pass a chain, in each direction: from the bridge, and to it.
    pub(super) fn packets(
        &self,
        place: PacketPath,
        network: &Network,
        bridge: &str,
        families: &[Family],
    ) -> Vec<(Side, Packets)> {
        let node = self.node;
        let ranges = || network.ranges.iter().flatten();
        let gateways = subnets(network).map(|_| ranges().map(|range| Cidr::host(range.gateway)).collect());
        let of_bridge = || Some(vec![bridge.to_owned()]);
        let ports = || {
            let ports = node.link(bridge).into_iter().flat_map(|bridge| node.ports(bridge));
            Some(ports.map(|port| port.name.clone()).collect())
        };
        let families = families.to_vec();
        // The first packet of a connection must pass, and no state lets it.
        let states = Some(ConnectionStates(ConnectionStates::NEW));
        let from =
            Packets { addresses: [subnets(network), None], families: families.clone(), states, ..Packets::default() };
        let to = Packets { addresses: [None, subnets(network)], families, ..Packets::default() };
        match place {
            // The bridge on which packets to a container leave is not known yet.
            PacketPath::Prerouting => {
                vec![(Side::From, Packets { links: [of_bridge(), None], ..from }), (Side::To, to)]
            }
            PacketPath::Forward => vec![
                (Side::From, Packets { links: [of_bridge(), None], ..from }),
                (Side::To, Packets { links: [None, of_bridge()], ..to }),
            ],
            PacketPath::Postrouting => {
                let from = Some(Packets { links: [of_bridge(), None], ..from }).filter(|_| self.priority < SOURCE_NAT);
                let from = from.map(|from| (Side::From, from));
                from.into_iter().chain([(Side::To, Packets { links: [None, of_bridge()], ..to })]).collect()
            }
            PacketPath::Input => {
                let [source, _] = from.addresses;
                let addresses = [source, gateways];
                vec![(Side::From, Packets { links: [of_bridge(), None], addresses, states, ..to })]
            }
            PacketPath::WithinBridge | PacketPath::BridgeToHost => vec![
                (Side::From, Packets { links: [ports(), None], bridges: [of_bridge(), None], states: None, ..from }),
                (Side::To, Packets { links: [None, ports()], bridges: [None, of_bridge()], ..to }),
            ],
        }
    }

    /// Returns the packets of new connections from a network that leave by the uplink, and the answers.
    pub(super) fn by_uplink(
        &self,
        place: PacketPath,
        network: &Network,
        bridge: &str,
        families: &[Family],
    ) -> Vec<Packets> {
        let Some(uplink) = self.uplink else { return Vec::new() };
        let states = |states| Some(ConnectionStates(states));
        let link = |name: &str| Some(vec![name.to_owned()]);
        let families = families.to_vec();
        let request = Packets {
            links: [link(bridge), link(uplink)],
            addresses: [subnets(network), None],
            families: families.clone(),
            states: states(ConnectionStates::NEW),
            ..Packets::default()
        };
        let answer = Packets {
            links: [link(uplink), link(bridge)],
            addresses: [None, subnets(network)],
            families,
            states: states(ConnectionStates::ESTABLISHED),
            ..Packets::default()
        };
        match place {
            PacketPath::Forward => vec![request, answer],
            // Later, it has the address of the host.
            PacketPath::Postrouting if self.priority < SOURCE_NAT => vec![request, answer],
            PacketPath::Postrouting => vec![Packets { addresses: [None, None], ..request }, answer],
            _ => Vec::new(),
        }
    }
}

/// Returns the subnets of a network, if they are known.
fn subnets(network: &Network) -> Option<Vec<Cidr>> {
    let subnets: Vec<Cidr> = network.ranges.iter().flatten().map(|range| range.subnet).collect();
    (!subnets.is_empty()).then_some(subnets)
}
