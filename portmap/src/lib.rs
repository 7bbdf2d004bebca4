//! The `portmap` plugin: publishes ports of containers on addresses of this host.
//!
//! `config` validates the keys, `mapping` derives the mappings of each container address from them and from the
//! previous result, and `condition` has the conditions of a network. `publication` is what an attachment publishes.
//!
//! - `table` is the form in which ports are published: rules and maps in a table of this plugin, and `entry` is what
//!   the maps have for each attachment. `inventory` records in the table what each attachment has. `add` fills the maps
//!   in one transaction, `clashes` finds what excludes its entries, `check` compares them, `removal` removes them for
//!   DEL and GC.
//! - `iptables` is the form of the reference with iptables; `reference` has its form with nftables, which is only read
//!   and removed. `other_forms` looks for both, `published` is a port in any form, and `owner` finds out whether its
//!   owner still exists.
//! - `localnet` makes ports reachable from loopback addresses, `flows` corrects connection tracking, `listener` warns
//!   of processes on the same port, and `node_ports` of services of Kubernetes.
//! - `host` is a socket that is opened when it is needed, and `inspect` is for `cnitool`.

mod add;
mod check;
mod clashes;
mod condition;
mod config;
mod entry;
mod flows;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod host;
mod inspect;
mod inventory;
mod iptables;
mod listener;
mod localnet;
mod mapping;
mod node_ports;
mod other_forms;
mod owner;
mod publication;
mod published;
mod reference;
mod removal;
mod status;
mod table;

use std::net::IpAddr;

use cni::{AddResult, Attachment, AttachmentKey, Call, Keep, Plugin, Result};

use config::Config;
use publication::{PortRemoval, Publication};

/// The `portmap` plugin.
#[derive(Debug)]
pub struct Portmap;

impl Plugin for Portmap {
    fn name(&self) -> &'static str {
        "portmap"
    }

    /// The ports are published on the host, and lead to addresses in the previous result.
    fn uses_netns(&self) -> bool {
        false
    }

    fn add(&self, call: &Call<'_>, at: &Attachment) -> Result<AddResult> {
        let config = Config::parse(call)?;
        let result = call.chained_result()?;
        if !config.ports.is_empty() {
            Publication::new(call, at, &config, &result).add()?;
        }
        Ok(result)
    }

    /// Removes everything of the attachment, whatever the configuration says now.
    fn del(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let previous = call.prev_result_to_clean_up();
        let ips: Vec<IpAddr> = previous.ips.iter().map(|ip| ip.address.ip()).collect();
        let link = previous.host_link(at);
        // Without a valid configuration, DEL depends on what the host has.
        let config = Config::parse(call).ok();
        let publication = config.as_ref().map(|config| Publication::new(call, at, config, &previous));
        let removal = PortRemoval { owner: AttachmentKey::new(call, at), ips: &ips, link, is_del: true };
        removal::remove(&removal, publication.as_ref())
    }

    fn check(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let config = Config::parse(call)?;
        let result = call.chained_result()?;
        check::run(&Publication::new(call, at, &config, &result))
    }

    fn gc(&self, call: &Call<'_>) -> Result<()> {
        removal::collect(&Keep::new(call.network.as_str(), &call.valid_attachments()?))
    }

    fn status(&self, call: &Call<'_>) -> Result<()> {
        status::run(&Config::parse(call)?)
    }
}
