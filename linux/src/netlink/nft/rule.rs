//! Rules: encoding to and decoding from the kernel's expressions.

use std::net::IpAddr;

use super::{Family, HEADER, NESTED, RULE_CHAIN, RULE_HANDLE, TABLE, Table};
use crate::error::Result;
use crate::ip::{Cidr, MacAddr, octets};
use crate::netlink::wire::{self, Request};

// linux/netfilter/nf_tables.h
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_RULE_USERDATA: u16 = 7;
const META_IIFNAME: u32 = 6;
const META_NFPROTO: u32 = 15;
const LINK_HEADER: u32 = 0;
const NETWORK_HEADER: u32 = 1;
const DROP: i32 = 0;
const JUMP: i32 = -3;
const GOTO: i32 = -4;
const RETURN: i32 = -5;
const REGISTER: u32 = 1;
const VERDICT_REGISTER: u32 = 0;
/// The type of a comment in a rule's user data, as defined by `nft`.
const COMMENT: u8 = 0;

/// A part of a rule: a condition or an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// The source address equals this one.
    Source(IpAddr),
    /// The destination is in this network.
    Destination(Cidr),
    /// The destination is outside this network.
    DestinationOutside(Cidr),
    /// The packet arrived on the link with this name.
    InputLink(&'a str),
    /// The source MAC address equals this one.
    SourceMac(MacAddr),
    /// Replaces the source address by that of the outgoing link.
    Masquerade,
    /// Drops the packet.
    Drop,
    /// Leaves the chain.
    Return,
    /// Continues in another chain, then returns.
    Jump(&'a str),
    /// Continues in another chain without returning.
    Goto(&'a str),
}

/// The properties of a listed rule that cni0 uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The kernel's handle of the rule, unique in its table.
    pub handle: u64,
    /// The comment, written by `nft` or `iptables`.
    pub comment: String,
    /// The chain to which the rule jumps.
    pub target: Option<String>,
    /// Whether the rule masquerades.
    pub masquerades: bool,
    /// The values with which the rule compares, in order.
    pub values: Vec<Vec<u8>>,
    table: String,
    chain: String,
}

impl Rule {
    /// Returns whether the rule is in `chain`, or in any chain of the table if `chain` is `None`.
    pub(super) fn is_in(&self, table: Table<'_>, chain: Option<&str>) -> bool {
        self.table == table.name && chain.is_none_or(|chain| self.chain == chain)
    }

    /// Parses a rule; `None` if the message is not a rule.
    pub(in crate::netlink) fn read(payload: &[u8]) -> Result<Option<Rule>> {
        let mut rule = Rule::default();
        for attribute in wire::attributes(payload, HEADER) {
            match attribute? {
                (TABLE, value) => rule.table = wire::text(value),
                (RULE_CHAIN, value) => rule.chain = wire::text(value),
                (RULE_HANDLE, value) => rule.handle = number64(value)?,
                (NFTA_RULE_EXPRESSIONS, list) => {
                    for expression in wire::attributes(list, 0) {
                        rule.read_expression(expression?.1)?;
                    }
                }
                (NFTA_RULE_USERDATA, data) => {
                    if let Some(comment) = read_comment(data) {
                        rule.comment = comment;
                    }
                }
                _ => {}
            }
        }
        Ok((rule.handle != 0).then_some(rule))
    }

    /// Returns the comment of a rule in its user data, without parsing the rest; empty if there is none.
    pub(in crate::netlink) fn comment_of(payload: &[u8]) -> Result<String> {
        for attribute in wire::attributes(payload, HEADER) {
            if let (NFTA_RULE_USERDATA, data) = attribute? {
                return Ok(read_comment(data).unwrap_or_default());
            }
        }
        Ok(String::new())
    }

    fn read_expression(&mut self, expression: &[u8]) -> Result<()> {
        let (mut name, mut data) = (String::new(), &[][..]);
        for attribute in wire::attributes(expression, 0) {
            match attribute? {
                (1, value) => name = wire::text(value),
                (2, value) => data = value,
                _ => {}
            }
        }
        match name.as_str() {
            "cmp" => {
                for (kind, value) in nested(data, &[3])? {
                    if kind == 1 {
                        self.values.push(value.to_vec());
                    }
                }
            }
            "immediate" => {
                for (kind, value) in nested(data, &[2, 2])? {
                    if kind == 2 {
                        self.target = Some(wire::text(value));
                    }
                }
            }
            "masq" => self.masquerades = true,
            // Extensions of iptables: a name, and data that only the extension understands.
            "match" | "target" => {
                let (mut extension, mut info) = (String::new(), &[][..]);
                for (kind, value) in nested(data, &[])? {
                    match kind {
                        1 => extension = wire::text(value),
                        3 => info = value,
                        _ => {}
                    }
                }
                match extension.as_str() {
                    "comment" => self.comment = wire::text(info),
                    "MASQUERADE" => self.masquerades = true,
                    _ => {}
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Returns the attributes at the end of `path`; none if the path does not exist.
fn nested<'a>(mut data: &'a [u8], path: &[u16]) -> Result<Vec<(u16, &'a [u8])>> {
    for step in path {
        let mut inner: &[u8] = &[];
        for attribute in wire::attributes(data, 0) {
            let (kind, value) = attribute?;
            if kind == *step {
                inner = value;
            }
        }
        data = inner;
    }
    wire::attributes(data, 0).collect()
}

fn number64(value: &[u8]) -> Result<u64> {
    let bytes = value.try_into().map_err(|_| wire::malformed("a handle of a strange length"))?;
    Ok(u64::from_be_bytes(bytes))
}

/// Returns the comment in a rule's user data, a list of type, length and value; type and length have one byte each.
fn read_comment(mut data: &[u8]) -> Option<String> {
    while let [kind, len, rest @ ..] = data {
        let value = rest.get(..usize::from(*len))?;
        if *kind == COMMENT {
            return Some(wire::text(value));
        }
        data = rest.get(usize::from(*len)..)?;
    }
    None
}

pub(super) fn comment(request: &mut Request, text: &str) {
    debug_assert!(text.len() <= 253, "the comment {text:?} is too long for a rule");
    request.nest(NFTA_RULE_USERDATA, |data| {
        data.raw(&[COMMENT, u8::try_from(text.len() + 1).unwrap_or(u8::MAX)]);
        data.raw(text.as_bytes());
        data.raw(&[0]);
    });
}

pub(super) fn expressions(request: &mut Request, family: Family, parts: &[Part<'_>]) {
    request.nest(NESTED | NFTA_RULE_EXPRESSIONS, |list| {
        let mut protocol_known = family != Family::Inet;
        for part in parts {
            if let (Some(ip), false) = (part.ip(), protocol_known) {
                // In a family with both protocols, the rule must check the protocol before it reads the header.
                let protocol = if ip.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
                meta(list, META_NFPROTO);
                compare(list, true, &[protocol.number()]);
                protocol_known = true;
            }
            part.encode(list);
        }
    });
}

impl Part<'_> {
    fn ip(&self) -> Option<IpAddr> {
        match self {
            Part::Source(ip) => Some(*ip),
            Part::Destination(net) | Part::DestinationOutside(net) => Some(net.ip()),
            _ => None,
        }
    }

    fn encode(&self, list: &mut Request) {
        match *self {
            Part::Source(ip) => {
                let offset = if ip.is_ipv4() { 12 } else { 8 };
                let value = octets(ip);
                payload(list, NETWORK_HEADER, offset, value.len());
                compare(list, true, &value);
            }
            Part::Destination(net) => destination(list, net, true),
            Part::DestinationOutside(net) => destination(list, net, false),
            Part::InputLink(name) => {
                let mut padded = name.as_bytes().to_vec();
                padded.resize(libc::IFNAMSIZ, 0);
                meta(list, META_IIFNAME);
                compare(list, true, &padded);
            }
            Part::SourceMac(mac) => {
                payload(list, LINK_HEADER, 6, mac.0.len());
                compare(list, true, &mac.0);
            }
            Part::Masquerade => expression(list, "masq", |_| ()),
            Part::Drop => verdict(list, DROP, None),
            Part::Return => verdict(list, RETURN, None),
            Part::Jump(chain) => verdict(list, JUMP, Some(chain)),
            Part::Goto(chain) => verdict(list, GOTO, Some(chain)),
        }
    }
}

/// Matches the destination as `nft` does: a prefix of whole bytes is loaded and compared, any other is masked first.
fn destination(list: &mut Request, net: Cidr, inside: bool) {
    let offset = if net.ip().is_ipv4() { 16 } else { 24 };
    let network = octets(net.network().ip());
    let bits = usize::from(net.prefix());
    // A prefix of zero bits has no bytes to load, so it is masked too.
    let whole = bits.is_multiple_of(8) && bits > 0;
    let len = if whole { bits / 8 } else { network.len() };
    payload(list, NETWORK_HEADER, offset, len);
    if !whole {
        let mask: Vec<u8> = (0..network.len())
            .map(|byte| match bits.saturating_sub(byte * 8) {
                0 => 0,
                left if left >= 8 => u8::MAX,
                left => u8::MAX << (8 - left),
            })
            .collect();
        bitwise(list, &mask);
    }
    compare(list, inside, network.get(..len).unwrap_or_default());
}

fn expression(list: &mut Request, name: &str, data: impl FnOnce(&mut Request)) {
    const NFTA_LIST_ELEM: u16 = 1;
    list.nest(NESTED | NFTA_LIST_ELEM, |element| {
        element.text(1_u16, name);
        element.nest(NESTED | 2, data);
    });
}

/// Adds a number to an expression.
fn number(data: &mut Request, kind: u16, value: u32) {
    data.attr(kind, &value.to_be_bytes());
}

/// Adds a value to an expression.
fn value(data: &mut Request, kind: u16, value: &[u8]) {
    data.nest(NESTED | kind, |data| data.attr(1_u16, value));
}

fn meta(list: &mut Request, key: u32) {
    expression(list, "meta", |data| {
        number(data, 2, key);
        number(data, 1, REGISTER);
    });
}

fn payload(list: &mut Request, base: u32, offset: u32, len: usize) {
    expression(list, "payload", |data| {
        number(data, 1, REGISTER);
        number(data, 2, base);
        number(data, 3, offset);
        number(data, 4, length(len));
    });
}

fn bitwise(list: &mut Request, mask: &[u8]) {
    expression(list, "bitwise", |data| {
        number(data, 1, REGISTER);
        number(data, 2, REGISTER);
        number(data, 3, length(mask.len()));
        value(data, 4, mask);
        value(data, 5, &vec![0; mask.len()]);
    });
}

fn compare(list: &mut Request, equal: bool, with: &[u8]) {
    expression(list, "cmp", |data| {
        number(data, 1, REGISTER);
        number(data, 2, u32::from(!equal));
        value(data, 3, with);
    });
}

fn verdict(list: &mut Request, code: i32, chain: Option<&str>) {
    expression(list, "immediate", |data| {
        number(data, 1, VERDICT_REGISTER);
        data.nest(NESTED | 2, |value| {
            value.nest(NESTED | 2, |verdict| {
                verdict.attr(1_u16, &code.to_be_bytes());
                if let Some(chain) = chain {
                    verdict.text(2_u16, chain);
                }
            });
        });
    });
}

/// Converts a length for an expression. No value is longer than a name.
fn length(len: usize) -> u32 {
    u32::try_from(len).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_back(family: Family, parts: &[Part<'_>], text: &str) -> Rule {
        let chain = Table { family, name: "t" }.chain("c");
        let mut request = super::super::about_rule(6, neli::consts::nl::NlmF::empty(), chain);
        request.attr(RULE_HANDLE, &7_u64.to_be_bytes());
        expressions(&mut request, family, parts);
        comment(&mut request, text);
        Rule::read(&request.finish()[16..]).unwrap().unwrap()
    }

    #[test]
    fn a_rule_is_read_back_as_it_was_written() {
        let ip: IpAddr = "10.1.0.2".parse().unwrap();
        let net: Cidr = "10.1.0.2/20".parse().unwrap();
        let parts = [Part::Source(ip), Part::DestinationOutside(net), Part::Masquerade];
        let rule = read_back(Family::Inet, &parts, "x, net: n");
        assert_eq!(rule.handle, 7);
        assert_eq!(rule.comment, "x, net: n");
        assert!(rule.masquerades);
        assert_eq!(rule.values, [vec![2], vec![10, 1, 0, 2], vec![10, 1, 0, 0]]);

        let parts = [Part::InputLink("veth1"), Part::Jump("next")];
        let rule = read_back(Family::Bridge, &parts, "");
        assert_eq!(rule.target.as_deref(), Some("next"));
        assert_eq!(wire::text(&rule.values[0]), "veth1");
    }

    #[test]
    fn a_prefix_of_whole_bytes_is_loaded_and_any_other_masked() {
        for (net, value) in [
            ("10.1.2.3/24", vec![10, 1, 2]),
            ("10.1.2.3/32", vec![10, 1, 2, 3]),
            ("10.1.2.3/23", vec![10, 1, 2, 0]),
            ("0.0.0.0/0", vec![0; 4]),
            ("fd00::/8", vec![0xfd]),
        ] {
            let net: Cidr = net.parse().unwrap();
            let rule = read_back(Family::Inet, &[Part::Destination(net)], "");
            assert_eq!(rule.values[1], value, "{net}");
        }
    }
}
