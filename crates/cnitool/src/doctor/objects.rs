//! Checks what plugins have created for attachments, such as firewall rules.

use cni::Result;
use cni::inspect::{Finding, Fix, Id, LiveAttachment, NetworkView, Object, ObjectKind, Owner, Subject};

use super::containers::Live;
use super::report::first_few;
use super::{Report, Selection};
use crate::node::{Attachment, Network, Node, Part, kinds};
use crate::table;

/// Reports what plugins find wrong with their objects, and objects of containers, links and networks that are gone.
/// `live` are the live attachments of all networks.
pub(super) fn check(scope: &Selection, live: &[Live<'_>], report: &mut Report) {
    let node = &scope.node;
    for network in scope.networks() {
        let attachments = node.attachments(network);
        // Others are reported as a whole: plugins would blame what they compare.
        let in_place = live.iter().filter_map(Live::in_place).filter(|(of, _)| of.name == network.name);
        let in_place: Vec<&Attachment> = in_place.map(|(_, at)| at).collect();
        for part in &network.parts {
            match of_plugin(node, network, &in_place, part) {
                Ok(found) => found.into_iter().for_each(|finding| report.network(&network.name, finding)),
                Err(error) => report.unseen(error.to_string()),
            }
        }
        let left = node.left_objects(network, &attachments);
        for (kind, objects) in by_kind(&left).filter(|(kind, _)| network.creates(kind)) {
            let what = format!("{} of containers that are gone", table::count(objects.len(), kind.noun));
            let finding = left_objects(kind, &objects, what);
            report.network(
                &network.name,
                match network.can_be_pruned() {
                    true => finding.fix(Fix::Prune),
                    false => finding.remedy("\"disableGC\" is set: remove them by hand"),
                },
            );
        }
    }
    let is_left = |object: &&Object| matches!(&object.owner, Owner::Port(port) if node.link(port).is_none());
    let of_links: Vec<&Object> = node.objects.iter().filter(is_left).collect();
    for (kind, objects) in by_kind(&of_links) {
        let what = format!("{} of links that are gone", table::count(objects.len(), kind.noun));
        let finding = left_objects(kind, &objects, what);
        report.host(match node.networks.iter().any(|network| network.creates(kind) && network.can_be_pruned()) {
            true => finding.fix(Fix::Prune),
            false => finding.remedy("no network has the plugin that created them: remove them by hand"),
        });
    }
    for (kind, objects) in by_kind(&node.left_objects_without_network()) {
        let names: Vec<String> = objects.iter().map(|object| object.name.clone()).collect();
        let number = table::count(names.len(), kind.noun);
        let what = format!("{number} of containers that are gone, on no known network: {}", first_few(&names));
        report.host(left_objects(kind, &objects, what).remedy("remove the rules by hand"));
    }
}

/// Returns the findings of a plugin about a network with these live attachments.
fn of_plugin(node: &Node, network: &Network, alive: &[&Attachment], part: &Part) -> Result<Vec<Finding>> {
    let addresses = |at: &Attachment| match node.result(network, at) {
        Some(result) => result.ips.iter().map(|ip| ip.address.ip()).collect(),
        None => at.leases.iter().map(|lease| lease.ip).collect(),
    };
    let alive: Vec<LiveAttachment> = alive
        .iter()
        .map(|at| LiveAttachment {
            subject: at.subject(),
            marks: at.marks.clone(),
            has_port: at.port.is_some(),
            addresses: addresses(at),
            added: node.added(network, part, at),
        })
        .collect();
    let objects = node.objects_of(&network.name);
    let objects = (!node.unlisted.contains(&part.plugin.name())).then_some(objects.as_slice());
    let is_used = |ip| !node.unseen.is_empty() || node.is_used(ip);
    part.with_call(|call| part.plugin.findings(&NetworkView { call, alive: &alive, objects, is_used: &is_used }))
}

/// Groups objects by their kind. A kind without objects is left out.
fn by_kind<'a>(objects: &[&'a Object]) -> impl Iterator<Item = (&'static ObjectKind, Vec<&'a Object>)> {
    let of_kind = |kind| -> Vec<&'a Object> { objects.iter().filter(|object| object.kind == kind).copied().collect() };
    kinds().map(move |kind| (kind, of_kind(kind))).filter(|(_, objects)| !objects.is_empty())
}

/// Reports objects that nothing uses any more.
fn left_objects(kind: &'static ObjectKind, objects: &[&Object], what: String) -> Finding {
    Finding::warn(kind.name, Id("left-behind"), what)
        .about(objects.iter().map(|object| Subject::new(kind.noun, object.name.as_str())))
}
