//! Rules as the kernel lists them.

mod condition;
mod lookup;

use std::net::{IpAddr, SocketAddr};

use super::expression::{Comparison, Data, Field, Header, Origin, Register, Verdict};
use super::message::{HEADER, RULE_CHAIN, RULE_EXPRESSIONS, RULE_HANDLE, RULE_USERDATA, TABLE};
use super::spec::RuleSpec;
use super::table::Table;
use super::userdata::UserData;
use crate::error::Result;
use crate::ip::Cidr;
use crate::netlink::wire;

pub use condition::{Condition, ConnectionStates, LinkPattern, Property, Side};
pub use lookup::Lookup;

/// The properties of a listed rule that cni0 uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The kernel's handle of the rule, unique in its table.
    pub handle: u64,
    /// The comment, written by `nft` or `iptables`.
    pub comment: String,
    /// The mark, a text that the tools do not show, set by [`RuleSpec::mark`](super::RuleSpec::mark).
    pub mark: String,
    /// The chain that has the rule.
    pub chain: String,
    /// What the rule decides about packets that it matches; `None` if it only acts, as a rule with a target of
    /// iptables.
    pub verdict: Option<Verdict>,
    /// Whether the rule masquerades.
    pub masquerades: bool,
    /// The address and port by which the rule replaces the destination; `None` if it has a range of them, a map, or no
    /// port. A target `DNAT` of iptables is one of the `extensions` instead.
    pub translates_to: Option<SocketAddr>,
    /// Whether the rule replaces the destination.
    pub translates_destination: bool,
    /// The address by which the rule replaces the source, if it is a single one. A target `SNAT` of iptables is one of
    /// the `extensions` instead.
    pub translates_source_to: Option<IpAddr>,
    /// The sets and maps in which the rule looks up a field.
    pub lookups: Vec<Lookup>,
    /// The values with which the rule compares, in order.
    pub values: Vec<Vec<u8>>,
    /// The matches and targets of iptables, in order.
    pub extensions: Vec<Extension>,
    pub(super) table: String,
    pub(super) comparisons: Vec<FieldComparison>,
    /// The names of other expressions, in order. A counter is not included.
    pub(super) others: Vec<String>,
}

/// A comparison of a field with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FieldComparison {
    /// The field; `None` if the rule computes what it compares in another way.
    origin: Option<Origin>,
    /// The mask of the field; empty if there is none.
    mask: Vec<u8>,
    how: Comparison,
    value: Vec<u8>,
}

impl FieldComparison {
    fn is_link(&self) -> bool {
        [Field::INPUT_LINK, Field::OUTPUT_LINK].map(|field| Some(field.origin)).contains(&self.origin)
    }

    /// Compares the names of links up to the first NUL: `iptables` compares one NUL, `nft` all of them. Compares
    /// networks, whose addresses older versions of `iptables` always mask.
    fn is_same_as(&self, other: &FieldComparison) -> bool {
        let network = |own: &FieldComparison| own.source().or_else(|| own.destination());
        if let (Some(own), Some(other_net)) = (network(self), network(other)) {
            return (self.origin, self.how, own) == (other.origin, other.how, other_net);
        }
        let value = |own: &FieldComparison| match own.value.iter().position(|byte| *byte == 0) {
            Some(end) if own.is_link() => own.value.get(..=end).map(<[u8]>::to_vec).unwrap_or_default(),
            _ => own.value.clone(),
        };
        (self.origin, self.how, &self.mask) == (other.origin, other.how, &other.mask) && value(self) == value(other)
    }

    /// Returns the network with which the comparison compares the source; `None` if it compares something else.
    fn source(&self) -> Option<Cidr> {
        self.network([Field::SOURCE_V4, Field::SOURCE_V6])
    }

    /// Returns the network with which the comparison compares the destination; `None` if it compares something else.
    fn destination(&self) -> Option<Cidr> {
        self.network([Field::DESTINATION_V4, Field::DESTINATION_V6])
    }

    /// Returns the network with which the comparison compares one of these addresses, the first of IPv4 and the second
    /// of IPv6; `None` if it compares something else.
    fn network(&self, [v4, v6]: [Field; 2]) -> Option<Cidr> {
        let prefix = match self.mask.as_slice() {
            [] => u32::try_from(self.value.len()).ok()? * 8,
            mask => {
                let bits = u128::from_be_bytes(padded::<16>(mask)?);
                Some(bits.count_ones()).filter(|ones| *ones == bits.leading_ones())?
            }
        };
        let ip = match self.origin? {
            origin if origin == v4.origin => IpAddr::from(padded::<4>(&self.value)?),
            origin if origin == v6.origin => IpAddr::from(padded::<16>(&self.value)?),
            _ => return None,
        };
        Cidr::new(ip, u8::try_from(prefix).ok()?)
    }
}

/// Returns the first bytes of an address, followed by zeros; `None` if there are too many.
fn padded<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    let mut all = [0; N];
    all.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(all)
}

/// A match or target of iptables in a rule. By convention, names of targets are in upper case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extension {
    /// The name.
    pub name: String,
    /// The revision, which determines the layout of `info`.
    pub revision: u32,
    /// The structure of the extension, without the values that only the kernel uses.
    pub info: Vec<u8>,
}

impl Rule {
    /// Returns the chain to which the rule jumps.
    pub fn target(&self) -> Option<&str> {
        self.verdict.as_ref()?.target()
    }

    /// Returns whether the rule decides about all packets.
    pub fn is_unconditional(&self) -> bool {
        self.comparisons.is_empty()
            && self.extensions.iter().all(|extension| matches!(extension.name.as_str(), "comment" | "REJECT"))
            && self.others.iter().all(|name| name == "reject")
    }

    /// Returns whether the rule drops or rejects the packets that it matches.
    pub fn refuses(&self) -> bool {
        self.verdict == Some(Verdict::Drop)
            || self.others.iter().any(|name| name == "reject")
            || self.extensions.iter().any(|extension| extension.name == "REJECT")
    }

    /// Returns the network in which the source must be; `None` if the rule does not compare it.
    pub fn source(&self) -> Option<Cidr> {
        self.comparisons_by(Comparison::Equal).find_map(FieldComparison::source)
    }

    /// Returns the networks in which the destination must be, or outside of which it must be.
    pub fn destinations(&self, how: Comparison) -> Vec<Cidr> {
        self.comparisons_by(how).filter_map(FieldComparison::destination).collect()
    }

    fn comparisons_by(&self, how: Comparison) -> impl Iterator<Item = &FieldComparison> {
        self.comparisons.iter().filter(move |comparison| comparison.how == how)
    }

    /// Returns the names of the links that packets must, or must not, arrive or leave on. Prefixes of names are not
    /// included.
    pub fn links(&self) -> Vec<String> {
        let links = self.comparisons.iter().filter(|comparison| comparison.is_link() && comparison.value.contains(&0));
        links.map(|comparison| wire::text(&comparison.value)).collect()
    }

    /// Returns whether the rule has the conditions, the comment and the effect of `spec`, with any mark and in any
    /// chain.
    pub fn is_same_as(&self, spec: &RuleSpec<'_>) -> bool {
        let Ok(other) = Rule::of_spec(spec) else { return false };
        // A comment is either an extension or user data.
        let extensions = |rule: &Rule| -> Vec<Extension> {
            rule.extensions.iter().filter(|extension| extension.name != "comment").map(Extension::trimmed).collect()
        };
        // The order of conditions does not matter, and programs have different ones.
        let has_all = |a: &Rule, b: &Rule| b.comparisons.iter().all(|b| a.comparisons.iter().any(|a| a.is_same_as(b)));
        self.comparisons.len() == other.comparisons.len()
            && has_all(self, &other)
            && has_all(&other, self)
            && extensions(self) == extensions(&other)
            && (&self.others, &self.verdict, &self.comment) == (&other.others, &other.verdict, &other.comment)
    }

    /// Returns the rule as the kernel would list it, without table, chain and handle.
    fn of_spec(spec: &RuleSpec<'_>) -> Result<Rule> {
        let mut rule = Rule::default();
        rule.read_expressions(spec.expressions.bytes())?;
        rule.set_userdata(spec.userdata.clone());
        Ok(rule)
    }

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
                (RULE_EXPRESSIONS, list) => rule.read_expressions(list)?,
                (RULE_USERDATA, data) => rule.set_userdata(UserData::read(data)),
                _ => {}
            }
        }
        Ok((rule.handle != 0).then_some(rule))
    }

    /// Returns the user data of a rule without parsing the rest; empty if there is none.
    pub(in crate::netlink) fn userdata_of(payload: &[u8]) -> Result<UserData> {
        for attribute in wire::attributes(payload, HEADER) {
            if let (RULE_USERDATA, data) = attribute? {
                return Ok(UserData::read(data));
            }
        }
        Ok(UserData::default())
    }

    fn set_userdata(&mut self, UserData { comment, mark, .. }: UserData) {
        self.mark = mark;
        // Otherwise the comment is that of the match `comment`.
        if !comment.is_empty() {
            self.comment = comment;
        }
    }

    fn read_expressions(&mut self, list: &[u8]) -> Result<()> {
        let mut registers = Registers::default();
        for expression in wire::attributes(list, 0) {
            self.read_expression(expression?.1, &mut registers)?;
        }
        Ok(())
    }

    fn read_expression(&mut self, expression: &[u8], registers: &mut Registers) -> Result<()> {
        let (mut name, mut data) = (String::new(), &[][..]);
        for attribute in wire::attributes(expression, 0) {
            match attribute? {
                (1, value) => name = wire::text(value),
                (2, value) => data = value,
                _ => {}
            }
        }
        match name.as_str() {
            "immediate" => return self.read_immediate(data, registers),
            "meta" | "payload" | "ct" | "fib" => return self.read_load(&name, data, registers),
            "bitwise" => {
                let mask = nested(data, &[4])?.into_iter().find(|(kind, _)| *kind == 1);
                registers.mask = mask.map(|(_, mask)| mask.to_vec()).unwrap_or_default();
                return Ok(());
            }
            "nat" => {
                self.translates_to = registers.read_translation(data)?;
                (self.translates_destination, self.translates_source_to) = registers.read_nat(data)?;
                self.others.push(name);
            }
            "redir" => {
                self.translates_destination = true;
                self.others.push(name);
            }
            "lookup" => {
                let field = FieldComparison {
                    origin: registers.field,
                    mask: std::mem::take(&mut registers.mask),
                    how: Comparison::Equal,
                    value: Vec::new(),
                };
                self.lookups.push(Lookup::read(field, data)?);
                self.others.push(name);
            }
            "cmp" => self.read_comparison(data, registers)?,
            "masq" => {
                self.masquerades = true;
                self.others.push(name);
            }
            "match" | "target" => self.read_extension(data)?,
            "counter" => {}
            _ => self.others.push(name),
        }
        // Most expressions load a register.
        *registers = Registers::default();
        Ok(())
    }

    /// Reads an expression that loads a field into a register, or changes the field.
    fn read_load(&mut self, name: &str, data: &[u8], registers: &mut Registers) -> Result<()> {
        *registers = Registers::default();
        let (mut is_load, mut has_direction, mut numbers) = (false, false, [0; 5]);
        for attribute in wire::attributes(data, 0) {
            let (kind, value) = attribute?;
            is_load |= kind == 1;
            // The direction of a connection has one byte.
            has_direction |= name == "ct" && kind == 3;
            if let Some(number) = numbers.get_mut(usize::from(kind)).filter(|_| !(name == "ct" && kind == 3)) {
                *number = u32::from_be(wire::number(value, 0)?);
            }
        }
        let [_, _, key, offset, _] = numbers;
        registers.field = match (name, Header::numbered(key)) {
            ("meta", _) => Some(Origin::Meta(key)),
            ("ct", _) if !has_direction => Some(Origin::Connection { key, is_original: false }),
            ("fib", _) => Some(Origin::Fib { result: key, flags: offset }),
            ("payload", Some(header)) => Some(Origin::Payload(header, offset)),
            _ => None,
        };
        if !is_load {
            self.others.push(name.to_owned());
        }
        Ok(())
    }

    fn read_comparison(&mut self, data: &[u8], registers: &mut Registers) -> Result<()> {
        let mut how = Comparison::Equal;
        for attribute in wire::attributes(data, 0) {
            if let (2, value) = attribute? {
                match u32::from_be(wire::number(value, 0)?) {
                    0 => {}
                    1 => how = Comparison::NotEqual,
                    // Less, greater
                    _ => self.others.push("cmp".to_owned()),
                }
            }
        }
        for (_, value) in nested(data, &[3])?.into_iter().filter(|(kind, _)| *kind == 1) {
            self.values.push(value.to_vec());
            let mask = std::mem::take(&mut registers.mask);
            self.comparisons.push(FieldComparison { origin: registers.field, mask, how, value: value.to_vec() });
        }
        Ok(())
    }

    fn read_immediate(&mut self, immediate: &[u8], registers: &mut Registers) -> Result<()> {
        let (mut register, mut data) = (Register::VERDICT, None);
        for attribute in wire::attributes(immediate, 0) {
            match attribute? {
                (1, value) => register = Register::read(value)?,
                (2, value) => data = Data::read(value)?,
                _ => {}
            }
        }
        match data {
            Some(Data::Verdict(verdict)) => self.verdict = Some(verdict),
            Some(Data::Value(value)) => registers.load(register, value),
            None => {}
        }
        Ok(())
    }

    fn read_extension(&mut self, data: &[u8]) -> Result<()> {
        let mut extension = Extension::default();
        for attribute in wire::attributes(data, 0) {
            match attribute? {
                (1, value) => extension.name = wire::text(value),
                (2, value) => extension.revision = u32::from_be(wire::number(value, 0)?),
                (3, value) => extension.info = value.to_vec(),
                _ => {}
            }
        }
        match extension.name.as_str() {
            "comment" => self.comment = wire::text(&extension.info),
            "MASQUERADE" => self.masquerades = true,
            "DNAT" | "REDIRECT" => self.translates_destination = true,
            _ => {}
        }
        self.extensions.push(extension);
        Ok(())
    }
}

impl Extension {
    /// Returns the extension without zeros at the end: the kernel pads the structure.
    fn trimmed(&self) -> Extension {
        let len = self.info.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        Extension { info: self.info.get(..len).unwrap_or_default().to_vec(), ..self.clone() }
    }
}

/// What the expressions directly before the current one have loaded.
#[derive(Default)]
struct Registers {
    /// Values.
    loaded: Vec<(Register, Vec<u8>)>,
    /// The field, and its mask.
    field: Option<Origin>,
    mask: Vec<u8>,
}

impl Registers {
    fn load(&mut self, register: Register, value: Vec<u8>) {
        self.loaded.push((register, value));
    }

    /// Returns the value that was loaded last.
    fn value(&self, register: Register) -> Option<&[u8]> {
        let last = self.loaded.iter().rev().find(|(loaded, _)| *loaded == register)?;
        Some(&last.1)
    }

    /// Returns whether a `nat` expression translates destinations, and the address by which it replaces sources.
    fn read_nat(&self, nat: &[u8]) -> Result<(bool, Option<IpAddr>)> {
        let (mut is_source, mut address) = (true, None);
        for attribute in wire::attributes(nat, 0) {
            match attribute? {
                (1, value) => is_source = wire::number(value, 0)? == 0,
                (3, value) => address = self.value(Register::read(value)?),
                _ => {}
            }
        }
        Ok((!is_source, address.filter(|_| is_source).and_then(|address| wire::ip(address).ok())))
    }

    /// Returns the address and port of a `nat` expression if it translates destinations.
    fn read_translation(&self, nat: &[u8]) -> Result<Option<SocketAddr>> {
        const DESTINATION: u32 = 1;
        let (mut kind, mut address, mut port) = (None, [None; 2], [None; 2]);
        for attribute in wire::attributes(nat, 0) {
            match attribute? {
                (1, value) => kind = Some(u32::from_be(wire::number(value, 0)?)),
                (3, value) => address = [Some(Register::read(value)?); 2],
                (4, value) => address[1] = Some(Register::read(value)?),
                (5, value) => port = [Some(Register::read(value)?); 2],
                (6, value) => port[1] = Some(Register::read(value)?),
                _ => {}
            }
        }
        let single = |[first, last]: [Option<Register>; 2]| {
            let value = self.value(first?)?;
            (self.value(last?)? == value).then_some(value)
        };
        let (Some(DESTINATION), Some(address), Some(port)) = (kind, single(address), single(port)) else {
            return Ok(None);
        };
        let port = <[u8; 2]>::try_from(port).ok().map(u16::from_be_bytes);
        Ok(wire::ip(address).ok().zip(port).map(SocketAddr::from))
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

#[cfg(test)]
mod tests;
