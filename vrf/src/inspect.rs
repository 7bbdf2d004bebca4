//! For tools: reports attachments that are not in their VRF, and adds them again.

use cni::inspect::{Finding, Id, Inspect, NetworkView, Settings, Shape};
use cni::{Attachment, Call, Error, Result};
use interface::differences::Compared;

use crate::config::{self, Config};
use crate::{Vrf, add, check};

const COMPARED: Compared = Compared {
    check: "vrf",
    ids: [Id("vrf-members"), Id("vrf-left")],
    ok: "interfaces of live containers are in their VRF",
    lacks: "memberships of a VRF",
};

impl Inspect for Vrf {
    fn shape(&self) -> Shape {
        config::shape()
    }

    fn is_chained(&self) -> bool {
        true
    }

    fn settings(&self, call: &Call<'_>) -> Result<Settings> {
        Config::parse(call).map(|_| Settings::default())
    }

    fn findings(&self, network: &NetworkView<'_>) -> Result<Vec<Finding>> {
        Ok(COMPARED.findings(network, difference))
    }

    fn needs_repair(&self, call: &Call<'_>, at: &Attachment) -> Result<bool> {
        difference(call, at).map(|found| found.is_some())
    }

    /// Makes the interface a member again if CHECK finds that it is none.
    fn repair(&self, call: &Call<'_>, at: &Attachment) -> Result<Option<&'static str>> {
        if difference(call, at)?.is_none() {
            return Ok(None);
        }
        add::run(call, at, &Config::parse(call)?)?;
        Ok(Some(COMPARED.lacks))
    }
}

/// Returns what CHECK misses.
fn difference(call: &Call<'_>, at: &Attachment) -> Result<Option<Error>> {
    Ok(check::run(call, at, &Config::parse(call)?).err())
}
