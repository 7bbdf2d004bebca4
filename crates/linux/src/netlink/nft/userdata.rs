//! User data of rules and set elements, which the kernel stores without interpreting it.

use crate::netlink::wire::{self, Request};

/// The type of a comment, as defined by `nft` for rules and elements.
const COMMENT: u8 = 0;
/// The type of a mark. `nft` and `iptables` ignore types that they do not know.
const MARK: u8 = 200;
/// The type of a note, which earlier versions ignore.
const NOTE: u8 = 201;

/// A comment, a mark and a note. The kernel accepts at most 256 bytes, and 254 for an element, of which each text needs
/// three more than its length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserData {
    /// The comment, which `nft` and `iptables` show.
    pub comment: String,
    /// A text that the tools do not show, for the program that created the object: whose it is, or what it was made
    /// for.
    pub mark: String,
    /// Another text that the tools do not show.
    pub note: String,
}

impl UserData {
    /// Parses user data: a list of type, length and value. Type and length have one byte each.
    pub(super) fn read(mut data: &[u8]) -> UserData {
        let mut found = UserData::default();
        while let [kind, len, rest @ ..] = data {
            let Some((value, next)) = rest.split_at_checked(usize::from(*len)) else { break };
            match *kind {
                COMMENT => found.comment = wire::text(value),
                MARK => found.mark = wire::text(value),
                NOTE => found.note = wire::text(value),
                _ => {}
            }
            data = next;
        }
        found
    }

    /// Appends the user data to a message, unless it is empty. The kernel rejects data that is too long.
    pub(super) fn write(&self, request: &mut Request, attribute: u16) {
        if *self == UserData::default() {
            return;
        }
        request.nest(attribute, |data| {
            for (kind, text) in [(COMMENT, &self.comment), (MARK, &self.mark), (NOTE, &self.note)] {
                if !text.is_empty() {
                    data.raw(&[kind, u8::try_from(text.len() + 1).unwrap_or(u8::MAX)]);
                    data.raw(text.as_bytes());
                    data.raw(&[0]);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(data: &UserData) -> Vec<u8> {
        let mut request = Request::part();
        data.write(&mut request, 7);
        request.bytes().to_vec()
    }

    #[test]
    fn all_texts_are_read_back() {
        let all = UserData { comment: "to whom it belongs".into(), mark: "net1 c1 eth0".into(), note: "1 2 3".into() };
        for data in [
            all.clone(),
            UserData { mark: String::new(), ..all.clone() },
            UserData { note: String::new(), ..all.clone() },
            UserData { comment: String::new(), ..all },
        ] {
            let bytes = written(&data);
            let (_, value) = wire::attributes(&bytes, 0).next().unwrap().unwrap();
            assert_eq!(UserData::read(value), data);
        }
        assert_eq!(written(&UserData::default()), [], "nothing is written for nothing");
    }

    #[test]
    fn unknown_types_are_skipped_and_wrong_lengths_end_the_list() {
        let data = [1, 2, 9, 9, COMMENT, 2, b'a', 0, MARK, 9, b'b'];
        assert_eq!(UserData::read(&data), UserData { comment: "a".into(), ..UserData::default() });
        assert_eq!(UserData::read(&[COMMENT]), UserData::default());
    }
}
