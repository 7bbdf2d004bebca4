//! The `sbr` plugin: packets from an address of the interface leave by that interface, whatever the main routing table
//! says. So a container can have several interfaces with a default gateway each.
//!
//! Each address gets a rule that selects a routing table of its own, to which the routes of the interface are moved.
//! All rules and routes are in the container; the host has nothing.
//!
//! `config` validates the keys. `plan` decides what to change, `add` changes it, `check` compares, and `removal`
//! removes for DEL.
//!
//! - `owner` recognises the rules of an attachment, also those that the reference added.
//! - `inspect` is for `cnitool`.

mod add;
mod check;
mod config;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod inspect;
mod owner;
mod plan;
mod removal;

use cni::{AddResult, Attachment, Call, Code, Error, Plugin, Result, Rollback};
use linux::netlink::Netlink;

use config::Config;

/// The `sbr` plugin.
#[derive(Debug)]
pub struct Sbr;

impl Plugin for Sbr {
    fn name(&self) -> &'static str {
        "sbr"
    }

    fn add(&self, call: &Call<'_>, at: &Attachment) -> Result<AddResult> {
        Ok(self.add_with_rollback(call, at)?.0)
    }

    /// Unlike DEL, the rollback also moves the routes back to the main table.
    fn add_with_rollback<'a>(&'a self, call: &'a Call<'_>, at: &'a Attachment) -> Result<(AddResult, Rollback<'a>)> {
        let config = Config::parse(call)?;
        let result = call.chained_result()?;
        let done = add::run(call, at, &config, &result)?;
        Ok((result, Box::new(move || done.revert(at))))
    }

    /// Removes the rules of the attachment, whatever the configuration says now.
    fn del(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        removal::run(call, at)
    }

    fn check(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        check::run(call, at, &Config::parse(call)?, &call.chained_result()?)
    }

    /// Removes nothing: rules and routes vanish with the namespace of the container.
    fn gc(&self, call: &Call<'_>) -> Result<()> {
        call.valid_attachments().map(drop)
    }

    fn status(&self, call: &Call<'_>) -> Result<()> {
        Config::parse(call)?;
        match Netlink::open()?.rules() {
            Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => {
                let error = Error::new(Code::NOT_AVAILABLE, "this kernel cannot select routing tables by rules");
                Err(error.details("use a kernel with CONFIG_IP_MULTIPLE_TABLES"))
            }
            outcome => Ok(outcome.map(drop)?),
        }
    }
}
