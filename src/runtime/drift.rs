//! How an attachment has drifted from its record, plugin by plugin: what CHECK reports, and what a
//! repair would make again. Nothing is changed, and no lock is taken.

use super::chain::{Program, Runtime, has_check};
use super::check::Subject;
use super::list::NetworkList;
use super::parameters::Parameters;
use super::repair::Attached;
use crate::error::{Error, Result};
use crate::net::netns;
use crate::repair::{Extent, Repairs};

/// What one plugin reports.
#[derive(Clone, Debug)]
pub struct Drift {
    /// The plugin's type.
    pub plugin: String,
    /// What its CHECK reports, with its parts.
    pub error: Error,
    /// What a repair would make again.
    pub changes: Vec<String>,
}

impl Runtime<'_> {
    /// Compares an attachment with its record. Plugins that are other programs are left out: each
    /// would be one more process.
    pub fn drifts(&mut self, list: &NetworkList, at: &Parameters) -> Result<Vec<Drift>> {
        if list.disable_check || !has_check(list)? {
            return Ok(vec![]);
        }
        self.handles.begin_next();
        let Some(netns) = self.namespace(at)? else { return Ok(vec![]) };
        netns.netlink()?.remember();
        let result = self.cached_result(list, at)?;
        let found = Attached { list, at, netns, result };
        found.require_interface(&netns::of_host()?)?;
        let mut drifts = vec![];
        for plugin in &list.plugins {
            let Ok(Program::Own(entry)) = self.find(&plugin.kind) else { continue };
            let subject = Subject { list, at, result: found.result.as_ref() };
            let Err(error) = self.check_by(plugin, subject) else { continue };
            let look = Repairs::new(Extent::Look);
            let _ = self.repair_by(entry, plugin, &found, &look); // CHECK has reported why
            let changes = look.take_changes();
            drifts.push(Drift { plugin: plugin.kind.clone(), error, changes });
        }
        Ok(drifts)
    }
}
