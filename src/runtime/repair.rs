//! Repair of attachments: each plugin of their networks makes again what is missing, in the order
//! of ADD.
//!
//! A look comes first, with no lock, which asks the kernel once for what the attachments share. If
//! it finds something, the repair itself asks again, under the lock, and a second look shows
//! whether its changes last.
//!
//! The protocol has no such operation, so plugins that are other programs are left out.
//!
//! [`Runtime::drifts`] tells how an attachment has drifted from its record, plugin by plugin: what
//! CHECK reports, and what a repair would make again. Nothing is changed, and no lock is taken.

use std::rc::Rc;

use super::chain::{Operation, Program, Runtime, has_check, reported_by, without_result};
use super::check::is_host_s;
use super::derive;
use super::find::Recorded;
use super::list::{NetworkList, PluginConfig};
use super::parameters::Parameters;
use crate::cni::env::Command;
use crate::cni::json::Value;
use crate::cni::result::Document;
use crate::error::{Aspect, Error, ErrorList, Result};
use crate::net::netns::{self, FileId, Netns};
use crate::plain_file;
use crate::plugin::{Attachment, Entry};
use crate::repair::{Extent, Repairs};
use crate::runner::Execution;

/// A repair of attachments, one after the other.
pub struct Round<'r, 'a> {
    runtime: &'r mut Runtime<'a>,
    extent: Extent,
    /// What looks have found since the last change.
    look: Repairs,
    made: Repairs,
    /// What the last look has left of the container's side.
    left: Vec<String>,
    /// The namespaces of the host.
    host: Vec<FileId>,
}

/// Whether an attachment is there to be repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Its namespace or its record is gone.
    Gone,
    /// It has a namespace and a record.
    Alive,
}

impl<'r, 'a> Round<'r, 'a> {
    /// Begins a repair of this extent.
    pub fn begin(runtime: &'r mut Runtime<'a>, extent: Extent) -> Result<Round<'r, 'a>> {
        let host = netns::of_host()?;
        runtime.handles.remember()?;
        let (look, made) = (Repairs::new(Extent::Look), Repairs::new(Extent::Make));
        Ok(Round { runtime, extent, look, made, left: vec![], host })
    }

    /// Repairs an attachment by its record. A plugin that fails does not keep the later ones from
    /// repairing. [`Round::take_changes`] has what was found, or made.
    pub fn repair(&mut self, list: &NetworkList, recorded: &Recorded) -> Result<Presence> {
        self.runtime.cache = recorded.cache.clone();
        let looked = self.look(list, recorded);
        self.left = self.look.take_left();
        if self.extent == Extent::Look || (looked.is_ok() && !self.look.has_changes()) {
            return looked;
        }
        self.runtime.handles.forget();
        let repaired = self.repair_alone(list, &recorded.at);
        self.look.begin_again();
        self.runtime.handles.remember()?;
        repaired
    }

    /// The changes since the last call.
    pub fn take_changes(&self) -> Vec<String> {
        match self.extent {
            Extent::Look => self.look.take_changes(),
            Extent::Make => self.made.take_changes(),
        }
    }

    /// The differences of the container's side that the last look has left. While there is something
    /// to repair a later plugin may make what an earlier one misses.
    pub fn take_left(&mut self) -> Vec<String> {
        let left = std::mem::take(&mut self.left);
        if self.look.has_changes() { vec![] } else { left }
    }

    /// The plugins that are other programs, each once.
    pub fn take_skipped(&self) -> impl Iterator<Item = String> {
        let mut skipped = self.look.take_skipped();
        skipped.extend(self.made.take_skipped());
        skipped.into_iter()
    }

    /// Looks what is missing, without the lock: an operation that runs now may be seen half-way.
    fn look(&mut self, list: &NetworkList, recorded: &Recorded) -> Result<Presence> {
        self.runtime.handles.begin_next();
        let at = &recorded.at;
        let Some(netns) = self.runtime.namespace(at)? else { return Ok(Presence::Gone) };
        netns.netlink()?.remember();
        let record = recorded.found.record.clone()?;
        let result =
            record.result_in(&list.version).map_err(|error| without_result(list, error))?;
        let found = Attached { list, at, netns, result };
        found.require_interface(&self.host)?;
        self.runtime.repair_all(&found, &self.look)
    }

    /// Repairs while no other operation runs on the attachment. The record is read again under the
    /// lock: another operation may have replaced it since the look.
    fn repair_alone(&mut self, list: &NetworkList, at: &Parameters) -> Result<Presence> {
        self.runtime.handles.begin_next();
        let held = self.runtime.hold(Some(at))?;
        let record = self.runtime.cache.record(&at.key)?;
        let Some(record) = record else { return Ok(Presence::Gone) };
        let recorded = record.at.as_ref().unwrap_or(at);
        if recorded.netns != at.netns {
            drop(held); // it is the lock of another namespace
            return self.repair_alone(list, recorded);
        }
        // The network of the record, unless the record does not keep it.
        let is_changed = !record.document.is_empty() && record.document != list.document;
        let changed =
            is_changed.then(|| NetworkList::parse(record.document.clone())).transpose()?;
        let list = changed.as_ref().unwrap_or(list);
        let Some(netns) = self.runtime.namespace(recorded)? else { return Ok(Presence::Gone) };
        let result =
            record.result_in(&list.version).map_err(|error| without_result(list, error))?;
        let found = Attached { list, at: recorded, netns, result };
        found.require_interface(&self.host)?;
        let runtime = self.runtime.within(&held.env);
        let repaired = runtime.repair_all(&found, &self.made);
        // A change that is missing again is an error, and no change: the kernel may not have kept
        // it, or another program has undone it.
        let again = Repairs::new(Extent::Look);
        let looked = runtime.repair_all(&found, &again);
        let retracted = self.made.retract(&again);
        let (done, missing) = match repaired {
            Ok(_) => (looked, again.take_changes()),
            Err(_) => (repaired, retracted), // the look has found what this has reported
        };
        self.left = again.take_left();
        let mut errors = ErrorList::default();
        errors.push(done);
        for change in missing {
            errors.add(
                Error::check(format!("{change}: this was done, and is missing again"))
                    .with_details("another program may undo it, or the kernel does not keep it"),
            );
        }
        errors.finish().map(|()| Presence::Alive)
    }
}

/// An attachment with its record.
pub(super) struct Attached<'a> {
    pub(super) list: &'a NetworkList,
    pub(super) at: &'a Parameters,
    pub(super) netns: Rc<Netns>,
    pub(super) result: Option<Document>,
}

impl Attached<'_> {
    /// Requires the interface of the record in the namespace: without it the path leads to another
    /// container by now, or to the host itself, or the attachment is beyond repair.
    pub(super) fn require_interface(&self, host: &[FileId]) -> Result<()> {
        let at = self.at;
        if host.contains(&self.netns.identity()?) {
            return Err(is_host_s(at));
        }
        let ifname = at.key.ifname.as_str();
        let Some(link) = self.netns.netlink()?.find_link(ifname)? else {
            return Err(Error::check(format!("interface {ifname:?} is not in {:?}", at.netns))
                .with_details("no repair makes it again: detach the container, and attach it again")
                .about(&Aspect::Interface));
        };
        let recorded = self.result.as_ref().and_then(|result| recorded_mac(result, at));
        let mac = link.mac().to_string();
        let Some(other) = recorded.filter(|recorded| !recorded.eq_ignore_ascii_case(&mac)) else {
            return Ok(());
        };
        Err(Error::check(format!("interface {ifname:?} in {:?} is another", at.netns))
            .with_details(format_args!(
                "the record has hardware address {other}: detach the container, and attach it again"
            ))
            .about(&Aspect::Interface))
    }
}

impl Runtime<'_> {
    /// The container's namespace, unless it is gone.
    pub(super) fn namespace(&self, at: &Parameters) -> Result<Option<Rc<Netns>>> {
        self.handles.netns(&at.netns, Netns::open_if_there)
    }

    /// Whether the path of the attachment leads to a namespace of the host: its container is gone,
    /// and what is in there is none of the container's.
    pub fn is_in_host(&self, at: &Parameters) -> Result<bool> {
        let found = plain_file::identity(&at.netns).filter(|_| !self.env.has_netns_override());
        let Some(found) = found else { return Ok(false) };
        Ok(netns::of_host()?.contains(&found))
    }

    fn repair_all(&self, found: &Attached<'_>, repairs: &Repairs) -> Result<Presence> {
        let mut errors = ErrorList::default();
        for plugin in &found.list.plugins {
            let repaired = match self.find(&plugin.kind) {
                Ok(Program::Own(entry)) => self.repair_by(entry, plugin, found, repairs),
                Ok(Program::File(_)) => {
                    repairs.skip(&plugin.kind);
                    Ok(())
                }
                Err(error) => Err(error),
            };
            let is_another =
                repaired.as_ref().is_err_and(|error: &Error| error.aspect == Some(Aspect::HostEnd));
            errors.push(repaired.map_err(|error| reported_by(plugin, error)));
            if is_another {
                break; // the container has put another interface in the place of the recorded one
            }
        }
        errors.finish().map(|()| Presence::Alive)
    }

    /// Repairs what one plugin has made.
    pub(super) fn repair_by(
        &self,
        entry: &'static Entry,
        plugin: &PluginConfig,
        found: &Attached<'_>,
        repairs: &Repairs,
    ) -> Result<()> {
        let Attached { list, at, .. } = *found;
        let result = found.result.as_ref();
        let config = derive::for_attachment(list, plugin, result, &at.capability_args);
        let netns = Some(Rc::clone(&found.netns));
        let attachment = Attachment::new(at.key.clone(), at.netns.clone(), netns);
        let env = self.environment(Command::Check, Some(at));
        let execution =
            Execution { entry, plugins: self.plugins, env: &env, handles: &self.handles };
        execution.repair(config, &attachment, repairs)
    }
}

/// The hardware address of the container's interface in the result.
fn recorded_mac(result: &Document, at: &Parameters) -> Option<String> {
    let result = result.to_value();
    let text =
        |interface: &Value, key| interface.get(key).and_then(Value::as_str).map(str::to_owned);
    let is_its = |interface: &&Value| {
        text(interface, "name").as_deref() == Some(at.key.ifname.as_str())
            && text(interface, "sandbox").is_some_and(|sandbox| !sandbox.is_empty())
    };
    let interface = result.get("interfaces")?.items().iter().find(is_its)?;
    text(interface, "mac").filter(|mac| !mac.is_empty())
}

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
            let check = Operation { command: Command::Check, list, at };
            let checked = self.run_attached(check, plugin, found.result.as_ref());
            let Err(error) = checked else { continue };
            let look = Repairs::new(Extent::Look);
            let _ = self.repair_by(entry, plugin, &found, &look); // CHECK has reported why
            let changes = look.take_changes();
            drifts.push(Drift { plugin: plugin.kind.clone(), error, changes });
        }
        Ok(drifts)
    }
}
