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
        let stale = stale_of(&network, attachments.unwrap_or_default(), valid);
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
        census.move_errors(&mut sweep.errors);
        alone.tell_unclear(&census);
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
            alone.collect_rest(kept, &mut sweep);
        }
        sweep.errors.finish()
    }

    fn tell_unclear(&mut self, census: &Census) {
        for file in &census.unclear {
            let _ = writeln!(
                self.stderr,
                "left alone, because nothing tells which namespace it is of: {}",
                file.display()
            );
        }
    }

    /// Asks the plugins which objects without a record they would remove, and keeps those that may
    /// be in use.
    fn spare_living(&mut self, kept: &mut Kept<'_>, sweep: &mut Sweep<'_>) {
        let candidates = self.candidates(kept, sweep);
        let living = Living::look(Some(&kept.census.network), &self.cache);
        kept.list(living.recorded());
        if let Some(problem) = living.problem().filter(|_| !candidates.is_empty()) {
            let _ = writeln!(
                self.stderr,
                "what has no record is spared, as not every namespace can be seen: {problem}"
            );
        }
        let verdicts = living.judge(&candidates, &kept.listed);
        let judged: Vec<(Stale, Verdict)> = candidates.into_iter().zip(verdicts).collect();
        kept.spare(&judged, sweep);
    }

    /// The objects without a record that the plugins would remove. If a plugin could not list its
    /// objects, they may belong to a container that is alive, and the plugin is not asked again.
    fn candidates(&mut self, kept: &mut Kept<'_>, sweep: &mut Sweep<'_>) -> Vec<Stale> {
        let list = kept.list;
        let look = ValidAttachments::new(kept.listed.clone()).watched(Extent::Look);
        kept.plugins
            .retain(|plugin| sweep.errors.push(self.collect_of(list, plugin, &look)).is_some());
        kept.census.without_dead(look.take_stale())
    }

    /// GC of all objects without a record, except those that are kept.
    fn collect_rest(&mut self, kept: Kept<'_>, sweep: &mut Sweep<'_>) {
        let Kept { list, census, plugins, listed, spared } = kept;
        let valid = ValidAttachments::new(listed).sparing(spared).watched(sweep.extent);
        for plugin in plugins {
            sweep.errors.push(self.collect_of(list, plugin, &valid));
        }
        let removed = census.without_dead(valid.take_stale());
        (sweep.watch)(&Event::Removed(&census.network, &removed));
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
            let list = forgotten_list(&at.key.network, document, conf_dir);
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
            let succeeded = sweep.extent == Extent::Look
                || sweep.errors.push(self.detach_one(list, at)).is_some();
            (sweep.watch)(&Event::Step(Step { at, number, of: stale.len(), succeeded }));
        }
    }

    fn detach_one(&mut self, list: &NetworkList, at: &Parameters) -> Result<()> {
        let Key { container_id, ifname, .. } = &at.key;
        self.del_all(list, at).map_err(|error| {
            error.context(format_args!("failed to delete stale attachment {container_id} {ifname}"))
        })
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

/// The attachments that are not among those in `valid`.
fn stale_of(
    network: &NetworkName,
    mut all: Vec<Parameters>,
    valid: Option<&[ValidAttachment]>,
) -> Vec<Parameters> {
    let wanted = ValidAttachments::new(valid.unwrap_or_default().to_vec());
    all.retain(|at| wanted.is_stale(network, &at.key));
    all
}

/// The network of a cached document, which has no configuration any more.
fn forgotten_list(network: &NetworkName, document: Vec<u8>, dir: &Path) -> Result<NetworkList> {
    directory::of_document(document, dir).map_err(|error| {
        let network = network.as_str();
        error.context(format_args!("network {network:?} has no configuration any more"))
    })
}

fn not_collected(plugin: &PluginConfig, error: Error) -> Error {
    error.context(format_args!("failed to GC plugin {}", plugin.kind))
}

/// The objects with this verdict that a GC keeps. A torn object is of use to no container, and
/// another program decides itself.
fn staying(judged: &[(Stale, Verdict)], verdict: Verdict) -> Vec<Stale> {
    let of_verdict = judged.iter().filter(|(_, given)| *given == verdict);
    let objects = of_verdict.map(|(stale, _)| stale);
    objects.filter(|stale| !stale.is_call && !stale.is_torn).cloned().collect()
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

    /// Keeps the objects that may be in use.
    fn spare(&mut self, judged: &[(Stale, Verdict)], sweep: &mut Sweep<'_>) {
        for verdict in [Verdict::Lives, Verdict::Unknown] {
            let stay = staying(judged, verdict);
            (sweep.watch)(&Event::Spared(&self.census.network, &stay, verdict));
            self.spared.extend(stay.into_iter().map(|stale| stale.holder));
        }
    }

    /// Adds the attachments that are alive according to a record in any cache.
    fn list(&mut self, living: &[Key]) {
        let census = self.census;
        for key in living.iter().filter(|key| !census.is_dead(key)) {
            self.list_one(valid_attachment(key));
        }
    }

    fn list_one(&mut self, valid: ValidAttachment) {
        if !self.listed.contains(&valid) {
            self.listed.push(valid);
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
            census.add(found);
        }
        census
    }

    fn add(&mut self, found: Found) {
        match found.attachment(&self.network) {
            Some(at) if at.key.network != self.network => (),
            Some(at) if is_gone(&at.netns) => self.dead.push(at),
            Some(at) => self.spared.push(at.valid_attachment()),
            None => self.spare(found),
        }
    }

    /// Moves the errors of unreadable files to the other errors of a GC.
    fn move_errors(&mut self, errors: &mut ErrorList) {
        for error in std::mem::take(&mut self.unreadable) {
            errors.push::<()>(Err(error));
        }
    }

    /// The owner is ambiguous: keep every attachment the file could belong to.
    fn spare(&mut self, found: Found) {
        let readings = found.readings(&self.network);
        match found.record {
            _ if readings.is_empty() => (),
            Ok(_) => self.unclear.push(found.file),
            Err(error) => self.unreadable.push(error),
        }
        self.spared.extend(readings.iter().map(valid_attachment));
    }

    fn is_dead(&self, key: &Key) -> bool {
        self.dead.iter().any(|at| at.key == *key)
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
