//! GC: removes everything that belongs to no valid attachment, in the cache and in every plugin.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::cache::{Found, Record};
use super::chain::{Program, Runtime};
use super::derive;
use super::directory;
use super::list::{NetworkList, PluginConfig};
use super::living::{Living, Verdict, is_gone};
use super::lock::Held;
use super::parameters::Parameters;
use crate::cni::attachment::{Hash8, Key, NetworkName};
use crate::cni::delegate;
use crate::cni::env::Command;
use crate::cni::valid::{Holder, Stale, ValidAttachment, ValidAttachments};
use crate::cni::version;
use crate::error::{Error, ErrorList, Result};
use crate::runner::Execution;

pub use crate::cni::valid::Extent;

/// Progress of a GC: one attachment that was handled.
pub struct Step<'a> {
    /// The attachment.
    pub at: &'a Parameters,
    /// Its number, from 1.
    pub number: usize,
    /// How many there are.
    pub of: usize,
    /// Whether it was detached, or would be. The error is reported at the end, together with those
    /// of the others.
    pub succeeded: bool,
}

/// What a GC reports as it runs.
pub enum Event<'a> {
    /// An attachment that has a record.
    Step(Step<'a>),
    /// A gone attachment with a record, which stays because its network has `disableGC`.
    Left(&'a Parameters),
    /// Objects without a record that were removed, or would be.
    Removed(&'a NetworkName, &'a [Stale]),
    /// Objects without a record that are kept.
    Spared(&'a NetworkName, &'a [Stale], Verdict),
}

/// Receives each event as soon as it has happened.
pub type Watch<'a> = &'a mut dyn FnMut(&Event<'_>);

/// A GC in progress, of one network or of the networks of a directory.
pub struct Sweep<'w> {
    extent: Extent,
    watch: Watch<'w>,
    /// The errors so far.
    errors: ErrorList,
}

impl<'w> Sweep<'w> {
    /// A GC of this extent, whose events `watch` receives.
    pub fn new(extent: Extent, watch: Watch<'w>) -> Sweep<'w> {
        Sweep { extent, watch, errors: ErrorList::default() }
    }
}

/// What happens to objects that have no record and may belong to a container that is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unrecorded {
    /// They are kept and listed.
    Spare,
    /// They are removed, as is everything without a record.
    Take,
}

impl Runtime<'_> {
    /// GC: DEL for every attachment in the cache that is not in `valid`, then GC for every plugin
    /// that supports it. Continues after a failure and reports all of them.
    ///
    /// Without `valid` every attachment is stale, and plugins get no list.
    pub fn gc(&mut self, list: &NetworkList, valid: Option<&[ValidAttachment]>) -> Result<()> {
        if list.disable_gc {
            return Ok(());
        }
        let held = self.lock_all(Extent::Detach)?;
        let mut alone = self.within(&held.env);
        let mut watch = |_: &Event<'_>| ();
        let mut sweep = Sweep::new(Extent::Detach, &mut watch);
        let network = NetworkName::parse(&list.name)?;
        let attachments = sweep.errors.push(alone.cache.attachments(&network));
        let wanted = ValidAttachments::new(valid.unwrap_or_default().to_vec());
        let mut stale = attachments.unwrap_or_default();
        stale.retain(|at| wanted.is_stale(&network, &at.key));
        alone.detach(list, &stale, &mut sweep);
        alone.collect(list, valid, sweep.errors)
    }

    /// GC of all attachments whose namespace is gone. libcni and cnitool leave it to their caller
    /// to name the valid attachments, and without a list treat all as stale; but the cache is
    /// shared with real runtimes, whose containers would lose their networks.
    pub fn gc_dead(
        &mut self,
        list: &NetworkList,
        unrecorded: Unrecorded,
        mut sweep: Sweep<'_>,
    ) -> Result<()> {
        let extent = if list.disable_gc { Extent::Look } else { sweep.extent };
        let held = self.lock_all(extent)?;
        let mut alone = self.within(&held.env);
        let network = NetworkName::parse(&list.name)?;
        let mut census = Census::of(alone.cache.all()?, network);
        for error in std::mem::take(&mut census.unreadable) {
            sweep.errors.add(error);
        }
        for file in &census.unclear {
            let _ = writeln!(
                alone.stderr,
                "left alone, because nothing tells which namespace it is of: {}",
                file.display()
            );
        }
        if list.disable_gc {
            census.dead.iter().for_each(|at| (sweep.watch)(&Event::Left(at)));
            return sweep.errors.finish();
        }
        alone.detach(list, &census.dead, &mut sweep);
        if has_gc(list) {
            let mut kept = Kept::of(list, &census);
            if unrecorded == Unrecorded::Spare {
                alone.spare_living(&mut kept, &mut sweep);
            }
            // Everything without a record goes, except what is kept.
            let Kept { plugins, listed, spared, .. } = kept;
            let valid = ValidAttachments::new(listed).sparing(spared).watched(sweep.extent);
            for plugin in plugins {
                sweep.errors.push(alone.collect_of(list, plugin, &valid));
            }
            let removed = census.without_dead(valid.take_stale());
            (sweep.watch)(&Event::Removed(&census.network, &removed));
        }
        sweep.errors.finish()
    }

    /// Asks the plugins which objects without a record they would remove, and keeps those that may
    /// be in use.
    fn spare_living(&mut self, kept: &mut Kept<'_>, sweep: &mut Sweep<'_>) {
        let list = kept.list;
        let look = ValidAttachments::new(kept.listed.clone()).watched(Extent::Look);
        // If a plugin could not list its objects, they may belong to a container that is alive, and
        // the plugin is not asked again.
        kept.plugins
            .retain(|plugin| sweep.errors.push(self.collect_of(list, plugin, &look)).is_some());
        let candidates = kept.census.without_dead(look.take_stale());
        let living = Living::look(Some(&kept.census.network), &self.cache);
        kept.list(living.recorded());
        if let Some(problem) = living.problem().filter(|_| !candidates.is_empty()) {
            let _ = writeln!(
                self.stderr,
                "what has no record is spared, as not every namespace can be seen: {problem}"
            );
        }
        let verdicts = living.judge(&candidates, &kept.listed);
        for verdict in [Verdict::Lives, Verdict::Unknown] {
            // A torn object is of use to no container, and another program decides itself.
            let stays = |(stale, given): &(&Stale, &Verdict)| {
                **given == verdict && !stale.is_call && !stale.is_torn
            };
            let stay: Vec<Stale> = candidates
                .iter()
                .zip(&verdicts)
                .filter(stays)
                .map(|(stale, _)| stale.clone())
                .collect();
            (sweep.watch)(&Event::Spared(&kept.census.network, &stay, verdict));
            kept.spared.extend(stay.into_iter().map(|stale| stale.holder));
        }
    }

    /// DEL for every attachment whose namespace is gone and whose network is not in `known`: by the
    /// configuration that ADD had, with the plugins that the network's directory in `conf_dir` has
    /// now.
    pub fn gc_forgotten(
        &mut self,
        known: &[NetworkName],
        conf_dir: &Path,
        mut sweep: Sweep<'_>,
    ) -> Result<()> {
        let held = self.lock_all(sweep.extent)?;
        let mut alone = self.within(&held.env);
        for found in alone.cache.all()? {
            let Ok(Record { at: Some(at), document, .. }) = found.record else { continue };
            if known.contains(&at.key.network) || !is_gone(&at.netns) {
                continue;
            }
            let list = directory::of_document(document, conf_dir).map_err(|error| {
                let network = at.key.network.as_str();
                error.context(format_args!("network {network:?} has no configuration any more"))
            });
            match sweep.errors.push(list) {
                Some(list) if list.disable_gc => (sweep.watch)(&Event::Left(&at)),
                Some(list) => alone.detach(&list, &[at], &mut sweep),
                None => (),
            }
        }
        sweep.errors.finish()
    }

    /// Locks out new attachments, which the census would miss. A GC that only looks blocks no other
    /// operation.
    fn lock_all(&self, extent: Extent) -> Result<Held> {
        if extent == Extent::Look {
            return Ok(Held::nothing(self.env));
        }
        let held = self.hold(None)?;
        self.cache.forget_drafts();
        Ok(held)
    }

    fn detach(&mut self, list: &NetworkList, stale: &[Parameters], sweep: &mut Sweep<'_>) {
        for (number, at) in (1..).zip(stale) {
            self.handles.begin_next();
            let mut detach = || {
                let Key { container_id, ifname, .. } = &at.key;
                self.del_all(list, at).map_err(|error| {
                    let what = "failed to delete stale attachment";
                    error.context(format_args!("{what} {container_id} {ifname}"))
                })
            };
            let succeeded = sweep.extent == Extent::Look || sweep.errors.push(detach()).is_some();
            (sweep.watch)(&Event::Step(Step { at, number, of: stale.len(), succeeded }));
        }
    }

    fn collect(
        &mut self,
        list: &NetworkList,
        valid: Option<&[ValidAttachment]>,
        mut errors: ErrorList,
    ) -> Result<()> {
        let env = self.environment(Command::Gc, None);
        for plugin in list.plugins.iter().filter(|_| has_gc(list)) {
            self.handles.begin_next();
            let collected = self.run(&plugin.kind, &env, &derive::for_gc(list, plugin, valid));
            errors.push(collected.map_err(|error| not_collected(plugin, error)));
        }
        errors.finish()
    }

    /// Runs one plugin's GC and notes everything that it removes, or would remove.
    fn collect_of(
        &mut self,
        list: &NetworkList,
        plugin: &PluginConfig,
        valid: &ValidAttachments,
    ) -> Result<()> {
        self.handles.begin_next();
        let config = derive::for_gc(list, plugin, Some(&valid.names()));
        let env = self.environment(Command::Gc, None);
        let collected = self.find(&plugin.kind).and_then(|program| match program {
            Program::Own(entry) => {
                let plugins = self.plugins;
                let execution = Execution { entry, plugins, env: &env, handles: &self.handles };
                execution.collect(config, valid)
            }
            Program::File(program) => valid.call(&program, || {
                delegate::exec(&program, &env, &config, self.handles.clock()).map(drop)
            }),
        });
        collected.map_err(|error| not_collected(plugin, error))
    }
}

fn not_collected(plugin: &PluginConfig, error: Error) -> Error {
    error.context(format_args!("failed to GC plugin {}", plugin.kind))
}

/// Whether the network's version has GC. An invalid version counts as an old one, as for libcni.
fn has_gc(list: &NetworkList) -> bool {
    version::Number::parse(&list.version).is_ok_and(|number| number >= version::WITH_GC)
}

/// What the plugins of a network must keep.
struct Kept<'a> {
    list: &'a NetworkList,
    census: &'a Census,
    /// The plugins that are asked to remove everything else.
    plugins: Vec<&'a PluginConfig>,
    listed: Vec<ValidAttachment>,
    /// The holders of objects that may be in use and have no record.
    spared: Vec<Holder>,
}

impl<'a> Kept<'a> {
    fn of(list: &'a NetworkList, census: &'a Census) -> Kept<'a> {
        let plugins = list.plugins.iter().collect();
        Kept { list, census, plugins, listed: census.spared.clone(), spared: vec![] }
    }

    /// Adds the attachments that are alive according to a record in any cache.
    fn list(&mut self, living: &[Key]) {
        let census = self.census;
        let is_dead = |key: &Key| census.dead.iter().any(|at| at.key == *key);
        for valid in living.iter().filter(|key| !is_dead(key)).map(valid_attachment) {
            if !self.listed.contains(&valid) {
                self.listed.push(valid);
            }
        }
    }
}

fn valid_attachment(key: &Key) -> ValidAttachment {
    ValidAttachment { container_id: key.container_id.to_string(), ifname: key.ifname.to_string() }
}

/// The attachments to a network, by whether their namespaces exist.
struct Census {
    network: NetworkName,
    /// Attachments that are alive, and every attachment that an unclear file may stand for.
    spared: Vec<ValidAttachment>,
    dead: Vec<Parameters>,
    unclear: Vec<PathBuf>,
    unreadable: Vec<Error>,
}

impl Census {
    fn of(files: Vec<Found>, network: NetworkName) -> Census {
        let mut census =
            Census { network, spared: vec![], dead: vec![], unclear: vec![], unreadable: vec![] };
        for found in files {
            match found.attachment(&census.network) {
                Some(at) if at.key.network != census.network => (),
                Some(at) if is_gone(&at.netns) => census.dead.push(at),
                Some(at) => census.spared.push(valid_attachment(&at.key)),
                None => {
                    // The owner is ambiguous: keep every attachment the file could belong to.
                    let readings = found.readings(&census.network);
                    census.spared.extend(readings.iter().map(valid_attachment));
                    match found.record {
                        _ if readings.is_empty() => (),
                        Ok(_) => census.unclear.push(found.file),
                        Err(error) => census.unreadable.push(error),
                    }
                }
            }
        }
        census
    }

    /// Drops objects of attachments that were detached by their record.
    fn without_dead(&self, mut stale: Vec<Stale>) -> Vec<Stale> {
        let hashes: HashSet<Hash8> = self.dead.iter().map(|at| at.key.attachment_hash()).collect();
        let ids: HashSet<&str> = self.dead.iter().map(|at| at.key.container_id.as_str()).collect();
        stale.retain(|stale| match stale.holder.hash {
            Some(hash) => !hashes.contains(&hash),
            None => !ids.contains(stale.holder.container_id.as_str()),
        });
        stale
    }
}
