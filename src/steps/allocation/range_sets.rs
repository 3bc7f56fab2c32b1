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
        let mut others = self.0.iter().enumerate();
        if let Some((other, (other_at, other_set))) = others.find(|(_, (_, of))| of.overlaps(&set))
        {
            let problem = format_args!("{set} overlaps with {other_set} of {other_at}");
            return Err(Error::config(at, problem)
                .saying(format_args!("range set {other} overlaps with {number}")));
        }
        self.0.push((at, set));
        Ok(())
    }

    /// The sets, at least one.
    pub fn into_sets(self) -> Result<Vec<RangeSet>> {
        if self.0.is_empty() {
            return Err(Error::config("ipam.ranges", "there is none")
                .expecting("at least one set with a range with a subnet")
                .supplied_by("ipRanges")
                .saying("no IP ranges specified"));
        }
        Ok(self.0.into_iter().map(|(_, set)| set).collect())
    }
}
