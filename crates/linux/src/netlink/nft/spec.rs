//! Rules to add: a builder that appends one expression after the other.

use std::net::{IpAddr, SocketAddr};

use super::expression::{Attributes, Comparison, Field, Origin, Register, Verdict};
use super::message::{RULE_EXPRESSIONS, RULE_USERDATA};
use super::table::{Chain, Family};
use super::userdata::UserData;
use crate::ip::{Cidr, MacAddr, octets};
use crate::netlink::wire::{NESTED, Request};

// linux/netfilter/nf_tables.h
const NFTA_LIST_ELEM: u16 = 1;
const NFTA_RULE_COMPAT: u16 = 5;
/// linux/netfilter/nf_nat.h: the port is specified as well.
const NAT_PORT: u32 = 1 << 1;

/// A rule to add to a chain: the expressions that a packet passes in order, and the user data.
///
/// Each method appends an expression or sets user data: `RuleSpec::new(chain).source(ip).masquerade().comment("c1")`.
#[derive(Debug)]
#[must_use]
pub struct RuleSpec<'a> {
    pub(super) chain: Chain<'a>,
    pub(super) expressions: Request,
    /// Whether the packets are known to have the protocol whose header the rule reads.
    pub(super) protocol_known: bool,
    compat_protocol: Option<u8>,
    pub(super) userdata: UserData,
}

impl<'a> RuleSpec<'a> {
    /// Starts a rule without expressions, which every packet passes.
    pub fn new(chain: Chain<'a>) -> RuleSpec<'a> {
        RuleSpec {
            chain,
            expressions: Request::part(),
            protocol_known: chain.table.family != Family::Inet,
            compat_protocol: None,
            userdata: UserData::default(),
        }
    }

    /// Sets the comment, of at most 253 bytes together with the mark.
    pub fn comment(mut self, comment: impl Into<String>) -> Self {
        self.userdata.comment = comment.into();
        self
    }

    /// Sets the mark, a text that the tools do not show. [`Rule::mark`](super::Rule::mark) returns it.
    pub fn mark(mut self, mark: impl Into<String>) -> Self {
        self.userdata.mark = mark.into();
        self
    }

    /// Sets the transport protocol that the rule matches, which some matches of iptables require: `multiport`.
    pub fn compat_protocol(mut self, protocol: u8) -> Self {
        self.compat_protocol = Some(protocol);
        self
    }

    /// Appends the attributes of the rule to a message.
    pub(super) fn write(&self, request: &mut Request) {
        request.attr(NESTED | RULE_EXPRESSIONS, self.expressions.bytes());
        if let Some(protocol) = self.compat_protocol {
            request.nest(NESTED | NFTA_RULE_COMPAT, |compat| {
                compat.attr(1_u16, &u32::from(protocol).to_be_bytes());
                compat.attr(2_u16, &[0; 4]);
            });
        }
        self.userdata.write(request, RULE_USERDATA);
    }
}

/// Matches of packets.
impl RuleSpec<'_> {
    /// Matches packets from this address.
    pub fn source(self, ip: IpAddr) -> Self {
        self.source_in(Cidr::host(ip))
    }

    /// Matches packets from this network.
    pub fn source_in(self, net: Cidr) -> Self {
        self.address(Field::source(net.ip()), Comparison::Equal, net)
    }

    /// Matches packets from sources outside of this network.
    pub fn source_outside(self, net: Cidr) -> Self {
        self.address(Field::source(net.ip()), Comparison::NotEqual, net)
    }

    /// Matches packets to this network.
    pub fn destination_in(self, net: Cidr) -> Self {
        self.address(Field::destination(net.ip()), Comparison::Equal, net)
    }

    /// Matches packets to destinations outside of this network.
    pub fn destination_outside(self, net: Cidr) -> Self {
        self.address(Field::destination(net.ip()), Comparison::NotEqual, net)
    }

    /// Matches packets that arrived on this link.
    pub fn input_link(self, name: &str) -> Self {
        self.matches(Field::INPUT_LINK, Comparison::Equal, &padded(name))
    }

    /// Matches packets that leave on this link.
    pub fn output_link(self, name: &str) -> Self {
        self.matches(Field::OUTPUT_LINK, Comparison::Equal, &padded(name))
    }

    /// Matches packets that arrived on another link.
    pub fn input_link_not(self, name: &str) -> Self {
        self.matches(Field::INPUT_LINK, Comparison::NotEqual, &padded(name))
    }

    /// Matches packets that leave on another link.
    pub fn output_link_not(self, name: &str) -> Self {
        self.matches(Field::OUTPUT_LINK, Comparison::NotEqual, &padded(name))
    }

    /// Matches frames from this MAC address.
    pub fn source_mac(self, mac: MacAddr) -> Self {
        self.matches(Field::SOURCE_MAC, Comparison::Equal, &mac.0)
    }

    /// Matches packets to this port of a transport protocol.
    pub fn destination_port(self, protocol: u8, port: u16) -> Self {
        self.matches(Field::PROTOCOL, Comparison::Equal, &[protocol]).matches(
            Field::DESTINATION_PORT,
            Comparison::Equal,
            &port.to_be_bytes(),
        )
    }

    /// Matches packets to an address of this host.
    pub fn destination_is_local(self) -> Self {
        self.matches(Field::DESTINATION_TYPE, Comparison::Equal, &Field::LOCAL.to_ne_bytes())
    }

    /// Matches packets of an address family, in a table with both.
    pub fn family(mut self, family: Family) -> Self {
        self.protocol_known = true;
        self.matches(Field::NETWORK_PROTOCOL, Comparison::Equal, &[family.number()])
    }

    /// Matches packets by comparing a field with a value.
    pub fn matches(self, field: Field, how: Comparison, value: &[u8]) -> Self {
        self.load(field, Register::FIRST).compare(Register::FIRST, how, value)
    }

    /// Matches packets whose field, masked with `mask`, is `value`.
    pub fn matches_bits(self, field: Field, mask: u32, value: u32) -> Self {
        self.load(field, Register::FIRST).mask(Register::FIRST, &mask.to_ne_bytes()).compare(
            Register::FIRST,
            Comparison::Equal,
            &value.to_ne_bytes(),
        )
    }

    /// Matches packets whose field has at least one of the bits in `mask`.
    pub fn matches_any_bit(self, field: Field, mask: u32) -> Self {
        self.load(field, Register::FIRST).mask(Register::FIRST, &mask.to_ne_bytes()).compare(
            Register::FIRST,
            Comparison::NotEqual,
            &[0; 4],
        )
    }

    /// Matches packets whose concatenated fields are in a set.
    pub fn in_set(self, fields: &[Field], set: &str) -> Self {
        self.load_all(fields).lookup(set, None, false)
    }

    /// Matches packets whose concatenated fields are not in a set.
    pub fn not_in_set(self, fields: &[Field], set: &str) -> Self {
        self.load_all(fields).lookup(set, None, true)
    }

    /// Matches packets whose concatenated fields are a key of a map, and loads its value into the first register.
    pub fn map(self, fields: &[Field], map: &str) -> Self {
        self.load_all(fields).lookup(map, Some(Register::FIRST), false)
    }

    /// Decides by the verdict that a map has for the concatenated fields. Continues if it has none.
    pub fn verdict_map(self, fields: &[Field], map: &str) -> Self {
        self.load_all(fields).lookup(map, Some(Register::VERDICT), false)
    }

    /// Matches an address as `nft` does: a prefix of whole bytes is loaded and compared, any other is masked first.
    fn address(self, field: Field, how: Comparison, net: Cidr) -> Self {
        let network = octets(net.network().ip());
        let bits = usize::from(net.prefix());
        // A prefix of zero bits has no bytes to load, so it is masked too.
        if bits.is_multiple_of(8) && bits > 0 {
            let prefix = network.get(..bits / 8).unwrap_or_default();
            return self.matches(Field { len: length(prefix.len()), ..field }, how, prefix);
        }
        let mask: Vec<u8> = (0..network.len())
            .map(|byte| match bits.saturating_sub(byte * 8) {
                0 => 0,
                left if left >= 8 => u8::MAX,
                left => u8::MAX << (8 - left),
            })
            .collect();
        self.load(field, Register::FIRST).mask(Register::FIRST, &mask).compare(Register::FIRST, how, &network)
    }
}

/// Actions.
impl RuleSpec<'_> {
    /// Decides about the packet.
    pub fn verdict(self, verdict: Verdict) -> Self {
        self.expression("immediate", |data| {
            data.register(1, Register::VERDICT);
            data.verdict(2, &verdict);
        })
    }

    /// Continues in another chain, then returns.
    pub fn jump(self, chain: &str) -> Self {
        self.verdict(Verdict::Jump(chain.to_owned()))
    }

    /// Continues in another chain without returning.
    pub fn goto(self, chain: &str) -> Self {
        self.verdict(Verdict::Goto(chain.to_owned()))
    }

    /// Replaces the source address by that of the outgoing link.
    pub fn masquerade(self) -> Self {
        self.expression("masq", |_| ())
    }

    /// Replaces the destination.
    pub fn translate_destination(self, to: SocketAddr) -> Self {
        self.immediate(Register::FIRST, &octets(to.ip()))
            .immediate(Register::SECOND, &to.port().to_be_bytes())
            .destination_nat(Family::of(to.ip()), Register::FIRST, Register::SECOND, NAT_PORT)
    }

    /// Replaces the destination by the address and port that a map has for the concatenated fields.
    pub fn translate_destination_by(self, family: Family, fields: &[Field], map: &str) -> Self {
        let port = if family == Family::Ipv6 { 4 } else { 1 };
        self.map(fields, map).destination_nat(family, Register::FIRST, Register::at_word(port), 0)
    }

    fn destination_nat(self, family: Family, address: Register, port: Register, flags: u32) -> Self {
        const DESTINATION: u32 = 1;
        self.expression("nat", |data| {
            data.number(1, DESTINATION);
            data.number(2, u32::from(family.number()));
            data.register(3, address);
            data.register(5, port);
            if flags != 0 {
                data.number(7, flags);
            }
        })
    }

    /// Replaces the destination by a port of this host.
    pub fn redirect(self, port: u16) -> Self {
        self.immediate(Register::FIRST, &port.to_be_bytes()).expression("redir", |data| {
            data.register(1, Register::FIRST);
            data.number(3, NAT_PORT);
        })
    }

    /// Sets the packet mark.
    pub fn set_packet_mark(self, mark: u32) -> Self {
        self.immediate(Register::FIRST, &mark.to_ne_bytes()).expression("meta", |data| {
            data.number(2, 3);
            data.register(3, Register::FIRST);
        })
    }

    /// Sets bits of the packet mark.
    pub fn set_mark_bits(self, bits: u32) -> Self {
        self.change_mark(bits, bits)
    }

    /// Clears bits of the packet mark.
    pub fn clear_mark_bits(self, bits: u32) -> Self {
        self.change_mark(bits, 0)
    }

    /// Replaces the bits in `mask` of the packet mark by those of `value`.
    fn change_mark(self, mask: u32, value: u32) -> Self {
        self.load(Field::PACKET_MARK, Register::FIRST)
            .bitwise(Register::FIRST, &(!mask).to_ne_bytes(), &value.to_ne_bytes())
            .expression("meta", |data| {
                data.number(2, 3);
                data.register(3, Register::FIRST);
            })
    }

    /// Adds the concatenated fields to a set, unless it has them or is full.
    pub fn add_to_set(self, fields: &[Field], set: &str) -> Self {
        self.load_all(fields).expression("dynset", |data| {
            data.register(4, Register::FIRST);
            data.number(3, 0);
            data.text(1, set);
        })
    }

    /// Counts the packets that come this far.
    pub fn counter(self) -> Self {
        self.expression("counter", |_| ())
    }

    /// Adds a match of iptables. `info` is the structure of the match in the layout of `revision`.
    pub fn compat_match(self, name: &str, revision: u32, info: &[u8]) -> Self {
        self.extension("match", name, revision, info)
    }

    /// Adds a target of iptables. `info` is the structure of the target in the layout of `revision`.
    pub fn compat_target(self, name: &str, revision: u32, info: &[u8]) -> Self {
        self.extension("target", name, revision, info)
    }

    fn extension(self, kind: &str, name: &str, revision: u32, info: &[u8]) -> Self {
        self.expression(kind, |data| {
            data.text(1, name);
            data.number(2, revision);
            data.bytes(3, info);
        })
    }
}

/// Single expressions, of which the methods above consist.
impl RuleSpec<'_> {
    /// Loads a field into a register.
    pub fn load(mut self, field: Field, into: Register) -> Self {
        if let Some(protocol) = field.protocol.filter(|_| !self.protocol_known) {
            // In a family with both protocols, the rule must check the protocol before it reads the header.
            self.protocol_known = true;
            self = self.matches(Field::NETWORK_PROTOCOL, Comparison::Equal, &[protocol.number()]);
        }
        match field.origin {
            Origin::Meta(key) => self.expression("meta", |data| {
                data.number(2, key);
                data.register(1, into);
            }),
            Origin::Payload(header, offset) => self.expression("payload", |data| {
                data.register(1, into);
                data.number(2, header as u32);
                data.number(3, offset);
                data.number(4, field.len);
            }),
            Origin::Connection { key, is_original } => self.expression("ct", |data| {
                data.number(2, key);
                data.register(1, into);
                if is_original {
                    data.bytes(3, &[0]);
                }
            }),
            Origin::Fib { flags, result } => self.expression("fib", |data| {
                data.number(3, flags);
                data.number(2, result);
                data.register(1, into);
            }),
        }
    }

    /// Loads the concatenation of fields into consecutive registers, from the first one on.
    pub fn load_all(mut self, fields: &[Field]) -> Self {
        let mut word = 0;
        for field in fields {
            self = self.load(*field, Register::at_word(word));
            word += field.len.div_ceil(4);
        }
        self
    }

    /// Compares a register with a value.
    pub fn compare(self, register: Register, how: Comparison, with: &[u8]) -> Self {
        self.expression("cmp", |data| {
            data.register(1, register);
            data.number(2, u32::from(how == Comparison::NotEqual));
            data.value(3, with);
        })
    }

    /// Clears the bits of a register that are not in `mask`.
    pub fn mask(self, register: Register, mask: &[u8]) -> Self {
        self.bitwise(register, mask, &vec![0; mask.len()])
    }

    /// Clears the bits of a register that are not in `mask`, then inverts those in `toggle`.
    fn bitwise(self, register: Register, mask: &[u8], toggle: &[u8]) -> Self {
        self.expression("bitwise", |data| {
            data.register(1, register);
            data.register(2, register);
            data.number(3, length(mask.len()));
            data.value(4, mask);
            data.value(5, toggle);
        })
    }

    /// Looks up the first register in a set, or in a map whose value is loaded `into` a register. The rule continues if
    /// the set has it, or if `inverted` and the set does not have it.
    pub fn lookup(self, set: &str, into: Option<Register>, inverted: bool) -> Self {
        self.expression("lookup", |data| {
            data.register(2, Register::FIRST);
            if let Some(into) = into {
                data.register(3, into);
            }
            data.text(1, set);
            if inverted {
                data.number(5, 1);
            }
        })
    }

    /// Loads a value into a register.
    pub fn immediate(self, register: Register, value: &[u8]) -> Self {
        self.expression("immediate", |data| {
            data.register(1, register);
            data.value(2, value);
        })
    }

    /// Adds any expression of the kernel: its name, and its attributes with the numbers of linux/netfilter/nf_tables.h.
    pub fn expression(mut self, name: &str, attributes: impl FnOnce(&mut Attributes<'_>)) -> Self {
        Attributes(&mut self.expressions).nest(NFTA_LIST_ELEM, |element| {
            element.text(1, name);
            element.nest(2, attributes);
        });
        self
    }
}

/// Returns the name of a link as the kernel compares it.
fn padded(name: &str) -> Vec<u8> {
    let mut padded = name.as_bytes().to_vec();
    padded.resize(libc::IFNAMSIZ, 0);
    padded
}

/// Converts a length for an expression. No value is longer than a name.
fn length(len: usize) -> u32 {
    u32::try_from(len).unwrap_or_default()
}
