//! What a DHCPv4 server grants: the content of an OFFER or an ACK, validated. Pure functions.

use std::net::Ipv4Addr;

use cni::{Dns, Route};
use linux::ip::{Cidr, IPV6_MIN_MTU};

use super::message::{Message, option};
use crate::settings::Settings;
use crate::terms::{Server, Terms, Times, domains, is_domain};

/// The time of a lease whose server does not say one, in seconds, as in the reference.
const DEFAULT_TIME: u32 = 3600;

/// Reads an OFFER or an ACK of a server. Returns why the client cannot use it.
pub(crate) fn read(message: &Message, server: Option<Server>, settings: &Settings) -> Result<Terms, String> {
    let server = server.ok_or_else(|| "it does not name its server".to_owned())?;
    let missing = settings.required.iter().find(|required| !message.options.contains_key(required));
    if let Some(missing) = missing {
        return Err(format!("option {missing} is missing, which the configuration requires"));
    }
    // The text of the reference, by which users recognise the mistake.
    let mask = message.number(option::SUBNET_MASK).ok_or("DHCP option Subnet Mask not found in DHCPACK")?;
    let prefix = prefix(mask).ok_or_else(|| format!("{} is not a subnet mask", Ipv4Addr::from(mask)))?;
    let address = message.yours;
    let cidr = Cidr::new(address.into(), prefix).filter(|cidr| cidr.not_of_an_interface().is_none());
    if cidr.is_none() || !is_host(address) {
        return Err(format!("an interface cannot have the address {address}/{prefix}"));
    }
    let gateway = message.address(option::ROUTERS).filter(|gateway| is_host(*gateway) && !settings.ignore_gateway);
    let mut routes = routes(message, gateway, settings);
    for route in &mut routes {
        route.priority = settings.priority;
    }
    Ok(Terms {
        address: address.into(),
        prefix,
        server,
        gateway: gateway.map(Into::into),
        routes,
        dns: if settings.ignore_dns { Dns::default() } else { dns(message) },
        mtu: mtu(message).filter(|_| settings.set_mtu),
        times: times(message),
    })
}

/// Returns whether a host can have the address.
pub(crate) fn is_host(ip: Ipv4Addr) -> bool {
    !(ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast() || ip.is_loopback()) && ip.octets()[0] != 0
}

fn prefix(mask: u32) -> Option<u8> {
    let ones = mask.leading_ones();
    (mask.checked_shl(ones).unwrap_or(0) == 0).then_some(u8::try_from(ones).ok()?)
}

fn times(message: &Message) -> Option<Times> {
    let given = |option| message.number(option).unwrap_or(0);
    let end = message.number(option::LEASE_TIME).unwrap_or(DEFAULT_TIME);
    Times::new(end, given(option::RENEWAL_TIME), given(option::REBINDING_TIME))
}

/// Returns the MTU, unless IPv6 would not work with it.
fn mtu(message: &Message) -> Option<u32> {
    let value: [u8; 2] = message.options.get(&option::MTU)?.as_slice().try_into().ok()?;
    Some(u32::from(u16::from_be_bytes(value))).filter(|mtu| *mtu >= IPV6_MIN_MTU)
}

/// Returns the routes. As RFC 3442 requires, classless routes replace all others.
fn routes(message: &Message, gateway: Option<Ipv4Addr>, settings: &Settings) -> Vec<Route> {
    let is_wanted = |route: &Route| !(settings.ignore_gateway && route.dst.is_default());
    if let Some(value) = message.options.get(&option::CLASSLESS_ROUTES) {
        return classless_routes(value).into_iter().filter(is_wanted).collect();
    }
    let value = message.options.get(&option::STATIC_ROUTES).map(Vec::as_slice).unwrap_or_default();
    let mut routes: Vec<Route> = static_routes(value).into_iter().filter(is_wanted).collect();
    let default = gateway.map(|gateway| Route::new(Cidr::default_route(gateway.into()), Some(gateway.into())));
    routes.extend(default);
    routes
}

/// Reads option 33: pairs of a network of a class and its router.
fn static_routes(value: &[u8]) -> Vec<Route> {
    let route = |pair: &[u8]| {
        let [a, b, c, d, e, f, g, h] = *pair.first_chunk()?;
        let (to, via) = (Ipv4Addr::new(a, b, c, d), Ipv4Addr::new(e, f, g, h));
        let prefix = match a {
            0..128 => 8,
            128..192 => 16,
            192..224 => 24,
            _ => return None,
        };
        let dst = Cidr::new(to.into(), prefix)?.network();
        (is_host(via) && !to.is_unspecified()).then(|| Route::new(dst, Some(via.into())))
    };
    value.chunks_exact(8).filter_map(route).collect()
}

/// Reads option 121: networks with as many bytes as their prefix needs, and their routers. Stops at a mistake.
fn classless_routes(mut value: &[u8]) -> Vec<Route> {
    let mut routes = Vec::new();
    while let Some((route, rest)) = classless_route(value) {
        // A second route to a network would be refused by the kernel.
        if !routes.iter().any(|other: &Route| other.dst == route.dst) {
            routes.push(route);
        }
        value = rest;
    }
    routes
}

fn classless_route(value: &[u8]) -> Option<(Route, &[u8])> {
    let (&prefix, rest) = value.split_first()?;
    let (network, rest) = rest.split_at_checked(usize::from(prefix).div_ceil(8))?;
    let (via, rest) = rest.split_first_chunk::<4>()?;
    let mut octets = [0; 4];
    octets.get_mut(..network.len())?.copy_from_slice(network);
    let dst = Cidr::new(Ipv4Addr::from(octets).into(), prefix)?.network();
    let via = Ipv4Addr::from(*via);
    if dst.ip().is_multicast() || !(via.is_unspecified() || is_host(via)) {
        return None;
    }
    // As the reference, names a network on the link by a router of zero.
    let scope = via.is_unspecified().then_some(libc::RT_SCOPE_LINK);
    Some((Route { scope, ..Route::new(dst, Some(via.into())) }, rest))
}

fn dns(message: &Message) -> Dns {
    let servers = message.addresses(option::NAME_SERVERS).filter(|server| is_host(*server));
    let domain = message.options.get(&option::DOMAIN).and_then(|value| {
        // Some servers end a text by a zero byte.
        let text = std::str::from_utf8(value).ok()?.trim_end_matches('\0');
        is_domain(text).then(|| text.to_owned())
    });
    let search = message.options.get(&option::SEARCH).map(|value| domains(value)).unwrap_or_default();
    Dns {
        nameservers: servers.map(|server| server.to_string()).collect(),
        domain: domain.unwrap_or_default(),
        search,
        options: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use linux::ip::MacAddr;

    use super::super::message::Kind;
    use super::*;

    fn ack(options: &[(u8, &[u8])]) -> Message {
        let mut all = BTreeMap::from([(1, vec![255, 255, 255, 0]), (54, vec![10, 66, 0, 1])]);
        all.extend(options.iter().map(|(number, value)| (*number, value.to_vec())));
        Message {
            is_reply: true,
            kind: Kind::Ack,
            xid: 1,
            seconds: 0,
            broadcast: false,
            client: Ipv4Addr::UNSPECIFIED,
            yours: Ipv4Addr::new(10, 66, 0, 119),
            mac: MacAddr::ZERO,
            options: all,
        }
    }

    fn read_with(message: &Message, settings: &Settings) -> Result<Terms, String> {
        read(message, Some(Server { address: Ipv4Addr::new(10, 66, 0, 1).into(), id: vec![2; 6] }), settings)
    }

    fn read_options(options: &[(u8, &[u8])]) -> Terms {
        read_with(&ack(options), &Settings::default()).unwrap()
    }

    fn shown(routes: &[Route]) -> Vec<String> {
        routes.iter().map(|route| format!("{} {}", route.dst, route.gw.unwrap())).collect()
    }

    #[test]
    fn classless_routes_replace_others() {
        let classless: &[u8] = &[0, 10, 66, 0, 7, 16, 172, 20, 0, 0, 0, 0, 25, 10, 9, 9, 129, 10, 66, 0, 8];
        let both: &[(u8, &[u8])] = &[(121, classless), (3, &[10, 66, 0, 1]), (33, &[10, 0, 0, 0, 10, 1, 2, 3])];
        let terms = read_options(both);
        assert_eq!(shown(&terms.routes), ["0.0.0.0/0 10.66.0.7", "172.20.0.0/16 0.0.0.0", "10.9.9.128/25 10.66.0.8"]);
        assert_eq!(terms.routes.iter().map(|route| route.scope).collect::<Vec<_>>(), [None, Some(253), None]);
        assert_eq!(terms.gateway, Some(Ipv4Addr::new(10, 66, 0, 1).into()), "the first router is still the gateway");
        let cut = read_options(&[(121, &classless[..18])]);
        assert_eq!(cut.routes.len(), 2, "a route that is cut does not count");
        assert_eq!(read_options(&[(121, &[33, 1, 1, 1, 1, 1, 10, 0, 0, 1])]).routes, [], "a prefix that is too long");
    }

    /// The case of the reference's TestParseRoutes.
    #[test]
    fn static_routes_have_the_prefix_of_their_class() {
        let value = [10, 0, 0, 0, 10, 1, 2, 3, 192, 168, 1, 0, 192, 168, 2, 3];
        let terms = read_options(&[(33, &value), (3, &[10, 66, 0, 1, 10, 66, 0, 2])]);
        let want = ["10.0.0.0/8 10.1.2.3", "192.168.1.0/24 192.168.2.3", "0.0.0.0/0 10.66.0.1"];
        assert_eq!(shown(&terms.routes), want);
    }

    #[test]
    fn the_configuration_can_leave_parts_out() {
        let options: &[(u8, &[u8])] = &[(3, &[10, 66, 0, 1]), (6, &[10, 66, 0, 53]), (26, &[5, 120])];
        let settings = Settings { ignore_gateway: true, ignore_dns: true, ..Settings::default() };
        let terms = read_with(&ack(options), &settings).unwrap();
        assert_eq!((terms.gateway, terms.routes.len(), terms.dns.is_empty(), terms.mtu), (None, 0, true, None));
        let settings = Settings { priority: 77, set_mtu: true, required: vec![26], ..Settings::default() };
        let terms = read_with(&ack(options), &settings).unwrap();
        assert_eq!((terms.routes[0].priority, terms.mtu), (77, Some(1400)));
        let why = read_with(&ack(&[]), &settings).unwrap_err();
        assert!(why.contains("option 26"), "{why}");
        assert_eq!(read_with(&ack(&[(26, &[4, 0])]), &settings).unwrap().mtu, None, "too small for IPv6");
    }

    #[test]
    fn names_are_read_and_those_that_could_be_lines_of_a_file_are_not() {
        let search = b"\x03eng\x05apple\x03com\x00\x09marketing\xc0\x04\x03bad\x04a\nb.\x00";
        let dns = read_options(&[(6, &[10, 66, 0, 53, 0, 0, 0, 0]), (15, b"example.org\0"), (119, search)]).dns;
        assert_eq!(dns.nameservers, ["10.66.0.53"]);
        assert_eq!(dns.domain, "example.org");
        assert_eq!(dns.search, ["eng.apple.com", "marketing.apple.com"]);
        for hostile in [&b"a b"[..], b"a\nnameserver 1.2.3.4", b"", b"a..b", b"\xff"] {
            assert_eq!(read_options(&[(15, hostile)]).dns.domain, "");
        }
        for endless in [&b"\xc0\x00"[..], b"\x01a\xc0\x00", b"\x05ab", b"\x40", b"\xc0"] {
            assert_eq!(read_options(&[(119, endless)]).dns.search, Vec::<String>::new());
        }
    }

    #[test]
    fn times_are_in_their_order() {
        let times = |end: u32, renew: u32, rebind: u32| {
            let [end, renew, rebind] = [end, renew, rebind].map(u32::to_be_bytes);
            let times = read_options(&[(51, &end), (58, &renew), (59, &rebind)]).times;
            times.map(|times| [times.renew, times.rebind, times.end])
        };
        assert_eq!(times(7200, 0, 0), Some([3600, 6300, 7200]));
        assert_eq!(times(7200, 1000, 2000), Some([1000, 2000, 7200]));
        assert_eq!(times(7200, 3000, 2000), Some([1999, 2000, 7200]));
        assert_eq!(times(7200, 8000, 9000), Some([3600, 6300, 7200]));
        assert_eq!(times(0, 0, 0), Some([4, 7, 8]));
        assert_eq!(times(u32::MAX, 5, 6), None);
        assert_eq!(read_options(&[]).times.unwrap().end, 3600);
    }

    #[test]
    fn impossible_addresses_are_refused() {
        for yours in
            [[0, 0, 0, 0], [127, 0, 0, 1], [224, 0, 0, 1], [255, 255, 255, 255], [10, 66, 0, 0], [10, 66, 0, 255]]
        {
            let message = Message { yours: yours.into(), ..ack(&[]) };
            assert!(read_with(&message, &Settings::default()).is_err(), "{yours:?}");
        }
        for (number, value) in [(1, &[255, 0, 255, 0][..]), (1, &[255])] {
            assert!(read_with(&ack(&[(number, value)]), &Settings::default()).is_err(), "{number} {value:?}");
        }
        let host = Message { yours: [10, 66, 0, 255].into(), ..ack(&[(1, &[255; 4])]) };
        assert_eq!(read_with(&host, &Settings::default()).unwrap().prefix, 32);
    }
}
