//! Who needs the ingress policy of a network. Its rules name the network and the bridge, but not the attachments: they
//! go with the last attachment that needs them.

use std::cell::Cell;

use cni::key::{AliasOwner, mark_in, network_mark};
use cni::{AttachmentKey, Ownership, Result, Trace};
use linux::iptables::{FAMILIES, TablePlan, Tools, change_legacy};
use linux::netlink::nft::Nftables;
use linux::netlink::{Link, Netlink};

use crate::accepted::Member;
use crate::filter::{CONTAINERS, FILTER};
use crate::policy::{self, STAGE_1};
use crate::{bindings, isolation};

/// An attachment that no longer needs the policy of its network, or all attachments of a network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaver<'a> {
    pub(crate) network: &'a str,
    /// The attachment; `None` if no attachment of the network is left.
    pub(crate) owner: Option<AttachmentKey<'a>>,
    /// The link of the attachment on this host, if known.
    pub(crate) port: Option<&'a str>,
    /// Whether the attachment had rules, a binding or an isolated port, as all attachments of its network then have.
    pub(crate) is_traced: bool,
}

impl Leaver<'_> {
    /// Removes the policies of the network from nf_tables, as far as no attachment needs them. Those of other
    /// attachments that start meanwhile stay: each ADD with a policy changes the ruleset, and then this starts again.
    pub(crate) fn end_policies(&self, nft: &mut Nftables) -> Result<()> {
        // Usually there are none, or another attachment needs them: then nothing has to be guarded.
        if !policy::exists(nft, self.network)? || self.has_others(nft)? {
            return Ok(());
        }
        let mut host = Netlink::open()?;
        nft.apply_guarded(|nft| {
            let mut edits = Vec::new();
            if !self.has_others(nft)? {
                for tools in &FAMILIES {
                    let mut needed = |bridge: &str| self.has_neighbours(&mut host, bridge);
                    edits.extend(policy::delete(nft, tools, self.network, &mut needed)?);
                }
            }
            Ok(edits)
        })
    }

    /// Removes the policies of bridges without other containers from a legacy table, whose rules do not name the
    /// network.
    pub(crate) fn end_legacy_policies(&self, tools: &'static Tools) -> Result<()> {
        if !tools.legacy_table_in_use(FILTER)?.is_some_and(|table| table.has_chain(STAGE_1)) {
            return Ok(());
        }
        let mut host = Netlink::open()?;
        change_legacy(tools, FILTER, |view| -> Result<TablePlan<'_>> {
            let needed = &mut |host: &mut Netlink, bridge: &str| self.has_ports(host, bridge, &|_| true);
            Ok(TablePlan { steps: policy::collect(view, &mut host, needed)?, removed: vec![] })
        })
        .map(drop)
    }

    /// Returns whether nf_tables has anything of another attachment to the network.
    fn has_others(&self, nft: &mut Nftables) -> Result<bool> {
        let (network, own) = (network_mark(self.network), self.owner.map(|owner| owner.mark()));
        let is_other = |comment: &str| comment.starts_with(&network) && mark_in(comment) != own.as_deref();
        if Member::list(nft)?.iter().any(|member| is_other(&member.comment)) {
            return Ok(true);
        }
        let is_found = Cell::new(false);
        // Those of earlier versions.
        for tools in &FAMILIES {
            // There may be thousands. None has to be parsed.
            nft.rules_with_mark(tools.table(FILTER).chain(CONTAINERS), &|mark| {
                is_found.set(is_found.get() || is_other(mark));
                false
            })?;
            if is_found.get() {
                return Ok(true);
            }
        }
        Ok(isolation::ports(nft)?.iter().any(|(_, comment)| is_other(comment))
            || !bindings::list(nft, &is_other)?.is_empty())
    }

    /// Returns whether a bridge has ports of other containers that may need a policy of the network: those of unknown
    /// networks, because the reference attached them, and those of this network unless they had traces.
    fn has_neighbours(&self, host: &mut Netlink, bridge: &str) -> Result<bool> {
        self.has_ports(host, bridge, &|port| match AliasOwner::parse(&port.alias) {
            Some(found) => !self.is_traced && found.network == self.network,
            None => true,
        })
    }

    /// Returns whether a bridge has veths of other attachments for which `wanted` returns true. Without a bridge, the
    /// policy is that of the link of one container.
    fn has_ports(&self, host: &mut Netlink, bridge: &str, wanted: &dyn Fn(&Link) -> bool) -> Result<bool> {
        let Some(bridge) = host.link(bridge)? else { return Ok(false) };
        let is_own = |port: &Link| {
            let has_alias = |owner| Ownership::new(owner).judge(Trace::Alias(&port.alias)).is_ours();
            self.port == Some(&port.name) || self.owner.is_some_and(has_alias)
        };
        if bridge.kind != "bridge" {
            return Ok(!is_own(&bridge));
        }
        Ok(host.links(Some(bridge.index))?.iter().any(|port| port.kind == "veth" && !is_own(port) && wanted(port)))
    }
}
