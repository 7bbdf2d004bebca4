//! For tools: reads configurations, lists the rules on a host, reports problems, and repairs rules.

use cni::inspect::{
    self, Finding, Fix, Inspect, Kind, LiveAttachment, NetworkView, Object, Owner, Property, Settings, Shape, Subject,
    Usage, lacking,
};
use cni::{Attachment, AttachmentKey, Call, Code, Context, Keep, Result};
use linux::ip::Cidr;
use linux::netlink::nft::Nftables;
use linux::netlink::{Address, Netlink};

use crate::Bridge;
use crate::config::{self, Backend, Config};
use crate::masquerade;
use crate::rule::{Masquerade, REPAIR_HINT, Traffic};
use crate::{check, gateway, gc, iptables, spoofcheck, vlan};

/// The kinds of objects that the plugin creates.
static KINDS: [Kind; 2] = [
    Kind { name: "masquerade", noun: "rule", flag: "masq", json: "masquerade", is_listed: true },
    Kind { name: "spoofcheck", noun: "spoof check", flag: "spoofchk", json: "spoofCheck", is_listed: false },
];
const IPTABLES: &str = "iptables";
const NFTABLES: &str = "nftables";

impl Inspect for Bridge {
    fn shape(&self) -> Shape {
        config::shape()
    }

    fn settings(&self, call: &Call<'_>) -> Result<Settings> {
        let config = Config::parse(call)?;
        config.refuse_contradictions()?;
        let name = config.bridge.to_string();
        let is_gateway = config.gateway && config.ipam.is_some();
        Ok(Settings {
            nftables: match config.masquerade {
                _ if config.spoof_check => Usage::Required,
                Some(Backend::Nftables) => Usage::Required,
                Some(_) => Usage::Preferred,
                None => Usage::No,
            },
            bridge: Some(inspect::Bridge {
                gateway: is_gateway.then(|| config.vlan_gateway().unwrap_or_else(|| name.clone())),
                hairpin: config.port.hairpin,
                isolated: config.port.isolated,
                name,
                mtu: config.mtu,
            }),
            ..Settings::default()
        })
    }

    fn kinds(&self) -> &'static [Kind] {
        &KINDS
    }

    fn objects(&self) -> Result<Vec<Object>> {
        let [masquerade, spoof_check] = &KINDS;
        let mut nft = Nftables::open()?;
        let mut rules = masquerade::list(&mut nft)?;
        rules.extend(iptables::list(&mut nft)?);
        let checks = spoofcheck::list(&mut nft)?;
        let rules = rules.into_iter().map(|rule| masquerade_object(masquerade, rule));
        Ok(rules
            .chain(checks.into_iter().map(|(port, comment)| spoof_check_object(spoof_check, port, comment)))
            .collect())
    }

    fn collect(&self, _: &Call<'_>, keep: &Keep<'_>) -> Result<()> {
        gc::collect_rules(&mut Netlink::open()?, keep)
    }

    fn findings(&self, network: &NetworkView<'_>) -> Result<Vec<Finding>> {
        let config = Config::parse(network.call)?;
        let mut findings = Vec::new();
        if let (Some(_), Some(objects)) = (config.masquerade, network.objects) {
            findings.extend(check_masquerade(network, objects)?);
        }
        if config.vlans.is_some() {
            findings.extend(check_vlan_support(config.bridge.as_str())?);
        }
        Ok(findings)
    }

    fn check_gateway_conflict(&self, call: &Call<'_>, have: &[Address], gateways: &[Cidr]) -> Result<()> {
        let config = Config::parse(call)?;
        let link = config.vlan_gateway().unwrap_or_else(|| config.bridge.to_string());
        gateway::compare(&link, have, gateways, config.force_address).map(drop)
    }

    fn flaw_of_reference_check(&self, call: &Call<'_>) -> Result<Option<&'static str>> {
        let has_ipam = Config::parse(call)?.ipam.is_some();
        Ok((!has_ipam).then_some("it always calls an IPAM plugin, and the network has none"))
    }

    fn needs_repair(&self, call: &Call<'_>, at: &Attachment) -> Result<bool> {
        let config = Config::parse(call)?;
        let Some((backend, ips)) = masqueraded(call, at, &config)? else { return Ok(false) };
        let traffic = Traffic { ips: &ips, exclude: &config.masquerade_exclude };
        Ok(masquerade::check(backend, AttachmentKey::new(call, at), traffic).is_err())
    }

    /// Adds the masquerade rules of an attachment again if one is missing.
    ///
    /// The container must still have the interface and the addresses of the result of ADD, so that an address that now
    /// belongs to another container gets no rule.
    fn repair(&self, call: &Call<'_>, at: &Attachment) -> Result<Option<&'static str>> {
        let restored = restore_masquerade(call, at).context(|| "restore the masquerade rules")?;
        Ok(restored.then_some("masquerade rules"))
    }
}

fn masquerade_object(kind: &'static Kind, rule: Masquerade) -> Object {
    Object {
        kind,
        owner: Owner::Marked(rule.mark().to_owned()),
        backend: if rule.iptables { IPTABLES } else { NFTABLES },
        address: rule.source,
        name: rule.source.map_or_else(|| "-".to_owned(), |ip| ip.to_string()),
        detail: String::new(),
        properties: vec![("source", Property::Address(rule.source))],
        about: rule.about().to_owned(),
        comment: rule.comment,
    }
}

fn spoof_check_object(kind: &'static Kind, port: String, comment: String) -> Object {
    Object {
        kind,
        name: port.clone(),
        detail: String::new(),
        properties: Vec::new(),
        owner: Owner::Port(port),
        backend: NFTABLES,
        address: None,
        about: comment.split_once(", net: ").map_or(comment.as_str(), |(_, about)| about).to_owned(),
        comment,
    }
}

/// Checks that live attachments have their masquerade rules, and that packets reach them. A flush of the host's firewall
/// removes them until [`Inspect::repair`] restores them; the next ADD restores only the chains.
fn check_masquerade(network: &NetworkView<'_>, objects: &[&Object]) -> Result<Vec<Finding>> {
    let [masquerade, _] = &KINDS;
    let rules_of = |at: &LiveAttachment| {
        let rules = objects.iter().filter(|object| object.kind == masquerade && at.marks.match_object(object));
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
        Finding::fail(masquerade.name, text)
    });
    let by_iptables = alive.iter().filter(|at| rules_of(at).iter().any(|rule| rule.backend == IPTABLES)).count();
    if by_iptables < alive.len() && masquerade::is_cut_off(&mut Nftables::open()?)? {
        let text = "no packet reaches the masquerade rules: other networks cannot reply to containers";
        let finding = Finding::fail(masquerade.name, text).about(alive.iter().map(|at| at.subject.clone()));
        findings.push(match alive.iter().any(|at| at.added.is_some()) {
            true => finding.remedy(REPAIR_HINT).fix(Fix::Repair),
            false => finding.remedy("the next add to the network restores the chain"),
        });
    } else if findings.is_empty() {
        findings.push(Finding::ok(masquerade.name, "all live containers have their rules"));
    }
    Ok(findings)
}

/// Checks that the kernel can filter VLANs on the bridge, if that exists, or could be created.
fn check_vlan_support(bridge: &str) -> Result<Option<Finding>> {
    let mut host = Netlink::open()?;
    let link = host.link(bridge)?;
    if link.as_ref().is_some_and(|link| link.kind != "bridge") {
        return Ok(None);
    }
    match vlan::refuse_unsupported(&mut host, bridge, link.as_ref()) {
        Ok(()) => Ok(None),
        Err(error) if error.code() == Code::UNSUPPORTED => {
            Ok(Some(Finding::error("bridge", &error).about([Subject::link(bridge)])))
        }
        Err(error) => Err(error),
    }
}

/// Returns the backend and the masqueraded addresses of an attachment; `None` if the network has no masquerade.
fn masqueraded(call: &Call<'_>, at: &Attachment, config: &Config) -> Result<Option<(Backend, Vec<Cidr>)>> {
    let backend = config.masquerade.filter(|_| config.ipam.is_some());
    backend.map(|backend| Ok((backend, check::addresses(call, at, config)?))).transpose()
}

/// Adds the masquerade rules of an attachment. Returns `false` if none is missing, or if the network has no masquerade.
fn restore_masquerade(call: &Call<'_>, at: &Attachment) -> Result<bool> {
    let config = Config::parse(call)?;
    let Some((backend, ips)) = masqueraded(call, at, &config)? else { return Ok(false) };
    let owner = AttachmentKey::new(call, at);
    let traffic = Traffic { ips: &ips, exclude: &config.masquerade_exclude };
    if !masquerade::restore(backend, owner, traffic)? {
        return Ok(false);
    }
    // DEL removes the interface before the rules. If the interface still exists now, a concurrent DEL also removes
    // these rules; otherwise it may have missed them.
    if let Err(gone) = check::addresses(call, at, &config) {
        masquerade::remove_all(owner, &ips)?;
        return Err(gone);
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cni::inspect::{Marks, network_marks};

    #[test]
    fn rules_are_distinguished_by_their_comments() {
        let owner = AttachmentKey { network: "net1", container: "c1", ifname: "eth0" };
        let object = |iptables, comment| masquerade_object(&KINDS[0], Masquerade { source: None, iptables, comment });
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
