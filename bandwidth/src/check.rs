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
    let own = |link: &Link| ifb::is_marked(link, limits.owner) || ifb::may_be_of_reference(link, limits.owner);
    let own: Vec<Link> = host.links_of_kind(IFB)?.into_iter().filter(own).collect();
    if own.is_empty() {
        let [name, _] = limits.owner.ifb_names();
        return Err(difference(format!("there is no ifb link {name:?}, which limits what the container sends")));
    }
    let redirects = host.redirects(limits.veth.index)?;
    let leads_here = |link: &&Link| redirects.iter().any(|redirect| redirect.to == Some(link.index));
    let Some(ifb) = own.iter().find(leads_here) else {
        return Err(difference(format!(
            "no filter redirects what link {:?} receives to an ifb link",
            limits.veth.name
        )));
    };
    if !ifb.up {
        return Err(difference(format!("link {:?} is down", ifb.name)));
    }
    check_limit(host, ifb, limit)
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
