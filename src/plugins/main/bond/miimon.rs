//! `miimon`: a number of milliseconds, which the original requires to be in quotes.

use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

use crate::error::{Error, Result};

/// The value, as it is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Miimon {
    /// It is not given.
    #[default]
    Default,
    /// A number.
    Number(i64),
    /// A number in quotes, or another text.
    Text(String),
}

impl Miimon {
    /// The milliseconds, if given; the kernel's limit is an int. Fails for what is no number of them.
    pub fn milliseconds(&self) -> Result<Option<u32>> {
        let number = match self {
            Miimon::Default => return Ok(None),
            Miimon::Number(number) => *number,
            Miimon::Text(text) => text.parse().map_err(|_| {
                Error::config("miimon", format_args!("{text:?} is not a number"))
                    .expecting("milliseconds such as 100 or \"100\"")
                    .saying(format_args!(
                        "failed to convert bondMiimon value ({text}) to an int, error: strconv.Atoi: parsing {text:?}: invalid syntax"
                    ))
            })?,
        };
        let most = i64::from(i32::MAX);
        match u32::try_from(number) {
            Ok(fitting) if number <= most => Ok(Some(fitting)),
            _ => Err(Error::out_of_range("miimon", number, 0..=most)),
        }
    }
}

impl<'de> Deserialize<'de> for Miimon {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Miimon, D::Error> {
        deserializer.deserialize_any(MiimonVisitor)
    }
}

struct MiimonVisitor;

impl Visitor<'_> for MiimonVisitor {
    type Value = Miimon;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an integer, or one in a string")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Miimon, E> {
        Ok(Miimon::Number(i64::try_from(number).unwrap_or(i64::MAX)))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Miimon, E> {
        Ok(Miimon::Number(number))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Miimon, E> {
        Ok(Miimon::Text(text.to_owned()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::cni::decode;
    use crate::cni::json::Value;

    /// The original's decoder refuses a number.
    #[test]
    fn a_number_counts_with_and_without_quotes() {
        let read = |json: &str| {
            let miimon: Miimon = decode::from_value(&Value::parse(json.as_bytes()).unwrap())
                .map_err(|e| e.to_string())?;
            miimon.milliseconds().map_err(|e| e.to_string())
        };
        assert_eq!([read("100"), read("\"100\"")], [Ok(Some(100)), Ok(Some(100))]);
        let text = read("\"\"").unwrap_err();
        assert!(text.starts_with("failed to convert bondMiimon value () to an int, error: strconv.Atoi: parsing \"\": invalid syntax; miimon: \"\""), "{text}");
        let text = read("-1").unwrap_err();
        assert_eq!(text, "miimon: -1 is out of range, expected 0 to 2147483647");
        assert!(read("[1]").is_err() && read("1.5").is_err() && read("4294967296").is_err());
    }
}
