//! Random names, indexes and MAC addresses for new links.

use cni::{AttachmentKey, Context, Error, Result};
use linux::ip::MacAddr;
use linux::netlink::LinkIndex;
use linux::sha2::sha512;

/// Returns a name for a host veth, in the reference's format, and MAC addresses for host veth and container veth.
pub fn random_pair() -> Result<(String, MacAddr, MacAddr)> {
    let [n0, n1, n2, n3, a0, a1, a2, a3, a4, a5, b0, b1, b2, b3, b4, b5] = random()?;
    let name = format!("veth{:08x}", u32::from_be_bytes([n0, n1, n2, n3]));
    Ok((name, local_unicast([a0, a1, a2, a3, a4, a5]), local_unicast([b0, b1, b2, b3, b4, b5])))
}

/// Returns a MAC address for a new link.
pub fn random_mac() -> Result<MacAddr> {
    random().map(local_unicast)
}

/// Returns an index for an end of a veth pair, far above those that the kernel chooses.
pub fn random_index() -> Result<LinkIndex> {
    let number = u32::from_ne_bytes(random()?) & 0x3fff_ffff | 0x4000_0000;
    LinkIndex::optional(number).ok_or_else(|| Error::bug("the index is not zero"))
}

/// Returns the MAC address for a list of names, always the same.
pub fn mac_of(names: &[&str]) -> MacAddr {
    let [_, _, mac @ ..] = digest(names);
    local_unicast(mac)
}

/// Returns a number for a list of names.
fn digest(names: &[&str]) -> [u8; 8] {
    // No name contains the separator.
    u64::from_str_radix(&sha512(16, &names.join("/")), 16).unwrap_or_default().to_be_bytes()
}

/// Returns the indexes for the link of an attachment in the container, far above those that the kernel chooses: the
/// second is for use if another link has the first. They show whose a link is that ADD created, but could not mark any
/// more.
pub fn indexes(key: AttachmentKey<'_>) -> [LinkIndex; 2] {
    let [_, _, _, a, b, c, d, _] = digest(&[key.network, key.container, key.ifname]);
    let number = u32::from_be_bytes([a, b, c, d]) & 0x3fff_fffe | 0x4000_0000;
    [number, number | 1].map(|number| LinkIndex::optional(number).unwrap_or(LinkIndex::LOOPBACK))
}

/// Returns the index for a link of the host that belongs to no single attachment, far above those that the kernel
/// chooses. It shows that ADD created the link, but could not mark it any more.
pub fn index_of(names: &[&str]) -> LinkIndex {
    let [a, b, c, d, ..] = digest(names);
    let number = u32::from_be_bytes([a, b, c, d]) & 0x3fff_ffff | 0x4000_0000;
    LinkIndex::optional(number).unwrap_or(LinkIndex::LOOPBACK)
}

/// Turns random bytes into a locally administered unicast MAC address.
fn local_unicast([first, rest @ ..]: [u8; 6]) -> MacAddr {
    let [b, c, d, e, f] = rest;
    MacAddr([first & 0xfc | 0x02, b, c, d, e, f])
}

/// Returns random bytes from the kernel.
fn random<const N: usize>() -> Result<[u8; N]> {
    linux::random().context(|| "get random bytes from the kernel")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stable_address_depends_on_all_names() {
        let mac = mac_of(&["net1", "default", "web", "eth0"]);
        assert_eq!(mac, mac_of(&["net1", "default", "web", "eth0"]));
        assert_eq!(mac.0[0] & 3, 2, "local and unicast");
        for other in
            [["net2", "default", "web", "eth0"], ["net1", "", "web", "eth0"], ["net1", "default", "web", "eth1"]]
        {
            assert_ne!(mac, mac_of(&other));
        }
    }

    #[test]
    fn random_names_and_addresses_differ_and_are_valid() {
        for _ in 0..100 {
            let (name, first, second) = random_pair().unwrap();
            assert_eq!(name.len(), 12);
            assert_ne!(first, second);
            assert_ne!(name, random_pair().unwrap().0);
            for mac in [first, second, random_mac().unwrap()] {
                assert_eq!(mac.0[0] & 3, 2, "local and unicast");
            }
        }
    }
}
