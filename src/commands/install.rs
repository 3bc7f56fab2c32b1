//! `cni-multi install`: the binary puts itself where runtimes look for plugins, and takes itself away again.
//!
//! It does what install.sh does, for places that have no shell, such as a container that is given a directory of the host,
//! and leaves the same files, which install.sh tells of: either takes back what the other has done (tests/install.rs).

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Arg, ArgAction, ArgMatches};

use crate::commands::visible::visible;
use crate::error::{Code, Error, Result};
use crate::plain_file;
use crate::plugin::Entry;
use crate::runner::Streams;

/// Where runtimes look for plugins unless told otherwise.
const PLUGIN_DIR: &str = "/opt/cni/bin";
/// The binary's name in that directory, and what the links to it say.
const BINARY: &str = "cni-multi";
/// The directory there for all that is not for runtimes.
const STATE: &str = ".cni-multi";
/// In that: the binary of the install before, the mark of a rollback, and the files of others by their names.
const PREVIOUS: &str = "previous";
const ROLLED_BACK: &str = "rolled-back";
const REPLACED: &str = "replaced";
/// And what is renamed from there once it is whole.
const DRAFTS: [&str; 3] = ["new.", "link.", "keep."];

/// The command line.
pub fn command() -> clap::Command {
    let flag = |name: &'static str, help: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue).help(help);
    clap::Command::new("install")
        .about("Install this binary into a directory of plugins, with a link for each plugin")
        .arg(Arg::new("dir").long("dir").value_name("DIR").help("The directory [/opt/cni/bin]"))
        .arg(flag("rollback", "Go one step back: to the binary before, or the plugins before"))
        .arg(flag("uninstall", "Remove what was installed, and put back what it replaced"))
}

/// Runs it; `called` is argv[0], which leads to this binary where there is no /proc.
pub fn run(matches: &ArgMatches, called: &Path, plugins: &[Entry], io: &mut Streams<'_>) -> u8 {
    let dir = Path::new(matches.get_one::<String>("dir").map_or(PLUGIN_DIR, String::as_str));
    let place = Place { dir: dir.to_owned(), state: dir.join(STATE) };
    let done = match (matches.get_flag("rollback"), matches.get_flag("uninstall")) {
        (false, false) => place.install(called, plugins),
        _ if !exists(&place.binary()) && !exists(&place.state) => {
            Ok(format!("Nothing is installed in {}; nothing to do.", dir.display()))
        }
        (true, false) => place.locked(Place::rollback),
        _ => place.locked(Place::remove_all),
    };
    let (to, text, status) = match done {
        Ok(report) => (&mut io.stdout, report, 0),
        Err(error) => (&mut io.stderr, visible(&error.to_string()), 1),
    };
    status | u8::from(writeln!(to, "{text}").is_err())
}

/// A directory of plugins.
struct Place {
    dir: PathBuf,
    state: PathBuf,
}

impl Place {
    fn binary(&self) -> PathBuf {
        self.dir.join(BINARY)
    }

    fn replaced(&self, name: &str) -> PathBuf {
        self.state.join(REPLACED).join(name)
    }

    /// Does `work` while nobody else is at work here, be it install.sh; nothing that is half made is left.
    fn locked(&self, work: impl FnOnce(&Place) -> Result<String>) -> Result<String> {
        let lock = File::open(&self.dir);
        let lock = told("open", &self.dir, lock)?;
        told("lock", &self.dir, fs2::FileExt::lock_exclusive(&lock))?;
        let done = work(self);
        for draft in names_in(&self.state).iter().filter(|name| DRAFTS.iter().any(|draft| name.starts_with(draft))) {
            let _ = plain_file::remove(&self.state.join(draft)); // the next one removes it
        }
        for emptied in [self.state.join(REPLACED), self.state.clone()] {
            let _ = fs::remove_dir(emptied); // it goes when it is empty
        }
        told("write to disk", &self.dir, lock.sync_all())?;
        done
    }

    fn install(&self, called: &Path, plugins: &[Entry]) -> Result<String> {
        let own = fs::read("/proc/self/exe").or_else(|_| fs::read(called));
        let own = told("read", called, own)?;
        let names = plugins.iter().map(|entry| entry.name).collect::<Vec<_>>().join("\n");
        told("make", &self.dir, fs::create_dir_all(&self.dir))?;
        self.locked(|place| {
            place.refuse_directories(&names)?;
            let replaced = place.replaced("");
            told("make", &replaced, fs::create_dir_all(&replaced))?;
            let draft = place.state.join("new.0");
            told("write", &draft, write_program(&draft, &own))?;
            place.keep_previous(&own)?;
            place.keep_foreign(&names)?;
            rename(&draft, &place.binary())?;
            place.link_names(&names)?;
            Ok(place.report(&names, "cni-multi is installed in "))
        })
    }

    fn rollback(&self) -> Result<String> {
        let (previous, mark) = (self.state.join(PREVIOUS), self.state.join(ROLLED_BACK));
        let names = if exists(&previous) {
            let names = list_names(&previous)?;
            self.refuse_directories(&names)?;
            // The mark comes first: a run that is interrupted after the rename must not count as none.
            told("write", &mark, fs::write(&mark, ""))?;
            self.keep_foreign(&names)?;
            rename(&previous, &self.binary())?;
            names
        } else if exists(&mark) {
            list_names(&self.binary())?
        } else if !names_in(&self.replaced("")).is_empty() {
            return self.remove_all();
        } else {
            let dir = self.dir.display();
            return Err(Error::new(
                Code::IO,
                format!("{dir} holds no previous binary and no replaced plugins to go back to"),
            )
            .with_details("--uninstall removes cni-multi"));
        };
        self.link_names(&names)?;
        Ok(self.report(&names, "The previous cni-multi is back in "))
    }

    /// The replaced files come back before the binary goes, so no name that both have is ever without one.
    fn remove_all(&self) -> Result<String> {
        self.unlink_others("")?;
        let mut report = String::new();
        for name in names_in(&self.replaced("")) {
            let (kept, path) = (self.replaced(&name), self.dir.join(&name));
            match fs::read(&path) {
                Ok(there) if fs::read(&kept).is_ok_and(|kept| kept == there) => remove(&kept)?,
                _ if !exists(&path) => rename(&kept, &path)?,
                _ => {
                    let (path, kept) = (path.display(), kept.display());
                    report += &format!(
                        "{path} is not a link to cni-multi and stays; what was replaced earlier stays in {kept}\n"
                    );
                }
            }
        }
        for ours in [self.binary(), self.state.join(PREVIOUS), self.state.join(ROLLED_BACK)] {
            remove(&ours)?;
        }
        Ok(format!("{report}cni-multi is removed from {}.", self.dir.display()))
    }

    fn report(&self, names: &str, done: &str) -> String {
        let (dir, names, state) = (self.dir.display(), names.trim_end().replace('\n', " "), self.state.display());
        let mut report = format!("{done}{dir}, with these plugins: {names}");
        if !names_in(&self.replaced("")).is_empty() {
            report += &format!("\nWhat had these names before is kept in {state}/{REPLACED} for --uninstall.");
        }
        report
    }

    fn is_our_link(&self, path: &Path) -> bool {
        fs::read_link(path)
            .is_ok_and(|to| to == Path::new(BINARY) || to == Path::new("./cni-multi") || to == self.binary())
    }

    fn refuse_directories(&self, names: &str) -> Result<()> {
        for path in names.lines().chain([BINARY]).map(|name| self.dir.join(name)) {
            if path.symlink_metadata().is_ok_and(|there| there.is_dir()) {
                return Err(Error::new(
                    Code::CONFLICT,
                    format!("{} is a directory; nothing was changed", path.display()),
                ));
            }
        }
        Ok(())
    }

    /// The binary that is replaced is what a rollback goes back to, unless it is this very build.
    fn keep_previous(&self, own: &[u8]) -> Result<()> {
        let present = self.binary();
        let Ok(there) = present.symlink_metadata() else { return Ok(()) }; // there is none
        if there.is_file() && fs::read(&present).is_ok_and(|present| present == own) {
            return Ok(());
        }
        self.keep(&present, &self.state.join(PREVIOUS))?;
        remove(&self.state.join(ROLLED_BACK))
    }

    /// Of several files that had a name one after the other, the first is the one that comes back.
    fn keep_foreign(&self, names: &str) -> Result<()> {
        for name in names.lines() {
            let (path, kept) = (self.dir.join(name), self.replaced(name));
            if exists(&path) && !self.is_our_link(&path) && !exists(&kept) {
                self.keep(&path, &kept)?;
            }
        }
        Ok(())
    }

    /// A second name for a file, without a moment in which it has none.
    fn keep(&self, path: &Path, kept: &Path) -> Result<()> {
        let draft = self.state.join("keep.0");
        remove(&draft)?;
        told("keep", path, fs::hard_link(path, &draft))?;
        rename(&draft, kept)
    }

    /// Makes the links, and removes those of other names.
    fn link_names(&self, names: &str) -> Result<()> {
        for name in names.lines() {
            let (draft, path) = (self.state.join("link.0"), self.dir.join(name));
            if fs::read_link(&path).is_ok_and(|to| to == Path::new(BINARY)) {
                continue;
            }
            remove(&draft)?;
            told("make", &draft, symlink(BINARY, &draft))?;
            rename(&draft, &path)?;
        }
        self.unlink_others(names)
    }

    /// Our links that no name stands for go; the files that they replaced come back.
    fn unlink_others(&self, names: &str) -> Result<()> {
        for name in names_in(&self.dir).iter().filter(|name| !names.lines().any(|named| named == *name)) {
            let (path, kept) = (self.dir.join(name), self.replaced(name));
            match self.is_our_link(&path) {
                true if exists(&kept) => rename(&kept, &path)?,
                true => remove(&path)?,
                false => (),
            }
        }
        Ok(())
    }
}

/// A file that is whole on the disk before it gets its name: a machine that loses power must not find an empty one there.
fn write_program(path: &Path, content: &[u8]) -> io::Result<()> {
    plain_file::create_anew(path, content)?;
    fs::set_permissions(path, Permissions::from_mode(0o755))?;
    File::open(path)?.sync_all()
}

/// What `cni-multi list` of another binary prints. A name that could leave the directory or hide in it is refused.
fn list_names(binary: &Path) -> Result<String> {
    let listed = Command::new(binary).arg0(BINARY).arg("list").output();
    let listed = told("run", binary, listed)?;
    let names = String::from_utf8_lossy(&listed.stdout).into_owned();
    let is_name = |name: &str| name != BINARY && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    let are_names = names.lines().all(|name| is_name(name) && !name.starts_with('-') && !name.is_empty());
    match listed.status.success() && are_names && !names.is_empty() {
        true => Ok(names),
        false => Err(Error::new(Code::IO, format!("{} is not cni-multi, or does not run here", binary.display()))),
    }
}

/// The names in a directory; one that is not there has none.
fn names_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Whether there is anything of that name, be it a link that leads nowhere.
fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    told("replace", to, fs::rename(from, to))
}

fn remove(path: &Path) -> Result<()> {
    told("remove", path, plain_file::remove(path))
}

/// The result, with what was done to which file in its error.
fn told<T>(what: &str, path: &Path, done: io::Result<T>) -> Result<T> {
    done.map_err(|error| Error::io(format_args!("{what} {}", path.display()), &error))
}
