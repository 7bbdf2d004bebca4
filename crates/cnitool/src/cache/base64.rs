//! Base64 (RFC 4648, with padding), the encoding of the configuration in a cache entry.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for piece in bytes.chunks(3) {
        let bits = (0..3).fold(0_u32, |bits, i| bits << 8 | u32::from(piece.get(i).copied().unwrap_or_default()));
        for i in 0..4 {
            let letter = ALPHABET.get((bits >> (18 - 6 * i) & 63) as usize).copied().unwrap_or_default();
            text.push(if i <= piece.len() { letter.into() } else { '=' });
        }
    }
    text
}

/// Decodes `text`. Returns `None` if it is not Base64.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let letters = text.trim_end_matches('=');
    if !text.len().is_multiple_of(4) || text.len() - letters.len() > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for piece in letters.as_bytes().chunks(4) {
        let mut bits = 0_u32;
        for letter in piece {
            bits = bits << 6 | u32::try_from(ALPHABET.iter().position(|known| known == letter)?).ok()?;
        }
        let [_, a, b, c] = (bits << (6 * (4 - piece.len()))).to_be_bytes();
        bytes.extend([a, b, c].into_iter().take(piece.len() - 1));
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_vectors_of_the_standard() {
        let vectors = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"];
        for (length, text) in vectors.into_iter().enumerate() {
            let bytes = &b"foobar"[..length];
            assert_eq!(encode(bytes), text);
            assert_eq!(decode(text).as_deref(), Some(bytes));
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)), Some(all));
        for bad in ["Z", "Zg=", "Zg", "Z===", "Zm9v\n", "Zm-v", "====", "Zg==Zg=="] {
            assert_eq!(decode(bad), None, "{bad:?}");
        }
    }
}
