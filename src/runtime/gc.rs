//! GC: what belongs to no attachment that is wanted goes, in the cache and in every plugin.

use std::path::{Path, PathBuf};

use super::cache::{Found, Record};
use super::chain::Runtime;
use super::derive;
use super::directory;
use super::list::NetworkList;
use super::lock::Held;
use super::parameters::Parameters;
use crate::cni::attachment::{Key, NetworkName};
use crate::cni::conf::ValidAttachment;
use crate::cni::env::Command;
use crate::cni::version;
use crate::error::{Error, ErrorList, Result};

/// How far a GC goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Whoever would be detached is told, and nothing done.
    Look,
    /// All of it.
    Detach,
}

/// An attachment whose turn has come.
pub struct Step<'a> {
    /// The attachment.
    pub at: &'a Parameters,
    /// Its number, from 1.
    pub number: usize,
    /// How many there are.
    pub of: usize,
    /// Whether it is detached, or would be; the error comes at the end, with those of the others.
    pub succeeded: bool,
}

/// Whom a GC tells of each attachment, as soon as it is done.
pub type Watch<'a> = &'a mut dyn FnMut(&Step<'_>);

impl Runtime<'_> {
    /// GC: DEL for every attachment in the cache that is not in `valid`, then GC for every plugin that knows it. Goes on
    /// after a failure and reports all of them.
    ///
    /// Without `valid` no attachment is, and plugins are not told of any.
    pub fn gc(&mut self, list: &NetworkList, valid: Option<&[ValidAttachment]>) -> Result<()> {
        if list.disable_gc {
            return Ok(());
        }
        let held = self.lock_all(Extent::Detach)?;
        let mut alone = self.within(&held.env);
        let mut errors = ErrorList::default();
        let attachments = errors.push(alone.cache.attachments(&NetworkName::parse(&list.name)?)).unwrap_or_default();
        let stale = attachments.into_iter().filter(|at| !valid.unwrap_or_default().contains(&at.valid_attachment()));
        alone.detach(list, &stale.collect::<Vec<_>>(), Extent::Detach, &mut errors, &mut |_| ());
        alone.collect(list, valid, errors)
    }

    /// GC of all whose namespace is gone. libcni and cnitool leave it to their caller who is wanted, and take without a
    /// word everybody for gone; but the cache is shared with real runtimes, whose containers would lose their networks.
    pub fn gc_dead(&mut self, list: &NetworkList, extent: Extent, watch: Watch<'_>) -> Result<()> {
        if list.disable_gc {
            return Ok(());
        }
        let held = self.lock_all(extent)?;
        let mut alone = self.within(&held.env);
        let census = Census::of(alone.cache.all()?, &NetworkName::parse(&list.name)?);
        let mut errors = ErrorList::default();
        for error in census.unreadable {
            errors.push::<()>(Err(error));
        }
        for file in census.unclear {
            let _ = writeln!(
                alone.stderr,
                "left alone, because nothing tells which namespace it is of: {}",
                file.display()
            );
        }
        alone.detach(list, &census.dead, extent, &mut errors, watch);
        match extent {
            Extent::Look => errors.finish(),
            Extent::Detach => alone.collect(list, Some(&census.spared), errors),
        }
    }

    /// DEL for all whose namespace is gone and whose network is none of `known`: by the configuration that ADD had, with
    /// the plugins that the network's directory in `conf_dir` has now.
    pub fn gc_forgotten(
        &mut self,
        known: &[NetworkName],
        conf_dir: &Path,
        extent: Extent,
        watch: Watch<'_>,
    ) -> Result<()> {
        let held = self.lock_all(extent)?;
        let mut alone = self.within(&held.env);
        let mut errors = ErrorList::default();
        for found in alone.cache.all()? {
            let Ok(Record { at: Some(at), document, .. }) = found.record else { continue };
            if known.contains(&at.key.network) || !is_gone(&at.netns) {
                continue;
            }
            match directory::of_document(document, conf_dir) {
                Ok(list) if list.disable_gc => (),
                Ok(list) => alone.detach(&list, &[at], extent, &mut errors, watch),
                Err(error) => {
                    let msg = format!("network {:?} has no configuration any more", at.key.network.as_str());
                    errors.push::<()>(Err(error.context(msg)));
                }
            }
        }
        errors.finish()
    }

    /// Nobody comes in between who would not be in the census; who only looks keeps nobody waiting.
    fn lock_all(&self, extent: Extent) -> Result<Held> {
        match extent {
            Extent::Look => Ok(Held::nothing(self.env)),
            Extent::Detach => {
                let held = self.cache.lock(None, self.env)?;
                self.cache.forget_drafts();
                Ok(held)
            }
        }
    }

    fn detach(
        &mut self,
        list: &NetworkList,
        stale: &[Parameters],
        extent: Extent,
        errors: &mut ErrorList,
        watch: Watch<'_>,
    ) {
        for (number, at) in (1..).zip(stale) {
            let what = format!("failed to delete stale attachment {} {}", at.key.container_id, at.key.ifname);
            let succeeded = extent == Extent::Look
                || errors.push(self.del_all(list, at).map_err(|error| error.context(what))).is_some();
            watch(&Step { at, number, of: stale.len(), succeeded });
        }
    }

    fn collect(&mut self, list: &NetworkList, valid: Option<&[ValidAttachment]>, mut errors: ErrorList) -> Result<()> {
        // libcni takes what is no version for an old one.
        if version::Number::parse(&list.version).is_ok_and(|number| number >= version::WITH_GC) {
            for plugin in &list.plugins {
                let collected = self.run(Command::Gc, &plugin.kind, None, &derive::for_gc(list, plugin, valid));
                let what = format_args!("failed to GC plugin {}", plugin.kind).to_string();
                errors.push(collected.map_err(|error| error.context(what)));
            }
        }
        errors.finish()
    }
}

/// The attachments to a network, by whether their namespaces are there.
#[derive(Default)]
struct Census {
    /// Those that live, and whatever a file that cannot be told may mean.
    spared: Vec<ValidAttachment>,
    dead: Vec<Parameters>,
    unclear: Vec<PathBuf>,
    unreadable: Vec<Error>,
}

impl Census {
    fn of(files: Vec<Found>, network: &NetworkName) -> Census {
        let mut census = Census::default();
        for found in files {
            match found.attachment(network) {
                Some(at) if at.key.network != *network => (),
                Some(at) if is_gone(&at.netns) => census.dead.push(at),
                Some(at) => census.spared.push(at.valid_attachment()),
                None => census.spare(found, network),
            }
        }
        census
    }

    /// Nobody knows whose it is, so whoever it may be of is let live.
    fn spare(&mut self, found: Found, network: &NetworkName) {
        let readings = found.readings(network);
        match found.record {
            _ if readings.is_empty() => (),
            Ok(_) => self.unclear.push(found.file),
            Err(error) => self.unreadable.push(error),
        }
        let valid =
            |key: Key| ValidAttachment { container_id: key.container_id.to_string(), ifname: key.ifname.to_string() };
        self.spared.extend(readings.into_iter().map(valid));
    }
}

/// Whether there is nothing at the path. What cannot be told, and what nobody wrote down, counts as there.
fn is_gone(netns: &str) -> bool {
    !netns.is_empty() && !Path::new(netns).try_exists().unwrap_or(true)
}
