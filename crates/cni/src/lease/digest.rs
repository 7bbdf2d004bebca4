//! Digests for the index and the records of earlier boots: fast, identical on all machines, not cryptographic.

use super::LeaseOwner;

/// The number of the index layout. It is part of every digest, so that pages of another layout count as broken.
const LAYOUT: u64 = 1;

/// Returns the digest of `bytes`.
pub(super) fn digest(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let tail = rest.iter().rev().fold(0, |tail, byte| tail << 8 | u64::from(*byte));
    let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    words.chain([tail, length]).fold(mix(LAYOUT), |state, word| mix(state ^ word))
}

/// Returns the digest of the owner of a lease.
pub(super) fn owner_digest(owner: &LeaseOwner) -> u64 {
    digest(owner.record().as_bytes())
}

/// Returns the digest of [`LeaseOwner::without_ifname`].
pub(super) fn container_digest(owner: &LeaseOwner) -> u64 {
    digest(owner.container.as_bytes())
}

/// The length of the digest at the head of sealed bytes.
pub(super) const HEAD: usize = 8;

/// Returns `body` with its digest in front of it.
pub(super) fn seal(body: impl IntoIterator<Item = u8>) -> Vec<u8> {
    let mut bytes = vec![0; HEAD];
    bytes.extend(body);
    reseal(&mut bytes);
    bytes
}

/// Recomputes the digest at the head of `bytes` after a change of the body.
pub(super) fn reseal(bytes: &mut [u8]) {
    if let Some((head, body)) = bytes.split_first_chunk_mut::<HEAD>() {
        *head = digest(body).to_le_bytes();
    }
}

/// Returns the body of sealed bytes, or `None` if it does not match the digest.
pub(super) fn unseal(bytes: &[u8]) -> Option<&[u8]> {
    let (head, body) = bytes.split_first_chunk::<HEAD>()?;
    (u64::from_le_bytes(*head) == digest(body)).then_some(body)
}

/// Applies the finalizer of splitmix64: every bit of the input affects every bit of the output.
fn mix(mut n: u64) -> u64 {
    n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_affects_the_digest() {
        let base = *b"container-0123456789\r\neth0";
        for byte in 0..base.len() {
            for bit in 0..8 {
                let mut other = base;
                other[byte] ^= 1 << bit;
                assert_ne!(digest(&base), digest(&other), "{byte}.{bit}");
            }
        }
        assert_ne!(digest(b""), digest(b"\0"));
        assert_ne!(digest(b"12345678"), digest(b"12345678\0"));
    }
}
