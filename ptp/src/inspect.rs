//! For tools: reads configurations, lists the rules on a host, reports problems, and repairs rules.

use cni::inspect::{Finding, Inspect, NetworkView, Object, ObjectKind, Settings, Shape};
use cni::{Attachment, AttachmentKey, Call, Context, Keep, Result};
use interface::masquerade::inspect::{KIND, RESTORED, findings, objects};
use linux::netlink::nft::Nftables;

use crate::config::{self, Config};
use crate::{Ptp, check};

/// The kinds of objects that the plugin creates.
static KINDS: [ObjectKind; 1] = [KIND];

impl Inspect for Ptp {
    fn shape(&self) -> Shape {
        config::shape()
    }

    fn settings(&self, call: &Call<'_>) -> Result<Settings> {
        let masquerade = Config::parse(call)?.masquerade;
        Ok(Settings {
            nftables: masquerade.map(|masquerade| masquerade.usage()).unwrap_or_default(),
            ..Settings::default()
        })
    }

    fn kinds(&self) -> &'static [ObjectKind] {
        &KINDS
    }

    fn objects(&self) -> Result<Vec<Object>> {
        objects(&mut Nftables::open()?)
    }

    fn collect(&self, _: &Call<'_>, keep: &Keep<'_>) -> Result<()> {
        crate::collect_rules(keep)
    }

    fn findings(&self, network: &NetworkView<'_>) -> Result<Vec<Finding>> {
        match (Config::parse(network.call)?.masquerade, network.objects) {
            (Some(_), Some(objects)) => findings(network, objects),
            _ => Ok(Vec::new()),
        }
    }

    fn flaw_of_reference_check(&self, call: &Call<'_>) -> Result<Option<&'static str>> {
        let has_ipam = Config::parse(call)?.ipam.is_some();
        Ok((!has_ipam).then_some("it always calls an IPAM plugin, and the network has none"))
    }

    fn needs_repair(&self, call: &Call<'_>, at: &Attachment) -> Result<bool> {
        let config = Config::parse(call)?;
        let Some(masquerade) = config.masquerade_with_ipam() else { return Ok(false) };
        Ok(masquerade.check(AttachmentKey::new(call, at), &check::masqueraded(call, at)?).is_err())
    }

    /// Adds the masquerade rules of an attachment again if one is missing.
    fn repair(&self, call: &Call<'_>, at: &Attachment) -> Result<Option<&'static str>> {
        let config = Config::parse(call)?;
        let Some(masquerade) = config.masquerade_with_ipam() else { return Ok(None) };
        let restored = masquerade
            .repair(AttachmentKey::new(call, at), || check::masqueraded(call, at))
            .context(|| "restore the masquerade rules")?;
        Ok(restored.then_some(RESTORED))
    }
}
