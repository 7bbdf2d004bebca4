//! Subnets that are in use, and free ones, for the configuration of a new network.

use cni::Result;
use linux::ip::Cidr;
use linux::netlink::Netlink;

/// A subnet that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// The subnet.
    pub subnet: Cidr,
    /// What uses it, as a sentence.
    pub by: String,
}

/// Returns the subnets of addresses and routes, also of routes that drop packets.
pub fn uses_of_host(host: &mut Netlink) -> Result<Vec<Use>> {
    let mut uses = Vec::new();
    for (link, address) in host.all_addresses()? {
        let name = host.link_name(link)?.unwrap_or_else(|| link.to_string());
        uses.push(Use { subnet: address.cidr, by: format!("link {name} has the address {}", address.cidr) });
    }
    for route in host.listed_routes()? {
        let subnet = route.destination()?;
        if !subnet.is_default() {
            uses.push(Use { subnet, by: format!("this host has a route to {subnet}") });
        }
    }
    Ok(uses)
}

/// Returns the first of `candidates` that is not in use.
pub fn first_free(candidates: impl IntoIterator<Item = Cidr>, uses: &[Use]) -> Option<Cidr> {
    candidates.into_iter().find(|subnet| uses.iter().all(|used| !used.subnet.overlaps(subnet)))
}
