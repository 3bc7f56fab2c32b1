//! CHECK of one attachment: each plugin of its network compares the kernel with ADD's result.
//!
//! Errors of plugins that run in this process keep their parts, so that each difference can be
//! reported by itself; the protocol's error object joins them.

use super::chain::{Program, Runtime, reported_by, require_check};
use super::derive;
use super::list::{NetworkList, PluginConfig};
use super::parameters::Parameters;
use super::repair::is_host_s;
use super::trace;
use crate::cni::delegate;
use crate::cni::env::Command;
use crate::cni::result::Document;
use crate::error::{Error, ErrorList, Result};
use crate::runner::Execution;
use crate::terminal::Streams;

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
        let subject = Subject { list, at, result: result.as_ref() };
        let mut alone = self.within(&held.env);
        let mut failures = vec![];
        for plugin in &list.plugins {
            if let Err(error) = alone.check_by(plugin, subject) {
                failures.push((plugin.clone(), error));
                if until == Until::OneFails {
                    break;
                }
            }
        }
        Ok(Checked { is_recorded: result.is_some(), failures })
    }

    pub(super) fn check_by(&mut self, plugin: &PluginConfig, subject: Subject<'_>) -> Result<()> {
        let Subject { list, at, result } = subject;
        let config = derive::for_attachment(list, plugin, result, &at.capability_args);
        let env = self.environment(Command::Check, Some(at));
        let program = self.find(&plugin.kind)?;
        let (kind, text) = (&plugin.kind, program.to_text());
        let call = trace::Call { kind, program: &text, env: &env, config: &config };
        // An error of a plugin in this process keeps its parts.
        self.traced(&call, |runtime| match &program {
            Program::File(program) => {
                delegate::exec(program, &env, &config, runtime.handles.clock())
            }
            Program::Own(entry) => {
                let (mut stdin, mut stdout) = (&config[..], vec![]);
                let mut io =
                    Streams { stdin: &mut stdin, stdout: &mut stdout, stderr: runtime.stderr };
                let (plugins, handles) = (runtime.plugins, &runtime.handles);
                let execution = Execution { entry, plugins, env: &env, handles };
                execution.attempt(&mut io).map(|()| stdout)
            }
        })
        .map(drop)
    }
}

/// The attachment that is checked.
#[derive(Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) list: &'a NetworkList,
    pub(super) at: &'a Parameters,
    pub(super) result: Option<&'a Document>,
}
