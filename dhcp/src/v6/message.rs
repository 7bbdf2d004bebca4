//! DHCPv6 messages (RFC 8415). Pure functions, without I/O.
//!
//! What arrives may come from anybody on the wire: each part is validated, and nothing of it makes a function panic.

use std::net::Ipv6Addr;

/// The port of servers.
pub(crate) const SERVER_PORT: u16 = 547;
/// The port of clients.
pub(crate) const CLIENT_PORT: u16 = 546;
/// Servers and relays on the link.
pub(crate) const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);

/// Numbers of options.
pub(crate) mod option {
    pub(crate) const CLIENT: u16 = 1;
    pub(crate) const SERVER: u16 = 2;
    pub(crate) const ASSOCIATION: u16 = 3;
    pub(crate) const ADDRESS: u16 = 5;
    pub(crate) const REQUESTS: u16 = 6;
    pub(crate) const ELAPSED: u16 = 8;
    pub(crate) const STATUS: u16 = 13;
    pub(crate) const NAME_SERVERS: u16 = 23;
    pub(crate) const SEARCH: u16 = 24;
    pub(crate) const MAX_SOLICIT_PAUSE: u16 = 82;
}

/// Numbers of states.
pub(crate) mod status {
    pub(crate) const SUCCESS: u16 = 0;
    pub(crate) const NO_ADDRESS: u16 = 2;
    pub(crate) const NO_BINDING: u16 = 3;
    pub(crate) const NOT_ON_LINK: u16 = 4;
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Solicit = 1,
    Advertise = 2,
    Request = 3,
    Confirm = 4,
    Renew = 5,
    Rebind = 6,
    Reply = 7,
    Release = 8,
}

impl Kind {
    fn numbered(number: u8) -> Option<Kind> {
        use Kind::{Advertise, Confirm, Rebind, Release, Renew, Reply, Request, Solicit};
        let all = [Solicit, Advertise, Request, Confirm, Renew, Rebind, Reply, Release];
        all.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) kind: Kind,
    /// The number of the exchange, of 24 bits.
    pub(crate) xid: u32,
    pub(crate) options: Options,
}

impl Message {
    /// Parses a message. Returns `None` for anything else, and for kinds that neither side of a lease sends.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Message> {
        let ([kind, a, b, c], options) = bytes.split_first_chunk()?;
        Some(Message {
            kind: Kind::numbered(*kind)?,
            xid: u32::from_be_bytes([0, *a, *b, *c]),
            options: Options::parse(options)?,
        })
    }

    /// Writes the message.
    pub(crate) fn write(&self) -> Vec<u8> {
        let [_, a, b, c] = self.xid.to_be_bytes();
        let mut bytes = vec![self.kind as u8, a, b, c];
        self.options.write(&mut bytes);
        bytes
    }
}

/// Options, which can have others inside, and can occur several times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options(pub(crate) Vec<(u16, Vec<u8>)>);

impl Options {
    /// Parses options. Returns `None` if one is cut.
    fn parse(mut bytes: &[u8]) -> Option<Options> {
        let mut options = Vec::new();
        while !bytes.is_empty() {
            let ([a, b, c, d], rest) = bytes.split_first_chunk()?;
            let (value, rest) = rest.split_at_checked(u16::from_be_bytes([*c, *d]).into())?;
            options.push((u16::from_be_bytes([*a, *b]), value.to_vec()));
            bytes = rest;
        }
        Some(Options(options))
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        for (number, value) in &self.0 {
            // A longer one is cut: the client writes none.
            let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
            bytes.extend(number.to_be_bytes());
            bytes.extend(length.to_be_bytes());
            bytes.extend(value.iter().take(length.into()));
        }
    }

    /// Returns the values of an option.
    pub(crate) fn all(&self, number: u16) -> impl Iterator<Item = &[u8]> {
        self.0.iter().filter(move |(other, _)| *other == number).map(|(_, value)| value.as_slice())
    }

    /// Returns the first value of an option.
    pub(crate) fn get(&self, number: u16) -> Option<&[u8]> {
        self.all(number).next()
    }

    /// Returns the addresses in an option; none if it has a part of one.
    pub(crate) fn addresses(&self, number: u16) -> impl Iterator<Item = Ipv6Addr> {
        let value = self.get(number).filter(|value| value.len().is_multiple_of(16)).unwrap_or_default();
        value.chunks_exact(16).filter_map(|piece| Some(Ipv6Addr::from(*piece.first_chunk::<16>()?)))
    }

    /// Returns the state, with the text of the server. Without the option, it is success.
    pub(crate) fn status(&self) -> (u16, String) {
        let Some((code, text)) = self.get(option::STATUS).and_then(|value| value.split_first_chunk()) else {
            return (status::SUCCESS, String::new());
        };
        // Without characters that a terminal or a log would interpret.
        let text = text.iter().map(|byte| char::from(*byte)).filter(|c| c.is_ascii_graphic() || *c == ' ');
        (u16::from_be_bytes(*code), text.take(100).collect::<String>().trim().to_owned())
    }
}

/// The addresses of one interface of a client (IA_NA).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Association {
    /// The number of the interface.
    pub(crate) number: u32,
    /// T1 and T2, in seconds.
    pub(crate) renew: u32,
    pub(crate) rebind: u32,
    pub(crate) options: Options,
}

impl Association {
    /// Parses the value of an option.
    pub(crate) fn parse(value: &[u8]) -> Option<Association> {
        let ([number, renew, rebind], options) = numbers(value)?;
        Some(Association { number, renew, rebind, options: Options::parse(options)? })
    }

    /// Returns the association of a client, which has this address or none.
    pub(crate) fn of(number: u32, address: Option<Ipv6Addr>) -> Association {
        // The client leaves the times to the server.
        let leased = |address| (option::ADDRESS, Leased { address, preferred: 0, valid: 0 }.write());
        Association { number, renew: 0, rebind: 0, options: Options(address.map(leased).into_iter().collect()) }
    }

    /// Writes the value of the option.
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut value = [self.number, self.renew, self.rebind].map(u32::to_be_bytes).as_flattened().to_vec();
        self.options.write(&mut value);
        value
    }

    /// Returns the addresses that the server does not refuse.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = Leased> {
        self.options.all(option::ADDRESS).filter_map(Leased::parse)
    }
}

/// An address with its lifetimes in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leased {
    pub(crate) address: Ipv6Addr,
    pub(crate) preferred: u32,
    pub(crate) valid: u32,
}

impl Leased {
    /// Parses the value of an option. Returns `None` for an address with another state than success.
    fn parse(value: &[u8]) -> Option<Leased> {
        let (address, rest) = value.split_first_chunk::<16>()?;
        let ([preferred, valid], options) = numbers(rest)?;
        let options = Options::parse(options)?;
        let leased = Leased { address: Ipv6Addr::from(*address), preferred, valid };
        (options.status().0 == status::SUCCESS).then_some(leased)
    }

    /// Writes the value of the option.
    pub(crate) fn write(&self) -> Vec<u8> {
        [&self.address.octets()[..], &self.preferred.to_be_bytes(), &self.valid.to_be_bytes()].concat()
    }
}

/// Splits numbers of four bytes off.
fn numbers<const N: usize>(mut bytes: &[u8]) -> Option<([u32; N], &[u8])> {
    let mut numbers = [0; N];
    for number in &mut numbers {
        let (first, rest) = bytes.split_first_chunk()?;
        (*number, bytes) = (u32::from_be_bytes(*first), rest);
    }
    Some((numbers, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: Ipv6Addr = Ipv6Addr::new(0xfd66, 0, 0, 0, 0, 0, 0, 9);

    fn reply() -> Message {
        let leased = Leased { address: ADDRESS, preferred: 1800, valid: 3600 };
        let inner = Options(vec![(option::ADDRESS, leased.write()), (option::STATUS, b"\0\0fine".to_vec())]);
        let association = Association { number: 7, renew: 900, rebind: 1440, options: inner };
        let options = vec![
            (option::CLIENT, vec![0, 3, 0, 1, 2, 0, 0, 0, 0, 9]),
            (option::ASSOCIATION, association.write()),
            (option::ASSOCIATION, Association::of(8, None).write()),
            (option::NAME_SERVERS, ADDRESS.octets().to_vec()),
        ];
        Message { kind: Kind::Reply, xid: 0x01_02_03, options: Options(options) }
    }

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let bytes = reply().write();
        assert_eq!(bytes[..8], [7, 1, 2, 3, 0, 1, 0, 10]);
        assert_eq!(Message::parse(&bytes), Some(reply()));
        let options = reply().options;
        assert_eq!(options.addresses(option::NAME_SERVERS).collect::<Vec<_>>(), [ADDRESS]);
        let found: Vec<_> = options.all(option::ASSOCIATION).filter_map(Association::parse).collect();
        assert_eq!((found.len(), found[0].number, found[0].renew, found[0].rebind), (2, 7, 900, 1440));
        let leased: Vec<_> = found[0].addresses().collect();
        assert_eq!(leased, [Leased { address: ADDRESS, preferred: 1800, valid: 3600 }]);
        assert_eq!(found[0].options.status(), (status::SUCCESS, "fine".to_owned()));
    }

    #[test]
    fn what_is_cut_does_not_count() {
        let bytes = reply().write();
        let whole = [4, 4 + 14, 4 + 14 + 4 + 12 + 28 + 10, 4 + 14 + 4 + 12 + 28 + 10 + 16, bytes.len()];
        for cut in 0..=bytes.len() {
            assert_eq!(Message::parse(&bytes[..cut]).is_some(), whole.contains(&cut), "{cut}");
        }
        let value = Association::of(1, Some(ADDRESS)).write();
        for cut in 0..value.len() {
            assert!(Association::parse(&value[..cut]).is_none_or(|found| found.addresses().count() == 0), "{cut}");
        }
        let odd = Options(vec![(option::NAME_SERVERS, vec![1; 17]), (option::STATUS, vec![3])]);
        assert_eq!((odd.addresses(option::NAME_SERVERS).count(), odd.status().0), (0, status::SUCCESS));
    }

    #[test]
    fn other_messages_and_refused_addresses_are_ignored() {
        for kind in [0, 9, 10, 11, 12, 13, 255] {
            assert_eq!(Message::parse(&[kind, 0, 0, 0]), None, "{kind}");
        }
        let mut refused = Leased { address: ADDRESS, preferred: 1, valid: 2 }.write();
        Options(vec![(option::STATUS, vec![0, 4])]).write(&mut refused);
        let association =
            Association { options: Options(vec![(option::ADDRESS, refused)]), ..Association::of(1, None) };
        assert_eq!(association.addresses().count(), 0);
        let hostile = Options(vec![(option::STATUS, b"\0\x04no \x1b[31mred\n".to_vec())]);
        assert_eq!(hostile.status(), (status::NOT_ON_LINK, "no [31mred".to_owned()));
    }
}
