//! Rules as the kernel lists them.

use std::net::SocketAddr;

use super::expression::{Data, Register, Verdict};
use super::message::{HEADER, RULE_CHAIN, RULE_EXPRESSIONS, RULE_HANDLE, RULE_USERDATA, TABLE};
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
                (RULE_EXPRESSIONS, list) => {
                    let mut registers = Registers::default();
                    for expression in wire::attributes(list, 0) {
                        rule.read_expression(expression?.1, &mut registers)?;
                    }
                }
                (RULE_USERDATA, data) => {
                    let UserData { comment, mark } = UserData::read(data);
                    rule.mark = mark;
                    // Otherwise the comment is that of the match `comment`.
                    if !comment.is_empty() {
                        rule.comment = comment;
                    }
                }
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
            "nat" => self.translates_to = registers.read_translation(data)?,
            "cmp" => {
                for (kind, value) in nested(data, &[3])? {
                    if kind == 1 {
                        self.values.push(value.to_vec());
                    }
                }
            }
            "masq" => self.masquerades = true,
            "match" | "target" => self.read_extension(data)?,
            _ => {}
        }
        // Most expressions load a register.
        *registers = Registers::default();
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

/// The values that the expressions directly before the current one have loaded.
#[derive(Default)]
struct Registers {
    loaded: Vec<(Register, Vec<u8>)>,
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
}
