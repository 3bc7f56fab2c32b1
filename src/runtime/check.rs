//! CHECK of one attachment: each plugin of its network compares the kernel with ADD's result.
//!
//! Errors of plugins that run in this process keep their parts, so that each difference can be
//! reported by itself; the protocol's error object joins them.
//!
//! Also the advice about a plugin that is not found, and whether a network's plugins support its
//! version, which runtimes check before they use a network.

use std::time::Duration;

use super::chain::{Program, Runtime, reported_by, require_check};
use super::find::listed;
use super::list::{NetworkList, PluginConfig};
use super::parameters::Parameters;
use super::{derive, trace};
use crate::cni::env::Command;
use crate::cni::result::Document;
use crate::cni::{delegate, version};
use crate::error::{Code, Error, ErrorList, Result};
use crate::runner::Execution;
use crate::terminal::Streams;
use crate::terminal::nearest::nearest;

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
                execution.run(&mut io).map(|()| stdout)
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

impl Runtime<'_> {
    /// The error of an operation on the network. If it may be about a plugin that is not found, its
    /// details have the name that was probably meant, or the names that there are.
    pub fn explain(&self, list: &NetworkList, error: Error) -> Error {
        if error.code != Code::DELEGATE {
            return error;
        }
        match list.plugins.iter().find(|plugin| self.find(&plugin.kind).is_err()) {
            Some(plugin) => error.with_details(self.advice(&plugin.kind)),
            None => error,
        }
    }

    /// A CHECK whose plugins that are not found have the same advice.
    #[must_use]
    pub fn explain_each(&self, mut checked: Checked) -> Checked {
        for (plugin, error) in &mut checked.failures {
            if error.code == Code::DELEGATE && self.find(&plugin.kind).is_err() {
                *error = error.clone().with_details(self.advice(&plugin.kind));
            }
        }
        checked
    }

    fn advice(&self, kind: &str) -> String {
        let mut names: Vec<String> = vec![];
        for directory in self.directories() {
            // One that cannot be read has no plugins.
            let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
            let files = entries.filter(|entry| entry.path().is_file());
            names.extend(files.map(|entry| entry.file_name().to_string_lossy().into_owned()));
        }
        names.extend(self.plugins.iter().map(|entry| entry.name.to_owned()));
        names.sort();
        names.dedup();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        match nearest(kind, names.iter().copied()) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("there are {}", listed(&names)),
        }
    }
}

impl Runtime<'_> {
    /// VERSION for every plugin: each has to list the network's version literally. Returns the
    /// capabilities that any of them declares; the error names every plugin that does not qualify.
    pub fn validate(&self, list: &NetworkList) -> Result<Vec<String>> {
        let mut errors = ErrorList::default();
        let mut capabilities = vec![];
        let wanted = if list.version.is_empty() { version::ABSENT } else { &list.version };
        for plugin in &list.plugins {
            let kind = &plugin.kind;
            errors.push(self.versions(kind).and_then(|spoken| {
                if spoken.iter().any(|version| version == wanted) {
                    return Ok(());
                }
                let msg = format!("plugin {kind} does not support config version {wanted:?}");
                Err(Error::new(Code::INCOMPATIBLE_VERSION, msg)
                    .with_details(format_args!("it speaks {}", spoken.join(", "))))
            }));
            capabilities.extend(plugin.capabilities.iter().cloned());
        }
        capabilities.sort_unstable();
        capabilities.dedup();
        errors.finish().map(|()| capabilities)
    }

    /// The versions that a plugin supports. A plugin that is compiled in is not run for that.
    pub fn versions(&self, kind: &str) -> Result<Vec<String>> {
        match self.find(kind)? {
            Program::File(program) => delegate::versions(&program, self.env),
            Program::Own(entry) => Ok(entry.version_list()),
        }
    }

    /// As [`Runtime::versions`], with a time limit for the program.
    pub fn versions_within(&self, kind: &str, patience: Duration) -> Result<Vec<String>> {
        match self.find(kind)? {
            Program::File(program) => delegate::versions_within(&program, self.env, patience),
            Program::Own(entry) => Ok(entry.version_list()),
        }
    }
}

pub(super) fn is_host_s(at: &Parameters) -> Error {
    Error::new(Code::INVALID_NETNS, format!("{:?} is the host's own namespace", at.netns))
        .with_details("the container is gone: `cni-multi net del` detaches it")
}
