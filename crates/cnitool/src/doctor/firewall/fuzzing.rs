//! Entry point for the fuzzer.

use linux::ip::Cidr;
use linux::netlink::nft::Family;

use super::packets::Packets;
use super::{FORWARD, path, read};

/// Reads lines of a save tool, and follows the packets of a bridge through them.
pub(crate) fn fuzz(lines: &[String]) {
    let Ok(chains) = read::from_legacy(lines, FORWARD) else { return };
    let packets = Packets {
        links: [Some(vec!["br0".to_owned()]), None],
        addresses: [Some(vec![Cidr::host([10, 22, 0, 2].into())]), None],
        families: vec![Family::Ipv4],
        ..Packets::default()
    };
    for (drops, is_accepted) in [(false, false), (true, false), (true, true)] {
        let effect = path::follow(&chains, FORWARD, drops, &packets, is_accepted);
        assert!(effect.rules.iter().all(|rule| rule.verdict == path::Verdict::Refuse), "{effect:?}");
        assert!(!(is_accepted && effect.last.is_some()), "{effect:?}");
        path::refusing(&chains, FORWARD, &packets, is_accepted);
    }
}
