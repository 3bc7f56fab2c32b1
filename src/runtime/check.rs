//! CHECK of one attachment: each plugin of its network compares the kernel with ADD's result.

use super::chain::{Operation, Runtime, reported_by, require_check};
use super::list::{NetworkList, PluginConfig};
use super::parameters::Parameters;
use crate::cni::env::Command;
use crate::error::{Code, Error, ErrorList, Result};

/// How far a CHECK goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// To the first plugin that fails, as with libcni.
    OneFails,
    /// To the last plugin: all differences are reported.
    End,
}

/// What a CHECK has found.
#[derive(Debug, Default)]
pub struct Checked {
    /// Whether the attachment is recorded.
    pub is_recorded: bool,
    /// The error of each plugin that has failed.
    pub(super) failures: Vec<(PluginConfig, Error)>,
}

/// One difference between the attachment and its result.
#[derive(Debug, PartialEq)]
pub struct Difference {
    /// The type of the plugin that has found it.
    pub plugin: String,
    /// What differs.
    pub error: Error,
}

impl Checked {
    /// Success, or all that was found as one error. Returns whether the attachment is recorded.
    pub fn finish(self) -> Result<bool> {
        let failures = self.failures.into_iter();
        ErrorList::of(failures.map(|(plugin, error)| Err(reported_by(&plugin, error))))?;
        Ok(self.is_recorded)
    }

    /// Each difference by itself, in the order of the plugins.
    pub fn differences(&self) -> Vec<Difference> {
        let mut differences = vec![];
        for (plugin, error) in &self.failures {
            let parts = error.clone().into_parts().into_iter();
            differences
                .extend(parts.map(|error| Difference { plugin: plugin.kind.clone(), error }));
        }
        differences
    }
}

impl Runtime<'_> {
    /// CHECK: every plugin gets the result that ADD returned. Runs no plugin if the network
    /// disables CHECK.
    pub fn check(&mut self, list: &NetworkList, at: &Parameters, until: Until) -> Result<Checked> {
        require_check(list, "CHECK")?;
        if list.disable_check {
            let is_recorded = self.cache.contains(&at.key)?;
            return Ok(Checked { is_recorded, ..Checked::default() });
        }
        let held = self.hold(Some(at))?;
        if self.is_in_host(at)? {
            return Err(is_host_s(at));
        }
        let result = self.cached_result(list, at)?;
        let check = Operation { command: Command::Check, list, at };
        let mut alone = self.within(&held.env);
        let mut failures = vec![];
        for plugin in &list.plugins {
            if let Err(error) = alone.run_attached(check, plugin, result.as_ref()) {
                failures.push((plugin.clone(), error));
                if until == Until::OneFails {
                    break;
                }
            }
        }
        Ok(Checked { is_recorded: result.is_some(), failures })
    }
}

pub(super) fn is_host_s(at: &Parameters) -> Error {
    Error::new(Code::INVALID_NETNS, format!("{:?} is the host's own namespace", at.netns))
        .with_details("the container is gone: `cni-multi net del` detaches it")
}
