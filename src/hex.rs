//! Octets as text, two hex digits each: in journals, on sockets, in comments of nftables. Usable as `#[serde(with)]`.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serializer};

/// Encodes octets as lower-case digits.
pub fn encode(octets: &[u8]) -> String {
    let digits = octets.iter().flat_map(|octet| [octet >> 4, octet & 0xf]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}

/// Decodes digits of either case; None for a non-digit or an odd number of digits.
pub fn decode(digits: &str) -> Option<Vec<u8>> {
    let (pairs, []) = digits.as_bytes().as_chunks::<2>() else { return None };
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

fn digit(letter: u8) -> Option<u8> {
    char::from(letter).to_digit(16).map(|digit| digit as u8)
}

/// Writes octets as digits.
pub fn serialize<S: Serializer>(octets: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&encode(octets))
}

/// Reads octets from digits.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let digits = String::deserialize(deserializer)?;
    decode(&digits)
        .ok_or_else(|| D::Error::custom(format_args!("{digits:?}: expected pairs of hex digits")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octets_come_back_and_torn_digits_are_none() {
        assert_eq!(encode(&[0, 0x0a, 0xff]), "000aff");
        assert_eq!(decode("000aFf"), Some(vec![0, 0x0a, 0xff]));
        assert_eq!(decode(""), Some(vec![]));
        for torn in ["f", "zz", "+1", "ää", "0 "] {
            assert_eq!(decode(torn), None, "{torn}");
        }
    }
}
