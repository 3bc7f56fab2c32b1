//! `cni-multi install --watch`: keeps the links of an installation that other programs overwrite,
//! such as the upgrade of a package with plugins of the same names, or a pod that copies its own.
//!
//! The links are kept as long as the binary in the directory is this build. A rollback, an
//! uninstall and another version replace or remove that binary, so they need no agreement with the
//! watch: it leaves their directory alone. It takes the same lock, and looks again once it has it.
//!
//! A program that writes a name in place writes through the link, into the binary. It is then still
//! the file of the installation, with other content, and is replaced by this build again.

use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;
use std::{fs, io};

use nix::unistd::chdir;

use super::choice::Alias;
use super::installing::{refuse_directories, write_new};
use super::layout::{
    self, BINARY, NEW, REPLACED, attempt, clean_up, is_content, is_our_link, rename, target,
};
use super::work::{Work, own_content};
use crate::error::{Code, Error, Result};
use crate::registry::PLUGINS;
use crate::sys::clock::{Moment, since_boot};
use crate::sys::directory_watch::{DirectoryWatch, Wake};

/// Waits this long after a change: a package manager changes one name after the other.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The longest pause between two repairs, while another program keeps overwriting the links.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// After this time without a repair, the back-off restarts at [`FIRST_PAUSE`].
const CALM: Duration = Duration::from_secs(600);

/// Watches the directory until a signal ends it.
pub fn run(work: &mut Work<'_>) -> Result<()> {
    attempt("watch", "the directory", chdir(work.dir.as_str()).map_err(io::Error::from))?;
    let watch = DirectoryWatch::begin(".").map_err(|error| {
        Error::kernel("watch the directory", error)
            .with_details("inotify instances are limited by fs.inotify.max_user_instances")
    })?;
    let mut keeper = Keeper {
        all: PLUGINS.iter().map(|entry| entry.name.to_owned()).collect(),
        names: vec![],
        aliases: vec![],
        ours: None,
        back_off: BackOff::new(),
        reported: None,
    };
    keeper.run(work, &watch)
}

/// What the binary's name in the directory is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Installed {
    /// This build.
    Ours,
    /// The file of this build, with other content.
    Overwritten,
    /// Another build, or none.
    Other,
}

/// A file and its content, without reading it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    content: (u64, i64, i64),
}

impl Stamp {
    fn now() -> Option<Stamp> {
        let found = fs::symlink_metadata(BINARY).ok().filter(fs::Metadata::is_file)?;
        let content = (found.size(), found.mtime(), found.mtime_nsec());
        Some(Stamp { file: (found.dev(), found.ino()), content })
    }
}

/// The pause before a repair. It grows while another program undoes each repair.
struct BackOff {
    pause: Duration,
    last: Option<Moment>,
}

impl BackOff {
    fn new() -> BackOff {
        BackOff { pause: FIRST_PAUSE, last: None }
    }

    /// The pause for a change at this moment.
    fn pause(&mut self, now: Moment) -> Duration {
        if self.last.is_none_or(|last| now.saturating_sub(last) > CALM) {
            self.pause = FIRST_PAUSE;
        }
        self.pause
    }

    /// Counts a repair, whether it succeeded or not.
    fn count(&mut self, now: Moment) {
        self.last = Some(now);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}

/// The state of the watch.
struct Keeper {
    /// The names of all plugins.
    all: Vec<String>,
    /// Those that the directory is to have: another installation may choose others.
    names: Vec<String>,
    /// The aliases of these.
    aliases: Vec<Alias>,
    /// The binary in the directory when it was last known to be this build.
    ours: Option<Stamp>,
    back_off: BackOff,
    /// The last report about the binary: whether its links are kept.
    reported: Option<bool>,
}

impl Keeper {
    fn run(&mut self, work: &mut Work<'_>, watch: &DirectoryWatch) -> Result<()> {
        let no_wait = |error| Error::kernel("wait for changes", error);
        loop {
            let retry = self.look(work);
            match watch.wait(retry).map_err(no_wait)? {
                Wake::Shutdown => return Ok(()),
                Wake::Gone => return Err(gone()),
                Wake::Timeout if is_at(&work.dir) => continue,
                Wake::Timeout => return Err(gone()),
                Wake::Change => (),
            }
            let pause = self.back_off.pause(since_boot());
            if watch.sleep(pause).map_err(no_wait)? == Wake::Shutdown {
                return Ok(());
            }
            if watch.drain().map_err(no_wait)? == Wake::Gone || !is_at(&work.dir) {
                return Err(gone());
            }
        }
    }

    /// Repairs what has changed; returns when to retry after a failure.
    fn look(&mut self, work: &mut Work<'_>) -> Option<Duration> {
        let installed = self.installed();
        self.report(work, installed);
        if installed == Installed::Other {
            return None;
        }
        let chosen = self.choose(work);
        if chosen.is_ok() && !self.is_broken(installed) {
            return None;
        }
        let done = chosen.and_then(|()| self.repair(work));
        self.back_off.count(since_boot());
        let error = done.err()?;
        work.say(&format!("{}: {error}; retry in {:?}", work.dir, self.back_off.pause));
        Some(self.back_off.pause)
    }

    fn choose(&mut self, work: &Work<'_>) -> Result<()> {
        self.names = work.chosen(self.all.clone())?;
        // Of two programs with one name, neither is lost.
        self.names
            .retain(|name| !work.aliases.contains(&name.as_str()) || is_our_link(name, &work.dir));
        self.aliases = work.further.all()?;
        self.aliases.retain(|alias| self.names.contains(&alias.plugin));
        Ok(())
    }

    fn is_broken(&self, installed: Installed) -> bool {
        match installed {
            Installed::Ours => !self.lost().is_empty(),
            Installed::Overwritten => true,
            Installed::Other => false,
        }
    }

    /// Compares contents only if the file is not the known one. That of this binary is read each time: it
    /// is most of the memory that the watch would occupy.
    fn installed(&mut self) -> Installed {
        let Some(now) = Stamp::now() else { return Installed::Other };
        if self.ours == Some(now) {
            return Installed::Ours;
        }
        if own_content().is_ok_and(|own| is_content(BINARY, &own)) {
            self.ours = Some(now);
            return Installed::Ours;
        }
        let is_same_file = self.ours.is_some_and(|ours| ours.file == now.file);
        if is_same_file { Installed::Overwritten } else { Installed::Other }
    }

    /// The names that do not lead to the binary.
    fn lost(&self) -> Vec<&str> {
        let names = self.names.iter().map(String::as_str);
        let aliases = self.aliases.iter().filter(|alias| !alias.is_linked());
        let lost = names.filter(|name| target(name) != BINARY);
        lost.chain(aliases.map(|alias| alias.name.as_str())).collect()
    }

    fn repair(&mut self, work: &mut Work<'_>) -> Result<()> {
        // Signals stay blocked here, so a wait for the lock would delay a shutdown.
        let Some(_lock) = layout::take_lock_if_free(&work.dir)? else {
            return Err(Error::new(Code::TRY_AGAIN, "another install is at work"));
        };
        // Another installer may have worked since the change.
        let installed = self.installed();
        self.choose(work)?;
        let done = if self.is_broken(installed) { self.restore(work, installed) } else { Ok(()) };
        clean_up();
        done.and_then(|()| work.sync())
    }

    fn restore(&mut self, work: &mut Work<'_>, installed: Installed) -> Result<()> {
        refuse_directories(&self.names)?;
        let lost = self.lost().join(" ");
        if installed == Installed::Overwritten {
            write_new(&own_content()?)?;
            work.make(BINARY, || rename(NEW, BINARY))?;
            self.ours = Stamp::now();
        }
        attempt("make", REPLACED, fs::create_dir_all(REPLACED))?;
        work.keep_foreign(&self.names)?;
        work.link_names(&self.names)?;
        work.link_aliases(&self.names)?;
        let dir = &work.dir;
        work.say(&if installed == Installed::Overwritten {
            format!("another program has written into {dir}/{BINARY}: it is this build again")
        } else {
            format!("another program has changed plugins in {dir}; linked again: {lost}")
        });
        Ok(())
    }

    /// Says once what the watch does about the binary.
    fn report(&mut self, work: &mut Work<'_>, installed: Installed) {
        let is_kept = installed != Installed::Other;
        if self.reported.replace(is_kept) == Some(is_kept) {
            return;
        }
        let dir = &work.dir;
        let line = if is_kept {
            format!("keeping the links to {dir}/{BINARY}")
        } else {
            format!("{dir}/{BINARY} is not this build: the directory is left alone")
        };
        work.say(&line);
    }
}

/// Whether the path still leads to the working directory. A process keeps its working directory
/// alive, so the kernel reports no removal of it.
fn is_at(dir: &str) -> bool {
    let identity = |path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    identity(".").is_some() && identity(".") == identity(dir)
}

fn gone() -> Error {
    let error = io::Error::new(io::ErrorKind::NotFound, "it was removed or renamed");
    Error::io("watch the directory", &error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_in_a_dispute_and_starts_again_after_calm() {
        let mut back_off = BackOff::new();
        let mut now = Duration::from_secs(7);
        let mut pauses = vec![];
        for _ in 0..11 {
            let pause = back_off.pause(now);
            now += pause;
            back_off.count(now);
            pauses.push(pause.as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(back_off.pause(now + CALM).as_secs(), 300);
        assert_eq!(back_off.pause(now + CALM + FIRST_PAUSE), FIRST_PAUSE);
    }
}
