//! The expressions of a rule, encoded as `nft` and `iptables-nft` encode them.
//!
//! A packet passes the expressions of a rule in order. Some load a [`Field`] of the packet into a [`Register`], others
//! compare a register and end the rule if the comparison fails, others act. [`RuleSpec::expression`] adds any
//! expression that has no method of its own.

use std::net::{IpAddr, SocketAddr};

use super::rule::RuleSpec;
use super::{Family, NESTED};
use crate::error::Result;
use crate::ip::{Cidr, MacAddr, octets};
use crate::netlink::wire::{self, Request};

// linux/netfilter/nf_tables.h
const NFTA_LIST_ELEM: u16 = 1;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;
/// linux/netfilter/nf_nat.h: the port is specified as well.
const NAT_PORT: u32 = 1 << 1;

/// A register, which has a value between two expressions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register(u32);

impl Register {
    /// The register of a verdict, which decides about the packet.
    pub const VERDICT: Register = Register(0);
    /// The first register for data.
    pub const FIRST: Register = Register(1);
    /// The second register for data, if the first one has at most 16 bytes.
    pub const SECOND: Register = Register(2);

    /// Returns the register that starts at the given word of four bytes. A concatenation occupies consecutive words.
    pub const fn at_word(word: u32) -> Register {
        // Each word has a number, and four words together have another one, which `nft` prefers.
        Register(if word.is_multiple_of(4) { 1 + word / 4 } else { 8 + word })
    }
}

/// The part of a packet in which a field is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The Ethernet header.
    Link,
    /// The IP header.
    Network,
    /// The header of TCP, UDP or SCTP.
    Transport,
}

/// A property of a packet or its connection that a rule can load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    origin: Origin,
    len: u32,
    /// The protocol whose header has the field.
    protocol: Option<Family>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Meta(u32),
    Payload(Header, u32),
    Connection(u32),
    Fib { flags: u32, result: u32 },
}

impl Field {
    /// The packet mark, in the byte order of the host.
    pub const PACKET_MARK: Field = Field::meta(3, 4);
    /// The name of the link on which the packet arrived, padded with NULs.
    pub const INPUT_LINK: Field = Field::meta(6, 16);
    /// The name of the link on which the packet leaves, padded with NULs.
    pub const OUTPUT_LINK: Field = Field::meta(7, 16);
    /// The number of the transport protocol: see [`TCP`](Self::TCP).
    pub const PROTOCOL: Field = Field::meta(16, 1);
    const NETWORK_PROTOCOL: Field = Field::meta(15, 1);
    /// The source MAC address.
    pub const SOURCE_MAC: Field = Field::payload(Header::Link, 6, 6);
    /// The IPv4 source address.
    pub const SOURCE_V4: Field = Field::of(Family::Ipv4, 12, 4);
    /// The IPv4 destination address.
    pub const DESTINATION_V4: Field = Field::of(Family::Ipv4, 16, 4);
    /// The IPv6 source address.
    pub const SOURCE_V6: Field = Field::of(Family::Ipv6, 8, 16);
    /// The IPv6 destination address.
    pub const DESTINATION_V6: Field = Field::of(Family::Ipv6, 24, 16);
    /// The destination port. The rule must know that the protocol has ports.
    pub const DESTINATION_PORT: Field = Field::payload(Header::Transport, 2, 2);
    /// The state of the connection, as bits in the byte order of the host.
    pub const CONNECTION_STATE: Field = Field::connection(0, 4);
    /// The status of the connection, as bits in the byte order of the host.
    pub const CONNECTION_STATUS: Field = Field::connection(2, 4);
    /// The type of the destination address in the routing tables, in the byte order of the host.
    pub const DESTINATION_TYPE: Field = Field::fib(1 << 1, 3, 4);

    /// [`PROTOCOL`](Self::PROTOCOL) of TCP.
    pub const TCP: u8 = 6;
    /// Bit of [`CONNECTION_STATUS`](Self::CONNECTION_STATUS): the destination was translated.
    pub const TRANSLATED: u32 = 1 << 5;
    /// Value of [`DESTINATION_TYPE`](Self::DESTINATION_TYPE): an address of this host.
    pub const LOCAL: u32 = 2;

    /// Returns a property that the kernel keeps beside the packet; `key` is a number NFT_META_*.
    pub const fn meta(key: u32, len: u32) -> Field {
        Field { origin: Origin::Meta(key), len, protocol: None }
    }

    /// Returns `len` bytes of a header.
    pub const fn payload(header: Header, offset: u32, len: u32) -> Field {
        Field { origin: Origin::Payload(header, offset), len, protocol: None }
    }

    /// Returns a property of the connection; `key` is a number NFT_CT_*.
    pub const fn connection(key: u32, len: u32) -> Field {
        Field { origin: Origin::Connection(key), len, protocol: None }
    }

    /// Returns a property of the route; the numbers are NFTA_FIB_F_* and NFT_FIB_RESULT_*.
    pub const fn fib(flags: u32, result: u32, len: u32) -> Field {
        Field { origin: Origin::Fib { flags, result }, len, protocol: None }
    }

    const fn of(protocol: Family, offset: u32, len: u32) -> Field {
        Field { protocol: Some(protocol), ..Field::payload(Header::Network, offset, len) }
    }

    /// Returns the source address of the family of `ip`.
    fn source(ip: IpAddr) -> Field {
        if ip.is_ipv4() { Field::SOURCE_V4 } else { Field::SOURCE_V6 }
    }

    /// Returns the destination address of the family of `ip`.
    fn destination(ip: IpAddr) -> Field {
        if ip.is_ipv4() { Field::DESTINATION_V4 } else { Field::DESTINATION_V6 }
    }
}

/// How a register is compared with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// The rule continues if they are equal.
    Equal,
    /// The rule continues if they differ.
    NotEqual,
}

/// A decision about a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Ends this base chain; the packet passes it.
    Accept,
    /// Drops the packet.
    Drop,
    /// Leaves the chain.
    Return,
    /// Continues in another chain, then returns.
    Jump(String),
    /// Continues in another chain without returning.
    Goto(String),
}

impl Verdict {
    const DROP: i32 = 0;
    const ACCEPT: i32 = 1;
    const JUMP: i32 = -3;
    const GOTO: i32 = -4;
    const RETURN: i32 = -5;

    /// Returns the chain in which the packet continues.
    pub fn target(&self) -> Option<&str> {
        match self {
            Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain),
            _ => None,
        }
    }

    fn code(&self) -> i32 {
        match self {
            Verdict::Accept => Verdict::ACCEPT,
            Verdict::Drop => Verdict::DROP,
            Verdict::Return => Verdict::RETURN,
            Verdict::Jump(_) => Verdict::JUMP,
            Verdict::Goto(_) => Verdict::GOTO,
        }
    }

    /// Parses the content of an attribute with a verdict; `None` for verdicts that no rule of ours has.
    fn read(data: &[u8]) -> Result<Option<Verdict>> {
        let (mut code, mut chain) = (None, String::new());
        for attribute in wire::attributes(data, 0) {
            match attribute? {
                (VERDICT_CODE, value) => code = Some(u32::from_be(wire::number(value, 0)?).cast_signed()),
                (VERDICT_CHAIN, value) => chain = wire::text(value),
                _ => {}
            }
        }
        Ok(match code {
            Some(Verdict::ACCEPT) => Some(Verdict::Accept),
            Some(Verdict::DROP) => Some(Verdict::Drop),
            Some(Verdict::RETURN) => Some(Verdict::Return),
            Some(Verdict::JUMP) => Some(Verdict::Jump(chain)),
            Some(Verdict::GOTO) => Some(Verdict::Goto(chain)),
            _ => None,
        })
    }
}

/// The value or verdict in a register or a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// A value.
    Value(Vec<u8>),
    /// A verdict.
    Verdict(Verdict),
}

impl Data {
    /// Parses the content of an attribute with data; `None` if it has neither a value nor a known verdict.
    pub(super) fn read(data: &[u8]) -> Result<Option<Data>> {
        let mut found = None;
        for attribute in wire::attributes(data, 0) {
            match attribute? {
                (DATA_VALUE, value) => found = Some(Data::Value(value.to_vec())),
                (DATA_VERDICT, verdict) => found = Verdict::read(verdict)?.map(Data::Verdict),
                _ => {}
            }
        }
        Ok(found)
    }

    /// Returns the value; `None` if this is a verdict.
    pub fn into_value(self) -> Option<Vec<u8>> {
        match self {
            Data::Value(value) => Some(value),
            Data::Verdict(_) => None,
        }
    }
}

/// Writes the attributes of an expression or an element.
#[derive(Debug)]
pub struct Attributes<'a>(pub(super) &'a mut Request);

impl Attributes<'_> {
    /// Adds a number.
    pub fn number(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// Adds a register.
    pub fn register(&mut self, kind: u16, register: Register) {
        self.number(kind, register.0);
    }

    /// Adds bytes.
    pub fn bytes(&mut self, kind: u16, value: &[u8]) {
        self.0.attr(kind, value);
    }

    /// Adds a text with a final NUL.
    pub fn text(&mut self, kind: u16, value: &str) {
        self.0.text(kind, value);
    }

    /// Adds an attribute with the attributes that `inside` writes.
    pub fn nest(&mut self, kind: u16, inside: impl FnOnce(&mut Attributes<'_>)) {
        self.0.nest(NESTED | kind, |request| inside(&mut Attributes(request)));
    }

    /// Adds a value, which is nested in an attribute of its own.
    pub fn value(&mut self, kind: u16, value: &[u8]) {
        self.nest(kind, |data| data.bytes(DATA_VALUE, value));
    }

    /// Adds a verdict.
    pub fn verdict(&mut self, kind: u16, verdict: &Verdict) {
        self.nest(kind, |data| {
            data.nest(DATA_VERDICT, |data| {
                data.bytes(VERDICT_CODE, &verdict.code().to_be_bytes());
                if let Some(chain) = verdict.target() {
                    data.text(VERDICT_CHAIN, chain);
                }
            });
        });
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
            Origin::Connection(key) => self.expression("ct", |data| {
                data.number(2, key);
                data.register(1, into);
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
        self.expression("bitwise", |data| {
            data.register(1, register);
            data.register(2, register);
            data.number(3, length(mask.len()));
            data.value(4, mask);
            data.value(5, &vec![0; mask.len()]);
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
