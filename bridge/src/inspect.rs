//! For tools: reads configurations, lists the rules on a host, reports problems, and repairs rules.

use cni::inspect::{
    self, Finding, Id, Inspect, NetworkView, Object, ObjectKind, Owner, Settings, Shape, Subject, Usage,
};
use cni::{Attachment, AttachmentKey, Call, Code, Context, Keep, Result};
use interface::masquerade::inspect::RESTORED;
use interface::{check, masquerade};
use linux::ip::Cidr;
use linux::netlink::nft::Nftables;
use linux::netlink::{Address, Netlink};

use crate::Bridge;
use crate::config::{self, Config};
use crate::{gateway, gc, spoofcheck, vlan};

/// The kinds of objects that the plugin creates.
static KINDS: [ObjectKind; 2] = [
    masquerade::inspect::KIND,
    ObjectKind { name: "spoofcheck", noun: "spoof check", flag: "spoofchk", json: "spoofCheck", is_listed: false },
];

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
            nftables: match &config.masquerade {
                _ if config.spoof_check => Usage::Required,
                Some(masquerade) => masquerade.usage(),
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

    fn kinds(&self) -> &'static [ObjectKind] {
        &KINDS
    }

    fn objects(&self) -> Result<Vec<Object>> {
        let [_, spoof_check] = &KINDS;
        let mut nft = Nftables::open()?;
        let mut objects = masquerade::inspect::objects(&mut nft)?;
        let checks = spoofcheck::list(&mut nft)?.into_iter();
        objects.extend(checks.map(|(port, comment)| spoof_check_object(spoof_check, port, comment)));
        Ok(objects)
    }

    fn collect(&self, _: &Call<'_>, keep: &Keep<'_>) -> Result<()> {
        gc::collect_rules(&mut Netlink::open()?, keep)
    }

    fn findings(&self, network: &NetworkView<'_>) -> Result<Vec<Finding>> {
        let config = Config::parse(network.call)?;
        let mut findings = Vec::new();
        if let (Some(_), Some(objects)) = (&config.masquerade, network.objects) {
            findings.extend(masquerade::inspect::findings(network, objects)?);
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
        let Some(masquerade) = config.masquerade_with_ipam() else { return Ok(false) };
        let ips = check::addresses(call, at, "veth", config.container_up)?;
        Ok(masquerade.check(AttachmentKey::new(call, at), &ips).is_err())
    }

    /// Adds the masquerade rules of an attachment again if one is missing.
    fn repair(&self, call: &Call<'_>, at: &Attachment) -> Result<Option<&'static str>> {
        let config = Config::parse(call)?;
        let Some(masquerade) = config.masquerade_with_ipam() else { return Ok(None) };
        let restored = masquerade
            .repair(AttachmentKey::new(call, at), || check::addresses(call, at, "veth", config.container_up))
            .context(|| "restore the masquerade rules")?;
        Ok(restored.then_some(RESTORED))
    }
}

fn spoof_check_object(kind: &'static ObjectKind, port: String, comment: String) -> Object {
    Object {
        kind,
        name: port.clone(),
        detail: String::new(),
        properties: Vec::new(),
        owner: Owner::Port(port),
        backend: "nftables",
        address: None,
        about: comment.split_once(", net: ").map_or(comment.as_str(), |(_, about)| about).to_owned(),
        comment,
    }
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
            Ok(Some(Finding::error("bridge", Id("bridge-vlan-unsupported"), &error).about([Subject::link(bridge)])))
        }
        Err(error) => Err(error),
    }
}
