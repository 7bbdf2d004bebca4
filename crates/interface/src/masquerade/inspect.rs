//! For tools: lists the masquerade rules on a host, and reports what is wrong with those of a network.

use cni::Result;
use cni::inspect::{
    Finding, Fix, Id, LiveAttachment, NetworkView, Object, ObjectKind, Owner, Property, Usage, lacking,
};
use linux::netlink::nft::Nftables;

use super::rule::{ListedMasquerade, REPAIR_HINT};
use super::{Backend, Masquerade, iptables};

/// The kind of objects that masquerade consists of.
pub const KIND: ObjectKind =
    ObjectKind { name: "masquerade", noun: "rule", flag: "masq", json: "masquerade", is_listed: true };
static MASQUERADE: ObjectKind = KIND;

/// The name of the backend `iptables` in objects.
const IPTABLES: &str = "iptables";

/// What [`repair`](Masquerade::repair) restores.
pub const RESTORED: &str = "masquerade rules";

impl Masquerade {
    /// Returns whether an ADD uses nf_tables for masquerade.
    pub fn usage(&self) -> Usage {
        match self.backend {
            Backend::Nftables => Usage::Required,
            Backend::Auto | Backend::Iptables => Usage::Preferred,
        }
    }
}

/// Lists the rules of all networks.
pub fn objects(nft: &mut Nftables) -> Result<Vec<Object>> {
    let mut rules = super::list(nft)?;
    rules.extend(iptables::list(nft)?);
    Ok(rules.into_iter().map(object).collect())
}

fn object(rule: ListedMasquerade) -> Object {
    Object {
        kind: &MASQUERADE,
        owner: Owner::Marked(rule.mark().to_owned()),
        backend: if rule.iptables { IPTABLES } else { "nftables" },
        address: rule.source,
        name: rule.source.map_or_else(|| "-".to_owned(), |ip| ip.to_string()),
        detail: String::new(),
        properties: vec![("source", Property::Address(rule.source))],
        about: rule.about().to_owned(),
        comment: rule.comment,
    }
}

/// Checks that live attachments have their masquerade rules, and that packets reach them. A flush of the host's
/// firewall removes them until [`Masquerade::repair`](super::Masquerade::repair) restores them; the next ADD restores
/// only the chains.
pub fn findings(network: &NetworkView<'_>, objects: &[&Object]) -> Result<Vec<Finding>> {
    let rules_of = |at: &LiveAttachment| {
        let rules = objects.iter().filter(|object| *object.kind == KIND && at.marks.match_object(object));
        rules.collect::<Vec<_>>()
    };
    let alive: Vec<&LiveAttachment> = network.alive.iter().filter(|at| at.has_port).collect();
    let without_rule: Vec<&LiveAttachment> = alive
        .iter()
        .copied()
        .filter(|at| {
            let rules = rules_of(at);
            match at.addresses.as_slice() {
                // One existing rule suffices as a sign that no rule was flushed.
                [] => rules.is_empty(),
                addresses => addresses.iter().any(|ip| !rules.iter().any(|rule| rule.address == Some(*ip))),
            }
        })
        .collect();
    let mut findings = lacking(&without_rule, REPAIR_HINT, |affected| {
        let text = format!(
            "{} of {} live containers lack a masquerade rule: other networks cannot reply to them",
            affected.len(),
            alive.len()
        );
        Finding::fail(KIND.name, Id("masquerade-missing"), text)
    });
    let by_iptables = alive.iter().filter(|at| rules_of(at).iter().any(|rule| rule.backend == IPTABLES)).count();
    if by_iptables < alive.len() && super::is_cut_off(&mut Nftables::open()?)? {
        let text = "no packet reaches the masquerade rules: other networks cannot reply to containers";
        let finding =
            Finding::fail(KIND.name, Id("masquerade-cut-off"), text).about(alive.iter().map(|at| at.subject.clone()));
        findings.push(match alive.iter().any(|at| at.added.is_some()) {
            true => finding.remedy(REPAIR_HINT).fix(Fix::Repair),
            false => finding.remedy("the next add to the network restores the chain"),
        });
    } else if findings.is_empty() {
        findings.push(Finding::ok(KIND.name, Id("masquerade-complete"), "all live containers have their rules"));
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cni::AttachmentKey;
    use cni::inspect::{Marks, network_marks};

    #[test]
    fn rules_are_distinguished_by_their_comments() {
        let owner = AttachmentKey { network: "net1", container: "c1", ifname: "eth0" };
        let object = |iptables, comment| object(ListedMasquerade { source: None, iptables, comment });
        let nft = object(false, owner.comment());
        let iptables = object(true, owner.iptables_comment());
        let has_marks = |rule: &Object, container, ifname| {
            Marks::new(AttachmentKey { network: "net1", container, ifname }).match_object(rule)
        };
        for rule in [&nft, &iptables] {
            let is_of = |network| rule.has_mark_of(&network_marks(network));
            assert!(is_of("net1") && !is_of("net") && !is_of("net2"));
            assert!(has_marks(rule, "c1", "eth0") && !has_marks(rule, "c2", "eth0"));
        }
        assert!(!has_marks(&nft, "c1", "eth1"));
        assert!(has_marks(&iptables, "c1", "eth1"), "shared by all attachments of the container");
        assert_eq!(nft.about, "net1, if: eth0, id: c1");
    }
}
