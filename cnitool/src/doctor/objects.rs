//! Checks what plugins have created for attachments, such as firewall rules.

use cni::Result;
use cni::inspect::{Finding, Level, LiveAttachment, NetworkView, Object, Owner};

use super::{Report, first_few};
use crate::node::{Attachment, Network, Node, Part, State, kinds};
use crate::table;

pub(super) fn check(report: &mut Report) {
    let (mut findings, mut unseen) = (Vec::new(), Vec::new());
    for network in &report.node.networks {
        let attachments = report.node.attachments(network);
        for part in &network.parts {
            match of_plugin(&report.node, network, &attachments, part) {
                Ok(found) => findings.extend(found.into_iter().map(|finding| (Some(network.name.clone()), finding))),
                Err(error) => unseen.push(error),
            }
        }
        let left = left_of_containers(&report.node, network, &attachments);
        findings.extend(left.into_iter().map(|finding| (Some(network.name.clone()), finding)));
    }
    findings.extend(left_of_ports(&report.node).into_iter().map(|finding| (None, finding)));
    findings.extend(left_without_network(&report.node).into_iter().map(|finding| (None, finding)));
    for (network, finding) in findings {
        report.push(network.as_deref(), finding);
    }
    unseen.iter().for_each(|error| report.unseen(error));
}

/// Returns the findings of a plugin about a network.
fn of_plugin(node: &Node, network: &Network, attachments: &[Attachment], part: &Part) -> Result<Vec<Finding>> {
    let alive = attachments.iter().filter(|at| at.state == State::Alive);
    let alive: Vec<LiveAttachment> = alive
        .map(|at| LiveAttachment {
            marks: at.marks.clone(),
            has_port: at.port.is_some(),
            addresses: at.leases.iter().map(|lease| lease.ip).collect(),
            added: node.added(network, part, at),
        })
        .collect();
    let objects = node.objects_of(&network.name);
    let objects = (!node.unlisted.contains(&part.plugin.name())).then_some(objects.as_slice());
    part.with_call(|call| part.plugin.findings(&NetworkView { call, alive: &alive, objects }))
}

/// Reports the objects of containers that are gone.
fn left_of_containers(node: &Node, network: &Network, attachments: &[Attachment]) -> Vec<Finding> {
    let left = node.left_objects(network, attachments);
    let of_kind = |kind| left.iter().filter(|object| object.kind == kind).count();
    let found = kinds().filter(|kind| network.creates(kind)).map(|kind| (kind, of_kind(kind)));
    found
        .filter(|(_, count)| *count > 0)
        .map(|(kind, count)| Finding {
            check: kind.name,
            level: Level::Warn,
            what: format!("{} of containers that are gone", table::count(count, kind.noun)),
            remedy: format!("cnitool prune {}", network.name),
        })
        .collect()
}

/// Reports the objects of containers that are gone, if no network can remove them.
fn left_without_network(node: &Node) -> Vec<Finding> {
    let left = node.left_objects_without_network();
    let of_kind = |kind| left.iter().filter(|object| object.kind == kind).map(|object| object.name.clone()).collect();
    kinds()
        .map(|kind| (kind, of_kind(kind)))
        .filter(|(_, names): &(_, Vec<String>)| !names.is_empty())
        .map(|(kind, names)| Finding {
            check: kind.name,
            level: Level::Warn,
            what: format!(
                "{} of containers that are gone, on no known network: {}",
                table::count(names.len(), kind.noun),
                first_few(&names)
            ),
            remedy: "remove the rules by hand".to_owned(),
        })
        .collect()
}

/// Reports the objects of ports and bridges that are gone.
fn left_of_ports(node: &Node) -> Vec<Finding> {
    let is_left = |object: &Object| matches!(&object.owner, Owner::Port(port) if node.link(port).is_none());
    let of_kind = |kind| node.objects.iter().filter(|object| object.kind == kind && is_left(object)).count();
    kinds()
        .map(|kind| (kind, of_kind(kind)))
        .filter(|(_, count)| *count > 0)
        .map(|(kind, count)| Finding {
            check: kind.name,
            level: Level::Warn,
            what: format!("{} of links that are gone", table::count(count, kind.noun)),
            remedy: "cnitool prune".to_owned(),
        })
        .collect()
}
