//! Random names and hardware addresses for new links.

use cni::ip::MacAddr;
use cni::{Context, Result};

/// What a new pair is called by: the name of the host's end, as the reference makes them, and a hardware address for each.
pub(crate) fn random_pair() -> Result<(String, MacAddr, MacAddr)> {
    let [n0, n1, n2, n3, a0, a1, a2, a3, a4, a5, b0, b1, b2, b3, b4, b5] = random()?;
    let name = format!("veth{:08x}", u32::from_be_bytes([n0, n1, n2, n3]));
    Ok((name, unassigned([a0, a1, a2, a3, a4, a5]), unassigned([b0, b1, b2, b3, b4, b5])))
}

/// A hardware address for a bridge.
pub(crate) fn random_mac() -> Result<MacAddr> {
    random().map(unassigned)
}

/// One that no vendor gave out, and that is nobody's group.
fn unassigned([first, rest @ ..]: [u8; 6]) -> MacAddr {
    let [b, c, d, e, f] = rest;
    MacAddr([first & 0xfc | 0x02, b, c, d, e, f])
}

fn random<const N: usize>() -> Result<[u8; N]> {
    cni::random().trying(|| "get randomness from the kernel")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_things_differ_and_are_valid() {
        for _ in 0..100 {
            let (name, first, second) = random_pair().unwrap();
            assert_eq!(name.len(), 12);
            assert_ne!(first, second);
            assert_ne!(name, random_pair().unwrap().0);
            for mac in [first, second, random_mac().unwrap()] {
                assert_eq!(mac.0[0] & 3, 2, "local, and no group");
            }
        }
    }
}
