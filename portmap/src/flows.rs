//! Connection tracking: flows of UDP and SCTP that began before a mapping changed would keep their old destination as
//! long as the client sends.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use cni::Result;
use linux::log::warn;
use linux::netlink::nft::Nftables;
use linux::netlink::{Conntrack, FlowFilter, Netlink};

use crate::mapping::{Mapping, outlives_its_mapping};

/// Deletes the flows to this host's addresses that began before ports were published, and those through mappings that
/// were `replaced`. Best effort: an error is logged.
///
/// Unlike the reference, which also deletes flows to the same port of other hosts.
pub(crate) fn redirect(host: &mut Netlink, published: &[Mapping], replaced: &[Mapping]) {
    let concerns = |mapping: &&Mapping| outlives_its_mapping(mapping.key.protocol);
    let published: Vec<&Mapping> = published.iter().filter(concerns).collect();
    let mut filters = || -> Result<Vec<FlowFilter>> {
        let mut filters: Vec<FlowFilter> = replaced.iter().filter(concerns).map(through).collect();
        if published.is_empty() {
            return Ok(filters);
        }
        let local: Vec<IpAddr> = host.all_addresses()?.into_iter().map(|(_, address)| address.cidr.ip()).collect();
        for Mapping { key, target } in &published {
            let is_concerned =
                |ip: &&IpAddr| key.host_ip.is_none_or(|own| own == **ip) && ip.is_ipv4() == target.is_ipv4();
            filters.extend(local.iter().filter(is_concerned).map(|ip| FlowFilter {
                protocol: key.protocol.number(),
                destination: SocketAddr::new(*ip, key.port),
                reply_source: None,
            }));
        }
        Ok(filters)
    };
    report(filters().and_then(|filters| match filters.is_empty() {
        true => Ok(()),
        false => Ok(Conntrack::open()?.delete(&filters)?),
    }));
}

/// Returns the filter for the flows through a mapping.
fn through(Mapping { key, target }: &Mapping) -> FlowFilter {
    FlowFilter {
        protocol: key.protocol.number(),
        destination: SocketAddr::new(any(target.ip()), key.port),
        reply_source: Some(target.ip()),
    }
}

/// Returns the unspecified address of the family of `ip`.
fn any(ip: IpAddr) -> IpAddr {
    if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// Deletes the flows to a container whose ports are no longer published, with the socket `nft` that removed them. Best
/// effort: an error is logged.
pub(crate) fn forget(nft: Nftables, mappings: &[Mapping]) {
    if mappings.is_empty() {
        return;
    }
    let mut filters: Vec<FlowFilter> = Vec::new();
    for mapping in mappings.iter().filter(|mapping| outlives_its_mapping(mapping.key.protocol)) {
        // One filter for all ports of a container.
        let filter = FlowFilter { destination: SocketAddr::new(any(mapping.target.ip()), 0), ..through(mapping) };
        if !filters.contains(&filter) {
            filters.push(filter);
        }
    }
    let mut conntrack = Conntrack::after(nft);
    if !filters.is_empty() {
        report(conntrack.delete(&filters).map_err(Into::into));
    }
    conntrack.close_detached();
}

fn report(deleted: Result<()>) {
    if let Err(error) = deleted {
        warn!("flows to published ports may keep their old destination: {error:?}");
    }
}
