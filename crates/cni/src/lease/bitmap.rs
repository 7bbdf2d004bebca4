//! Bitmaps of leased addresses, one for each block of addresses. Pure logic without I/O.

use std::net::IpAddr;

use super::span::{Span, bits, like};

/// The number of addresses in a block.
const BLOCK: u128 = 4096;

/// One bit for each address of a block. The lowest bit is the first address.
pub(super) type Bitmap = [u8; 512];

/// The bitmap of a block without leases.
pub(super) const EMPTY: Bitmap = [0; 512];

/// Returns the first address of the block that contains `ip`.
pub(super) fn base(ip: IpAddr) -> IpAddr {
    like(ip, bits(ip) & !(BLOCK - 1))
}

/// Sets or clears the bit of `ip` in the bitmap of its block. Returns whether the bit changed.
pub(super) fn set(bitmap: &mut [u8], ip: IpAddr, taken: bool) -> bool {
    let (byte, mask) = position(bits(ip) % BLOCK);
    let Some(byte) = bitmap.get_mut(byte) else { return false };
    let old = *byte;
    *byte = if taken { old | mask } else { old & !mask };
    *byte != old
}

/// Returns the first address of `span` that is neither taken nor the gateway. `bitmap` returns the bitmap of a block,
/// given the first address of the block.
pub(super) fn first_free<E>(
    span: Span,
    mut bitmap: impl FnMut(IpAddr) -> Result<Bitmap, E>,
) -> Result<Option<IpAddr>, E> {
    let (mut at, last, gateway) = (bits(span.first), bits(span.last), bits(span.gateway));
    while at <= last {
        let bitmap = bitmap(base(like(span.first, at)))?;
        let end = last.min(at | (BLOCK - 1));
        let taken = |n: u128| {
            let (byte, mask) = position(n % BLOCK);
            bitmap.get(byte).is_some_and(|byte| byte & mask != 0)
        };
        if let Some(free) = (at..=end).find(|n| !taken(*n) && *n != gateway) {
            return Ok(Some(like(span.first, free)));
        }
        let Some(next) = end.checked_add(1) else { break };
        at = next;
    }
    Ok(None)
}

/// Returns the byte index and the bit mask of an address within its block.
fn position(offset: u128) -> (usize, u8) {
    (usize::try_from(offset / 8).unwrap_or(usize::MAX), 1 << (offset % 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_and_keep_their_family() {
        for (ip, want) in
            [("10.1.15.255", "10.1.0.0"), ("10.1.16.0", "10.1.16.0"), ("fd00::ffff", "fd00::f000"), ("::1", "::")]
        {
            assert_eq!(base(ip.parse().unwrap()), want.parse::<IpAddr>().unwrap(), "{ip}");
        }
    }

    #[test]
    fn set_returns_whether_the_bit_changed() {
        let mut bitmap = EMPTY;
        let ip = "10.1.0.9".parse().unwrap();
        assert!(set(&mut bitmap, ip, true) && !set(&mut bitmap, ip, true));
        assert_eq!(bitmap[1], 2);
        assert!(set(&mut bitmap, ip, false) && bitmap == EMPTY);
    }
}
