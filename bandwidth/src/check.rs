//! CHECK: compares the limits of an attachment with the configuration. Changes nothing.

use cni::{Code, Error, Result};
use linux::netlink::{Link, Netlink, QdiscPlace, TokenBucket};

use crate::ifb::{self, IFB};
use crate::limits::Limits;

/// The remedy if a limit of an attached container is missing.
const REPAIR_HINT: &str = "something changed the host's traffic control; run `cnitool repair`, or repeat the ADD";

/// Returns an error for the first difference.
pub(crate) fn run(limits: &Limits<'_>, host: &mut Netlink) -> Result<()> {
    if let Some(limit) = &limits.config.ingress {
        check_limit(host, &limits.veth, limit)?;
    }
    let Some(limit) = &limits.config.egress else { return Ok(()) };
    let is_own = |link: &Link| ifb::is_marked(link, limits.owner) || ifb::may_be_of_reference(link, limits.owner);
    // A node has an ifb link for each container: the filter leads to one of them without a list of all.
    for to in host.redirects(limits.veth.index)?.into_iter().filter_map(|redirect| redirect.to) {
        let Some(ifb) = host.link(to)?.filter(|link| link.kind == IFB && is_own(link)) else { continue };
        if !ifb.up {
            return Err(difference(format!("link {:?} is down", ifb.name)));
        }
        return check_limit(host, &ifb, limit);
    }
    Err(difference(match host.links_of_kind(IFB)?.iter().any(is_own) {
        true => format!("no filter redirects what link {:?} receives to an ifb link", limits.veth.name),
        false => {
            let [name, _] = limits.owner.ifb_names();
            format!("there is no ifb link {name:?}, which limits what the container sends")
        }
    }))
}

fn check_limit(host: &mut Netlink, link: &Link, limit: &TokenBucket) -> Result<()> {
    let name = &link.name;
    match host.qdisc(link.index, QdiscPlace::Root)? {
        Some(qdisc) if qdisc.is_token_bucket(limit) => Ok(()),
        Some(qdisc) => Err(difference(match qdisc.token_bucket() {
            Some(found) => format!("link {name:?} is limited to {found}, not to {limit}"),
            None => format!("link {name:?} has the queueing discipline {:?}, not \"tbf\"", qdisc.kind),
        })),
        None => Err(difference(format!("link {name:?} has no queueing discipline"))),
    }
}

fn difference(what: String) -> Error {
    Error::new(Code::INTERNAL, what).details(REPAIR_HINT)
}
