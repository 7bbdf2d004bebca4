//! Gateway addresses that a network no longer needs, because its subnets changed.
//!
//! An address is removed only under these conditions: its mark shows that ADD added it for this network, it is not a
//! gateway of the current configuration, the IPAM plugin has no lease in its subnet, and all ports of the bridge belong
//! to the network.

use cni::key;
use cni::{AddResult, Call, Delegate, Result};
use linux::ip::Cidr;
use linux::log::{debug, warn};
use linux::netlink::{Address, Change, Netlink};

use crate::config::{self, Config};
use crate::ports;

/// How the subnets of the configuration relate to the gateways of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Configuration {
    /// It is the current one: an address outside of its subnets is outdated.
    Current,
    /// The runtime may have kept the one of ADD: an address is outdated if a newer one has replaced it.
    MaybeOld,
}

/// ADD: removes the gateway addresses of subnets that are no longer configured. `have` are the addresses that the link
/// had, `gateways` those that the container needs. If no other one was added for the network, this costs nothing.
pub(crate) fn after_add(call: &Call<'_>, ipam: &Delegate<'_>, have: &[Address], gateways: &[Cidr]) {
    let mark = Some(key::address_mark(call.network.as_str()));
    if have.iter().any(|address| address.mark == mark && !gateways.contains(&address.cidr)) {
        remove(call, ipam, &config::subnets(call), Configuration::Current);
    }
}

/// DEL: removes the gateway addresses of subnets that are no longer configured, if the container had one of them, or
/// the runtime did not pass the result of its ADD.
pub(crate) fn after_del(call: &Call<'_>, ipam: &Delegate<'_>, previous: &AddResult) {
    let mut gateways = previous.ips.iter().filter_map(|ip| ip.gateway);
    let subnets = config::subnets(call);
    if previous.ips.is_empty() {
        remove(call, ipam, &subnets, Configuration::MaybeOld);
    } else if gateways.any(|gateway| !subnets.iter().any(|subnet| subnet.contains(gateway))) {
        remove(call, ipam, &subnets, Configuration::Current);
    }
}

/// GC: removes the gateway addresses of subnets that are no longer configured.
pub(crate) fn after_gc(call: &Call<'_>, ipam: &Delegate<'_>) {
    remove(call, ipam, &config::subnets(call), Configuration::Current);
}

/// Removes outdated addresses. Only logs errors: the container is attached or detached already, and an extra address
/// does little harm.
fn remove(call: &Call<'_>, ipam: &Delegate<'_>, subnets: &[Cidr], configuration: Configuration) {
    // Without subnets, the plugin cannot know which addresses the network needs.
    if subnets.is_empty() {
        return;
    }
    if let Err(error) = try_remove(call, ipam, subnets, configuration) {
        warn!("remove outdated gateway addresses: {error:?}");
    }
}

/// Removes the outdated addresses of the bridge, or of the VLAN's interface.
fn try_remove(call: &Call<'_>, ipam: &Delegate<'_>, subnets: &[Cidr], configuration: Configuration) -> Result<()> {
    let config = Config::parse(call)?;
    let mut host = Netlink::open()?;
    let Some(bridge) = host.link(config.bridge.as_str())?.filter(|link| link.kind == "bridge") else { return Ok(()) };
    let gateway = match config.vlan_gateway() {
        Some(name) => host.link(name.as_str())?,
        None => Some(bridge.clone()),
    };
    let Some(gateway) = gateway else { return Ok(()) };
    let mark = key::address_mark(call.network.as_str());
    let all = host.addresses(gateway.index)?;
    let (ours, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|address| address.mark == Some(mark));
    // With the first IPv4 address of a subnet the kernel removes all others, which may be the administrator's.
    let has_company = |address: &Address| others.iter().any(|other| other.cidr.network() == address.cidr.network());
    let mut unused = Vec::new();
    for address in outdated(&ours, subnets, configuration).filter(|address| !has_company(address)) {
        match ipam.uses_subnet(address.cidr.network())? {
            Some(false) => unused.push(Change::delete_address(gateway.index, address.cidr)),
            used => debug!("keep {} on {:?}: leases in its subnet: {used:?}", address.cidr, gateway.name),
        }
    }
    if unused.is_empty() {
        return Ok(());
    }
    let its_ports = host.links(Some(bridge.index))?;
    if ports::all_belong_to(&mut host, &bridge, &its_ports, call.network.as_str())? {
        host.apply(&unused)?;
    }
    Ok(())
}

/// Returns which of the network's addresses on a link are outdated.
fn outdated<'a>(
    ours: &'a [Address],
    subnets: &[Cidr],
    configuration: Configuration,
) -> impl Iterator<Item = &'a Address> {
    let is_configured = |address: &Address| subnets.iter().any(|subnet| subnet.overlaps(&address.cidr));
    ours.iter().filter(move |address| match configuration {
        Configuration::Current => !is_configured(address),
        Configuration::MaybeOld => ours.iter().any(|newer| {
            let is_same_family = newer.cidr.ip().is_ipv4() == address.cidr.ip().is_ipv4();
            // One configuration can have several subnets.
            is_same_family && newer.is_newer_than(address) && !(is_configured(address) && is_configured(newer))
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses by age, the newest last, and those that each configuration outdates.
    #[test]
    fn a_newer_address_of_the_family_replaces_an_older_one() {
        let cidr = |text: &&str| text.parse::<Cidr>().unwrap();
        for (have, subnets, current, maybe_old) in [
            (&["10.1.0.1/24"][..], &["10.1.0.0/24"][..], &[][..], &[][..]),
            (&["10.1.0.1/24"], &["10.2.0.0/24"], &["10.1.0.1/24"], &[]),
            (&["10.1.0.1/24", "10.2.0.1/24"], &["10.2.0.0/24"], &["10.1.0.1/24"], &["10.1.0.1/24"]),
            // The configuration is that of the old ADD.
            (&["10.1.0.1/24", "10.2.0.1/24"], &["10.1.0.0/24"], &["10.2.0.1/24"], &["10.1.0.1/24"]),
            // Several subnets of one configuration.
            (&["10.1.0.1/24", "10.2.0.1/24"], &["10.1.0.0/24", "10.2.0.0/24"], &[], &[]),
            (
                &["10.1.0.1/24", "10.2.0.1/24", "10.3.0.1/24", "10.4.0.1/24"],
                &["10.3.0.0/24", "10.4.0.0/24"],
                &["10.1.0.1/24", "10.2.0.1/24"],
                &["10.1.0.1/24", "10.2.0.1/24"],
            ),
            // The families are independent.
            (&["10.1.0.1/24", "fd02::1/64"], &["10.1.0.0/24"], &["fd02::1/64"], &[]),
            (
                &["10.1.0.1/24", "fd01::1/64", "fd02::1/64"],
                &["fd01::/64"],
                &["10.1.0.1/24", "fd02::1/64"],
                &["fd01::1/64"],
            ),
        ] {
            // The counter overflows between them.
            let address = |(text, created): (&&str, u32)| Address {
                cidr: cidr(text),
                tentative: false,
                permanent: true,
                duplicate: false,
                global: true,
                mark: None,
                created: u32::MAX.wrapping_add(created),
            };
            let ours: Vec<Address> = have.iter().zip(0..).map(address).collect();
            let subnets: Vec<Cidr> = subnets.iter().map(cidr).collect();
            let found = |configuration| -> Vec<Cidr> {
                outdated(&ours, &subnets, configuration).map(|address| address.cidr).collect()
            };
            assert_eq!(found(Configuration::Current), current.iter().map(cidr).collect::<Vec<_>>(), "{have:?}");
            assert_eq!(found(Configuration::MaybeOld), maybe_old.iter().map(cidr).collect::<Vec<_>>(), "{have:?}");
        }
    }
}
