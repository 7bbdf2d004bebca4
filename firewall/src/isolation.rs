//! The ingress policy `isolated` within a bridge: containers do not reach each other, in a table of its own.
//!
//! ```text
//! table bridge cni_isolation {
//!     set ports { type ifname; elements = { "veth2fd64ca4" comment "…" } }
//!     set macs { type ether_addr; elements = { 0a:58:0a:16:00:02 comment "…" } }
//!     chain prerouting { type filter hook prerouting priority -300; iifname @ports ether daddr @macs drop }
//!     chain forward { type filter hook forward priority 0; iifname @ports oifname @ports ether daddr != @macs drop }
//! }
//! ```
//!
//! The first rule drops the frames that one isolated container addresses to another. The second drops all other frames between
//! their ports: broadcasts, multicasts, and frames to a MAC address that belongs to none of them. Only one kind of frame passes
//! both: a frame addressed to the bridge, whose destination netfilter has replaced by a container after the first rule. With
//! `bridge-nf-call-iptables` 1, this is how the kernel translates connections to the published port of a neighbour. So neighbours
//! reach published ports with both values of this sysctl.
//!
//! Port isolation of the kernel would also drop those frames, and it belongs to the key `portIsolation` of `bridge`.
//!
//! The comment of an element is that of the attachment. A MAC address that two containers have is listed once: when one of them
//! leaves, the other stays isolated by the second rule.

use cni::key::mark_in;
use cni::{AttachmentKey, Result};
use linux::ip::MacAddr;
use linux::netlink::nft::{
    DataType, Edit, Element, Elements, Family, Field, Hook, MapsTo, Nftables, RuleSpec, Set, SetSpec, Table, Value,
    Verdict,
};

const TABLE: Table<'_> = Table { family: Family::Bridge, name: "cni_isolation" };
const PORTS: Set<'_> = TABLE.set("ports");
const MACS: Set<'_> = TABLE.set("macs");
const CHAINS: [(&str, Hook); 2] = [("prerouting", Hook::BRIDGE_INPUT), ("forward", Hook::FORWARD)];

/// The port of an isolated container.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IsolatedPort<'a> {
    pub(crate) name: &'a str,
    /// The MAC address of the container, if the result has it.
    pub(crate) mac: Option<MacAddr>,
}

impl IsolatedPort<'_> {
    fn key(&self) -> Value {
        Value::LinkName(self.name.to_owned())
    }

    /// Returns the edits that isolate the port, and no other port of the attachment. Creates the table if necessary.
    pub(crate) fn isolate(&self, nft: &mut Nftables, owner: AttachmentKey<'_>) -> Result<Vec<Edit>> {
        let mut edits = if is_complete(nft)? { Vec::new() } else { create() };
        let mark = owner.mark();
        for (set, key) in [(PORTS, Some(self.key())), (MACS, self.mac.map(Value::Mac))] {
            let wanted = key.map(|key| Element::new(&[key]).comment(owner.comment()));
            let mut replaced = nft.elements(set)?;
            replaced.retain(|found| {
                let has_key = wanted.as_ref().is_some_and(|wanted| wanted.key == found.key);
                has_key || mark_in(&found.userdata.comment) == Some(&mark)
            });
            if replaced.iter().eq(&wanted) {
                continue;
            }
            edits.extend(Edit::delete_elements(set, &replaced));
            edits.extend(Edit::create_elements(set, wanted.as_slice()));
        }
        Ok(edits)
    }

    /// Returns whether the port is isolated, and neighbours reach the published ports of the container.
    pub(crate) fn is_isolated(&self, nft: &mut Nftables, owner: AttachmentKey<'_>) -> Result<bool> {
        Ok(nft.element(PORTS, &[self.key()])?.is_some() && self.has_mac(nft, owner)? && is_complete(nft)?)
    }

    /// Returns whether the MAC address of the container is listed. A later plugin, such as `tuning`, may have changed the address
    /// since ADD, so any address of the attachment counts.
    fn has_mac(&self, nft: &mut Nftables, owner: AttachmentKey<'_>) -> Result<bool> {
        let Some(mac) = self.mac.map(|mac| Element::new(&[Value::Mac(mac)])) else { return Ok(true) };
        let mark = owner.mark();
        let is_its = |found: &Element| found.key == mac.key || mark_in(&found.userdata.comment) == Some(&mark);
        Ok(nft.elements(MACS)?.iter().any(is_its))
    }
}

/// Returns the edits that create the table, or restore what is missing of it.
fn create() -> Vec<Edit> {
    let set = |set, key| SetSpec { set, key, maps_to: MapsTo::Nothing, elements: Elements::Keys };
    let mut edits = vec![
        Edit::add_table(TABLE),
        Edit::add_set(&set(PORTS, &[DataType::LinkName])),
        Edit::add_set(&set(MACS, &[DataType::Mac])),
    ];
    for ((chain, hook), rule) in CHAINS.into_iter().zip(rules()) {
        let chain = TABLE.chain(chain);
        edits.extend([Edit::add_base_chain(chain, hook), Edit::flush(chain), Edit::add_rule(&rule)]);
    }
    edits
}

/// Returns the rule of each of [`CHAINS`].
fn rules() -> [RuleSpec<'static>; 2] {
    let [to_containers, between_ports] =
        CHAINS.map(|(chain, _)| RuleSpec::new(TABLE.chain(chain)).in_set(&[Field::INPUT_LINK], PORTS.name));
    [
        to_containers.in_set(&[Field::DESTINATION_MAC], MACS.name),
        between_ports.in_set(&[Field::OUTPUT_LINK], PORTS.name).not_in_set(&[Field::DESTINATION_MAC], MACS.name),
    ]
    .map(|rule| rule.verdict(Verdict::Drop))
}

/// Returns whether the table has both rules.
fn is_complete(nft: &mut Nftables) -> Result<bool> {
    let listed = nft.table_rules(TABLE)?;
    let exists =
        |chain: &str, rule: &RuleSpec<'_>| listed.iter().any(|found| found.chain == chain && found.is_same_as(rule));
    Ok(CHAINS.iter().zip(rules()).all(|((chain, _), rule)| exists(chain, &rule)))
}

/// Returns the edits that end the isolation of the attachments whose comments are `released`. Without any port, only if
/// `is_thorough`: a later attachment may have taken over the port, and not the MAC address.
pub(crate) fn release(nft: &mut Nftables, released: &dyn Fn(&str) -> bool, is_thorough: bool) -> Result<Vec<Edit>> {
    let mut edits = Vec::new();
    for set in [PORTS, MACS] {
        let mut elements = nft.elements(set)?;
        if elements.is_empty() && !is_thorough {
            break;
        }
        elements.retain(|found| released(&found.userdata.comment));
        edits.extend(Edit::delete_elements(set, &elements));
    }
    Ok(edits)
}

/// GC: ends the isolation of the attachments whose comments are `released`. Returns whether there were any.
pub(crate) fn remove(nft: &mut Nftables, released: &dyn Fn(&str) -> bool) -> Result<bool> {
    // Usually there are none, and nothing has to be guarded.
    if release(nft, released, true)?.is_empty() {
        return Ok(false);
    }
    nft.apply_guarded(|nft| release(nft, released, true))?;
    Ok(true)
}

/// Returns the name of the isolated port of an attachment.
pub(crate) fn port_of(nft: &mut Nftables, owner: AttachmentKey<'_>) -> Result<Option<String>> {
    let mark = owner.mark();
    let own = ports(nft)?.into_iter().find(|(_, comment)| mark_in(comment) == Some(&mark));
    Ok(own.map(|(name, _)| name))
}

/// Returns the names of the isolated ports with the comments of their attachments.
pub(crate) fn ports(nft: &mut Nftables) -> Result<Vec<(String, String)>> {
    let elements = nft.elements(PORTS)?.into_iter();
    let ports = elements.filter_map(|found| match Value::split(&[DataType::LinkName], &found.key)?.pop()? {
        Value::LinkName(name) => Some((name, found.userdata.comment)),
        _ => None,
    });
    Ok(ports.collect())
}
