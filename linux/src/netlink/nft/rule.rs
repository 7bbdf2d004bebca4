//! Rules as the kernel lists them.

use super::expression::Data;
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
    /// The mark, which [`RuleSpec::mark`](super::RuleSpec::mark) sets.
    pub mark: String,
    /// The chain to which the rule jumps.
    pub target: Option<String>,
    /// Whether the rule masquerades.
    pub masquerades: bool,
    /// The values with which the rule compares, in order.
    pub values: Vec<Vec<u8>>,
    pub(super) table: String,
    pub(super) chain: String,
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
                (RULE_EXPRESSIONS, list) => {
                    for expression in wire::attributes(list, 0) {
                        rule.read_expression(expression?.1)?;
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
                for (kind, value) in nested(data, &[])? {
                    if kind == 2
                        && let Some(Data::Verdict(verdict)) = Data::read(value)?
                    {
                        self.target = verdict.target().map(str::to_owned);
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

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::ip::Cidr;
    use crate::netlink::nft::{Family, RuleSpec};

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
            let rule = read_back(&in_family(Family::Inet).destination_in(net));
            assert_eq!(rule.values[1], value, "{net}");
        }
    }
}
