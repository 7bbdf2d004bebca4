//! The `firewall` plugin: lets traffic from and to containers pass the host's firewall, and applies ingress policies.
//!
//! `config` validates the keys. `add` accepts the traffic of an attachment, `check` compares, `removal` removes for DEL
//! and GC.
//!
//! - `accepted` has the addresses of containers and marks their packets. `filter` has the rules in the table of
//!   iptables that accept these packets, `policy` those that drop others, and `isolation` those that drop frames within
//!   a bridge. `need` finds out who needs a policy.
//! - `firewalld` is the backend for hosts with firewalld: it binds container addresses to a zone. `dbus` is the client
//!   with which it calls firewalld, and `bindings` records what it has bound.
//! - `inspect` is for `cnitool`.

mod accepted;
mod add;
mod bindings;
mod check;
mod config;
mod dbus;
mod filter;
mod firewalld;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod inspect;
mod isolation;
mod need;
mod policy;
mod removal;
mod status;

use cni::{AddResult, Attachment, AttachmentKey, Call, Keep, Ownership, Plugin, Result};
use linux::netlink::Netlink;

use add::Traffic;
use config::Config;

/// The `firewall` plugin.
#[derive(Debug)]
pub struct Firewall;

impl Plugin for Firewall {
    fn name(&self) -> &'static str {
        "firewall"
    }

    /// The rules are on the host, and name addresses in the previous result.
    fn uses_netns(&self) -> bool {
        false
    }

    fn add(&self, call: &Call<'_>, at: &Attachment) -> Result<AddResult> {
        let config = Config::parse(call)?;
        let result = call.chained_result()?;
        let mut host = Netlink::open()?;
        let mut traffic = Traffic::new(call, at, &config, &result, &mut host)?;
        traffic.accept(host)?;
        Ok(result)
    }

    /// Removes everything of the attachment, whatever the configuration says now.
    fn del(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let owner = AttachmentKey::new(call, at);
        let previous = call.prev_result_to_clean_up();
        let mut ips = add::addresses(&previous);
        if ips.is_empty() {
            // The IPAM plugin releases them after this plugin.
            ips = Ownership::new(owner).leased_addresses(call);
        }
        removal::remove(owner, &ips, previous.host_link(at), &Config::parse_to_clean_up(call))
    }

    fn check(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let config = Config::parse(call)?;
        let result = call.chained_result()?;
        check::run(&Traffic::new(call, at, &config, &result, &mut Netlink::open()?)?)
    }

    fn gc(&self, call: &Call<'_>) -> Result<()> {
        removal::collect(&Keep::new(call.network.as_str(), &call.valid_attachments()?))
    }

    fn status(&self, call: &Call<'_>) -> Result<()> {
        status::run(&Config::parse(call)?)
    }
}
