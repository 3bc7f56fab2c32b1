//! GC: what belongs to no attachment that is wanted goes, in the cache and in every plugin.

use std::path::{Path, PathBuf};

use super::cache::Found;
use super::chain::Runtime;
use super::derive;
use super::list::NetworkList;
use super::parameters::Parameters;
use crate::cni::attachment::{Key, NetworkName};
use crate::cni::conf::ValidAttachment;
use crate::cni::env::Command;
use crate::cni::version;
use crate::error::{Error, ErrorList, Result};

impl Runtime<'_> {
    /// GC: DEL for every attachment in the cache that is not in `valid`, then GC for every plugin that knows it. Goes on
    /// after a failure and reports all of them.
    ///
    /// Without `valid` no attachment is, and plugins are not told of any.
    pub fn gc(&mut self, list: &NetworkList, valid: Option<&[ValidAttachment]>) -> Result<()> {
        if list.disable_gc {
            return Ok(());
        }
        let _lock = self.cache.lock(None);
        let mut errors = ErrorList::default();
        let attachments = errors.push(self.cache.attachments(&NetworkName::parse(&list.name)?)).unwrap_or_default();
        let stale = attachments.into_iter().filter(|at| !valid.unwrap_or_default().contains(&at.valid_attachment()));
        self.collect(list, &stale.collect::<Vec<_>>(), valid, errors)
    }

    /// GC of all whose namespace is gone. libcni and cnitool leave it to their caller who is wanted, and take without a
    /// word everybody for gone; but the cache is shared with real runtimes, whose containers would lose their networks.
    pub fn gc_dead(&mut self, list: &NetworkList) -> Result<()> {
        if list.disable_gc {
            return Ok(());
        }
        let _lock = self.cache.lock(None); // an ADD in between would not be in the census
        let census = Census::of(self.cache.all()?, &NetworkName::parse(&list.name)?);
        let mut errors = ErrorList::default();
        for error in census.unreadable {
            errors.push::<()>(Err(error));
        }
        for file in census.unclear {
            let _ =
                writeln!(self.stderr, "left alone, because nothing tells which namespace it is of: {}", file.display());
        }
        self.collect(list, &census.dead, Some(&census.spared), errors)
    }

    fn collect(
        &mut self,
        list: &NetworkList,
        stale: &[Parameters],
        valid: Option<&[ValidAttachment]>,
        mut errors: ErrorList,
    ) -> Result<()> {
        for at in stale {
            let what = format!("failed to delete stale attachment {} {}", at.key.container_id, at.key.ifname);
            errors.push(self.del_all(list, at).map_err(|error| error.context(what)));
        }
        if version::Number::parse(&list.version)? >= version::WITH_GC {
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
