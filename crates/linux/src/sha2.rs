//! SHA-256 and SHA-512 (FIPS 180-4), for names and checksums. Not for secrets.
//!
//! They differ in the size of their words, in the number of rounds, and in the bits by which words are rotated. The
//! constants of SHA-256 are the first halves of those of SHA-512.

/// Fractional parts of the square roots of the first eight primes.
#[rustfmt::skip]
const START: [u64; 8] = [
    0x6a09e667_f3bcc908, 0xbb67ae85_84caa73b, 0x3c6ef372_fe94f82b, 0xa54ff53a_5f1d36f1,
    0x510e527f_ade682d1, 0x9b05688c_2b3e6c1f, 0x1f83d9ab_fb41bd6b, 0x5be0cd19_137e2179,
];

/// Fractional parts of the cube roots of the first eighty primes.
#[rustfmt::skip]
const ROUNDS: [u64; 80] = [
    0x428a2f98_d728ae22, 0x71374491_23ef65cd, 0xb5c0fbcf_ec4d3b2f, 0xe9b5dba5_8189dbbc,
    0x3956c25b_f348b538, 0x59f111f1_b605d019, 0x923f82a4_af194f9b, 0xab1c5ed5_da6d8118,
    0xd807aa98_a3030242, 0x12835b01_45706fbe, 0x243185be_4ee4b28c, 0x550c7dc3_d5ffb4e2,
    0x72be5d74_f27b896f, 0x80deb1fe_3b1696b1, 0x9bdc06a7_25c71235, 0xc19bf174_cf692694,
    0xe49b69c1_9ef14ad2, 0xefbe4786_384f25e3, 0x0fc19dc6_8b8cd5b5, 0x240ca1cc_77ac9c65,
    0x2de92c6f_592b0275, 0x4a7484aa_6ea6e483, 0x5cb0a9dc_bd41fbd4, 0x76f988da_831153b5,
    0x983e5152_ee66dfab, 0xa831c66d_2db43210, 0xb00327c8_98fb213f, 0xbf597fc7_beef0ee4,
    0xc6e00bf3_3da88fc2, 0xd5a79147_930aa725, 0x06ca6351_e003826f, 0x14292967_0a0e6e70,
    0x27b70a85_46d22ffc, 0x2e1b2138_5c26c926, 0x4d2c6dfc_5ac42aed, 0x53380d13_9d95b3df,
    0x650a7354_8baf63de, 0x766a0abb_3c77b2a8, 0x81c2c92e_47edaee6, 0x92722c85_1482353b,
    0xa2bfe8a1_4cf10364, 0xa81a664b_bc423001, 0xc24b8b70_d0f89791, 0xc76c51a3_0654be30,
    0xd192e819_d6ef5218, 0xd6990624_5565a910, 0xf40e3585_5771202a, 0x106aa070_32bbd1b8,
    0x19a4c116_b8d2d0c8, 0x1e376c08_5141ab53, 0x2748774c_df8eeb99, 0x34b0bcb5_e19b48a8,
    0x391c0cb3_c5c95a63, 0x4ed8aa4a_e3418acb, 0x5b9cca4f_7763e373, 0x682e6ff3_d6b2b8a3,
    0x748f82ee_5defb2fc, 0x78a5636f_43172f60, 0x84c87814_a1f0ab72, 0x8cc70208_1a6439ec,
    0x90befffa_23631e28, 0xa4506ceb_de82bde9, 0xbef9a3f7_b2c67915, 0xc67178f2_e372532b,
    0xca273ece_ea26619c, 0xd186b8c7_21c0c207, 0xeada7dd6_cde0eb1e, 0xf57d4f7f_ee6ed178,
    0x06f067aa_72176fba, 0x0a637dc5_a2c898a6, 0x113f9804_bef90dae, 0x1b710b35_131c471b,
    0x28db77f5_23047d84, 0x32caab7b_40c72493, 0x3c9ebe0a_15c9bebc, 0x431d67c4_9c100d4c,
    0x4cc5d4be_cb3e42b6, 0x597f299c_fc657e2a, 0x5fcb6fab_3ad6faec, 0x6c44198c_4a475817,
];

/// Returns the digest as 64 hexadecimal digits in lower case. `sha256sum` prints the same.
pub fn sha256(message: &[u8]) -> String {
    hex(64, words_of_256(message).map(u32::to_be_bytes).as_flattened())
}

/// Returns the first `digits` of the 128 hexadecimal digits of the digest of `text`, in lower case.
pub fn sha512(digits: usize, text: &str) -> String {
    sha512_of_bytes(digits, text.as_bytes())
}

/// Does the same for bytes.
pub fn sha512_of_bytes(digits: usize, bytes: &[u8]) -> String {
    hex(digits, words_of_512(bytes).map(u64::to_be_bytes).as_flattened())
}

/// Returns the first hexadecimal digits of `bytes`.
fn hex(digits: usize, bytes: &[u8]) -> String {
    let mut hex = String::with_capacity(digits);
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            if hex.len() == digits {
                return hex;
            }
            hex.extend(char::from_digit(u32::from(digit), 16));
        }
    }
    hex
}

/// Defines a function that computes a digest: its words, the number of its rounds, and the bits by which words are
/// rotated. The last number of `early` and `late` is that of a shift.
macro_rules! digest {
    ($function:ident: $word:ident, $length:ident, $rounds:literal,
     early $early_1:literal $early_2:literal $early_3:literal, late $late_1:literal $late_2:literal $late_3:literal,
     e $e_1:literal $e_2:literal $e_3:literal, a $a_1:literal $a_2:literal $a_3:literal) => {
        #[expect(clippy::indexing_slicing, reason = "all indices are below the number of rounds")]
        fn $function(message: &[u8]) -> [$word; 8] {
            const WORD: usize = size_of::<$word>();
            const BLOCK: usize = 16 * WORD;
            const LENGTH: usize = size_of::<$length>();
            // The first half of a constant, or all of it.
            let cut = |constant: u64| (constant >> (u64::BITS - $word::BITS)) as $word;
            let (blocks, rest) = message.as_chunks::<BLOCK>();
            let mut end = rest.to_vec();
            end.push(0x80);
            end.resize((end.len() + LENGTH).next_multiple_of(BLOCK) - LENGTH, 0);
            end.extend_from_slice(&(message.len() as $length * 8).to_be_bytes());
            let mut state = START.map(cut);
            for block in blocks.iter().chain(end.as_chunks::<BLOCK>().0) {
                // The message schedule: one word for each round.
                let mut words: [$word; $rounds] = [0; $rounds];
                for (word, bytes) in words.iter_mut().zip(block.as_chunks::<WORD>().0) {
                    *word = $word::from_be_bytes(*bytes);
                }
                for round in 16..$rounds {
                    let (early, late) = (words[round - 15], words[round - 2]);
                    let early = early.rotate_right($early_1) ^ early.rotate_right($early_2) ^ (early >> $early_3);
                    let late = late.rotate_right($late_1) ^ late.rotate_right($late_2) ^ (late >> $late_3);
                    words[round] = early.wrapping_add(late).wrapping_add(words[round - 16]).wrapping_add(words[round - 7]);
                }
                let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = state;
                for (constant, word) in ROUNDS.iter().zip(&words) {
                    let choice = (e & f) ^ (!e & g);
                    let majority = (a & b) ^ (a & c) ^ (b & c);
                    let big_e = e.rotate_right($e_1) ^ e.rotate_right($e_2) ^ e.rotate_right($e_3);
                    let big_a = a.rotate_right($a_1) ^ a.rotate_right($a_2) ^ a.rotate_right($a_3);
                    let one = h.wrapping_add(big_e).wrapping_add(choice).wrapping_add(cut(*constant)).wrapping_add(*word);
                    let two = big_a.wrapping_add(majority);
                    (h, g, f, e) = (g, f, e, d.wrapping_add(one));
                    (d, c, b, a) = (c, b, a, one.wrapping_add(two));
                }
                for (word, value) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
                    *word = word.wrapping_add(value);
                }
            }
            state
        }
    };
}

digest!(words_of_256: u32, u64, 64, early 7 18 3, late 17 19 10, e 6 11 25, a 2 13 22);
digest!(words_of_512: u64, u128, 80, early 1 8 7, late 19 61 6, e 14 18 41, a 28 34 39);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "too many steps")]
    fn test_vectors_of_the_standard_for_256() {
        for (text, digest) in [
            ("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            ("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (
                "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
            ),
            (&"a".repeat(1_000_000), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
        ] {
            assert_eq!(sha256(text.as_bytes()), digest, "{} bytes", text.len());
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "too many steps")]
    fn test_vectors_of_the_standard_for_512() {
        let long = "a".repeat(1_000_000);
        for (text, digest) in [
            (
                "",
                "cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e",
            ),
            (
                "abc",
                "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
            ),
            (
                "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
                "8e959b75dae313da8cf4f72814fc143f8f7779c6eb9f7fa17299aeadb6889018501d289e4900f7e4331b99dec4b5433ac7d329eeb6dd26545e96e55b874be909",
            ),
            (
                &long,
                "e718483d0ce769644e2e42c7bc15b4638e1f98b13b2044285632a803afa973ebde0ff244877ea60a4cb0432ce577c31beb009c5c2c49aa2e4eadb217ad8cc09b",
            ),
        ] {
            assert_eq!(sha512(128, text), digest, "{} bytes", text.len());
            assert_eq!(sha512(24, text), digest[..24]);
        }
    }
}
