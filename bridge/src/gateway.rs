//! Compares the addresses of the bridge with the gateway addresses that it should have. Pure functions, without I/O.

use std::net::IpAddr;

use cni::{Code, Error, Result};
use linux::ip::Cidr;
use linux::netlink::Address;

/// The changes after which a link has all gateway addresses.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Addressing {
    /// Addresses to add.
    pub(crate) missing: Vec<Cidr>,
    /// Addresses to remove.
    pub(crate) conflicting: Vec<Cidr>,
}

/// Compares the addresses of `link` with the gateway addresses that it should have.
///
/// With `force`, every other global address of the gateways' families is conflicting: the subnet may have changed.
/// Unlike the reference, this includes IPv6 addresses.
///
/// Without `force`, an address that overlaps with a missing gateway is an error. Addresses of other networks are
/// allowed for both families, because a bridge can be the gateway of several networks. Upstream allows them only for
/// IPv6.
pub(crate) fn compare(link: &str, have: &[Address], gateways: &[Cidr], force: bool) -> Result<Addressing> {
    let missing = |gateway: &&Cidr| !have.iter().any(|address| address.cidr == **gateway);
    let missing: Vec<Cidr> = gateways.iter().filter(missing).copied().collect();
    let others = || have.iter().filter(|address| !gateways.contains(&address.cidr));
    if force {
        let same_family = |ip: IpAddr| gateways.iter().any(|gateway| gateway.ip().is_ipv4() == ip.is_ipv4());
        let conflicting = others().filter(|other| other.global && same_family(other.cidr.ip()));
        return Ok(Addressing { missing, conflicting: conflicting.map(|other| other.cidr).collect() });
    }
    for gateway in &missing {
        if let Some(Address { cidr: other, .. }) = others().find(|other| other.cidr.overlaps(gateway)) {
            let what = format!("{link:?} already has an IP address different from {gateway}: {other}");
            return Err(Error::new(Code::INTERNAL, what).details(format!(
                "their networks overlap; remove the old one with `ip address del {other} dev {link}`, \
                 or set \"forceAddress\": true"
            )));
        }
    }
    Ok(Addressing { missing, conflicting: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<Address> {
        let address = |text: &&str| Address {
            cidr: text.parse().unwrap(),
            tentative: false,
            permanent: true,
            duplicate: false,
            global: !text.starts_with("fe80"),
            mark: None,
            created: 0,
        };
        texts.iter().map(address).collect()
    }

    fn cidrs(texts: &[&str]) -> Vec<Cidr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn an_overlapping_address_is_rejected() {
        for (have, gateways, missing) in [
            (&[][..], &["10.1.0.1/24"][..], Some(&["10.1.0.1/24"][..])),
            (&["10.1.0.1/24"], &["10.1.0.1/24"], Some(&[])),
            (&["10.2.0.1/24", "fe80::1/64"], &["10.1.0.1/24", "fd01::1/64"], Some(&["10.1.0.1/24", "fd01::1/64"])),
            (&["10.1.0.1/16"], &["10.1.0.1/24"], None),
            (&["10.1.9.9/8"], &["10.1.0.1/24"], None),
            (&["fd01::9/48"], &["fd01::1/64"], None),
            // The gateways of one container never conflict with each other.
            (&["10.1.0.1/16"], &["10.1.0.1/16", "10.1.5.1/24"], Some(&["10.1.5.1/24"])),
        ] {
            let want = missing.map(|missing| Addressing { missing: cidrs(missing), conflicting: Vec::new() });
            assert_eq!(compare("br0", &addresses(have), &cidrs(gateways), false).ok(), want, "{have:?}");
        }
    }

    #[test]
    fn force_replaces_every_other_global_address_of_the_family() {
        for (have, gateways, missing, conflicting) in [
            (&[][..], &["10.1.0.1/24"][..], &["10.1.0.1/24"][..], &[][..]),
            (&["10.1.0.1/24"], &["10.1.0.1/24"], &[], &[]),
            (&["10.1.0.1/16"], &["10.1.0.1/24"], &["10.1.0.1/24"], &["10.1.0.1/16"]),
            (&["10.2.0.1/24"], &["10.1.0.1/24"], &["10.1.0.1/24"], &["10.2.0.1/24"]),
            (&["10.2.0.1/24", "10.1.0.1/24"], &["10.1.0.1/24"], &[], &["10.2.0.1/24"]),
            (&["fd02::1/64", "fe80::1/64"], &["fd01::1/64"], &["fd01::1/64"], &["fd02::1/64"]),
            // Addresses of other families stay.
            (&["10.2.0.1/24", "fd02::1/64"], &["fd01::1/64"], &["fd01::1/64"], &["fd02::1/64"]),
            (&["10.1.0.1/16"], &["10.1.0.1/16", "10.1.5.1/24"], &["10.1.5.1/24"], &[]),
        ] {
            let want = Addressing { missing: cidrs(missing), conflicting: cidrs(conflicting) };
            assert_eq!(compare("br0", &addresses(have), &cidrs(gateways), true).unwrap(), want, "{have:?}");
        }
    }
}
