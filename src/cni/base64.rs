//! Bytes as text (RFC 4648, section 4): the standard letters, padded, as Go's reader of JSON has a list of bytes.

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The bytes as text.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits = (0..3).fold(0_usize, |bits, at| bits << 8 | usize::from(chunk.get(at).copied().unwrap_or(0)));
        for at in 0..4 {
            let letter = LETTERS[bits >> (18 - 6 * at) & 63];
            text.push(if at <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

/// The bytes of a text; None where it is no such text. Line ends are passed over, as Go does it.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let letters: Vec<u8> = text.bytes().filter(|byte| !b"\r\n".contains(byte)).collect();
    let mut bytes = Vec::with_capacity(letters.len() / 4 * 3);
    for (number, chunk) in letters.chunks(4).enumerate() {
        let is_last = (number + 1) * 4 == letters.len();
        let padding = if is_last { chunk.iter().rev().take_while(|letter| **letter == b'=').count() } else { 0 };
        if chunk.len() != 4 || padding > 2 {
            return None;
        }
        let mut bits = 0;
        for letter in &chunk[..4 - padding] {
            bits = bits << 6 | LETTERS.iter().position(|known| known == letter)?;
        }
        bits <<= 6 * padding;
        bytes.extend([bits >> 16, bits >> 8, bits].iter().take(3 - padding).map(|byte| *byte as u8));
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    #[test]
    fn every_length_and_every_byte_is_as_the_library_has_it() {
        let bytes: Vec<u8> = (0..=255).chain([255; 5]).collect();
        for end in 0..bytes.len() {
            let text = encode(&bytes[..end]);
            assert_eq!(text, STANDARD.encode(&bytes[..end]));
            assert_eq!(decode(&text).as_deref(), Some(&bytes[..end]));
        }
    }

    #[test]
    fn what_is_no_such_text_is_refused() {
        for text in ["A", "AA", "AAA", "====", "A===", "AA=A", "AA==AAAA", "A A=", "AA-_", "%", "AAAAA"] {
            assert_eq!(decode(text), None, "{text}");
        }
        assert_eq!(decode("QU\r\nJD\n").as_deref(), Some(&b"ABC"[..]));
    }
}
