//! What `show --json` prints.

use cni::inspect::{Object, ObjectKind, Property};
use serde_json::{Value, json};

use super::{BridgeView, OwnedObject, PortView, listed_kinds, owned_objects};
use crate::networks;
use crate::node::{Attachment, Network, Node, kinds};

/// Returns a bridge.
pub(super) fn bridge<'a>(node: &'a Node, view: &BridgeView<'a>) -> Value {
    let bridge = view.link.map(|link| {
        json!({
            "up": link.up, "mtu": link.mtu, "mac": link.mac.map(|mac| mac.to_string()),
            "promiscuous": link.promiscuous, "vlanFiltering": link.vlan_filtering.unwrap_or_default(),
            "addresses": node.addresses(link.index),
        })
    });
    let networks: Vec<Value> = view
        .networks
        .iter()
        .map(|network| json!({ "name": network.name, "file": network.list.as_ref().map(|list| &list.path) }))
        .collect();
    let describe_all = |ports: &[PortView<'_>]| ports.iter().map(|port| describe_port(node, port)).collect();
    let (ports, detached): (Vec<Value>, Vec<Value>) = (describe_all(&view.ports), describe_all(&view.detached));
    let value = json!({
        "name": view.name, "link": bridge, "networks": networks, "ports": ports, "detachedPorts": detached,
    });
    let describe = |owned: OwnedObject<'_>| {
        let of_port = owned.is_live;
        with_members(describe_object(owned), [("ofPort", of_port.into())].into_iter())
    };
    with_members(
        value,
        listed_kinds().map(|kind| (kind.json, view.objects(node, kind).into_iter().map(describe).collect())),
    )
}

/// Returns a network without a bridge.
pub(super) fn network(node: &Node, network: &Network, detached: &[PortView<'_>]) -> Value {
    let detached: Vec<Value> = detached.iter().map(|port| describe_port(node, port)).collect();
    let file = network.list.as_ref().map(|list| &list.path);
    let attachments = network.link.as_ref().map(|_| node.attachments(network));
    let attachments: Vec<Value> =
        attachments.iter().flatten().map(|at| describe_attachment(node, network, at)).collect();
    let value = json!({
        "name": network.name, "file": file, "detachedPorts": detached, "link": networks::describe_link(network),
        "attachments": attachments,
    });
    let describe = |owned: OwnedObject<'_>| {
        let is_live = owned.is_live;
        with_members(describe_object(owned), [("ofLiveContainer", is_live.into())].into_iter())
    };
    let objects = |kind: &ObjectKind| owned_objects(node, network, kind).into_iter().map(describe).collect();
    with_members(value, listed_kinds().map(|kind| (kind.json, objects(kind))))
}

/// Returns an attachment whose link is only in the container.
fn describe_attachment(node: &Node, network: &Network, at: &Attachment) -> Value {
    let addresses = node.addresses_of(network, at);
    json!({ "container": at.container, "interface": at.ifname, "state": at.state.json(), "addresses": addresses })
}

/// Returns an object of one container, with its kind.
pub(super) fn object_of(object: &Object) -> Value {
    let value = json!({ "kind": object.kind.name, "backend": object.backend, "comment": object.comment });
    with_members(value, object.properties.iter().map(|(key, value)| (*key, describe_property(value))))
}

/// Returns an object, with the properties of its kind.
fn describe_object(owned: OwnedObject<'_>) -> Value {
    let OwnedObject { object, container, ifname, .. } = owned;
    let value = json!({
        "backend": object.backend, "comment": object.comment, "container": container, "interface": ifname,
    });
    with_members(value, object.properties.iter().map(|(key, value)| (*key, describe_property(value))))
}

fn describe_property(property: &Property) -> Value {
    match property {
        Property::Address(ip) => json!(ip),
        Property::Number(number) => json!(number),
        Property::Text(text) => json!(text),
        Property::Boolean(value) => json!(value),
        Property::Change(change) => {
            let [before, after] = change.as_ref();
            json!({ "before": describe_property(before), "after": describe_property(after) })
        }
    }
}

/// Adds members to a JSON object.
fn with_members(value: Value, members: impl Iterator<Item = (&'static str, Value)>) -> Value {
    let Value::Object(mut object) = value else { return value };
    object.extend(members.map(|(key, value)| (key.to_owned(), value)));
    Value::Object(object)
}

/// Returns a port, with one member for each kind of object.
fn describe_port(node: &Node, port: &PortView<'_>) -> Value {
    let guest = node.guest(port.link.index);
    let vlans: Vec<Value> = port
        .vlans
        .iter()
        .map(|vlan| {
            json!({
                "first": vlan.range.first, "last": vlan.range.last, "pvid": vlan.pvid, "untagged": vlan.untagged,
            })
        })
        .collect();
    let settings = port.link.port.unwrap_or_default();
    let value = json!({
        "name": port.link.name, "network": port.network, "container": port.container, "interface": port.ifname,
        "up": port.link.up, "mtu": port.link.mtu, "mac": port.link.mac.map(|mac| mac.to_string()),
        "hairpin": settings.hairpin, "isolated": settings.isolated, "vlans": vlans, "foreign": port.is_foreign,
        "guest": guest.map(|guest| json!({
            "name": guest.name, "mac": guest.mac.map(|mac| mac.to_string()), "addresses": guest.addresses,
            "netns": guest.netns,
        })),
    });
    with_members(value, kinds().map(|kind| (kind.json, port.has(kind).into())))
}
