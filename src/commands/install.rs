//! `cni-multi install`: installs the binary where runtimes look for plugins, and uninstalls it.
//!
//! It does the same as install.sh, for places without a shell, such as a container with a directory
//! of the host mounted. It leaves the same files, which install.sh describes: either program can
//! undo what the other has done (tests/install.rs).

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

/// The default plugin directory of runtimes.
const PLUGIN_DIR: &str = "/opt/cni/bin";
/// The binary's name in that directory, and the target of the links to it.
const BINARY: &str = "cni-multi";
/// The directory in it for files that runtimes must not see.
const STATE: &str = ".cni-multi";
/// Its content: the previously installed binary, the mark of a rollback, and the replaced foreign
/// files by name.
const PREVIOUS: &str = ".cni-multi/previous";
const ROLLED_BACK: &str = ".cni-multi/rolled-back";
const REPLACED: &str = ".cni-multi/replaced";
/// The lock: accessible to its owner only, and removed afterwards.
const LOCK: &str = ".cni-multi/lock";
/// Prefixes of files that are renamed from there once complete; install.sh appends its process id
/// after the dot.
const DRAFTS: [&str; 3] = ["new.", "link.", "keep."];
const NEW: &str = ".cni-multi/new.0";
const LINK: &str = ".cni-multi/link.0";
const KEEP: &str = ".cni-multi/keep.0";

/// How long to wait for another install, as in install.sh.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often to retry the lock after its file was unlinked, each time by another install that has
/// finished.
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

/// Runs the command; `called` is argv[0], the path of this binary if /proc is missing.
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

/// The requested action.
enum Work<'a> {
    Install(&'a Path, &'a [Entry]),
    Rollback,
    Uninstall,
}

impl Work<'_> {
    /// Does the work under the directory's lock, which install.sh shares, and leaves no partial
    /// files. From here on the working directory is `dir`, and every name is relative to it.
    fn done_in(self, dir: &str) -> Result<String> {
        nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022)); // unprivileged runtimes read it, too
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

/// One line about what stays in nftables; empty if nothing does.
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

/// Whether anything of an install exists, complete or interrupted.
fn is_installed() -> bool {
    exists(BINARY) || names_in(STATE).iter().any(|name| name != "lock")
}

/// Waits until no other install is running in the directory.
fn lock(dir: &str) -> Result<File> {
    let path = [dir, "/", LOCK].concat();
    for _ in 0..TRIES {
        told("make", STATE, plain_file::make_directories(Path::new(STATE), 0o700))?;
        let patience = Patience { of_one: PATIENCE, deadline: Deadline::after(PATIENCE * 3) };
        let file = match plain_file::open_or_create(Path::new(LOCK)) {
            // another install has just removed the directory
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

/// Whether the name refers to this open file.
fn has_name(file: &File, name: &str) -> bool {
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let open = file.metadata().map(identity);
    let named = fs::symlink_metadata(name).map(identity);
    open.ok().zip(named.ok()).is_some_and(|(open, named)| open == named)
}

/// Removes drafts, including those left by killed runs, which is safe under the lock. The lock file
/// goes last.
fn clean_up() {
    for name in names_in(STATE) {
        if DRAFTS.iter().any(|draft| name.starts_with(draft)) {
            let _ = fs::remove_file([STATE, "/", &name].concat()); // the next run removes it
        }
    }
    let _ = fs::remove_file(LOCK); // the next run removes it
    for emptied in [REPLACED, STATE] {
        let _ = fs::remove_dir(emptied); // removed only if empty
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
        // Write the mark first: a run interrupted after the rename must count as a rollback.
        told("write", ROLLED_BACK, fs::write(ROLLED_BACK, ""))?;
        keep_foreign(&names, dir)?;
        rename(PREVIOUS, BINARY)?;
    }
    link_names(&names, dir, "The previous cni-multi is back in ")
}

/// Uninstalls. Restores the replaced files before it removes the binary, so that a name common to
/// both is never missing.
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

/// Keeps the replaced binary for a rollback, unless it is this same build.
fn keep_previous(binary: &[u8]) -> Result<()> {
    if !exists(BINARY) || fs::read_link(BINARY).is_err() && is_content(BINARY, binary) {
        return Ok(());
    }
    keep(BINARY, PREVIOUS)?;
    remove(ROLLED_BACK)
}

/// Keeps replaced files. If several files had a name in succession, the first one is restored.
fn keep_foreign(names: &[&str], dir: &str) -> Result<()> {
    for name in names.iter() {
        let kept = kept(name);
        if exists(name) && !is_our_link(name, dir) && !exists(&kept) {
            keep(name, &kept)?;
        }
    }
    Ok(())
}

/// Gives a file a second name; it has a name at every moment.
fn keep(name: &str, kept: &str) -> Result<()> {
    remove(KEEP)?;
    told("keep", name, fs::hard_link(name, KEEP).or_else(|_| copy(name, KEEP)))?;
    rename(KEEP, kept)
}

/// Copies a file if hard links are unsupported, or not permitted: a root without all capabilities
/// may be unable to link another user's symlink.
fn copy(name: &str, to: &str) -> io::Result<()> {
    match fs::read_link(name) {
        Ok(leads_to) => symlink(leads_to, to),
        Err(_) => write_program(to, &content(name)?),
    }
}

/// Creates the links, removes those with other names, and reports them.
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

/// Removes our links that are not in `names`, and restores the files that they replaced.
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

/// Writes a file and syncs it before it gets its name: after a power loss there must be no empty
/// file there.
fn write_program(name: &str, content: &[u8]) -> io::Result<()> {
    plain_file::create_anew(Path::new(name), content)?;
    fs::set_permissions(name, Permissions::from_mode(0o755))?;
    File::open(name)?.sync_all()
}

/// The output of another binary's `cni-multi list`. A name that could leave the directory or hide
/// in it is rejected.
fn list_names(binary: &str) -> Result<String> {
    let mut list = Command::new(["./", binary].concat());
    list.arg0(BINARY).arg("list").stdin(Stdio::inherit()); // /dev/null may be missing
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

/// The target of the link with this name; empty if there is none.
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

/// The content of a program that a link may lead to. A FIFO is rejected, because opening it would
/// block.
fn content(name: &str) -> io::Result<Vec<u8>> {
    if fs::metadata(name)?.is_file() {
        fs::read(name)
    } else {
        Err(io::Error::other("not a regular file"))
    }
}

/// The names in a directory; none if it does not exist.
fn names_in(dir: &str) -> Vec<String> {
    let mut names = vec![];
    let Ok(entries) = fs::read_dir(dir) else { return names };
    for entry in entries {
        match entry.map(|entry| entry.file_name().into_string()) {
            Ok(Ok(name)) => names.push(name),
            _ => continue, // not a name of ours
        }
    }
    names
}

/// Whether a file of that name exists, including a dangling link.
fn exists(name: &str) -> bool {
    Path::new(name).symlink_metadata().is_ok()
}

/// rename(2) keeps both names if they are the same file, as after a killed run; this removes the
/// first one in any case.
fn rename(from: &str, to: &str) -> Result<()> {
    told("replace", to, fs::rename(from, to))?;
    remove(from)
}

fn remove(name: &str) -> Result<()> {
    told("remove", name, plain_file::remove(Path::new(name)))
}

/// The result, with the action and the file added to its error.
fn told<T>(what: &str, name: &str, done: io::Result<T>) -> Result<T> {
    done.map_err(|error| Error::io(format_args!("{what} {name}"), &error))
}
