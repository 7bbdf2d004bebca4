//! CHECK: compares the rules and default routes with those of ADD. Changes nothing.

use cni::{AddResult, Attachment, Call, Code, Error, Namespaces, Result};

use crate::add::find_link;
use crate::config::Config;
use crate::owner;
use crate::plan::{is_by, unicast};

/// Returns an error unless packets from each address use a table, which has a default route if the address has a
/// gateway. The rules may be those of the reference.
pub(crate) fn run(call: &Call<'_>, at: &Attachment, config: &Config, result: &AddResult) -> Result<()> {
    let missing = |what: String| {
        Err(Error::new(Code::INTERNAL, what).details("another program removed it; attach the container again"))
    };
    let namespaces = Namespaces::open(call, at)?;
    let mut guest = namespaces.open_guest(at)?;
    let link = find_link(&mut guest)?;
    let (rules, routes) = (guest.netlink.rules()?, guest.netlink.listed_routes()?);
    let sandbox = at.sandbox();
    for ip in owner::addresses(result, at.ifname.as_str()) {
        let src = ip.address.ip();
        let mut sources = rules.iter().filter_map(|rule| rule.source).filter(|source| source.src == src);
        let wanted = config.table;
        let Some(rule) = sources.find(|source| wanted.is_none_or(|table| source.table == table)) else {
            let to = wanted.map_or_else(String::new, |table| format!(" to table {table}"));
            return missing(format!("there is no rule for packets from {src}{to} in {sandbox:?}"));
        };
        let explicit = config.gateway(src);
        if wanted.is_some() || explicit.or(ip.gateway).is_none() {
            continue;
        }
        let is_default = |found: &&linux::netlink::Route| {
            found.table == Some(rule.table)
                && found.dst.is_default()
                && found.dst.ip().is_ipv4() == src.is_ipv4()
                && (explicit.is_none() || found.gw == explicit)
        };
        let mut found = routes.iter().filter(|listed| is_by(listed, link)).filter_map(unicast);
        if !found.any(|route| is_default(&route)) {
            let via = explicit.map_or_else(String::new, |gateway| format!(" via {gateway}"));
            let (table, ifname) = (rule.table, at.ifname.as_str());
            return missing(format!("table {table} in {sandbox:?} has no default route{via} by {ifname:?} for {src}"));
        }
    }
    Ok(())
}
