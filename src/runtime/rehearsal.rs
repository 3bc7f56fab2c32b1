//! The rehearsal of an ADD: the plugins of a network run one after the other as in an ADD, by a
//! process that has entered a replica of the host ([`replica`](crate::net::replica)). There is
//! no undo: everything goes with the process.
//!
//! Another program could reach beyond a replica, for example by asking an API server, so it is not
//! run.

use std::path::PathBuf;

use super::chain::{Operation, Program, Runtime, failed};
use super::list::{NetworkList, PluginConfig};
use super::parameters::Parameters;
use crate::cni::conf::Config;
use crate::cni::env::{Command, Environment};
use crate::cni::result::Document;
use crate::error::{Error, Result};
use crate::plugin::{Call, Context, Entry};

/// A plugin of the network in a rehearsal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// It is run.
    Played,
    /// It is not, for this reason.
    Omitted(String),
}

/// Where plugins are found in a rehearsal.
#[derive(Clone)]
pub struct Stage {
    /// The plugins that are compiled in, or stand-ins.
    pub plugins: &'static [Entry],
    /// The search path.
    pub path: String,
}

/// What became of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Played<'a> {
    /// Its ADD has succeeded.
    Done,
    /// It was not run, for this reason.
    Omitted(&'a str),
    /// It needs the result of a plugin that was not run.
    Unknown,
}

/// Receives each plugin after its turn.
pub type Audience<'a> = &'a mut dyn FnMut(&PluginConfig, Played<'_>) -> Result<()>;

impl Runtime<'_> {
    /// The program that would run for this type, if it is not code of this binary. Fails as ADD
    /// does if there is none.
    pub fn other_program(&self, kind: &str) -> Result<Option<PathBuf>> {
        Ok(match self.find(kind)? {
            Program::Own(_) => None,
            Program::File(program) => Some(program),
        })
    }

    /// The program of each plugin of the network that is not code of this binary.
    pub fn other_programs(&self, list: &NetworkList) -> Result<Vec<Option<PathBuf>>> {
        let found = list.plugins.iter().map(|plugin| {
            self.other_program(&plugin.kind).map_err(|error| failed(error, plugin, "add"))
        });
        found.collect()
    }

    /// Asks the IPAM plugin of this type, which is code of this binary, whether it can serve.
    pub fn require_ipam(&self, kind: &str, plugin: &PluginConfig, config: &Config) -> Result<()> {
        let Some(entry) = self.plugins.iter().find(|entry| entry.name == kind) else {
            return Ok(()); // the rehearsal reports it
        };
        let context = Context::new(self.plugins, config, self.env, "", self.directories());
        let context = context.sharing(&self.handles);
        let asked =
            entry.validate(&context).and_then(|()| entry.run(&context, Call::Status).map(drop));
        asked.map_err(|error| failed(error, plugin, "add"))
    }

    /// The same runtime, whose plugins get this environment and these directories.
    pub fn staged<'b>(&'b mut self, env: &'b Environment, stage: &Stage) -> Runtime<'b> {
        Runtime { plugins: stage.plugins, path: stage.path.clone(), ..self.within(env) }
    }

    /// Rehearses an ADD; returns the result, or None if the first plugin was not run. The rest then
    /// is not known.
    pub fn rehearse(
        &mut self,
        list: &NetworkList,
        at: &Parameters,
        parts: &[Part],
        audience: Audience<'_>,
    ) -> Result<Option<Document>> {
        self.cache.require_name(&at.key)?;
        let was_there = self.was_there(at)?;
        let played = self.play(list, at, parts, audience);
        played.map_err(|error| if was_there { there_before(error, at) } else { error })
    }

    fn play(
        &mut self,
        list: &NetworkList,
        at: &Parameters,
        parts: &[Part],
        audience: Audience<'_>,
    ) -> Result<Option<Document>> {
        let add = Operation { command: Command::Add, list, at };
        let mut result = None;
        for (plugin, part) in list.plugins.iter().zip(parts) {
            let played = match part {
                Part::Omitted(why) => Played::Omitted(why),
                Part::Played if result.is_none() && !is_first(list, plugin) => Played::Unknown,
                Part::Played => {
                    let added = self.add_one(add, plugin, result.as_ref());
                    result = Some(added.map_err(|error| failed(error, plugin, "add"))?);
                    Played::Done
                }
            };
            audience(plugin, played)?;
        }
        if let Some(result) = &result {
            self.keep(list, at, result)?;
        }
        Ok(result)
    }
}

fn there_before(error: Error, at: &Parameters) -> Error {
    let ifname = at.key.ifname.as_str();
    error.with_details(format_args!("{ifname:?} was there before; `net del` removes it"))
}

fn is_first(list: &NetworkList, plugin: &PluginConfig) -> bool {
    list.plugins.first().is_some_and(|first| std::ptr::eq(first, plugin))
}
