//! Rules as the kernel lists them.

use std::net::SocketAddr;

use super::expression::{Comparison, Data, Field, Header, Origin, Register, Verdict};
use super::message::{HEADER, RULE_CHAIN, RULE_EXPRESSIONS, RULE_HANDLE, RULE_USERDATA, TABLE};
use super::spec::RuleSpec;
use super::table::Table;
use super::userdata::UserData;
use crate::error::Result;
use crate::netlink::wire;

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
    /// What the rule decides about packets that it matches; `None` if it only acts, as a rule with a target of iptables.
    pub verdict: Option<Verdict>,
    /// Whether the rule masquerades.
    pub masquerades: bool,
    /// The address and port by which the rule replaces the destination; `None` if it has a range of them, a map, or no
    /// port. A target `DNAT` of iptables is one of the `extensions` instead.
    pub translates_to: Option<SocketAddr>,
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

    /// Compares the names of links up to the first NUL: `iptables` compares one NUL, `nft` all of them.
    fn is_same_as(&self, other: &FieldComparison) -> bool {
        let value = |own: &FieldComparison| match own.value.iter().position(|byte| *byte == 0) {
            Some(end) if own.is_link() => own.value.get(..=end).map(<[u8]>::to_vec).unwrap_or_default(),
            _ => own.value.clone(),
        };
        (self.origin, self.how, &self.mask) == (other.origin, other.how, &other.mask) && value(self) == value(other)
    }
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

    /// Returns the names of the links that packets must, or must not, arrive or leave on. Prefixes of names are not included.
    pub fn links(&self) -> Vec<String> {
        let links = self.comparisons.iter().filter(|comparison| comparison.is_link() && comparison.value.contains(&0));
        links.map(|comparison| wire::text(&comparison.value)).collect()
    }

    /// Returns whether the rule has the conditions, the comment and the effect of `spec`, with any mark and in any chain.
    pub fn is_same_as(&self, spec: &RuleSpec<'_>) -> bool {
        let Ok(other) = Rule::of_spec(spec) else { return false };
        // A comment is either an extension or user data.
        let extensions = |rule: &Rule| -> Vec<Extension> {
            rule.extensions.iter().filter(|extension| extension.name != "comment").map(Extension::trimmed).collect()
        };
        self.comparisons.len() == other.comparisons.len()
            && self.comparisons.iter().zip(&other.comparisons).all(|(own, other)| own.is_same_as(other))
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

    fn set_userdata(&mut self, UserData { comment, mark }: UserData) {
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
            "meta" | "payload" => return self.read_load(&name, data, registers),
            "bitwise" => {
                let mask = nested(data, &[4])?.into_iter().find(|(kind, _)| *kind == 1);
                registers.mask = mask.map(|(_, mask)| mask.to_vec()).unwrap_or_default();
                return Ok(());
            }
            "nat" => {
                self.translates_to = registers.read_translation(data)?;
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
        let (mut is_load, mut numbers) = (false, [0; 5]);
        for attribute in wire::attributes(data, 0) {
            let (kind, value) = attribute?;
            is_load |= kind == 1;
            if let Some(number) = numbers.get_mut(usize::from(kind)) {
                *number = u32::from_be(wire::number(value, 0)?);
            }
        }
        let [_, _, key, offset, _] = numbers;
        registers.field = match (name, Header::numbered(key)) {
            ("meta", _) => Some(Origin::Meta(key)),
            (_, Some(header)) => Some(Origin::Payload(header, offset)),
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
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::ip::Cidr;
    use crate::netlink::nft::{Family, Field, RuleSpec};

    fn in_family(family: Family) -> RuleSpec<'static> {
        RuleSpec::new(Table { family, name: "t" }.chain("c"))
    }

    fn read_back(spec: &RuleSpec<'_>) -> Rule {
        let mut request = super::super::about_rule(6, neli::consts::nl::NlmF::empty(), spec.chain);
        request.attr(RULE_HANDLE, &7_u64.to_be_bytes());
        spec.write(&mut request);
        Rule::read(&request.finish()[16..]).unwrap().unwrap()
    }

    #[test]
    fn a_rule_is_read_back_as_it_was_written() {
        let ip: IpAddr = "10.1.0.2".parse().unwrap();
        let net: Cidr = "10.1.0.2/20".parse().unwrap();
        let spec = in_family(Family::Inet).source(ip).destination_outside(net).masquerade();
        let rule = read_back(&spec.comment("x, net: n").mark("m"));
        assert_eq!(rule.handle, 7);
        assert_eq!((rule.comment.as_str(), rule.mark.as_str()), ("x, net: n", "m"));
        assert!(rule.masquerades);
        assert_eq!(rule.values, [vec![2], vec![10, 1, 0, 2], vec![10, 1, 0, 0]]);

        assert!(rule.is_same_as(
            &in_family(Family::Inet).source(ip).destination_outside(net).masquerade().comment("x, net: n")
        ));

        let rule = read_back(&in_family(Family::Bridge).input_link("veth1").jump("next"));
        assert_eq!((rule.chain.as_str(), rule.target()), ("c", Some("next")));
        assert_eq!(rule.verdict, Some(Verdict::Jump("next".into())));
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
            let rule = read_back(&in_family(Family::Inet).destination_in(net));
            assert_eq!(rule.values[1], value, "{net}");
        }
    }

    #[test]
    fn only_an_address_with_a_port_is_a_translation() {
        let rule = || in_family(Family::Ipv4);
        let nat = |spec: RuleSpec<'static>, attributes: &[(u16, u32)]| {
            read_back(&spec.expression("nat", |data| {
                for (kind, value) in attributes {
                    data.number(*kind, *value);
                }
            }))
            .translates_to
        };
        for to in ["10.9.0.2:80", "[fd00::2]:443"] {
            let to = to.parse().unwrap();
            assert_eq!(read_back(&rule().destination_port(6, 80).translate_destination(to)).translates_to, Some(to));
        }
        let loaded = || {
            let ip = |last| [10, 9, 0, last];
            rule()
                .immediate(Register::FIRST, &ip(2))
                .immediate(Register::SECOND, &[0, 80])
                .immediate(Register::at_word(8), &ip(3))
                .immediate(Register::at_word(12), &[0, 90])
        };
        let to = "10.9.0.2:80".parse().ok();
        assert_eq!(nat(loaded(), &[(1, 1), (3, 1), (5, 2)]), to);
        assert_eq!(nat(loaded(), &[(1, 1), (3, 1), (4, 1), (5, 2), (6, 2)]), to);
        assert_eq!(nat(loaded(), &[(1, 1), (3, 1), (4, 3), (5, 2), (6, 2)]), None, "several addresses");
        assert_eq!(nat(loaded(), &[(1, 1), (3, 1), (4, 1), (5, 2), (6, 4)]), None, "several ports");
        assert_eq!(nat(loaded(), &[(1, 0), (3, 1), (5, 2)]), None, "source NAT");
        assert_eq!(nat(loaded(), &[(1, 1), (3, 1)]), None, "no port");
        assert_eq!(nat(loaded(), &[(1, 1), (3, 2), (5, 1)]), None, "values of other lengths");
        assert_eq!(nat(loaded(), &[(1, 1), (3, 9), (5, 2)]), None, "a register without a value");
        assert_eq!(nat(loaded().map(&[Field::PROTOCOL], "m"), &[(1, 1), (3, 1), (5, 2)]), None, "a map");
        assert_eq!(nat(rule(), &[]), None);
    }

    #[test]
    fn extensions_are_read_in_order() {
        let spec = in_family(Family::Ipv4)
            .compat_match("comment", 0, b"mine\0\0\0\0")
            .compat_match("multiport", 1, &[1; 48])
            .compat_target("DNAT", 2, &[2; 44]);
        let rule = read_back(&spec);
        let extension =
            |name: &str, revision, info: &[u8]| Extension { name: name.into(), revision, info: info.into() };
        let expected = [
            extension("comment", 0, b"mine\0\0\0\0"),
            extension("multiport", 1, &[1; 48]),
            extension("DNAT", 2, &[2; 44]),
        ];
        assert_eq!(rule.extensions, expected);
        assert_eq!((rule.comment.as_str(), rule.verdict, rule.masquerades), ("mine", None, false));
        assert!(read_back(&in_family(Family::Ipv4).compat_target("MASQUERADE", 0, &[0; 24])).masquerades);
    }

    #[test]
    fn rules_are_the_same_if_all_their_parts_are() {
        let ip = |text: &str| Cidr::host(text.parse().unwrap());
        let rule = || in_family(Family::Ipv4);
        let specs = || {
            [
                rule().verdict(Verdict::Accept),
                rule().verdict(Verdict::Drop),
                rule().comment("c").verdict(Verdict::Drop),
                rule().source_in(ip("10.1.0.2")).verdict(Verdict::Accept),
                rule().source_outside(ip("10.1.0.2")).verdict(Verdict::Accept),
                rule().destination_in(ip("10.1.0.2")).verdict(Verdict::Accept),
                rule().destination_in("10.1.0.2/30".parse().unwrap()).verdict(Verdict::Accept),
                rule().source_in(ip("10.1.0.3")).verdict(Verdict::Accept),
                rule().input_link("br0").verdict(Verdict::Drop),
                rule().output_link("br0").verdict(Verdict::Drop),
                rule().output_link_not("br0").verdict(Verdict::Drop),
                rule().matches(Field::OUTPUT_LINK, Comparison::Equal, b"br0").verdict(Verdict::Drop),
                rule().compat_match("conntrack", 3, &[1, 0]).verdict(Verdict::Accept),
                rule().compat_match("conntrack", 3, &[2, 0]).verdict(Verdict::Accept),
                rule().in_set(&[Field::DESTINATION_V4], "s").verdict(Verdict::Accept),
                rule().masquerade(),
                rule().set_packet_mark(1),
            ]
        };
        for (i, spec) in specs().into_iter().enumerate() {
            let listed = read_back(&spec.mark("m"));
            for (j, other) in specs().into_iter().enumerate() {
                assert_eq!(listed.is_same_as(&other), i == j, "{i} {j}");
            }
        }
        // As `iptables` writes them.
        let short = rule().matches(Field::OUTPUT_LINK, Comparison::Equal, b"br0\0").counter().verdict(Verdict::Drop);
        assert!(read_back(&short).is_same_as(&specs()[9]));
        let padded = rule().compat_match("conntrack", 3, &[1, 0, 0, 0]).verdict(Verdict::Accept);
        assert!(read_back(&padded).is_same_as(&specs()[12]));
        let comment = rule().compat_match("comment", 0, b"c\0\0").verdict(Verdict::Drop);
        assert!(read_back(&comment).is_same_as(&specs()[2]));
    }

    #[test]
    fn links_and_refusals_are_recognised() {
        let rule = || in_family(Family::Ipv4);
        let both = read_back(&rule().input_link("br0").output_link_not("br1").jump("next"));
        assert_eq!(both.links(), ["br0", "br1"]);
        assert_eq!(read_back(&rule().matches(Field::INPUT_LINK, Comparison::Equal, b"br")).links(), [""; 0]);
        let reject = |spec: RuleSpec<'static>| read_back(&spec.expression("reject", |_| ()));
        assert!(reject(rule()).refuses() && reject(rule()).is_unconditional());
        assert!(reject(rule().input_link("br0")).refuses() && !reject(rule().input_link("br0")).is_unconditional());
        let jump = read_back(&rule().comment("c").compat_match("comment", 0, b"c").jump("next"));
        assert!(jump.is_unconditional() && !jump.refuses());
        assert!(!read_back(&rule().in_set(&[Field::PROTOCOL], "s").jump("next")).is_unconditional());
    }
}
