//! DHCPv4 messages (RFC 2131) and the packets that carry them. Pure functions, without I/O.
//!
//! What arrives may come from anybody on the wire: each part is validated, and nothing of it makes a function panic.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use linux::ip::MacAddr;

/// The port of servers.
const SERVER_PORT: u16 = 67;
/// The port of clients.
pub(crate) const CLIENT_PORT: u16 = 68;
/// The length of a message before its options, with the cookie.
const HEADER: usize = 240;
/// The least length of a message: some relays drop shorter ones.
const LEAST: usize = 300;
/// What distinguishes DHCP from BOOTP.
const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// The length of the headers of IPv4 and UDP that [`wrap`] writes.
const HEADERS: usize = 28;
const UDP: u8 = 17;

/// Numbers of options.
pub(crate) mod option {
    pub(crate) const PAD: u8 = 0;
    pub(crate) const SUBNET_MASK: u8 = 1;
    pub(crate) const ROUTERS: u8 = 3;
    pub(crate) const NAME_SERVERS: u8 = 6;
    pub(crate) const HOST_NAME: u8 = 12;
    pub(crate) const DOMAIN: u8 = 15;
    pub(crate) const MTU: u8 = 26;
    pub(crate) const STATIC_ROUTES: u8 = 33;
    pub(crate) const REQUESTED_ADDRESS: u8 = 50;
    pub(crate) const LEASE_TIME: u8 = 51;
    pub(crate) const OVERLOAD: u8 = 52;
    pub(crate) const KIND: u8 = 53;
    pub(crate) const SERVER: u8 = 54;
    pub(crate) const REQUESTS: u8 = 55;
    pub(crate) const TEXT: u8 = 56;
    pub(crate) const MAX_SIZE: u8 = 57;
    pub(crate) const RENEWAL_TIME: u8 = 58;
    pub(crate) const REBINDING_TIME: u8 = 59;
    pub(crate) const VENDOR_CLASS: u8 = 60;
    pub(crate) const CLIENT: u8 = 61;
    pub(crate) const USER_CLASS: u8 = 77;
    pub(crate) const SEARCH: u8 = 119;
    pub(crate) const CLASSLESS_ROUTES: u8 = 121;
    pub(crate) const END: u8 = 255;
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Discover = 1,
    Offer = 2,
    Request = 3,
    Ack = 5,
    Nak = 6,
    Release = 7,
}

impl Kind {
    fn numbered(number: u8) -> Option<Kind> {
        let all = [Kind::Discover, Kind::Offer, Kind::Request, Kind::Ack, Kind::Nak, Kind::Release];
        all.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// Whether a server sent it.
    pub(crate) is_reply: bool,
    pub(crate) kind: Kind,
    /// The number of the exchange.
    pub(crate) xid: u32,
    /// How long the client has been trying.
    pub(crate) seconds: u16,
    /// Whether the client can receive only broadcasts.
    pub(crate) broadcast: bool,
    /// The address that the client has.
    pub(crate) client: Ipv4Addr,
    /// The address that the server gives.
    pub(crate) yours: Ipv4Addr,
    pub(crate) mac: MacAddr,
    /// The other options, in the order of their numbers. One that occurs several times is put together (RFC 3396).
    pub(crate) options: BTreeMap<u8, Vec<u8>>,
}

impl Message {
    /// Parses a message. Returns `None` for anything else, and for kinds that neither side of a lease sends.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Message> {
        let (header, rest) = bytes.split_at_checked(HEADER)?;
        let [op, hardware, length, _] = *header.first_chunk()?;
        if ![1, 2].contains(&op) || hardware != 1 || length != 6 || *header.last_chunk()? != COOKIE {
            return None;
        }
        let mut options = BTreeMap::new();
        read_options(rest, &mut options);
        // The two fields of BOOTP may have options, too.
        let overload = options.remove(&option::OVERLOAD).and_then(|value| value.first().copied()).unwrap_or_default();
        for (bit, field) in [(1, header.get(108..236)), (2, header.get(44..108))] {
            if overload & bit != 0 {
                read_options(field?, &mut options);
            }
        }
        options.remove(&option::OVERLOAD);
        let [kind] = options.remove(&option::KIND)?[..] else { return None };
        Some(Message {
            is_reply: op == 2,
            kind: Kind::numbered(kind)?,
            xid: u32::from_be_bytes(part(header, 4)?),
            seconds: u16::from_be_bytes(part(header, 8)?),
            broadcast: u16::from_be_bytes(part(header, 10)?) & 0x8000 != 0,
            client: Ipv4Addr::from(part::<4>(header, 12)?),
            yours: Ipv4Addr::from(part::<4>(header, 16)?),
            mac: MacAddr(part(header, 28)?),
            options,
        })
    }

    /// Writes the message.
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut bytes = vec![if self.is_reply { 2 } else { 1 }, 1, 6, 0];
        bytes.extend(self.xid.to_be_bytes());
        bytes.extend(self.seconds.to_be_bytes());
        bytes.extend(if self.broadcast { [0x80, 0] } else { [0, 0] });
        bytes.extend(self.client.octets());
        bytes.extend(self.yours.octets());
        bytes.extend([0; 8]);
        bytes.extend(self.mac.0);
        bytes.resize(HEADER - COOKIE.len(), 0);
        bytes.extend(COOKIE);
        bytes.extend([option::KIND, 1, self.kind as u8]);
        for (&number, value) in &self.options {
            // An option without a value occurs once, too.
            let pieces = value.chunks(255).chain(value.is_empty().then_some(&[][..]));
            for piece in pieces {
                bytes.extend([number, u8::try_from(piece.len()).unwrap_or_default()]);
                bytes.extend(piece);
            }
        }
        bytes.push(option::END);
        bytes.resize(bytes.len().max(LEAST), option::PAD);
        bytes
    }

    /// Returns the value of an option of four bytes.
    pub(crate) fn number(&self, option: u8) -> Option<u32> {
        let value: [u8; 4] = self.options.get(&option)?.as_slice().try_into().ok()?;
        Some(u32::from_be_bytes(value))
    }

    /// Returns the value of an option that is an address, or the first of several.
    pub(crate) fn address(&self, option: u8) -> Option<Ipv4Addr> {
        self.addresses(option).next()
    }

    /// Returns the addresses in an option; none if it has a part of one.
    pub(crate) fn addresses(&self, option: u8) -> impl Iterator<Item = Ipv4Addr> {
        let value = self.options.get(&option).map(Vec::as_slice).unwrap_or_default();
        let value = if value.len().is_multiple_of(4) { value } else { &[] };
        value.chunks_exact(4).filter_map(|piece| Some(Ipv4Addr::from(*piece.first_chunk::<4>()?)))
    }

    /// Returns the text of an option without characters that a terminal or a log would interpret.
    pub(crate) fn text(&self, option: u8) -> String {
        let value = self.options.get(&option).map(Vec::as_slice).unwrap_or_default();
        let text = value.iter().map(|byte| char::from(*byte)).filter(|c| c.is_ascii_graphic() || *c == ' ');
        text.take(100).collect::<String>().trim().to_owned()
    }
}

/// Returns the bytes at a place.
fn part<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Reads options up to the end, or to one that is cut.
fn read_options(mut bytes: &[u8], into: &mut BTreeMap<u8, Vec<u8>>) {
    while let Some((&number, rest)) = bytes.split_first() {
        match number {
            option::PAD => bytes = rest,
            option::END => return,
            _ => {
                let Some((&length, rest)) = rest.split_first() else { return };
                let Some((value, rest)) = rest.split_at_checked(length.into()) else { return };
                into.entry(number).or_default().extend_from_slice(value);
                bytes = rest;
            }
        }
    }
}

/// Returns the packet that carries a message from a client to a server.
pub(crate) fn wrap(message: &[u8], from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    packet(message, (from, CLIENT_PORT), (to, SERVER_PORT))
}

fn packet(message: &[u8], (from, source): (Ipv4Addr, u16), (to, destination): (Ipv4Addr, u16)) -> Vec<u8> {
    let length = |headers: usize| u16::try_from(message.len() + headers).unwrap_or(u16::MAX).to_be_bytes();
    let mut udp = Vec::with_capacity(message.len() + 8);
    udp.extend(source.to_be_bytes());
    udp.extend(destination.to_be_bytes());
    udp.extend(length(8));
    udp.extend([0, 0]);
    udp.extend(message);
    let mut summed = [&from.octets()[..], &to.octets(), &[0, UDP], &length(8), &udp].concat();
    if summed.len() % 2 == 1 {
        summed.push(0);
    }
    // A sum of zero would mean that there is none.
    let sum = Some(checksum(&summed)).filter(|sum| *sum != 0).unwrap_or(0xffff);
    if let Some(place) = udp.get_mut(6..8) {
        place.copy_from_slice(&sum.to_be_bytes());
    }
    let [high, low] = length(HEADERS);
    let mut header = vec![0x45, 0x10, high, low, 0, 0, 0x40, 0, 64, UDP, 0, 0];
    header.extend(from.octets());
    header.extend(to.octets());
    let sum = checksum(&header).to_be_bytes();
    if let Some(place) = header.get_mut(10..12) {
        place.copy_from_slice(&sum);
    }
    header.extend(udp);
    header
}

/// Returns the message in a packet to a client. The checksum of UDP is not compared: on a virtual link, the kernel
/// leaves it to hardware that does not exist.
pub(crate) fn unwrap(packet: &[u8]) -> Option<&[u8]> {
    let [version, _, high, low] = *packet.first_chunk()?;
    let (length, all) = (usize::from(version & 15) * 4, usize::from(u16::from_be_bytes([high, low])));
    // A frame may be longer than its packet.
    let packet = packet.get(..all)?;
    let (header, datagram) = packet.split_at_checked(length)?;
    if version >> 4 != 4 || length < 20 || checksum(header) != 0 || header.get(9) != Some(&UDP) {
        return None;
    }
    let length = usize::from(u16::from_be_bytes(part(datagram, 4)?));
    let ports = (u16::from_be_bytes(part(datagram, 0)?), u16::from_be_bytes(part(datagram, 2)?));
    (ports == (SERVER_PORT, CLIENT_PORT)).then_some(datagram.get(8..length)?)
}

/// The checksum of IPv4 and UDP: zero over a header that has the right one.
fn checksum(bytes: &[u8]) -> u16 {
    let part = |word: &[u8], place| word.get(place).copied().map_or(0, u32::from);
    let words = bytes.chunks(2).map(|word| part(word, 0) << 8 | part(word, 1));
    let mut sum: u32 = words.fold(0, u32::wrapping_add);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or_default()
}

/// Returns the packet that carries a message from a server to a client, for tests.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn wrap_reply(message: &[u8], from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    packet(message, (from, SERVER_PORT), (to, CLIENT_PORT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        Message {
            is_reply: true,
            kind: Kind::Ack,
            xid: 0x0102_0304,
            seconds: 5,
            broadcast: true,
            client: Ipv4Addr::UNSPECIFIED,
            yours: Ipv4Addr::new(10, 66, 0, 119),
            mac: MacAddr([2, 0, 0, 0, 0, 9]),
            options: BTreeMap::from([
                (option::SUBNET_MASK, vec![255, 255, 255, 0]),
                (option::SERVER, vec![10, 66, 0, 1]),
                (option::SEARCH, vec![7; 600]),
                (80, Vec::new()),
            ]),
        }
    }

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let message = message();
        assert_eq!(Message::parse(&message.write()), Some(message.clone()), "an option of 600 bytes has three parts");
        assert_eq!(message.write().len(), 240 + 3 + 6 + 6 + 606 + 2 + 1);
        let short = Message { options: BTreeMap::new(), ..message };
        assert_eq!(short.write().len(), LEAST);
        assert_eq!(Message::parse(&short.write()), Some(short));
    }

    #[test]
    fn options_continue_in_the_fields_of_bootp() {
        let mut bytes = Message { options: BTreeMap::from([(option::OVERLOAD, vec![3])]), ..message() }.write();
        bytes[108..113].copy_from_slice(&[option::DOMAIN, 1, b'a', option::END, 9]);
        bytes[44..47].copy_from_slice(&[option::DOMAIN, 1, b'b']);
        let found = Message::parse(&bytes).unwrap().options;
        assert_eq!(found, BTreeMap::from([(option::DOMAIN, b"ab".to_vec())]), "the file comes before the name");
    }

    #[test]
    fn other_datagrams_and_cut_ones_are_ignored() {
        let bytes = Message { options: BTreeMap::new(), ..message() }.write();
        for cut in 0..HEADER + 3 {
            assert_eq!(Message::parse(&bytes[..cut]), None, "{cut}");
        }
        for (place, value) in [(0, 3), (1, 6), (2, 16), (239, 0), (240, 54), (242, 99), (242, 4)] {
            let mut other = bytes.clone();
            other[place] = value;
            assert_eq!(Message::parse(&other), None, "byte {place} is {value}");
        }
        let mut cut = bytes;
        cut.truncate(HEADER + 3);
        cut.extend([option::ROUTERS, 4, 10, 0]);
        assert_eq!(Message::parse(&cut).unwrap().options, BTreeMap::new(), "an option that is cut does not count");
    }

    #[test]
    fn a_packet_has_valid_checksums_and_only_its_own_are_accepted() {
        let (from, to) = (Ipv4Addr::new(10, 66, 0, 1), Ipv4Addr::BROADCAST);
        for length in [300, 301] {
            let payload = vec![7; length];
            let packet = wrap_reply(&payload, from, to);
            assert_eq!(packet.len(), length + HEADERS);
            assert_eq!(checksum(&packet[..20]), 0);
            let mut pseudo = [&packet[12..20], &[0, UDP], &packet[24..26], &packet[20..]].concat();
            pseudo.resize(pseudo.len().next_multiple_of(2), 0);
            assert_eq!(checksum(&pseudo), 0);
            assert_eq!(unwrap(&packet), Some(payload.as_slice()));
            let padded = [packet.as_slice(), &[0; 30]].concat();
            assert_eq!(unwrap(&padded), Some(payload.as_slice()), "the padding of a frame");
        }
        assert_eq!(unwrap(&wrap(&[7; 300], from, to)), None, "a request");
        let packet = wrap_reply(&[7; 300], from, to);
        for (place, value) in [(0, 0x65), (0, 0x44), (2, 9), (9, 6), (12, 11), (21, 66), (23, 69), (24, 9)] {
            let mut other = packet.clone();
            other[place] = value;
            assert_eq!(unwrap(&other), None, "byte {place} is {value}");
        }
        assert!((0..packet.len()).all(|cut| unwrap(&packet[..cut]).is_none()));
    }

    #[test]
    fn values_of_another_length_and_control_characters_are_not_passed_on() {
        let with = |value: &[u8]| Message { options: BTreeMap::from([(3, value.to_vec())]), ..message() };
        assert_eq!(with(&[10, 0, 0, 1, 10, 0, 0, 2]).addresses(3).count(), 2);
        assert_eq!(with(&[10, 0, 0, 1, 10]).address(3), None);
        assert_eq!(with(&[0, 0, 1, 0]).number(3), Some(256));
        assert_eq!(with(&[0, 0, 1]).number(3), None);
        assert_eq!(with(b"no \x1b[31mred\n\xff").text(3), "no [31mred");
    }
}
