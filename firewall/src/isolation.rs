//! The ingress policy `isolated` within a bridge: containers do not reach each other, in a table of its own.
//!
//! ```text
//! table bridge cni_isolation {
//!     set ports { type ifname; elements = { "veth2fd64ca4" comment "…" } }
//!     set bridges { type ifname . ether_addr; elements = { "veth2fd64ca4" . 5e:0b:7c:1f:a2:33 comment "…" } }
//!     chain forward {
//!         type filter hook forward priority 0
//!         iifname @ports oifname @ports meta pkttype != host drop
//!         iifname . ether daddr @bridges drop
//!     }
//! }
//! ```
//!
//! The first rule drops the frames between the ports of isolated containers: those that one container addresses to
//! another, broadcasts and multicasts. Only one kind of frame passes: a frame addressed to the bridge, which is a frame
//! to this host (`host`), and whose destination netfilter has replaced by a container since. With
//! `bridge-nf-call-iptables` 1, this is how the kernel translates connections to the published port of a neighbour. So
//! neighbours reach published ports with both values of this sysctl, whatever MAC addresses containers have.
//!
//! The second rule drops frames that are still addressed to the bridge, if the bridge filters VLANs. The kernel
//! forwards such frames to all ports of a VLAN in which the bridge itself is not.
//!
//! Port isolation of the kernel would also drop those frames, and it belongs to the key `portIsolation` of `bridge`.
//!
//! The comment of an element is that of the attachment.

use cni::key::mark_in;
use cni::{AttachmentKey, Result};
use linux::ip::MacAddr;
use linux::netlink::nft::{
    Chain, Comparison, DataType, Edit, Element, Elements, Family, Field, Hook, MapsTo, Nftables, RuleSpec, Set,
    SetSpec, Table, Value, Verdict,
};

const TABLE: Table<'_> = Table { family: Family::Bridge, name: "cni_isolation" };
const PORTS: Set<'_> = TABLE.set("ports");
const BRIDGES: Set<'_> = TABLE.set("bridges");
const FORWARD: Chain<'_> = TABLE.chain("forward");

/// The port of an isolated container.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IsolatedPort<'a> {
    pub(crate) name: &'a str,
    /// The MAC address of the bridge, if the bridge filters VLANs.
    pub(crate) bridge_mac: Option<MacAddr>,
}

impl IsolatedPort<'_> {
    /// Returns the key of the port, and the key of the port with its bridge if that filters VLANs.
    fn keys(&self) -> (Value, Option<[Value; 2]>) {
        let name = Value::LinkName(self.name.to_owned());
        (name.clone(), self.bridge_mac.map(|mac| [name, Value::Mac(mac)]))
    }

    /// Returns the edits that isolate the port, and no other port of the attachment. Creates the table if necessary.
    pub(crate) fn isolate(&self, nft: &mut Nftables, owner: AttachmentKey<'_>) -> Result<Vec<Edit>> {
        let mut edits = if is_complete(nft)? { Vec::new() } else { create() };
        let (port, bridge) = self.keys();
        replace(nft, PORTS, &[port], owner, &mut edits)?;
        if let Some(bridge) = bridge {
            replace(nft, BRIDGES, &bridge, owner, &mut edits)?;
        }
        Ok(edits)
    }

    /// Returns whether the port is isolated.
    pub(crate) fn is_isolated(&self, nft: &mut Nftables) -> Result<bool> {
        let (port, bridge) = self.keys();
        if let Some(bridge) = bridge
            && nft.element(BRIDGES, &bridge)?.is_none()
        {
            return Ok(false);
        }
        Ok(nft.element(PORTS, &[port])?.is_some() && is_complete(nft)?)
    }
}

/// Adds the edits that make `key` the only element of an attachment in a set.
fn replace(
    nft: &mut Nftables,
    set: Set<'_>,
    key: &[Value],
    owner: AttachmentKey<'_>,
    edits: &mut Vec<Edit>,
) -> Result<()> {
    let mark = owner.mark();
    let wanted = [Element::new(key).comment(owner.comment())];
    let mut replaced = nft.elements(set)?;
    replaced.retain(|found| {
        wanted.iter().any(|wanted| wanted.key == found.key) || mark_in(&found.userdata.comment) == Some(&mark)
    });
    if replaced != wanted {
        edits.extend(Edit::delete_elements(set, &replaced));
        edits.extend(Edit::create_elements(set, &wanted));
    }
    Ok(())
}

/// Returns the edits that create the table, or restore what is missing of it.
fn create() -> Vec<Edit> {
    let set = |set, key| Edit::add_set(&SetSpec { set, key, maps_to: MapsTo::Nothing, elements: Elements::Keys });
    let mut edits = vec![
        Edit::add_table(TABLE),
        set(PORTS, &[DataType::LinkName]),
        set(BRIDGES, &[DataType::LinkName, DataType::Mac]),
        Edit::add_base_chain(FORWARD, Hook::FORWARD),
        Edit::flush(FORWARD),
    ];
    edits.extend(rules().iter().map(Edit::add_rule));
    edits
}

/// Returns the rules that drop frames between isolated ports.
fn rules() -> [RuleSpec<'static>; 2] {
    let between = RuleSpec::new(FORWARD)
        .in_set(&[Field::INPUT_LINK], PORTS.name)
        .in_set(&[Field::OUTPUT_LINK], PORTS.name)
        .matches(Field::PACKET_TYPE, Comparison::NotEqual, &[Field::TO_HOST]);
    let to_bridge = RuleSpec::new(FORWARD).in_set(&[Field::INPUT_LINK, Field::DESTINATION_MAC], BRIDGES.name);
    [between, to_bridge].map(|rule| rule.verdict(Verdict::Drop))
}

/// Returns whether the table has the rules.
fn is_complete(nft: &mut Nftables) -> Result<bool> {
    let present = nft.rules(FORWARD)?;
    Ok(rules().iter().all(|rule| present.iter().any(|found| found.is_same_as(rule))))
}

/// Returns the edits that end the isolation of the attachments whose comments are `released`.
pub(crate) fn release(nft: &mut Nftables, released: &dyn Fn(&str) -> bool) -> Result<Vec<Edit>> {
    let mut edits = Vec::new();
    for set in [PORTS, BRIDGES] {
        let mut elements = nft.elements(set)?;
        elements.retain(|found| released(&found.userdata.comment));
        // Only ports in the first set are in the second.
        if elements.is_empty() {
            break;
        }
        edits.extend(Edit::delete_elements(set, &elements));
    }
    Ok(edits)
}

/// GC: ends the isolation of the attachments whose comments are `released`. Returns whether there were any.
pub(crate) fn remove(nft: &mut Nftables, released: &dyn Fn(&str) -> bool) -> Result<bool> {
    // Usually there are none, and nothing has to be guarded.
    if release(nft, released)?.is_empty() {
        return Ok(false);
    }
    nft.apply_guarded(|nft| release(nft, released))?;
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
