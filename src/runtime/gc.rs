//! GC: what belongs to no attachment that is wanted goes, in the cache and in every plugin.

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
use crate::cni::valid::{Stale, ValidAttachment, ValidAttachments};
use crate::cni::version;
use crate::error::{Error, ErrorList, Result};
use crate::runner;

pub use crate::cni::valid::Extent;

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

/// What a GC tells as it goes.
pub enum Event<'a> {
    /// An attachment that a record tells of.
    Step(Step<'a>),
    /// What is removed, or would be, without a record.
    Removed(&'a NetworkName, &'a [Stale]),
    /// What stays without a record.
    Spared(&'a NetworkName, &'a [Stale], Verdict),
}

/// Who learns of each event as soon as it is done.
pub type Watch<'a> = &'a mut dyn FnMut(&Event<'_>);

/// What becomes of things that no record tells of and that may be of a container that lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unrecorded {
    /// They stay, and are listed.
    Spare,
    /// They go, as all that no record tells of.
    Take,
}

impl Runtime<'_> {
    /// GC: DEL for every attachment in the cache that is not in `valid`, then GC for every plugin
    /// that knows it. Goes on after a failure and reports all of them.
    ///
    /// Without `valid` no attachment is, and plugins are not told of any.
    pub fn gc(&mut self, list: &NetworkList, valid: Option<&[ValidAttachment]>) -> Result<()> {
        if list.disable_gc {
            return Ok(());
        }
        let held = self.lock_all(Extent::Detach)?;
        let mut alone = self.within(&held.env);
        let mut errors = ErrorList::default();
        let attachments = errors
            .push(alone.cache.attachments(&NetworkName::parse(&list.name)?))
            .unwrap_or_default();
        let wanted = ValidAttachments::new(valid.unwrap_or_default().to_vec());
        let is_stale = |at: &Parameters| {
            !wanted.contains(at.key.container_id.as_str(), at.key.ifname.as_str())
        };
        let stale = attachments.into_iter().filter(is_stale);
        alone.detach(list, &stale.collect::<Vec<_>>(), Extent::Detach, &mut errors, &mut |_| ());
        alone.collect(list, valid, errors)
    }

    /// GC of all attachments without a namespace. libcni and cnitool leave it to their caller which
    /// are wanted, and take all for gone where nothing is said; but the cache is shared with
    /// real runtimes, and their containers would lose their networks.
    pub fn gc_dead(
        &mut self,
        list: &NetworkList,
        extent: Extent,
        unrecorded: Unrecorded,
        watch: Watch<'_>,
    ) -> Result<()> {
        if list.disable_gc {
            return Ok(());
        }
        let held = self.lock_all(extent)?;
        let mut alone = self.within(&held.env);
        let network = NetworkName::parse(&list.name)?;
        let mut census = Census::of(alone.cache.all()?, &network);
        let mut errors = ErrorList::default();
        for error in std::mem::take(&mut census.unreadable) {
            errors.push::<()>(Err(error));
        }
        for file in &census.unclear {
            let _ = writeln!(
                alone.stderr,
                "left alone, because nothing tells which namespace it is of: {}",
                file.display()
            );
        }
        alone.detach(list, &census.dead, extent, &mut errors, watch);
        alone.collect_unrecorded(list, &network, &census, (extent, unrecorded), errors, watch)
    }

    /// GC of what no record tells of: asks the plugins first, spares what may live, and then has
    /// them do it.
    fn collect_unrecorded(
        &mut self,
        list: &NetworkList,
        network: &NetworkName,
        census: &Census,
        (extent, unrecorded): (Extent, Unrecorded),
        mut errors: ErrorList,
        watch: Watch<'_>,
    ) -> Result<()> {
        if !has_gc(list) {
            return errors.finish();
        }
        let mut listed = census.spared.clone();
        let mut spared = vec![];
        let mut plugins: Vec<&PluginConfig> = list.plugins.iter().collect();
        if unrecorded == Unrecorded::Spare {
            let look = ValidAttachments::new(listed.clone()).watched(Extent::Look);
            // What could not be looked at may be of a container that lives.
            plugins.retain(|plugin| errors.push(self.collect_of(list, plugin, &look)).is_some());
            let candidates = census.without_dead(look.take_stale());
            let living = Living::look(Some(network), &self.cache);
            for key in living.recorded().iter().filter(|key| !census.is_dead(key)) {
                let (container_id, ifname) = (key.container_id.to_string(), key.ifname.to_string());
                let valid = ValidAttachment { container_id, ifname };
                if !listed.contains(&valid) {
                    listed.push(valid);
                }
            }
            if let Some(problem) = living.problem().filter(|_| !candidates.is_empty()) {
                let _ = writeln!(
                    self.stderr,
                    "what has no record is spared, as not every namespace can be seen: {problem}"
                );
            }
            let verdicts = living.judge(&candidates, &listed);
            for verdict in [Verdict::Lives, Verdict::Unknown] {
                let of_verdict = candidates.iter().zip(&verdicts).filter(|(stale, given)| {
                    **given == verdict && !stale.is_call && !stale.is_torn
                });
                let stay: Vec<Stale> = of_verdict.map(|(stale, _)| stale.clone()).collect();
                watch(&Event::Spared(network, &stay, verdict));
                spared.extend(stay.into_iter().map(|stale| stale.holder));
            }
        }
        let valid = ValidAttachments::new(listed).sparing(spared).watched(extent);
        for plugin in plugins {
            errors.push(self.collect_of(list, plugin, &valid));
        }
        watch(&Event::Removed(network, &census.without_dead(valid.take_stale())));
        errors.finish()
    }

    /// DEL for all whose namespace is gone and whose network is none of `known`: by the
    /// configuration that ADD had, with the plugins that the network's directory in `conf_dir`
    /// has now.
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
                    let msg = format!(
                        "network {:?} has no configuration any more",
                        at.key.network.as_str()
                    );
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
                let held = self.hold(None)?;
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
            let what = format!(
                "failed to delete stale attachment {} {}",
                at.key.container_id, at.key.ifname
            );
            let succeeded = extent == Extent::Look
                || errors
                    .push(self.del_all(list, at).map_err(|error| error.context(what)))
                    .is_some();
            watch(&Event::Step(Step { at, number, of: stale.len(), succeeded }));
        }
    }

    fn collect(
        &mut self,
        list: &NetworkList,
        valid: Option<&[ValidAttachment]>,
        mut errors: ErrorList,
    ) -> Result<()> {
        if has_gc(list) {
            for plugin in &list.plugins {
                let collected =
                    self.run(Command::Gc, &plugin.kind, None, &derive::for_gc(list, plugin, valid));
                let what = format_args!("failed to GC plugin {}", plugin.kind).to_string();
                errors.push(collected.map_err(|error| error.context(what)));
            }
        }
        errors.finish()
    }

    /// One plugin's GC with a note of all that goes, or would.
    fn collect_of(
        &mut self,
        list: &NetworkList,
        plugin: &PluginConfig,
        valid: &ValidAttachments,
    ) -> Result<()> {
        let config = derive::for_gc(list, plugin, Some(&valid.names()));
        let env = self.environment(Command::Gc, None);
        let collected = self.find(&plugin.kind).and_then(|program| match program {
            Program::Own(entry) => {
                runner::collect(entry, self.plugins, &env, config, &self.handles, valid)
            }
            Program::File(program) => valid.call(&program, || {
                delegate::exec(&program, &env, &config, self.handles.deadline()).map(drop)
            }),
        });
        collected
            .map_err(|error| error.context(format_args!("failed to GC plugin {}", plugin.kind)))
    }
}

/// libcni takes what is no version for an old one.
fn has_gc(list: &NetworkList) -> bool {
    version::Number::parse(&list.version).is_ok_and(|number| number >= version::WITH_GC)
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
        let valid = |key: Key| ValidAttachment {
            container_id: key.container_id.to_string(),
            ifname: key.ifname.to_string(),
        };
        self.spared.extend(readings.into_iter().map(valid));
    }

    fn is_dead(&self, key: &Key) -> bool {
        self.dead.iter().any(|at| at.key == *key)
    }

    /// What is not of an attachment that its record has had detached.
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
