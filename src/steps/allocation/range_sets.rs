//! The range sets of a configuration: no two have a common address.

use super::ranges::{RangeConf, RangeSet};
use crate::error::{Error, Result};

/// Range sets without common addresses, each with its path in the configuration.
#[derive(Default)]
pub struct Sets(Vec<(String, RangeSet)>);

impl Sets {
    /// Adds the sets of the list at the path `at`.
    pub fn add_list(&mut self, at: &str, confs: &[Vec<RangeConf>]) -> Result<()> {
        for (i, conf) in confs.iter().enumerate() {
            let at = format!("{at}[{i}]");
            let set = RangeSet::new(conf, &at);
            self.add(at, set)?;
        }
        Ok(())
    }

    /// Adds a set that was checked, or the error of its check.
    pub fn add(&mut self, at: String, set: Result<RangeSet>) -> Result<()> {
        let number = self.0.len();
        let set = set.map_err(|e| e.context(format_args!("invalid range set {number}")))?;
        match self.0.iter().position(|(_, other)| other.overlaps(&set)) {
            Some(other) => return Err(self.overlap(other, &at, &set)),
            None => self.0.push((at, set)),
        }
        Ok(())
    }

    /// The error for a set with addresses of the set number `other`.
    fn overlap(&self, other: usize, at: &str, set: &RangeSet) -> Error {
        let number = self.0.len();
        let (other_at, other_set) = &self.0[other];
        let problem = format_args!("{set} overlaps with {other_set} of {other_at}");
        let error = Error::config(at, problem);
        error.saying(format_args!("range set {other} overlaps with {number}"))
    }

    /// The sets, at least one.
    pub fn into_sets(self) -> Result<Vec<RangeSet>> {
        if self.0.is_empty() {
            return Err(no_ranges());
        }
        Ok(self.0.into_iter().map(|(_, set)| set).collect())
    }
}

fn no_ranges() -> Error {
    Error::config("ipam.ranges", "there is none")
        .expecting("at least one set with a range with a subnet")
        .supplied_by("ipRanges")
        .saying("no IP ranges specified")
}
