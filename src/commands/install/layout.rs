//! The files of an installation: what is at their names now, their lock, and their changes, after each of
//! which every plugin has a file. Every name is relative to the plugin directory, which is the working
//! directory.

use std::fs::{self, File, Permissions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::file_lock::{self, Mode, Patience};
use crate::plain_file;

/// The binary's name, and the target of the links to it.
pub const BINARY: &str = "cni-multi";
/// The directory for files that runtimes must not see.
pub const STATE: &str = ".cni-multi";
/// Its content: the previously installed binary, the mark of a rollback, and the replaced foreign
/// files by name.
pub const PREVIOUS: &str = ".cni-multi/previous";
pub const ROLLED_BACK: &str = ".cni-multi/rolled-back";
pub const REPLACED: &str = ".cni-multi/replaced";
/// The links to the binary outside the directory, a path a line, and the draft of that list.
pub const ON_PATH: &str = ".cni-multi/on-path";
pub const ON_PATH_DRAFT: &str = ".cni-multi/new.on-path";
/// The names that `--only` has chosen, one a line, and the draft of that list.
pub const ONLY: &str = ".cni-multi/only";
pub const ONLY_DRAFT: &str = ".cni-multi/new.only";
/// The aliases, `NAME=PLUGIN` a line, and the draft of that list.
pub const ALIASES: &str = ".cni-multi/aliases";
pub const ALIASES_DRAFT: &str = ".cni-multi/new.aliases";
/// The lock: accessible to its owner only, and removed afterwards.
pub const LOCK: &str = ".cni-multi/lock";
/// Drafts: files that are renamed from here once complete.
pub const NEW: &str = ".cni-multi/new.0";
pub const LINK: &str = ".cni-multi/link.0";
pub const KEEP: &str = ".cni-multi/keep.0";

/// The longest list of names or links.
const LONGEST_LIST: usize = 64 * 1024;
/// How much of a file is compared at a time.
const PIECE: usize = 64 * 1024;

/// Whether anything of an installation exists, complete or interrupted.
pub fn is_installed() -> bool {
    exists(BINARY) || names_in(STATE).iter().any(|name| name != "lock")
}

/// Whether a file of that name exists, including a dangling link.
pub fn exists(name: &str) -> bool {
    Path::new(name).symlink_metadata().is_ok()
}

/// The target of the link with this name; empty if there is none.
pub fn target(name: &str) -> String {
    fs::read_link(name)
        .ok()
        .and_then(|to| to.into_os_string().into_string().ok())
        .unwrap_or_default()
}

/// Whether the name is a link to the binary in this directory, `dir`.
pub fn is_our_link(name: &str, dir: &str) -> bool {
    let to = target(name);
    to.strip_prefix("./").unwrap_or(&to) == BINARY || to == [dir, "/", BINARY].concat()
}

/// Refuses a link in the place of the directories of the state: files would be moved to where it
/// leads, and what is there would become plugins.
pub fn require_own_state() -> Result<()> {
    for name in [STATE, REPLACED] {
        match fs::symlink_metadata(name) {
            Ok(there) if there.is_dir() => (),
            Err(e) if e.kind() == io::ErrorKind::NotFound => (),
            Ok(_) => {
                let problem = format!("{name} is not a directory; nothing was changed");
                return Err(Error::new(Code::CONFLICT, problem).with_details(
                    "cni-multi install makes it: look at what it is, and remove it",
                ));
            }
            Err(e) => return attempt("read", name, Err(e)),
        }
    }
    Ok(())
}

/// Where the replaced file of this name is kept.
pub fn kept(name: &str) -> String {
    [REPLACED, "/", name].concat()
}

/// Whether any replaced file is kept.
pub fn is_anything_kept() -> bool {
    !names_in(REPLACED).is_empty()
}

/// Whether both names lead to the same content.
pub fn is_same(name: &str, other: &str) -> bool {
    content(name).is_ok_and(|there| is_content(other, &there))
}

/// Whether the name leads to this content. Reads the file in pieces: two whole programs would
/// be most of the memory of `install --watch`.
pub fn is_content(name: &str, content: &[u8]) -> bool {
    let Ok(mut file) = program(name) else { return false };
    let (mut piece, mut rest) = (vec![0; PIECE], content);
    loop {
        let Ok(count) = file.read(&mut piece) else { return false };
        if count == 0 {
            return rest.is_empty();
        }
        let Some(after) = rest.strip_prefix(&piece[..count]) else { return false };
        rest = after;
    }
}

/// The content of a program that a link may lead to.
pub fn content(name: &str) -> io::Result<Vec<u8>> {
    let mut content = vec![];
    program(name)?.read_to_end(&mut content)?;
    Ok(content)
}

/// Opens a program that a link may lead to. A FIFO is rejected, because opening it would block.
fn program(name: &str) -> io::Result<File> {
    if fs::metadata(name)?.is_file() {
        File::open(name)
    } else {
        Err(io::Error::other("not a regular file"))
    }
}

/// The lines of a list of the state; None if it does not exist.
pub fn lines_of(name: &str) -> Result<Option<Vec<String>>> {
    match plain_file::read(Path::new(name), LONGEST_LIST) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        text => {
            let text = attempt("read", name, text)?;
            Ok(Some(String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()))
        }
    }
}

/// The names in a directory, sorted; none if it does not exist.
pub fn names_in(dir: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return vec![] };
    // A name that is not UTF-8 is not ours.
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names
}

/// Removes drafts, including those left by killed runs, which is safe under the lock. The lock file
/// goes last.
pub fn clean_up() {
    for name in [NEW, LINK, KEEP, ON_PATH_DRAFT, ONLY_DRAFT, ALIASES_DRAFT, LOCK] {
        let _ = fs::remove_file(name); // the next run removes it
    }
    for emptied in [REPLACED, STATE] {
        let _ = fs::remove_dir(emptied); // removed only if empty
    }
}

/// Writes a draft and syncs it before it gets its name: after a power loss there must be no empty
/// file there.
pub fn write_draft(name: &str, content: &[u8], mode: u32) -> io::Result<()> {
    plain_file::create_anew(Path::new(name), content)?;
    fs::set_permissions(name, Permissions::from_mode(mode))?;
    File::open(name)?.sync_all()
}

/// rename(2) keeps both names if they are the same file, as after a killed run; this removes the
/// first one in any case.
pub fn rename(from: &str, to: &str) -> Result<()> {
    attempt("replace", to, fs::rename(from, to))?;
    remove(from)
}

/// Removes a file; a missing file is not an error.
pub fn remove(name: &str) -> Result<()> {
    attempt("remove", name, plain_file::remove(Path::new(name)))
}

/// The result, with the attempted action and its file added to the error.
pub fn attempt<T>(what: &str, name: &str, done: io::Result<T>) -> Result<T> {
    done.map_err(|error| Error::io(format_args!("{what} {name}"), &error))
}

/// The directory as sentences name it, and as an absolute link to the binary in it begins.
pub fn absolute(typed: &str) -> String {
    let path = std::path::absolute(typed).unwrap_or_default();
    let without_last_slash: PathBuf = path.components().collect();
    without_last_slash.to_string_lossy().into_owned()
}

/// Gives a file a second name; it has a name at every moment.
pub fn keep(name: &str, kept: &str) -> Result<()> {
    remove(KEEP)?;
    attempt("keep", name, fs::hard_link(name, KEEP).or_else(|_| copy(name, KEEP)))?;
    rename(KEEP, kept)
}

/// Copies a file if hard links are unsupported, or not permitted: a root without all capabilities
/// may be unable to link another user's symlink. A program is copied without set-user-ID, which
/// would change its owner.
fn copy(name: &str, to: &str) -> io::Result<()> {
    if let Ok(leads_to) = fs::read_link(name) {
        return symlink(leads_to, to);
    }
    let mode = fs::metadata(name)?.permissions().mode();
    write_draft(to, &content(name)?, mode & 0o777)
}

/// Writes a list, one word a line.
pub fn record(list: &str, draft: &str, words: &[String]) -> Result<()> {
    let text = words.join("\n") + "\n";
    attempt("write", list, write_draft(draft, text.as_bytes(), 0o644))?;
    rename(draft, list)
}

/// Replaces the name by a link.
pub fn link(name: &str, to: &str) -> Result<()> {
    remove(LINK)?;
    attempt("link", name, symlink(to, LINK))?;
    rename(LINK, name)
}

/// The names that the binary lists; errors call it `what`. A name that could leave the directory or
/// hide in it is rejected.
pub fn list_names(binary: &str, what: &str) -> Result<Vec<String>> {
    let does_not_run = format!("{what} does not run here");
    let mut list = Command::new(["./", binary].concat());
    list.arg0(BINARY).arg("list").stderr(Stdio::inherit());
    let listed = list.stdin(Stdio::inherit()).output(); // /dev/null may be missing
    let listed = listed.map_err(|error| Error::io(&does_not_run, &error))?;
    if !listed.status.success() {
        let details = format!("`cni-multi list` failed: {}", listed.status);
        return Err(Error::new(Code::IO, does_not_run).with_details(details));
    }
    let printed = String::from_utf8_lossy(&listed.stdout);
    let names: Vec<String> = printed.lines().map(str::to_owned).collect();
    let unexpected = match names.iter().find(|name| !is_plugin_name(name)) {
        Some(name) => format!("{name:?}"),
        None if names.is_empty() => "nothing".to_owned(),
        None => return Ok(names),
    };
    let problem = format!("{what} is not cni-multi: `cni-multi list` printed {unexpected}");
    Err(Error::new(Code::IO, problem))
}

/// Whether the name could be a plugin's: it neither leaves the directory nor hides in it.
pub fn is_plugin_name(name: &str) -> bool {
    let is_letter = |letter| matches!(letter, b'a'..=b'z' | b'0'..=b'9' | b'-');
    let is_word = !name.is_empty() && !name.starts_with('-');
    is_word && name != BINARY && name.bytes().all(is_letter)
}

/// How long to wait for another installer.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often to retry the lock after its file was unlinked, each time by another installer that has
/// finished.
const TRIES: usize = 100;

/// Waits until no other installer works in the directory; calls `announce` once if it has to wait.
pub fn take_lock(dir: &str, announce: &mut dyn FnMut()) -> Result<File> {
    let path = [dir, "/", LOCK].concat();
    let mut is_announced = false;
    for _ in 0..TRIES {
        let Some(file) = open_lock(&path)? else { continue };
        let is_held = Mode::Exclusive.try_take(&file).is_ok_and(|is_free| !is_free);
        if !is_announced && is_held {
            announce();
            is_announced = true;
        }
        let patience = Patience { of_one: PATIENCE, deadline: Deadline::after(PATIENCE * 3) };
        let file = file_lock::take(file, Path::new(&path), Mode::Exclusive, patience)?;
        if is_lock(&file) {
            return Ok(file);
        }
    }
    Err(Error::new(Code::TRY_AGAIN, ["lock ", &path, ": it was removed each time"].concat()))
}

/// The lock, unless another installer works in the directory.
pub fn take_lock_if_free(dir: &str) -> Result<Option<File>> {
    let path = [dir, "/", LOCK].concat();
    let Some(file) = open_lock(&path)? else { return Ok(None) };
    let is_free = attempt("lock", &path, Mode::Exclusive.try_take(&file))?;
    Ok(Some(file).filter(|file| is_free && is_lock(file)))
}

/// The lock file; None if another installer has just removed its directory.
fn open_lock(path: &str) -> Result<Option<File>> {
    require_own_state()?;
    let made = plain_file::make_directories(Path::new(STATE), 0o700);
    let opened = match made.map(|()| plain_file::open_or_create(Path::new(LOCK))) {
        Ok(Err(e)) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Ok(file) => attempt("open", path, file),
        Err(error) => attempt("make", STATE, Err(error)),
    };
    opened.map(Some).map_err(|error| error.context("cannot be written"))
}

/// Whether the lock's name still refers to this open file.
fn is_lock(file: &File) -> bool {
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), fs::symlink_metadata(LOCK)) {
        (Ok(open), Ok(named)) => identity(open) == identity(named),
        _ => false,
    }
}
