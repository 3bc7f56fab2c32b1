//! `cni-multi install`: installs the binary where runtimes look for plugins, and goes back.
//!
//! It needs neither a shell nor a program of the host, so that a container with a directory of the
//! host mounted can run it. install.sh builds the binary and then calls this. What is installed:
//!
//! * `DIR/cni-multi`: the binary
//! * `DIR/<plugin>`: a link to it for each name that `cni-multi list` prints; relative, so that the
//!   directory may be mounted somewhere else in a container
//! * `DIR/.cni-multi/previous`: the binary of the installation before this one
//! * `DIR/.cni-multi/replaced/`: files of other owners that had a plugin's name, for example those
//!   of containernetworking/plugins. The first one of a name is kept.
//! * `/usr/local/bin/cni-multi` and `cnitool`: links to the binary, for people (see [`on_path`])
//! * `DIR/.cni-multi/on-path`: the paths of those links
//!
//! Files of other names are not touched. One rename replaces each name, so a runtime that starts a
//! plugin meanwhile finds the old one or the new one.
//!
//! A rollback goes one step back, however often it is run: the previous binary takes the place of
//! the present one, and the names that it lists are linked. Without a previous binary, but with
//! replaced files, it uninstalls. The present binary does all of that: the previous one need not
//! know this command.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches};
use nix::sys::stat::{Mode, umask};
use nix::unistd::chdir;

use self::layout::{
    BINARY, NEW, PREVIOUS, REPLACED, ROLLED_BACK, STATE, attempt, clean_up, exists,
    is_anything_kept, is_content, is_installed, is_our_link, is_same, kept, names_in, target,
};
use self::on_path::OnPath;
use self::program::list_names;
use self::step::{Step, write_program};
use crate::error::{Code, Error, Result};
use crate::plugin::Entry;
use crate::runtime::leave;
use crate::sys::process::Uninterrupted;
use crate::terminal::Streams;
use crate::terminal::visible::visible;

mod layout;
mod lock;
pub mod manual;
mod on_path;
mod program;
mod step;
mod watch;

/// The report of a completed rollback, before the directory.
const ROLLBACK_REPORT: &str = "The previous cni-multi is back in";

/// The default plugin directory of runtimes.
const PLUGIN_DIR: &str = "/opt/cni/bin";

/// The command line.
pub fn command() -> clap::Command {
    let dir = Arg::new("dir").long("dir").value_name("DIR");
    let rollback =
        flag("rollback", "Go one step back: to the binary before, or the plugins before");
    clap::Command::new("install")
        .about("Install this binary into a directory of plugins, with a link for each plugin")
        .arg(dir.help("The directory [/opt/cni/bin]"))
        .arg(rollback.conflicts_with("uninstall"))
        .arg(flag("uninstall", "Remove what was installed, and put back what it replaced"))
        .args(on_path::arguments())
        .arg(flag("dry-run", "Only print what would be done").visible_alias("list-only"))
        .arg(flag_watch())
        .arg(flag_left())
}

/// install.sh of earlier builds calls it after --uninstall.
fn flag_left() -> Arg {
    flag("left", "Only say what stays in nftables when cni-multi goes").conflicts_with_all([
        "uninstall",
        "rollback",
        "dir",
        "dry-run",
        "path",
        "no-path",
    ])
}

fn flag_watch() -> Arg {
    flag("watch", "Stay, and keep the links to this build that other programs overwrite")
        .conflicts_with_all(["uninstall", "rollback", "dry-run", "left", "path"])
}

fn flag(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

/// Runs the command; `called` is argv[0], the path of this binary if /proc is missing.
pub fn run(matches: &ArgMatches, called: &Path, plugins: &[Entry], io: &mut Streams<'_>) -> u8 {
    if matches.get_flag("left") {
        return print_left(io.stdout);
    }
    let mut work = Work::of(matches, io.stdout, io.stderr);
    work.aliases = plugins.iter().filter(|entry| entry.is_alias).map(|entry| entry.name).collect();
    let done = if matches.get_flag("watch") {
        watch::run(&mut work, called, plugins)
    } else {
        Task::of(matches, called, plugins).and_then(|task| work.perform(&task))
    };
    match done {
        Ok(()) => u8::from(!work.is_heard),
        Err(error) => {
            let text = visible(&format!("{}: {error}", work.dir));
            let _ = writeln!(work.err, "{text}"); // the status reports it too
            1
        }
    }
}

fn print_left(out: &mut dyn Write) -> u8 {
    let line = left();
    u8::from(!line.is_empty() && writeln!(out, "{line}").is_err())
}

/// One line about what stays in nftables; empty if nothing does.
fn left() -> String {
    match leave::count() {
        Ok(counts) => leave::summary(&counts).unwrap_or_default(),
        Err(error) => {
            visible(&format!("whether anything stays in nftables cannot be told: {error}"))
        }
    }
}

/// The directory as sentences name it, and as an absolute link to the binary in it begins.
fn absolute(typed: &str) -> String {
    let path = std::path::absolute(typed).unwrap_or_default();
    let without_last_slash: PathBuf = path.components().collect();
    without_last_slash.to_string_lossy().into_owned()
}

/// The requested action.
enum Task {
    Install(New),
    Rollback,
    Uninstall,
}

/// What is to be installed: this binary.
struct New {
    content: Vec<u8>,
    /// The names of its plugins.
    names: Vec<String>,
}

impl New {
    fn of(called: &Path, plugins: &[Entry]) -> Result<New> {
        let content = own_content(called)?;
        let names = plugins.iter().map(|entry| entry.name.to_owned()).collect();
        Ok(New { content, names })
    }
}

/// The content of this binary, which was called by that path.
fn own_content(called: &Path) -> Result<Vec<u8>> {
    let own = fs::read("/proc/self/exe").or_else(|_| fs::read(called));
    attempt("read", "this binary", own)
}

impl Task {
    fn of(matches: &ArgMatches, called: &Path, plugins: &[Entry]) -> Result<Task> {
        if matches.get_flag("rollback") {
            return Ok(Task::Rollback);
        }
        if matches.get_flag("uninstall") {
            return Ok(Task::Uninstall);
        }
        New::of(called, plugins).map(Task::Install)
    }

    fn is_install(&self) -> bool {
        matches!(self, Task::Install(_))
    }
}

/// The work in one plugin directory, which becomes the working directory.
struct Work<'a> {
    dir: String,
    path: OnPath,
    is_dry: bool,
    /// The plugins that leave another program of their name alone.
    aliases: Vec<&'static str>,
    out: &'a mut dyn Write,
    err: &'a mut dyn Write,
    /// Whether everything could be printed. A closed pipe does not stop an installation half-way.
    is_heard: bool,
    /// The number of steps taken.
    steps: usize,
}

impl Work<'_> {
    fn of<'a>(matches: &ArgMatches, out: &'a mut dyn Write, err: &'a mut dyn Write) -> Work<'a> {
        let typed = matches.get_one::<String>("dir").map_or(PLUGIN_DIR, String::as_str);
        let is_dry = matches.get_flag("dry-run");
        let dir = absolute(typed);
        let path = OnPath::of(matches, &dir);
        Work { dir, path, is_dry, aliases: vec![], out, err, is_heard: true, steps: 0 }
    }

    fn say(&mut self, line: &str) {
        self.is_heard &= writeln!(self.out, "{}", visible(line)).is_ok();
    }

    /// Takes a step, or announces it in a dry run.
    fn act(&mut self, step: Step<'_>) -> Result<()> {
        if self.is_dry {
            self.say(&["would ", &step.sentence(&self.dir)].concat());
            Ok(())
        } else {
            self.take(&step)
        }
    }

    fn take(&mut self, step: &Step<'_>) -> Result<()> {
        step.take().map_err(|error| error.with_details(self.advice()))?;
        self.steps += 1;
        Ok(())
    }

    /// The advice after a failed step.
    fn advice(&self) -> &'static str {
        if self.steps > 0 { "run it again to complete what it has begun" } else { "" }
    }

    fn nothing_to_do(&mut self) -> Result<()> {
        self.say(&format!("Nothing is installed in {}; nothing to do.", self.dir));
        Ok(())
    }

    /// Performs the task; a missing directory is created for an installation only.
    fn perform(&mut self, task: &Task) -> Result<()> {
        umask(Mode::from_bits_truncate(0o022)); // unprivileged runtimes read it, too
        match task {
            _ if exists(&self.dir) => self.perform_inside(task),
            Task::Install(new) if self.is_dry => self.announce(new),
            Task::Install(_) => self.perform_anew(task),
            _ => self.nothing_to_do(),
        }
    }

    /// Creates the directory and performs the task in it. If that fails, the created directories
    /// are removed.
    fn perform_anew(&mut self, task: &Task) -> Result<()> {
        let missing = missing_directories(&self.dir);
        attempt("make", &self.dir, fs::create_dir_all(&self.dir))
            .and_then(|()| self.perform_inside(task))
            .inspect_err(|_| remove_empty(&missing))
    }

    /// Announces an installation into a directory that does not exist.
    fn announce(&mut self, new: &New) -> Result<()> {
        self.say(&["would make ", &self.dir].concat());
        self.act(Step::RenameNew)?;
        new.names.iter().try_for_each(|name| self.act(Step::Link(name)))?;
        self.put_on_path()
    }

    fn perform_inside(&mut self, task: &Task) -> Result<()> {
        attempt("enter", &self.dir, chdir(self.dir.as_str()).map_err(io::Error::from))?;
        if self.is_dry {
            require_readable_state()?;
            return self.perform_steps(task);
        }
        if task.is_install() || exists(BINARY) || exists(STATE) {
            self.perform_locked(task)
        } else {
            self.nothing_to_do()
        }
    }

    /// Performs the task under the directory's lock, and leaves no drafts.
    fn perform_locked(&mut self, task: &Task) -> Result<()> {
        let _lock = self.lock()?;
        let _uninterrupted = Uninterrupted::begin(); // SIGINT etc. take effect afterwards
        let done = self.perform_steps(task);
        clean_up();
        let synced = self.sync();
        done.and(synced)
    }

    fn sync(&self) -> Result<()> {
        let synced = File::open(".").and_then(|dir| dir.sync_all());
        attempt("write to disk", &self.dir, synced)
    }

    /// Locks the directory; says so if that takes time.
    fn lock(&mut self) -> Result<File> {
        let waiting = format!("another install is at work in {}, waiting for it", self.dir);
        let dir = self.dir.clone();
        lock::take(&dir, &mut || self.say(&waiting))
    }

    fn perform_steps(&mut self, task: &Task) -> Result<()> {
        match task {
            Task::Install(new) => self.install(new),
            _ if !is_installed() => self.nothing_to_do(),
            Task::Rollback => self.roll_back(),
            Task::Uninstall => self.remove_all(),
        }
    }

    fn install(&mut self, new: &New) -> Result<()> {
        let names = if self.is_dry { new.names.clone() } else { write_new(&new.content)? };
        let names = self.without_others(names);
        refuse_directories(&names)?;
        self.keep_previous(&new.content)?;
        self.keep_foreign(&names)?;
        self.act(Step::RenameNew)?;
        self.finish("cni-multi is installed in", &names)?;
        self.put_on_path()
    }

    /// Links the binary into a directory of PATH. The plugins are installed by then, so it is an
    /// error only if the user has named the directory.
    fn put_on_path(&mut self) -> Result<()> {
        let links: Vec<String> = self.path.links().collect();
        let mut done = Ok(());
        for link in &links {
            let put = self.put_link(link);
            done = done.and(self.note(put)); // the other link is made all the same
        }
        self.say_links(&links);
        done
    }

    fn say_links(&mut self, links: &[String]) {
        let made: Vec<&str> = links
            .iter()
            .map(String::as_str)
            .filter(|link| on_path::is_ours(link, &self.dir))
            .collect();
        if !self.is_dry && !made.is_empty() {
            self.say(&format!("Links to it in a directory of PATH: {}", made.join(" ")));
        }
    }

    fn put_link(&mut self, link: &str) -> Result<()> {
        let dir = self.dir.clone();
        if !on_path::is_wanted(link, &dir)? {
            return Ok(());
        }
        let step = Step::PutOnPath(link, &dir);
        if self.is_dry { self.act(step) } else { step.take() }
    }

    /// Reports the error of a link in a directory that the user has not named.
    fn note(&mut self, done: Result<()>) -> Result<()> {
        let Err(error) = &done else { return done };
        if self.path.is_named {
            return done;
        }
        let advice = "--path DIR names another directory of PATH, and --no-path none";
        let _ = writeln!(self.err, "{}; {advice}", visible(&error.to_string())); // a mere note
        Ok(())
    }

    fn roll_back(&mut self) -> Result<()> {
        if exists(PREVIOUS) {
            self.return_to_previous()
        } else if exists(ROLLED_BACK) {
            self.complete_rollback()
        } else if is_anything_kept() {
            self.remove_all()
        } else {
            Err(nothing_to_go_back_to())
        }
    }

    fn return_to_previous(&mut self) -> Result<()> {
        let names = list_names(PREVIOUS, PREVIOUS)?;
        let names: Vec<String> = names.into_iter().filter(|name| !self.is_another(name)).collect();
        refuse_directories(&names)?;
        // Mark it first: a run interrupted after the rename must count as a rollback.
        self.act(Step::MarkRollback)?;
        self.keep_foreign(&names)?;
        self.act(Step::RenamePrevious)?;
        self.finish(ROLLBACK_REPORT, &names)
    }

    /// Links what an interrupted rollback may have left unlinked.
    fn complete_rollback(&mut self) -> Result<()> {
        self.say(&format!(
            "{} was rolled back already; --uninstall goes back to before cni-multi.",
            self.dir
        ));
        let names = list_names(BINARY, BINARY)?;
        let names = self.without_others(names);
        self.finish(ROLLBACK_REPORT, &names)
    }

    /// The names without those of aliases that another program has, each of which is reported.
    fn without_others(&mut self, names: Vec<String>) -> Vec<String> {
        let (others, names): (Vec<String>, Vec<String>) =
            names.into_iter().partition(|name| self.is_another(name));
        for alias in others {
            self.say(&format!(
                "{}/{alias} is another program and stays; without it, the next installation links {alias}",
                self.dir
            ));
        }
        names
    }

    /// Whether another program has the name of an alias.
    fn is_another(&self, name: &str) -> bool {
        self.aliases.contains(&name) && exists(name) && !is_our_link(name, &self.dir)
    }

    /// Uninstalls. Restores the replaced files before it removes the binary, so that a name common
    /// to both is never missing.
    fn remove_all(&mut self) -> Result<()> {
        self.unlink_others(&[])?;
        for name in names_in(REPLACED) {
            self.restore(&name)?;
        }
        self.take_off_path()?;
        self.act(Step::RemoveBinary)?;
        if self.is_dry {
            return Ok(());
        }
        self.say_removed();
        Ok(())
    }

    /// Removes the links in directories of PATH, before the binary that they lead to.
    fn take_off_path(&mut self) -> Result<()> {
        let links = on_path::present(&self.path, &self.dir);
        links.iter().try_for_each(|link| self.act(Step::TakeOffPath(link)))
    }

    fn say_removed(&mut self) {
        self.say(&format!("cni-multi is removed from {}.", self.dir));
        let left = left();
        if !left.is_empty() {
            self.say(&left);
        }
    }

    /// Restores a replaced file unless its name is in use by another owner.
    fn restore(&mut self, name: &str) -> Result<()> {
        if is_our_link(name, &self.dir) {
            return Ok(()); // in a dry run: `unlink_others` has announced it
        }
        if !exists(name) {
            return self.act(Step::Restore(name));
        }
        if is_same(name, &kept(name)) {
            return self.act(Step::DropKept(name));
        }
        self.say_both_stay(name);
        Ok(())
    }

    fn say_both_stay(&mut self, name: &str) {
        self.say(&format!(
            "{dir}/{name} is not a link to cni-multi and stays; what was replaced earlier stays in \
             {dir}/{REPLACED}/{name}",
            dir = self.dir
        ));
    }

    /// Keeps the replaced binary for a rollback, unless it is this same build.
    fn keep_previous(&mut self, new: &[u8]) -> Result<()> {
        if !exists(BINARY) {
            return Ok(());
        }
        if target(BINARY).is_empty() && is_content(BINARY, new) {
            self.say(&format!("{}/{BINARY} is this build already", self.dir));
            return Ok(());
        }
        self.act(Step::KeepPrevious)?;
        self.forget_rollback()
    }

    fn forget_rollback(&mut self) -> Result<()> {
        if exists(ROLLED_BACK) { self.act(Step::ForgetRollback) } else { Ok(()) }
    }

    /// Keeps replaced files. If several files had a name in succession, the first one is restored.
    fn keep_foreign(&mut self, names: &[String]) -> Result<()> {
        for name in names {
            let is_foreign = exists(name) && !is_our_link(name, &self.dir);
            if is_foreign && !exists(&kept(name)) {
                self.act(Step::KeepForeign(name))?;
            } else if is_foreign && !is_same(name, &kept(name)) {
                self.say_first_is_kept(name);
            }
        }
        Ok(())
    }

    fn say_first_is_kept(&mut self, name: &str) {
        self.say(&format!(
            "{dir}/{name} came after {dir}/{REPLACED}/{name}, which stays the one that is kept",
            dir = self.dir
        ));
    }

    /// Creates the links, and removes those with other names.
    fn link_names(&mut self, names: &[String]) -> Result<()> {
        for name in names.iter().filter(|name| target(name) != BINARY) {
            self.act(Step::Link(name))?;
        }
        self.unlink_others(names)
    }

    /// Removes our links that are not in `names`, and restores the files that they replaced.
    fn unlink_others(&mut self, names: &[String]) -> Result<()> {
        for name in names_in(".") {
            if !names.contains(&name) && is_our_link(&name, &self.dir) {
                self.unlink(&name)?;
            }
        }
        Ok(())
    }

    /// Removes a link of ours, or restores the file that it replaced.
    fn unlink(&mut self, name: &str) -> Result<()> {
        let is_kept = exists(&kept(name));
        self.act(if is_kept { Step::Restore(name) } else { Step::Unlink(name) })
    }

    /// Links the names to the binary in place, and reports what is installed.
    fn finish(&mut self, done: &str, names: &[String]) -> Result<()> {
        self.link_names(names)?;
        if !self.is_dry {
            self.say_done(done, names);
        }
        Ok(())
    }

    fn say_done(&mut self, done: &str, names: &[String]) {
        self.say(&format!("{done} {}, with these plugins: {}", self.dir, names.join(" ")));
        if is_anything_kept() {
            self.say_where_kept();
        }
    }

    fn say_where_kept(&mut self) {
        let dir = &self.dir;
        self.say(&format!(
            "What had these names before is kept in {dir}/{REPLACED} for --uninstall."
        ));
    }
}

/// The directory and those of its parents that do not exist, the innermost first.
fn missing_directories(dir: &str) -> Vec<PathBuf> {
    let parents = Path::new(dir).ancestors();
    parents.take_while(|path| path.symlink_metadata().is_err()).map(Path::to_owned).collect()
}

fn remove_empty(directories: &[PathBuf]) {
    for directory in directories {
        let _ = fs::remove_dir(directory); // another process may use it by now
    }
}

fn nothing_to_go_back_to() -> Error {
    let problem = "no previous binary and no replaced plugins to go back to";
    Error::new(Code::IO, problem).with_details("--uninstall removes cni-multi")
}

/// A dry run takes no lock, so nothing else would notice that the state is closed to this user.
fn require_readable_state() -> Result<()> {
    match fs::read_dir(STATE) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => attempt("read", STATE, Err(error)),
        _ => Ok(()),
    }
}

fn refuse_directories(names: &[String]) -> Result<()> {
    let names = names.iter().map(String::as_str);
    match names.chain([BINARY]).find(is_directory) {
        Some(name) => Err(directory_in_the_way(name)),
        None => Ok(()),
    }
}

fn directory_in_the_way(name: &str) -> Error {
    Error::new(Code::CONFLICT, [name, " is a directory; nothing was changed"].concat())
}

fn is_directory(name: &&str) -> bool {
    Path::new(name).symlink_metadata().is_ok_and(|there| there.is_dir())
}

/// Writes the new binary beside its later name, and lists its names from there: a directory that is
/// mounted noexec would be of no use to a runtime.
fn write_new(content: &[u8]) -> Result<Vec<String>> {
    attempt("make", REPLACED, fs::create_dir_all(REPLACED))?;
    attempt("write", NEW, write_program(NEW, content, 0o755))?;
    list_names(NEW, "the copy of this binary")
}
