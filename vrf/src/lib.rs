//! The `vrf` plugin: makes the interface of a container a member of a VRF, a link that stands for a routing table of
//! its own. So interfaces can have the same addresses and routes.
//!
//! The VRF is in the container, created with its first member and deleted with the last one. The host has nothing.
//!
//! `config` validates the keys. `add` changes the container, `check` compares, and `removal` removes for DEL. `inspect`
//! is for `cnitool`.

mod add;
mod check;
mod config;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod inspect;
mod removal;

use cni::{AddResult, Attachment, Call, Code, Plugin, Result, Rollback};
use interface::link_plugin::no_such_kind;
use linux::netlink::{Link, LinkKind, Netlink};

use config::Config;

/// The kernel's name of the kind.
const VRF: &str = "vrf";
/// The alias of a VRF that the plugin has created.
const ALIAS: &str = "cni-vrf";

/// The `vrf` plugin.
#[derive(Debug)]
pub struct Vrf;

impl Plugin for Vrf {
    fn name(&self) -> &'static str {
        "vrf"
    }

    fn add(&self, call: &Call<'_>, at: &Attachment) -> Result<AddResult> {
        Ok(self.add_with_rollback(call, at)?.0)
    }

    /// Unlike DEL, the rollback also restores the routes of the interface.
    fn add_with_rollback<'a>(&'a self, call: &'a Call<'_>, at: &'a Attachment) -> Result<(AddResult, Rollback<'a>)> {
        let config = Config::parse(call)?;
        let result = call.chained_result()?;
        let done = add::run(call, at, &config)?;
        Ok((result, Box::new(move || done.revert(call, at))))
    }

    /// Takes the interface out of the VRF that it is a member of, whatever the configuration says now.
    fn del(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        removal::run(call, at)
    }

    fn check(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let config = Config::parse(call)?;
        call.chained_result()?;
        check::run(call, at, &config)
    }

    /// Removes nothing: a VRF vanishes with the namespace of the container.
    fn gc(&self, call: &Call<'_>) -> Result<()> {
        call.valid_attachments().map(drop)
    }

    fn status(&self, call: &Call<'_>) -> Result<()> {
        Config::parse(call)?;
        let kind = LinkKind::Vrf { table: 1 };
        match Netlink::open()?.can_create(kind)? {
            true => Ok(()),
            false => Err(no_such_kind(kind).with_code(Code::NOT_AVAILABLE)),
        }
    }
}

/// Returns the link with this name.
fn named<'a>(links: &'a [Link], name: &str) -> Option<&'a Link> {
    links.iter().find(|link| link.name == name)
}
