//! The part of the table that does not belong to a single attachment.

use cni::Result;
use linux::netlink::nft::{Chain, DataType, Edit, Elements, Field, Hook, MapsTo, Nftables, RuleSpec, SetSpec};

use super::{ACCEPTED, ATTACHMENTS, IPV4, IPV6, MARK, TABLE, UNMARK, VERSIONS, WAITING, WAITING_KEY};

/// What does not belong to a single attachment: chains, rules and sets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// The bit of the packet mark that accepted packets have on their way through the hook.
    pub(crate) bit: u32,
}

impl Frame {
    /// Returns the rules of all chains, in the order of [`create`](Frame::create).
    fn rules(self) -> Vec<RuleSpec<'static>> {
        let unmark =
            |chain| RuleSpec::new(chain).matches_any_bit(Field::PACKET_MARK, self.bit).clear_mark_bits(self.bit);
        let mut rules = vec![unmark(MARK)];
        for (set, source, destination) in
            [(IPV4, Field::SOURCE_V4, Field::DESTINATION_V4), (IPV6, Field::SOURCE_V6, Field::DESTINATION_V6)]
        {
            let from = RuleSpec::new(MARK).in_set(&[source], set.name);
            let to = || RuleSpec::new(MARK).in_set(&[destination], set.name);
            let replies = to().matches_any_bit(Field::CONNECTION_STATE, Field::ESTABLISHED);
            let translated = to().matches_any_bit(Field::CONNECTION_STATUS, Field::TRANSLATED);
            rules.extend([from, replies, translated].map(|rule| rule.goto(ACCEPTED.name)));
        }
        rules.extend([RuleSpec::new(ACCEPTED).set_mark_bits(self.bit), unmark(UNMARK)]);
        rules.into_iter().zip(self.comments()).map(|(rule, (_, comment))| rule.comment(comment)).collect()
    }

    /// Returns the chains and comments of the rules.
    fn comments(self) -> [(Chain<'static>, String); 9] {
        let (clear, set) = (format!("clear {:#x}", self.bit), format!("set {:#x}", self.bit));
        [
            (MARK, clear.clone()),
            (MARK, "from IPv4 containers".to_owned()),
            (MARK, "replies to IPv4 containers".to_owned()),
            (MARK, "to published ports of IPv4 containers".to_owned()),
            (MARK, "from IPv6 containers".to_owned()),
            (MARK, "replies to IPv6 containers".to_owned()),
            (MARK, "to published ports of IPv6 containers".to_owned()),
            (ACCEPTED, set),
            (UNMARK, clear),
        ]
    }

    /// Returns whether everything exists. Compares only comments, because this is a part of each ADD.
    pub(crate) fn is_complete(self, nft: &mut Nftables) -> Result<bool> {
        let (present, wanted) = (nft.rule_comments(TABLE)?, self.comments());
        let is_same = |((chain, comment), (of, text)): (&(String, String), &(Chain<'_>, String))| {
            chain == of.name && comment == text
        };
        Ok(present.len() == wanted.len() && present.iter().zip(&wanted).all(is_same))
    }

    /// Returns the edits that create the sets unless they exist.
    pub(crate) fn create_sets() -> Vec<Edit> {
        let set = |set, key| Edit::add_set(&SetSpec { set, key, maps_to: MapsTo::Nothing, elements: Elements::Keys });
        vec![
            Edit::add_table(TABLE),
            set(IPV4, &[DataType::Ipv4]),
            set(IPV6, &[DataType::Ipv6]),
            set(WAITING, &WAITING_KEY),
            set(ATTACHMENTS, &[DataType::LinkName]),
            set(VERSIONS, &[DataType::LinkName]),
        ]
    }

    /// Returns the edits that create everything, or restore what is missing. Elements stay.
    pub(crate) fn create(self) -> Vec<Edit> {
        let mut edits = Frame::create_sets();
        edits.extend([
            Edit::add_base_chain(MARK, Hook::BEFORE_FORWARD),
            Edit::add_chain(ACCEPTED),
            Edit::add_base_chain(UNMARK, Hook::AFTER_FORWARD),
        ]);
        edits.extend([MARK, ACCEPTED, UNMARK].map(Edit::flush));
        edits.extend(self.rules().iter().map(Edit::add_rule));
        edits
    }
}
