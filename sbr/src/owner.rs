//! Whose a rule is: ADD marks each with a number that is derived from the attachment.

use std::net::IpAddr;

use cni::{AddResult, AttachmentKey, IpConfig};
use linux::netlink::{Rule, SourceRule};
use linux::sha2::sha512;

/// The number of the plugin as the program that added a rule or a route. `ip rule` and `ip route` show it.
pub(crate) const PROTOCOL: u8 = 142;

/// The rules of an attachment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleOwner {
    mark: u32,
}

impl RuleOwner {
    pub(crate) fn new(key: AttachmentKey<'_>) -> RuleOwner {
        let mark = u32::from_str_radix(&sha512(8, &key.mark()), 16).unwrap_or_default();
        RuleOwner { mark: mark.max(1) }
    }

    /// Returns the rule by which packets from an address use a table.
    pub(crate) fn rule(self, src: IpAddr, table: u32) -> SourceRule {
        SourceRule { src, table, protocol: PROTOCOL, mark: self.mark }
    }

    /// Divides rules into those that ADD has added for this attachment, and others.
    pub(crate) fn divide(self, rules: Vec<Rule>) -> (Vec<Rule>, Vec<Rule>) {
        let is_own = |source: SourceRule| (source.protocol, source.mark) == (PROTOCOL, self.mark);
        rules.into_iter().partition(|rule| rule.source.is_some_and(is_own))
    }
}

/// Returns the source of a rule that the reference may have added: only the address says whose it is. If ADD has added
/// a rule for the address, it has replaced that of the reference.
pub(crate) fn source_of_reference(rule: &Rule, own: &[Rule]) -> Option<IpAddr> {
    let source = rule.source.filter(|source| (source.protocol, source.mark) == (0, 0))?.src;
    (!own.iter().filter_map(|own| own.source).any(|own| own.src == source)).then_some(source)
}

/// Returns the addresses that a result has for an interface. One that names no interface, or one that the result does
/// not have, counts as well, as in the reference.
pub(crate) fn addresses<'a>(result: &'a AddResult, ifname: &str) -> Vec<&'a IpConfig> {
    let interface = |ip: &IpConfig| result.interfaces.get(usize::try_from(ip.interface?).ok()?);
    result.ips.iter().filter(|ip| interface(ip).is_none_or(|interface| interface.name == ifname)).collect()
}
