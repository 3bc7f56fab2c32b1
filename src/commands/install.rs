//! `cni-multi install`: the binary puts itself where runtimes look for plugins, and takes itself
//! away again.
//!
//! It does what install.sh does, for places that have no shell, such as a container that is given a
//! directory of the host, and leaves the same files, which install.sh tells of: either takes back
//! what the other has done (tests/install.rs).

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches};

use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::file_lock::{self, Mode, Patience};
use crate::plain_file;
use crate::plugin::Entry;
use crate::runtime::leave;
use crate::terminal::Streams;
use crate::terminal::visible::visible;

/// Where runtimes look for plugins unless told otherwise.
const PLUGIN_DIR: &str = "/opt/cni/bin";
/// The binary's name in that directory, and what the links to it say.
const BINARY: &str = "cni-multi";
/// The directory there for all that is not for runtimes.
const STATE: &str = ".cni-multi";
/// In that: the binary of the install before, the mark of a rollback, and the files of others by
/// their names.
const PREVIOUS: &str = ".cni-multi/previous";
const ROLLED_BACK: &str = ".cni-multi/rolled-back";
const REPLACED: &str = ".cni-multi/replaced";
/// The lock: of its owner alone, and gone afterwards.
const LOCK: &str = ".cni-multi/lock";
/// And what is renamed from there once it is whole; install.sh has its process id behind the point.
const DRAFTS: [&str; 3] = ["new.", "link.", "keep."];
const NEW: &str = ".cni-multi/new.0";
const LINK: &str = ".cni-multi/link.0";
const KEEP: &str = ".cni-multi/keep.0";

/// How long another install may be at work, as in install.sh.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often the lock is taken again because it had lost its name, each time to another install
/// that has ended.
const TRIES: usize = 100;

/// The command line.
pub fn command() -> clap::Command {
    let flag = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
    };
    clap::Command::new("install")
        .about("Install this binary into a directory of plugins, with a link for each plugin")
        .arg(Arg::new("dir").long("dir").value_name("DIR").help("The directory [/opt/cni/bin]"))
        .arg(
            flag("rollback", "Go one step back: to the binary before, or the plugins before")
                .conflicts_with("uninstall"),
        )
        .arg(flag("uninstall", "Remove what was installed, and put back what it replaced"))
        .arg(
            flag("left", "Only say what stays in nftables when cni-multi goes")
                .conflicts_with_all(["uninstall", "rollback", "dir"]),
        )
}

/// Runs it; `called` is argv[0], which leads to this binary where there is no /proc.
pub fn run(matches: &ArgMatches, called: &Path, plugins: &[Entry], io: &mut Streams<'_>) -> u8 {
    if matches.get_flag("left") {
        let line = left();
        return u8::from(!line.is_empty() && writeln!(io.stdout, "{line}").is_err());
    }
    let dir =
        matches.get_one::<String>("dir").map_or(PLUGIN_DIR, String::as_str).trim_end_matches('/');
    let work = match (matches.get_flag("rollback"), matches.get_flag("uninstall")) {
        (false, false) => Work::Install(called, plugins),
        (true, false) => Work::Rollback,
        _ => Work::Uninstall,
    };
    let (to, text, status) = match work.done_in(dir) {
        Ok(report) => (&mut io.stdout, report, 0),
        Err(error) => (&mut io.stderr, visible(&format!("{dir}: {error}")), 1),
    };
    status | u8::from(writeln!(to, "{text}").is_err())
}

/// What is asked for.
enum Work<'a> {
    Install(&'a Path, &'a [Entry]),
    Rollback,
    Uninstall,
}

impl Work<'_> {
    /// Does it while nobody else is at work in the directory, be it install.sh; nothing half made
    /// is left. From here on the working directory is `dir`, and every name is one there.
    fn done_in(self, dir: &str) -> Result<String> {
        nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022)); // runtimes of ordinary users look there, too
        let binary = match self {
            Work::Install(called, _) => {
                let own = told(
                    "read",
                    "this binary",
                    fs::read("/proc/self/exe").or_else(|_| fs::read(called)),
                )?;
                told("make", dir, fs::create_dir_all(dir))?;
                own
            }
            _ if !exists(dir) => return Ok(nothing_to_do(dir)),
            _ => vec![],
        };
        told("enter", dir, nix::unistd::chdir(dir).map_err(io::Error::from))?;
        if !matches!(self, Work::Install(..)) && !is_installed() {
            return Ok(nothing_to_do(dir));
        }
        let _lock = lock(dir)?;
        let done = match self {
            Work::Install(_, plugins) => install(&binary, plugins, dir),
            _ if !is_installed() => Ok(nothing_to_do(dir)),
            Work::Rollback => rollback(dir),
            Work::Uninstall => remove_all(dir),
        };
        clean_up();
        told("write to disk", dir, File::open(".").and_then(|dir| dir.sync_all()))?;
        done
    }
}

/// What stays in nftables, in one line; empty where nothing does.
fn left() -> String {
    match leave::count() {
        Ok(counts) => leave::summary(&counts).unwrap_or_default(),
        Err(error) => {
            visible(&format!("whether anything stays in nftables cannot be told: {error}"))
        }
    }
}

fn with_line(report: String, line: &str) -> String {
    if line.is_empty() { report } else { [&report, "\n", line].concat() }
}

fn nothing_to_do(dir: &str) -> String {
    ["Nothing is installed in ", dir, "; nothing to do."].concat()
}

/// Whether anything is left of an install, be it whole or interrupted.
fn is_installed() -> bool {
    exists(BINARY) || names_in(STATE).iter().any(|name| name != "lock")
}

/// Waits until no other install is at work in the directory.
fn lock(dir: &str) -> Result<File> {
    let path = [dir, "/", LOCK].concat();
    for _ in 0..TRIES {
        told("make", STATE, plain_file::make_directories(Path::new(STATE), 0o700))?;
        let patience = Patience { of_one: PATIENCE, deadline: Deadline::after(PATIENCE * 3) };
        let file = match plain_file::open_or_create(Path::new(LOCK)) {
            // another one has just removed the directory
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            file => told("open", &path, file)?,
        };
        let file = file_lock::take(file, Path::new(&path), Mode::Exclusive, patience)?;
        if has_name(&file, LOCK) {
            return Ok(file);
        }
    }
    Err(Error::new(Code::TRY_AGAIN, ["lock ", &path, ": it was removed each time"].concat()))
}

/// Whether the file is the one that has this name.
fn has_name(file: &File, name: &str) -> bool {
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let open = file.metadata().map(identity);
    let named = fs::symlink_metadata(name).map(identity);
    open.ok().zip(named.ok()).is_some_and(|(open, named)| open == named)
}

/// Also what runs that were killed have left: this one has the lock, which goes last.
fn clean_up() {
    for name in names_in(STATE) {
        if DRAFTS.iter().any(|draft| name.starts_with(draft)) {
            let _ = fs::remove_file([STATE, "/", &name].concat()); // the next one removes it
        }
    }
    let _ = fs::remove_file(LOCK); // the next one removes it
    for emptied in [REPLACED, STATE] {
        let _ = fs::remove_dir(emptied); // it goes when it is empty
    }
}

fn install(binary: &[u8], plugins: &[Entry], dir: &str) -> Result<String> {
    let names: Vec<&str> = plugins.iter().map(|entry| entry.name).collect();
    refuse_directories(&names)?;
    told("make", REPLACED, fs::create_dir_all(REPLACED))?;
    told("write", NEW, write_program(NEW, binary))?;
    keep_previous(binary)?;
    keep_foreign(&names, dir)?;
    rename(NEW, BINARY)?;
    link_names(&names, dir, "cni-multi is installed in ")
}

fn rollback(dir: &str) -> Result<String> {
    let is_back = exists(ROLLED_BACK) && !exists(PREVIOUS);
    if !is_back && !exists(PREVIOUS) {
        if !names_in(REPLACED).is_empty() {
            return remove_all(dir);
        }
        return Err(Error::new(
            Code::IO,
            "no previous binary and no replaced plugins to go back to",
        )
        .with_details("--uninstall removes cni-multi"));
    }
    let listed = list_names(if is_back { BINARY } else { PREVIOUS })?;
    let names: Vec<&str> = listed.lines().collect();
    if !is_back {
        refuse_directories(&names)?;
        // The mark comes first: a run that is interrupted after the rename must not count as none.
        told("write", ROLLED_BACK, fs::write(ROLLED_BACK, ""))?;
        keep_foreign(&names, dir)?;
        rename(PREVIOUS, BINARY)?;
    }
    link_names(&names, dir, "The previous cni-multi is back in ")
}

/// The replaced files come back before the binary goes, so no name that both have is ever without
/// one.
fn remove_all(dir: &str) -> Result<String> {
    unlink_others(&[], dir)?;
    let mut report = String::new();
    for name in names_in(REPLACED) {
        let kept = kept(&name);
        if !exists(&name) {
            rename(&kept, &name)?;
        } else if content(&name).is_ok_and(|there| is_content(&kept, &there)) {
            remove(&kept)?;
        } else {
            let parts = [
                name.as_str(),
                " is not a link to cni-multi and stays; what was replaced earlier stays in ",
                &kept,
                "\n",
            ];
            report += &parts.concat();
        }
    }
    for ours in [BINARY, PREVIOUS, ROLLED_BACK] {
        remove(ours)?;
    }
    Ok(with_line([&report, "cni-multi is removed from ", dir, "."].concat(), &left()))
}

fn refuse_directories(names: &[&str]) -> Result<()> {
    for name in names.iter().chain([&BINARY]) {
        if Path::new(name).symlink_metadata().is_ok_and(|there| there.is_dir()) {
            return Err(Error::new(
                Code::CONFLICT,
                [name, " is a directory; nothing was changed"].concat(),
            ));
        }
    }
    Ok(())
}

/// The binary that is replaced is what a rollback goes back to, unless it is this very build.
fn keep_previous(binary: &[u8]) -> Result<()> {
    if !exists(BINARY) || fs::read_link(BINARY).is_err() && is_content(BINARY, binary) {
        return Ok(());
    }
    keep(BINARY, PREVIOUS)?;
    remove(ROLLED_BACK)
}

/// Of several files that had a name one after the other, the first is the one that comes back.
fn keep_foreign(names: &[&str], dir: &str) -> Result<()> {
    for name in names.iter() {
        let kept = kept(name);
        if exists(name) && !is_our_link(name, dir) && !exists(&kept) {
            keep(name, &kept)?;
        }
    }
    Ok(())
}

/// A second name for a file, without a moment in which it has none.
fn keep(name: &str, kept: &str) -> Result<()> {
    remove(KEEP)?;
    told("keep", name, fs::hard_link(name, KEEP).or_else(|_| copy(name, KEEP)))?;
    rename(KEEP, kept)
}

/// Where there are no hard links, or none to another user's symlink for one who has not all rights
/// of root.
fn copy(name: &str, to: &str) -> io::Result<()> {
    match fs::read_link(name) {
        Ok(leads_to) => symlink(leads_to, to),
        Err(_) => write_program(to, &content(name)?),
    }
}

/// Makes the links, removes those of other names, and tells of them.
fn link_names(names: &[&str], dir: &str, done: &str) -> Result<String> {
    for name in names.iter().filter(|name| target(name) != BINARY) {
        remove(LINK)?;
        told("link", name, symlink(BINARY, LINK))?;
        rename(LINK, name)?;
    }
    unlink_others(names, dir)?;
    let kept =
        ["\nWhat had these names before is kept in ", dir, "/.cni-multi/replaced for --uninstall."]
            .concat();
    let kept = if names_in(REPLACED).is_empty() { "" } else { &kept };
    Ok([done, dir, ", with these plugins: ", &names.join(" "), kept].concat())
}

/// Our links that no name stands for go; the files that they replaced come back.
fn unlink_others(names: &[&str], dir: &str) -> Result<()> {
    for name in names_in(".") {
        let kept = kept(&name);
        match is_our_link(&name, dir) && !names.contains(&name.as_str()) {
            true if exists(&kept) => rename(&kept, &name)?,
            true => remove(&name)?,
            false => (),
        }
    }
    Ok(())
}

/// It is whole on the disk before it gets its name: a machine that loses power must not find an
/// empty file there.
fn write_program(name: &str, content: &[u8]) -> io::Result<()> {
    plain_file::create_anew(Path::new(name), content)?;
    fs::set_permissions(name, Permissions::from_mode(0o755))?;
    File::open(name)?.sync_all()
}

/// What `cni-multi list` of another binary prints. A name that could leave the directory or hide in
/// it is refused.
fn list_names(binary: &str) -> Result<String> {
    let mut list = Command::new(["./", binary].concat());
    list.arg0(BINARY).arg("list").stdin(Stdio::inherit()); // there may be no /dev/null to read from
    let listed = told("run", binary, list.output())?;
    let names = String::from_utf8(listed.stdout).unwrap_or_default();
    let is_letter = |letter: u8| matches!(letter, b'a'..=b'z' | b'0'..=b'9' | b'-');
    let is_name = |name: &str| {
        name != BINARY && !name.starts_with('-') && !name.is_empty() && name.bytes().all(is_letter)
    };
    if listed.status.success() && !names.is_empty() && names.lines().all(is_name) {
        Ok(names)
    } else {
        Err(Error::new(Code::IO, [binary, " is not cni-multi, or does not run here"].concat()))
    }
}

/// Where the link of this name leads; nothing where there is none.
fn target(name: &str) -> String {
    fs::read_link(name)
        .ok()
        .and_then(|to| to.into_os_string().into_string().ok())
        .unwrap_or_default()
}

fn is_our_link(name: &str, dir: &str) -> bool {
    let to = target(name);
    to.strip_prefix("./").unwrap_or(&to) == BINARY || to == [dir, "/", BINARY].concat()
}

fn kept(name: &str) -> String {
    [REPLACED, "/", name].concat()
}

fn is_content(name: &str, expected: &[u8]) -> bool {
    content(name).is_ok_and(|there| there == expected)
}

/// Of a program, where a link may lead to it; a FIFO is none, and must not be waited for.
fn content(name: &str) -> io::Result<Vec<u8>> {
    if fs::metadata(name)?.is_file() {
        fs::read(name)
    } else {
        Err(io::Error::other("not a regular file"))
    }
}

/// The names in a directory; one that is not there has none.
fn names_in(dir: &str) -> Vec<String> {
    let mut names = vec![];
    let Ok(entries) = fs::read_dir(dir) else { return names };
    for entry in entries {
        match entry.map(|entry| entry.file_name().into_string()) {
            Ok(Ok(name)) => names.push(name),
            _ => continue, // no name of ours
        }
    }
    names
}

/// Whether there is anything of that name, be it a link that leads nowhere.
fn exists(name: &str) -> bool {
    Path::new(name).symlink_metadata().is_ok()
}

/// rename(2) leaves both names where they are one file's, as after a run that was killed: the first
/// one goes all the same.
fn rename(from: &str, to: &str) -> Result<()> {
    told("replace", to, fs::rename(from, to))?;
    remove(from)
}

fn remove(name: &str) -> Result<()> {
    told("remove", name, plain_file::remove(Path::new(name)))
}

/// The result, with what was done to which file in its error.
fn told<T>(what: &str, name: &str, done: io::Result<T>) -> Result<T> {
    done.map_err(|error| Error::io(format_args!("{what} {name}"), &error))
}
