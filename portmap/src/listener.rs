//! Warns of processes on this host that listen on a port to be published: they no longer get its connections.

use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use cni::SortedSet;
use linux::ip::Protocol;
use linux::log::{Level, is_enabled, warn};

use crate::mapping::Mapping;

/// Logs a warning for each port with a listening process. Reads nothing unless warnings are logged.
pub(crate) fn warn_of_listeners(mappings: &[Mapping]) {
    if !is_enabled(Level::Warn) {
        return;
    }
    for (protocol, files, state) in [
        (Protocol::Tcp, ["/proc/net/tcp", "/proc/net/tcp6"], "0A"),
        (Protocol::Udp, ["/proc/net/udp", "/proc/net/udp6"], "07"),
    ] {
        let mut wanted = mappings.iter().filter(|mapping| mapping.key.protocol == protocol).peekable();
        if wanted.peek().is_none() {
            continue;
        }
        let sockets: Vec<String> = files.map(|file| fs::read_to_string(file).unwrap_or_default()).into();
        let listeners: Vec<SocketAddr> = sockets.iter().flat_map(|sockets| listening(sockets, state)).collect();
        let lost = wanted.filter(|mapping| listeners.iter().any(|listener| loses(*listener, mapping)));
        // A port of all addresses has a mapping for each family.
        for key in &lost.map(|mapping| mapping.key).collect::<SortedSet<_>>() {
            warn!("{key} of this host has a listening process, which gets no more connections");
        }
    }
}

/// Returns whether a process that listens at `listener` no longer gets connections because of a mapping.
fn loses(listener: SocketAddr, mapping: &Mapping) -> bool {
    let ip = listener.ip().to_canonical();
    listener.port() == mapping.key.port
        && match ip {
            // It may accept IPv4 too.
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => true,
            // Connections to this address are not translated.
            IpAddr::V6(Ipv6Addr::LOCALHOST) => false,
            _ if ip.is_ipv4() != mapping.target.is_ipv4() => false,
            _ => ip.is_unspecified() || mapping.key.host_ip.is_none_or(|host| host == ip),
        }
}

/// Returns the local addresses of the sockets in this state, from the format of /proc/net/tcp.
fn listening(sockets: &str, state: &str) -> Vec<SocketAddr> {
    let local = |line: &str| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let (local, _, found) = (words.next()?, words.next()?, words.next()?);
        let (ip, port) = local.rsplit_once(':').filter(|_| found == state)?;
        Some(SocketAddr::new(address(ip)?, u16::from_str_radix(port, 16).ok()?))
    };
    sockets.lines().filter_map(local).collect()
}

/// Parses an address: words of four bytes in the order of this machine, as hexadecimal numbers.
fn address(text: &str) -> Option<IpAddr> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (word, others) = rest.split_at_checked(8)?;
        bytes.extend(u32::from_str_radix(word, 16).ok()?.to_ne_bytes());
        rest = others;
    }
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::Key;

    #[test]
    #[cfg(target_endian = "little")]
    fn listening_sockets_are_found() {
        let text = "  sl  local_address rem_address   st tx_queue rx_queue\n\
                    0: 0100007F:1F90 00000000:0000 0A 00000000:00000000\n\
                    1: 00000000:0050 0200007F:9C40 01 00000000:00000000\n\
                    2: B80D0120000000000000000001000000:0051 00000000000000000000000000000000:0000 0A 0:0\n\
                    3: 0100:1F90 0000:0000 0A 00000000:00000000\n\
                    garbage\n";
        let found = |state: &str| listening(text, state).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(found("0A"), ["127.0.0.1:8080", "[2001:db8::1]:81"]);
        assert_eq!(found("01"), ["0.0.0.0:80"]);
        assert_eq!(listening("", "0A"), []);
    }

    #[test]
    fn a_listener_loses_connections_to_its_own_address_only() {
        let mapping = |host: &str, target: &str| Mapping {
            key: Key { host_ip: host.parse().ok(), protocol: Protocol::Tcp, port: 80 },
            target: target.parse().unwrap(),
        };
        let all = [mapping("", "10.1.0.2:1"), mapping("10.0.0.1", "10.1.0.2:1"), mapping("", "[fd01::2]:1")];
        for (listener, want) in [
            ("0.0.0.0:80", [true, true, false]),
            ("10.0.0.1:80", [true, true, false]),
            ("127.0.0.1:80", [true, false, false]),
            ("[::]:80", [true, true, true]),
            ("[::ffff:10.0.0.1]:80", [true, true, false]),
            ("[fd01::1]:80", [false, false, true]),
            ("[::1]:80", [false, false, false]),
            ("[::]:81", [false, false, false]),
        ] {
            assert_eq!(all.map(|mapping| loses(listener.parse().unwrap(), &mapping)), want, "{listener}");
        }
    }
}
