//! Ranges of addresses: their canonical form, and the order in which ADD tries addresses. Pure logic without I/O.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni::IpConfig;
use cni::lease::{Span, bits, like};
use linux::ip::{self, Cidr};

/// Error: the range is invalid. `hint` says how to correct it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RangeError {
    pub(crate) what: String,
    pub(crate) hint: String,
}

fn range_error(what: impl Into<String>, hint: impl Into<String>) -> RangeError {
    RangeError { what: what.into(), hint: hint.into() }
}

/// Consecutive addresses of one subnet, with their gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    subnet: Cidr,
    start: IpAddr,
    end: IpAddr,
    gateway: IpAddr,
}

/// A range as configured: only the subnet is required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RangeSpec {
    pub(crate) subnet: Option<Cidr>,
    pub(crate) start: Option<IpAddr>,
    pub(crate) end: Option<IpAddr>,
    pub(crate) gateway: Option<IpAddr>,
}

impl Range {
    /// Validates a configured range and fills in its defaults.
    pub(crate) fn new(spec: RangeSpec) -> Result<Range, RangeError> {
        let Some(subnet) = spec.subnet else {
            return Err(range_error("the range has no \"subnet\"", "add a subnet, such as \"10.1.0.0/16\""));
        };
        let (v4, width) = (subnet.ip().is_ipv4(), width(subnet.ip()));
        if subnet.ip().to_canonical().is_ipv4() != v4 {
            let what = format!("\"subnet\" {subnet} is IPv4 written as IPv6");
            return Err(range_error(what, "write it as IPv4"));
        }
        if u32::from(subnet.prefix()) + 2 > width || subnet.prefix() == 0 {
            let what = format!("\"subnet\" {subnet} cannot be used as a range");
            return Err(range_error(what, format!("the prefix must be from 1 to {}", width - 2)));
        }
        if subnet.network() != subnet {
            let what = format!("\"subnet\" {subnet} has host bits set");
            return Err(range_error(what, format!("write {}", subnet.network())));
        }
        let first = like(subnet.ip(), bits(subnet.ip()) + 1);
        // The last address of an IPv4 subnet is its broadcast address.
        let last = like(subnet.ip(), bits(subnet.last()) - u128::from(v4));
        let inside = |key: &str, ip: Option<IpAddr>, default: IpAddr| match ip {
            Some(ip) if !subnet.contains(ip) => {
                let what = format!("{key:?} {ip} is not in \"subnet\" {subnet}");
                Err(range_error(what, format!("write an address from {first} to {last}, or remove the key")))
            }
            given => Ok(given.unwrap_or(default)),
        };
        let start = inside("rangeStart", spec.start, first)?;
        let end = inside("rangeEnd", spec.end, last)?;
        if start > end {
            return Err(match (spec.start, spec.end) {
                (Some(_), Some(_)) => {
                    range_error(format!("\"rangeStart\" {start} is after \"rangeEnd\" {end}"), "swap them")
                }
                (Some(_), None) => range_error(
                    format!("\"rangeStart\" {start} is after the last address of \"subnet\" {subnet}, {end}"),
                    "set a lower \"rangeStart\", or set \"rangeEnd\" too",
                ),
                _ => range_error(
                    format!("\"rangeEnd\" {end} is before the first address of \"subnet\" {subnet}, {start}"),
                    "set a higher \"rangeEnd\", or set \"rangeStart\" too",
                ),
            });
        }
        // Unlike the reference, a gateway of the other family is refused. One outside of the subnet may be intended.
        let gateway = spec.gateway.unwrap_or(first);
        if gateway.is_ipv4() != v4 {
            let what = format!("\"gateway\" {gateway} is of another family than \"subnet\" {subnet}");
            return Err(range_error(what, "set \"gateway\" to an address of the same family"));
        }
        Ok(Range { subnet, start, end, gateway })
    }

    pub(crate) fn contains(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.start.is_ipv4() && self.start <= ip && ip <= self.end
    }

    fn overlaps(&self, other: &Range) -> bool {
        self.contains(other.start) || other.contains(self.start)
    }

    fn span(&self, first: IpAddr, last: IpAddr) -> Span {
        Span { first, last, gateway: self.gateway }
    }

    /// Returns the number of addresses that can be leased.
    pub(crate) fn size(&self) -> u128 {
        let all = (bits(self.end) - bits(self.start)).saturating_add(1);
        all - u128::from(self.contains(self.gateway))
    }

    /// Returns whether the range has all addresses of its subnet that can be leased.
    pub(crate) fn is_whole(&self) -> bool {
        let whole = Range::new(RangeSpec { subnet: Some(self.subnet), start: None, end: None, gateway: None });
        whole.is_ok_and(|whole| (whole.start, whole.end) == (self.start, self.end))
    }

    /// Returns the first and the last address.
    pub(crate) fn bounds(&self) -> (IpAddr, IpAddr) {
        (self.start, self.end)
    }

    pub(crate) fn subnet(&self) -> Cidr {
        self.subnet
    }

    pub(crate) fn gateway(&self) -> IpAddr {
        self.gateway
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.start, self.end)
    }
}

/// Ranges of one address family, from which ADD leases one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RangeSet(Vec<Range>);

impl RangeSet {
    /// Validates that the ranges are of one family and do not overlap.
    pub(crate) fn new(ranges: Vec<Range>) -> Result<RangeSet, RangeError> {
        let Some(first) = ranges.first() else {
            return Err(range_error("the range set is empty", "add a range, or remove the range set"));
        };
        if let Some(other) = ranges.iter().find(|r| r.start.is_ipv4() != first.start.is_ipv4()) {
            let what = format!("the range set mixes IPv4 and IPv6: {first} and {other}");
            return Err(range_error(what, "use one range set for each family"));
        }
        for (i, range) in ranges.iter().enumerate() {
            if let Some(other) = ranges.iter().take(i).find(|other| range.overlaps(other)) {
                let what = format!("the ranges {other} and {range} overlap");
                return Err(range_error(what, "set \"rangeStart\" and \"rangeEnd\" so that the ranges do not overlap"));
            }
        }
        Ok(RangeSet(ranges))
    }

    pub(crate) fn is_ipv4(&self) -> bool {
        self.0.first().is_some_and(|range| range.start.is_ipv4())
    }

    pub(crate) fn ranges(&self) -> &[Range] {
        &self.0
    }

    pub(crate) fn overlaps(&self, other: &RangeSet) -> bool {
        self.0.iter().any(|range| other.0.iter().any(|other| range.overlaps(other)))
    }

    /// Returns the range that contains `ip`.
    pub(crate) fn range_of(&self, ip: IpAddr) -> Option<&Range> {
        self.0.iter().find(|range| range.contains(ip))
    }

    pub(crate) fn contains(&self, ip: IpAddr) -> bool {
        self.range_of(ip).is_some()
    }

    /// Returns `ip` in the form of the result: with the prefix and the gateway of its range.
    pub(crate) fn describe(&self, ip: IpAddr) -> IpConfig {
        let range = self.range_of(ip);
        let address = range.and_then(|range| Cidr::new(ip, range.subnet.prefix()));
        let gateway = range.map(|range| range.gateway);
        IpConfig { address: address.unwrap_or_else(|| Cidr::host(ip)), gateway, interface: None }
    }

    /// Returns the number of addresses that can be leased.
    pub(crate) fn size(&self) -> u128 {
        self.0.iter().map(Range::size).fold(0, u128::saturating_add)
    }

    /// Returns all addresses in the order in which ADD tries them: once around the set, from the one after `last` up to
    /// `last` itself, or from the start if the set does not contain `last`.
    pub(crate) fn round(&self, last: Option<IpAddr>) -> Vec<Span> {
        let whole = |range: &Range| range.span(range.start, range.end);
        let found = last.and_then(|last| {
            let at = self.0.iter().position(|range| range.contains(last))?;
            Some((last, self.0.get(at)?, self.0.split_at(at)))
        });
        let Some((last, range, (before, from))) = found else {
            return self.0.iter().map(whole).collect();
        };
        let rest = ip::next(last).filter(|next| *next <= range.end);
        let mut spans: Vec<Span> = rest.map(|next| range.span(next, range.end)).into_iter().collect();
        spans.extend(from.iter().skip(1).chain(before).map(whole));
        spans.push(range.span(range.start, last));
        spans
    }
}

impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, range) in self.0.iter().enumerate() {
            write!(f, "{}{range}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

fn width(ip: IpAddr) -> u32 {
    if ip.is_ipv4() { Ipv4Addr::BITS } else { Ipv6Addr::BITS }
}

#[cfg(test)]
mod tests;
