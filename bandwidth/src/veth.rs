//! Finds the host veth of an attachment.

use cni::{AddResult, Attachment, Code, Error, Namespaces, Result, Version};
use linux::netlink::Link;

/// Returns the host veth of an attachment: the other end of the container's interface, if the previous result names it.
/// Results before version 0.3.0 name no interfaces.
///
/// The beginnings of the texts are those of the reference.
pub(crate) fn find(namespaces: &mut Namespaces, at: &Attachment, result: &AddResult, version: Version) -> Result<Link> {
    let ifname = at.ifname.as_str();
    let has_names = version >= Version::V0_3_0;
    if has_names && result.interfaces.is_empty() {
        return Err(unusable("no interfaces provided in prevResult".to_owned()));
    }
    let guest = namespaces.open_guest(at)?.interface()?;
    let Some(index) = guest.lower.filter(|_| guest.kind == "veth") else {
        let kind = if guest.kind.is_empty() { "hardware" } else { &guest.kind };
        return Err(unusable(format!("container interface {ifname} has no veth peer: it is of kind {kind:?}")));
    };
    let host = &mut namespaces.host.netlink;
    let leads_here = match host.netns_id(&namespaces.guest)? {
        Some(id) => host.link(index)?.filter(|link| link.lower_netns == Some(id) && link.lower == Some(guest.index)),
        None => None,
    };
    let Some(veth) = leads_here else {
        return Err(unusable(format!("veth peer {index} of container interface {ifname} is not in host ns")));
    };
    if has_names && !result.interfaces.iter().any(|found| found.sandbox.is_empty() && found.name == veth.name) {
        let what =
            format!("no veth peer of container interface found in host ns: prevResult does not name {:?}", veth.name);
        return Err(unusable(what));
    }
    Ok(veth)
}

fn unusable(what: String) -> Error {
    Error::new(Code::CONFIG, what)
        .details("list this plugin after one that attaches containers by a veth pair, such as bridge")
}
