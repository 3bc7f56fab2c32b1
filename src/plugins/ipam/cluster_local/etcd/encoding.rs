//! How the gateway writes protobuf's types in JSON: octets in base64, integers of 64 bits as
//! strings.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Octets: a key, or a value.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Octets(pub Vec<u8>);

impl Octets {
    /// The octets of a text.
    pub fn of(text: &str) -> Octets {
        Octets(text.as_bytes().to_vec())
    }

    /// The octets as text, or None if they are not UTF-8.
    pub fn text(&self) -> Option<&str> {
        str::from_utf8(&self.0).ok()
    }
}

impl Serialize for Octets {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Octets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Octets, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        STANDARD.decode(text.as_bytes()).map(Octets).map_err(de::Error::custom)
    }
}

/// An integer of 64 bits. It is written as a string and read from a string or a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Number(pub u64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Number, D::Error> {
        deserializer.deserialize_any(NumberVisitor)
    }
}

/// Revisions, leases and identities are never negative: protobuf's int64 and uint64 both fit, but
/// for a negative lifetime of a lease, which means that it has expired.
struct NumberVisitor;

impl Visitor<'_> for NumberVisitor {
    type Value = Number;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an integer of 64 bits, as a string")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Number, E> {
        Ok(Number(number))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Number, E> {
        Ok(Number(number.max(0).cast_unsigned()))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Number, E> {
        let number = match text.parse::<u64>() {
            Ok(number) => Some(number),
            Err(_) => text.parse::<i64>().ok().map(|negative| negative.max(0).cast_unsigned()),
        };
        let invalid = || de::Error::invalid_value(de::Unexpected::Str(text), &self);
        number.map(Number).ok_or_else(invalid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_strings_and_octets_are_base64() {
        assert_eq!(serde_json::to_string(&Number(u64::MAX)).unwrap(), "\"18446744073709551615\"");
        let read = |text| serde_json::from_str::<Number>(text).map(|number| number.0).ok();
        assert_eq!(read("\"18446744073709551615\""), Some(u64::MAX));
        assert_eq!([read("7"), read("\"-1\""), read("-1")], [Some(7), Some(0), Some(0)]);
        for bad in ["\"\"", "\"1x\"", "1.5", "\"99999999999999999999\"", "true", "null", "[]"] {
            assert_eq!(read(bad), None, "{bad}");
        }
        assert_eq!(serde_json::to_string(&Octets::of("x")).unwrap(), "\"eA==\"");
        let octets = |text| serde_json::from_str::<Octets>(text).ok();
        assert_eq!(octets("\"eA==\""), Some(Octets::of("x")));
        assert_eq!(octets("\"eA\\u003d\\u003d\""), Some(Octets::of("x")), "as Go escapes it");
        assert_eq!([octets("\"e\""), octets("7")], [None, None]);
    }
}
