//! The work in one plugin directory: its lock, its steps, and what is said about them.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use nix::sys::stat::{Mode, umask};
use nix::unistd::chdir;

use super::choice::{Aliases, Choice};
use super::layout::{
    self, BINARY, NEW, STATE, absolute, attempt, clean_up, exists, is_installed, link, remove,
    rename, require_own_state,
};
use super::on_path::OnPath;
use crate::commands::PLUGIN_DIR;
use crate::error::Result;
use crate::registry::PLUGINS;
use crate::sys::signals::Uninterrupted;
use crate::terminal::visible::visible;

/// The work in one plugin directory, which becomes the working directory.
pub(super) struct Work<'a> {
    pub(super) dir: String,
    pub(super) path: OnPath,
    pub(super) is_dry: bool,
    pub(super) choice: Choice,
    /// Further names of plugins.
    pub(super) further: Aliases,
    /// The plugins that leave another program of their name alone.
    pub(super) aliases: Vec<&'static str>,
    pub(super) out: &'a mut dyn Write,
    pub(super) err: &'a mut dyn Write,
    /// Whether everything could be printed. A closed pipe does not stop an installation half-way.
    pub(super) is_heard: bool,
    /// The number of steps taken.
    pub(super) steps: usize,
}

impl Work<'_> {
    pub(super) fn of<'a>(
        matches: &ArgMatches,
        out: &'a mut dyn Write,
        err: &'a mut dyn Write,
    ) -> Work<'a> {
        let typed = matches.get_one::<String>("dir").map_or(PLUGIN_DIR, String::as_str);
        let is_dry = matches.get_flag("dry-run");
        let dir = absolute(typed);
        let path = OnPath::of(matches, &dir);
        Work {
            dir,
            path,
            is_dry,
            choice: Choice::Kept,
            further: Aliases::Kept,
            aliases: PLUGINS.iter().filter(|it| it.is_alias).map(|it| it.name).collect(),
            out,
            err,
            is_heard: true,
            steps: 0,
        }
    }

    pub(super) fn say(&mut self, line: &str) {
        self.is_heard &= writeln!(self.out, "{}", visible(line)).is_ok();
    }

    /// Makes or replaces a file of this name, or lists its path in a dry run.
    pub(super) fn make(&mut self, name: &str, change: impl FnOnce() -> Result<()>) -> Result<()> {
        self.act(name, false, change)
    }

    /// Removes a file, or lists its path in a dry run.
    pub(super) fn remove(&mut self, name: &str) -> Result<()> {
        self.act(name, true, || remove(name))
    }

    /// Makes a change, or lists the path of its file in a dry run.
    pub(super) fn act(
        &mut self,
        name: &str,
        is_removed: bool,
        change: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if self.is_dry {
            let path = Path::new(&self.dir).join(name);
            let verb = match path.symlink_metadata() {
                _ if is_removed => "remove",
                Ok(_) => "replace",
                Err(_) => "make",
            };
            self.say(&format!("would {verb} {}", path.display()));
            return Ok(());
        }
        let has_begun = self.steps > 0;
        let advice = if has_begun { "run it again to complete what it has begun" } else { "" };
        change().map_err(|error| error.with_details(advice))?;
        self.steps += 1;
        Ok(())
    }

    fn nothing_to_do(&mut self) -> Result<()> {
        self.say(&format!("Nothing is installed in {}; nothing to do.", self.dir));
        Ok(())
    }

    /// Performs the task; a missing directory is created for an installation only.
    pub(super) fn perform(&mut self, task: &Task) -> Result<()> {
        umask(Mode::from_bits_truncate(0o022)); // unprivileged runtimes read it, too
        if matches!(task, Task::Uninstall) {
            self.hand_over(); // packages uninstall from directories that have nothing, too
        }
        match task {
            _ if exists(&self.dir) => self.perform_inside(task),
            Task::Install(new) if self.is_dry => self.announce(new),
            Task::Install(_) => {
                let parents = Path::new(&self.dir).ancestors();
                let missing = parents.take_while(|path| path.symlink_metadata().is_err());
                let missing: Vec<PathBuf> = missing.map(Path::to_owned).collect();
                attempt("make", &self.dir, fs::create_dir_all(&self.dir))
                    .and_then(|()| self.perform_inside(task))
                    .inspect_err(|_| {
                        for directory in &missing {
                            let _ = fs::remove_dir(directory); // another process may use it by now
                        }
                    })
            }
            _ => self.nothing_to_do(),
        }
    }

    /// Announces an installation into a directory that does not exist.
    fn announce(&mut self, new: &New) -> Result<()> {
        let names = self.chosen(new.names.clone())?;
        self.further.require_linked(&names)?;
        self.say(&["would make ", &self.dir].concat());
        self.keep_choices()?;
        self.make(BINARY, || rename(NEW, BINARY))?;
        for name in &names {
            self.make(name, || link(name, BINARY))?;
        }
        self.link_aliases(&names)?;
        self.put_on_path()
    }

    fn perform_inside(&mut self, task: &Task) -> Result<()> {
        attempt("enter", &self.dir, chdir(self.dir.as_str()).map_err(io::Error::from))?;
        if self.is_dry {
            // Without a lock nothing else would notice that the state is closed to this user.
            match fs::read_dir(STATE) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return attempt("read", STATE, Err(error));
                }
                _ => (),
            }
            require_own_state()?;
            return self.perform_steps(task);
        }
        if !matches!(task, Task::Install(_)) && !exists(BINARY) && !exists(STATE) {
            return self.nothing_to_do();
        }
        let waiting = format!("another install is at work in {}, waiting for it", self.dir);
        let dir = self.dir.clone();
        let _lock = layout::take_lock(&dir, &mut || self.say(&waiting))?;
        let _uninterrupted = Uninterrupted::begin(); // SIGINT etc. take effect afterwards
        let done = self.perform_steps(task);
        clean_up();
        let synced = self.sync();
        done.and(synced)
    }

    pub(super) fn sync(&self) -> Result<()> {
        let synced = File::open(".").and_then(|dir| dir.sync_all());
        attempt("write to disk", &self.dir, synced)
    }

    fn perform_steps(&mut self, task: &Task) -> Result<()> {
        match task {
            Task::Install(new) => self.install(new),
            _ if !is_installed() => self.nothing_to_do(),
            Task::Rollback => self.roll_back(),
            Task::Uninstall => self.remove_all(),
        }
    }
}

/// The requested action.
pub(super) enum Task {
    Install(New),
    Rollback,
    Uninstall,
}

/// What is to be installed: this binary.
pub(super) struct New {
    pub(super) content: Vec<u8>,
    /// The names of its plugins.
    pub(super) names: Vec<String>,
}

impl Task {
    pub(super) fn of(matches: &ArgMatches) -> Result<Task> {
        if matches.get_flag("rollback") {
            return Ok(Task::Rollback);
        }
        if matches.get_flag("uninstall") {
            return Ok(Task::Uninstall);
        }
        let names = PLUGINS.iter().map(|entry| entry.name.to_owned()).collect();
        Ok(Task::Install(New { content: own_content()?, names }))
    }
}

/// The content of this binary; without /proc, of the file that argv[0] names.
pub(super) fn own_content() -> Result<Vec<u8>> {
    let called = || std::env::args_os().next().unwrap_or_default();
    let own = fs::read("/proc/self/exe").or_else(|_| fs::read(called()));
    attempt("read", "this binary", own)
}
