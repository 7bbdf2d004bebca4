//! Addresses as numbers, and consecutive addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use linux::ip;

/// Consecutive addresses from `first` to `last` inclusive, without the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first address.
    pub first: IpAddr,
    /// The last address.
    pub last: IpAddr,
    /// The address that is left out.
    pub gateway: IpAddr,
}

impl Span {
    /// Iterates over the addresses.
    pub fn addresses(self) -> impl Iterator<Item = IpAddr> {
        let within = move |ip: &IpAddr| *ip <= self.last;
        std::iter::successors(Some(self.first).filter(within), move |ip| ip::next(*ip).filter(within))
            .filter(move |ip| *ip != self.gateway)
    }
}

/// Returns an address as a number.
pub fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

/// Returns the address with this number, of the family of `model`. Cuts off bits that the family does not have.
pub fn like(model: IpAddr, bits: u128) -> IpAddr {
    match model {
        IpAddr::V4(_) => Ipv4Addr::from_bits(u32::try_from(bits & u128::from(u32::MAX)).unwrap_or(0)).into(),
        IpAddr::V6(_) => Ipv6Addr::from_bits(bits).into(),
    }
}
