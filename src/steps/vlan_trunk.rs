//! The VLANs of a trunk, as configurations of bridge and ovs list them.

use serde::Deserialize;

use crate::error::{Error, Result};

/// The greatest VLAN id; 4095 is reserved.
pub const VLAN_MAX: i64 = 4094;

/// An entry of a trunk: one VLAN, a range of them, or both.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Trunk {
    #[serde(rename = "minID")]
    min_id: Option<i64>,
    #[serde(rename = "maxID")]
    max_id: Option<i64>,
    id: Option<i64>,
}

impl Trunk {
    /// An entry with these keys.
    #[cfg(test)]
    pub fn of(min_id: Option<i64>, max_id: Option<i64>, id: Option<i64>) -> Trunk {
        Trunk { min_id, max_id, id }
    }

    /// Checks the entry at `path`.
    pub fn validate(&self, path: &str) -> Result<()> {
        for (key, id) in [("minID", self.min_id), ("maxID", self.max_id), ("id", self.id)] {
            if let Some(id) = id.filter(|id| !(1..=VLAN_MAX).contains(id)) {
                return Err(Error::out_of_range(format_args!("{path}.{key}"), id, 1..=VLAN_MAX)
                    .saying(format_args!("incorrect trunk {key} parameter")));
            }
        }
        let (missing, present) = match (self.min_id, self.max_id) {
            (Some(min), Some(max)) if min > max => {
                let problem = format_args!("{min} is greater than {max}");
                return Err(Error::config(format_args!("{path}.minID"), problem)
                    .saying("minID is greater than maxID in trunk parameter"));
            }
            (Some(_), None) => ("maxID", "minID"),
            (None, Some(_)) => ("minID", "maxID"),
            _ => return Ok(()),
        };
        let expected = format_args!("one with {present}");
        Err(Error::missing(format_args!("{path}.{missing}"), expected).saying(format_args!(
            "minID and maxID should be configured simultaneously, {missing} is missing"
        )))
    }

    /// Its VLANs.
    pub fn ids(&self) -> impl Iterator<Item = u16> {
        let range = self.min_id.zip(self.max_id).map(|(min, max)| min..=max);
        range.into_iter().flatten().chain(self.id).filter_map(|id| u16::try_from(id).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_entries_are_named() {
        let cases = [
            (
                Trunk::of(Some(1), None, None),
                "minID and maxID should be configured simultaneously, maxID is missing; t.maxID: missing, expected one with minID",
            ),
            (
                Trunk::of(None, Some(1), None),
                "minID and maxID should be configured simultaneously, minID is missing; t.minID: missing, expected one with maxID",
            ),
            (
                Trunk::of(Some(9), Some(5), None),
                "minID is greater than maxID in trunk parameter; t.minID: 9 is greater than 5",
            ),
            (
                Trunk::of(None, None, Some(5000)),
                "incorrect trunk id parameter; t.id: 5000 is out of range, expected 1 to 4094",
            ),
            (
                Trunk::of(Some(0), Some(5), None),
                "incorrect trunk minID parameter; t.minID: 0 is out of range, expected 1 to 4094",
            ),
        ];
        for (entry, msg) in cases {
            assert_eq!(entry.validate("t").unwrap_err().to_string(), msg);
        }
        assert!(Trunk::of(Some(1), Some(1), Some(4094)).validate("t").is_ok());
    }
}
