//! For tools: reports attachments whose rules or routes are missing, and restores them.

use cni::inspect::{Finding, Id, Inspect, NetworkView, Settings, Shape};
use cni::{Attachment, Call, Error, Result};
use interface::differences::Compared;

use crate::config::{self, Config};
use crate::{Sbr, add, check};

const COMPARED: Compared = Compared {
    check: "sbr",
    ids: [Id("sbr-complete"), Id("sbr-incomplete")],
    ok: "packets of live containers leave by the interface of their source",
    lacks: "rules or routes",
};

impl Inspect for Sbr {
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

    /// Adds the rules and routes again if CHECK misses some.
    fn repair(&self, call: &Call<'_>, at: &Attachment) -> Result<Option<&'static str>> {
        if difference(call, at)?.is_none() {
            return Ok(None);
        }
        add::run(call, at, &Config::parse(call)?, &call.chained_result()?)?;
        Ok(Some(COMPARED.lacks))
    }
}

/// Returns what CHECK misses.
fn difference(call: &Call<'_>, at: &Attachment) -> Result<Option<Error>> {
    let config = Config::parse(call)?;
    Ok(check::run(call, at, &config, &call.chained_result()?).err())
}
