//! The `bandwidth` plugin: limits the rate of what a container receives and sends.
//!
//! The kernel can only limit what a link sends. What the container receives, the host veth sends, so a token bucket
//! filter there limits it. What the container sends, the host veth receives: a filter redirects it to an ifb link,
//! which passes it on at a limited rate.
//!
//! `config` validates the keys. `add` sets the limits of an attachment, `check` compares, `removal` removes for DEL and
//! GC, and `status` tries everything in a namespace of its own.
//!
//! - `veth` finds the host veth of a container.
//! - `ifb` finds the ifb links of an attachment, also those that the reference created.
//! - `inspect` is for `cnitool`.

mod add;
mod check;
mod config;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod ifb;
mod inspect;
mod limits;
mod removal;
mod status;
mod veth;

use cni::{AddResult, Attachment, Call, ErrorCollector, Interface, Keep, Plugin, Result, Rollback};

use config::Config;
use limits::Limits;

/// The `bandwidth` plugin.
#[derive(Debug)]
pub struct Bandwidth;

impl Plugin for Bandwidth {
    fn name(&self) -> &'static str {
        "bandwidth"
    }

    fn add(&self, call: &Call<'_>, at: &Attachment) -> Result<AddResult> {
        let config = Config::parse(call)?;
        let mut result = call.chained_result()?;
        if let Some((limits, host)) = Limits::find(call, at, &config, &result)?
            && let Some(ifb) = limits.set(host)?
        {
            result.interfaces.push(Interface::new(ifb.name, ifb.mac, ""));
        }
        Ok(result)
    }

    /// Removes the ifb link of the attachment, whatever the configuration says now. The queueing disciplines of the
    /// host veth vanish with it.
    fn del(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        removal::remove(call, at)
    }

    /// Unlike DEL, the rollback also removes the limit of the host veth.
    fn add_with_rollback<'a>(&'a self, call: &'a Call<'_>, at: &'a Attachment) -> Result<(AddResult, Rollback<'a>)> {
        let roll_back = || {
            let mut failures = ErrorCollector::default();
            failures.record(removal::remove(call, at));
            failures.record(removal::remove_limit(call, at));
            failures.into_result()
        };
        Ok((self.add(call, at)?, Box::new(roll_back)))
    }

    fn check(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let config = Config::parse(call)?;
        let result = call.chained_result()?;
        match Limits::find(call, at, &config, &result)? {
            Some((limits, mut host)) => check::run(&limits, &mut host),
            None => Ok(()),
        }
    }

    fn gc(&self, call: &Call<'_>) -> Result<()> {
        removal::collect(call, &Keep::new(call.network.as_str(), &call.valid_attachments()?))
    }

    fn status(&self, call: &Call<'_>) -> Result<()> {
        status::run(call, &Config::parse(call)?)
    }
}
