//! The state of a daemon's objects, one file each, so that it survives a restart, an upgrade and a
//! crash.
//!
//! The directory is beside the socket. The holder of its lock may write there: the daemon while it
//! runs, else a plugin that finds no daemon.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::marker::PhantomData;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Identity;
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::file_lock::{self, Mode, Patience};
use crate::plain_file;
use crate::sys::clock::id_of_boot;

/// The lock file.
const LOCK: &str = "lock";
/// The extension of records.
const RECORD: &str = "json";
/// The extension of unreadable records, kept for inspection.
const TORN: &str = "torn";

/// A record of a journal. The journal itself adds the members `version` and `boot`.
pub trait Record: Serialize + DeserializeOwned {
    /// The version of the record's format; a record of another version is not read.
    const VERSION: u64;
    /// The maximum size of a record in bytes.
    const LIMIT: usize;
    /// Whether it is void after a reboot, because its times are counted from boot.
    const ENDS_WITH_BOOT: bool;

    /// Whether a record is on the disk when its write returns.
    const SURVIVES_POWER_LOSS: bool = false;

    /// The name of its file, without the extension.
    fn name(&self) -> String;

    /// Checks what the types of a record cannot express; the error is the reason in words.
    fn verify(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

/// A record as written to disk.
#[derive(Serialize)]
struct Written<'a, R> {
    #[serde(flatten)]
    record: &'a R,
    version: u64,
    boot: &'a str,
}

/// The members of a record that are read first.
#[derive(Deserialize)]
struct Head {
    version: Option<u64>,
    boot: Option<String>,
}

/// The outcome of reading a file of the journal.
#[derive(Debug)]
pub enum Read<R> {
    /// A valid record.
    Record(Box<R>),
    /// A record of an earlier boot, or a draft: removed.
    Void(PathBuf),
    /// An invalid record: set aside.
    Torn(PathBuf, String),
    /// Unreadable for now, or written by a newer version: left alone.
    Unread(PathBuf, String),
}

impl<R> Read<R> {
    fn record(self) -> Option<R> {
        match self {
            Read::Record(record) => Some(*record),
            Read::Void(_) | Read::Torn(..) | Read::Unread(..) => None,
        }
    }
}

/// Why the content of a file is no record.
enum Unfit {
    /// It is of an earlier boot.
    Void,
    /// It is of this newer version.
    Newer(u64),
    /// It is invalid, for this reason.
    Torn(String),
}

impl From<serde_json::Error> for Unfit {
    fn from(error: serde_json::Error) -> Unfit {
        Unfit::Torn(error.to_string())
    }
}

/// The records, and the lock that permits writing them.
pub struct Journal<R> {
    identity: &'static Identity,
    dir: PathBuf,
    boot: String,
    lock: File,
    door: Option<File>,
    records: PhantomData<R>,
}

impl<R: Record> Journal<R> {
    /// Opens the journal for the daemon: creates the directory if needed, and takes the lock while
    /// it runs. No other process gets in before [`Journal::started`].
    pub fn open(identity: &'static Identity, dir: &Path) -> Result<Journal<R>> {
        // A writer in the directory decides what is done in any namespace.
        let made = plain_file::make_directories(dir, 0o700).and_then(|()| {
            let found = fs::symlink_metadata(dir)?; // rejects a symlink: its target is not ours to clean up
            if !found.is_dir() {
                return Err(io::ErrorKind::NotADirectory.into());
            }
            let is_own = is_of_this_user(&found) && found.mode() & 0o022 == 0;
            if is_own { Ok(()) } else { Err(io::Error::other("others may write there")) }
        });
        made.map_err(Error::at_path("make", dir))?;
        let mut journal = Journal::at(identity, dir, Mode::Exclusive)?;
        let advice = format!(
            "two daemons cannot share a journal: stop that one, or give this one another {}",
            identity.journal_option
        );
        journal.lock_for(Mode::Exclusive, &advice)?;
        let path = journal.path_of_lock();
        // A write to a file with several links would change it under all of its names.
        let links = journal.lock.metadata().and_then(|found| match found.nlink() {
            0 | 1 => Ok(()),
            _ => Err(io::Error::other("the file has another name")),
        });
        links.map_err(Error::at_path("lock", &path))?;
        let own = std::process::id().to_string();
        let written = journal.lock.set_len(0);
        written
            .and_then(|()| journal.lock.write_all(own.as_bytes()))
            .map_err(Error::at_path("write", &path))?;
        Ok(journal)
    }

    /// Reports that the daemon serves requests: from now on a taken lock means that the socket is
    /// listening.
    pub fn started(&mut self) {
        self.door = None;
    }

    /// Opens the journal that a daemon has left, if any, for a plugin that finds no daemon. Several
    /// plugins may share it, and no daemon starts meanwhile.
    pub fn left_behind(identity: &'static Identity, dir: &Path) -> Result<Option<Journal<R>>> {
        if is_empty(dir).map_err(Error::at_path("open", dir))? {
            return Ok(None);
        }
        let journal = Journal::at(identity, dir, Mode::Shared)?;
        journal.lock_for(Mode::Shared, "it does not answer: stop it, or restart it")?;
        Ok(Some(journal))
    }

    /// Waits for the lock on the directory itself, the door, which each process holds for
    /// milliseconds.
    fn at(identity: &'static Identity, dir: &Path, mode: Mode) -> Result<Journal<R>> {
        // Any process that can open the directory can lock it, and an administrator may have created
        // it with the usual mode.
        let closed = fs::symlink_metadata(dir).and_then(|found| {
            let is_own = found.is_dir() && is_of_this_user(&found);
            match is_own && found.mode() & 0o077 != 0 {
                true => fs::set_permissions(dir, fs::Permissions::from_mode(0o700)),
                false => Ok(()),
            }
        });
        closed.map_err(|e| Error::io(format_args!("close {} to others", dir.display()), &e))?;
        let door = File::open(dir).map_err(Error::at_path("open", dir))?;
        let door = file_lock::take(door, dir, mode, Patience::of_operation(Deadline::default()))?;
        let path = dir.join(LOCK);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits());
        let lock = options.open(&path).map_err(Error::at_path("open", &path))?;
        Ok(Journal {
            identity,
            dir: dir.to_owned(),
            boot: id_of_boot()?,
            lock,
            door: Some(door),
            records: PhantomData,
        })
    }

    fn path_of_lock(&self) -> PathBuf {
        self.dir.join(LOCK)
    }

    /// Takes the lock without waiting: a running daemon keeps it.
    fn lock_for(&self, mode: Mode, advice: &str) -> Result<()> {
        let what = format!("lock {}", self.path_of_lock().display());
        if mode.try_take(&self.lock).map_err(|e| Error::io(&what, &e))? {
            return Ok(());
        }
        let mut text = String::new();
        let mut lock = &self.lock;
        let read = lock.rewind().and_then(|()| lock.take(20).read_to_string(&mut text));
        let holder = match read.ok().and_then(|_| text.trim().parse::<u32>().ok()) {
            Some(pid) => format!("the {} with process id {pid}", self.identity.name),
            None => "another process".to_owned(),
        };
        Err(Error::new(Code::CONFLICT, format!("{what}: {holder} has it")).with_details(advice))
    }

    /// Reads all records. An invalid one is removed, or set aside if it may be informative.
    pub fn read_all(&self) -> Result<Vec<Read<R>>> {
        let mut all = vec![];
        for entry in fs::read_dir(&self.dir).map_err(Error::at_path("open", &self.dir))? {
            let entry = entry.map_err(Error::at_path("list", &self.dir))?;
            let path = entry.path();
            match path.extension().and_then(OsStr::to_str) {
                Some(RECORD) => all.push(self.read_file(path)),
                Some(plain_file::DRAFT) => {
                    let _ = plain_file::remove(&path); // it is written again, or not needed
                }
                _ => (),
            }
        }
        Ok(all)
    }

    fn read_file(&self, path: PathBuf) -> Read<R> {
        match plain_file::read(&path, R::LIMIT) {
            Err(e) if may_be_read_later(&e) => Read::Unread(path, e.to_string()),
            text => self.judge(path, text),
        }
    }

    /// Classifies the content of a file, or the error of one that is not ours.
    fn judge(&self, path: PathBuf, text: io::Result<Vec<u8>>) -> Read<R> {
        let text = text.map_err(|e| Unfit::Torn(Error::io("read it", &e).to_string()));
        match text.and_then(|text| self.parse(&path, &text)) {
            Ok(record) => Read::Record(Box::new(record)),
            Err(Unfit::Void) => {
                let _ = plain_file::remove(&path); // it is void the next time too
                Read::Void(path)
            }
            Err(Unfit::Newer(version)) => Read::Unread(path, format!("it is of version {version}")),
            Err(Unfit::Torn(why)) => {
                let _ = fs::rename(&path, path.with_extension(TORN)); // else found again next time
                Read::Torn(path, why)
            }
        }
    }

    fn parse(&self, path: &Path, text: &[u8]) -> Result<R, Unfit> {
        self.require_current(&serde_json::from_slice(text)?)?;
        let record: R = serde_json::from_slice(text)?;
        if path != self.path(&record.name()) {
            return Err(Unfit::Torn("it has the name of another record".to_owned()));
        }
        record.verify().map_err(|why| Unfit::Torn(why.to_owned()))?;
        Ok(record)
    }

    /// Checks that a record is of this boot, if it ends with it, and of our version.
    fn require_current(&self, head: &Head) -> Result<(), Unfit> {
        if R::ENDS_WITH_BOOT && head.version.is_some() && head.boot.as_ref() != Some(&self.boot) {
            return Err(Unfit::Void);
        }
        match head.version {
            Some(version) if version == R::VERSION => Ok(()),
            Some(newer) if newer > R::VERSION => Err(Unfit::Newer(newer)),
            _ => Err(Unfit::Torn(format!("it is not of version {}", R::VERSION))),
        }
    }

    /// The record of this name. It is an error if one exists that cannot be read now.
    pub fn find(&self, name: &str) -> Result<Option<R>> {
        let path = self.path(name);
        match plain_file::read(&path, R::LIMIT) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) if may_be_read_later(&e) => Err(Error::at_path("read", &path)(e)),
            text => Ok(self.judge(path, text).record()),
        }
    }

    /// Writes a record, replacing the one under its name.
    pub fn write(&self, record: &R) -> Result<()> {
        let path = self.path(&record.name());
        let written = Written { record, version: R::VERSION, boot: &self.boot };
        let text = serde_json::to_vec(&written)
            .map_err(|e| Error::new(Code::BUG, format!("write {}: {e}", path.display())))?;
        let put = if R::SURVIVES_POWER_LOSS { plain_file::put_durably } else { plain_file::put };
        put(&path, &text).map_err(Error::at_path("write", &path))
    }

    /// Removes the record of this name.
    pub fn remove(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        let removed =
            plain_file::take(&path).and_then(|()| plain_file::remove(&path.with_extension(TORN)));
        removed.map_err(Error::at_path("remove", &path))
    }

    /// Removes the file set aside under this name.
    pub fn forget_torn(&self, name: &str) {
        let _ = plain_file::remove(&self.path(name).with_extension(TORN)); // it does no harm
    }

    /// Removes the files set aside under the names for which `is_stale` is true.
    pub fn forget_all_torn(&self, is_stale: impl Fn(&str) -> bool) {
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_torn = path.extension() == Some(OsStr::new(TORN));
            if is_torn && path.file_stem().and_then(OsStr::to_str).is_some_and(&is_stale) {
                let _ = plain_file::remove(&path); // a leftover does no harm
            }
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.{RECORD}"))
    }
}

/// Whether there is no journal, or nothing in it. After a power loss there may be records without
/// the lock file. A daemon's journal is never behind a symlink.
fn is_empty(dir: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(dir) {
        Err(e) if plain_file::is_nowhere(&e) => Ok(true),
        Ok(found) if !found.is_dir() => Ok(true),
        _ => Ok(fs::read_dir(dir)?.next().is_none()),
    }
}

fn is_of_this_user(found: &fs::Metadata) -> bool {
    found.uid() == nix::unistd::geteuid().as_raw()
}

/// Whether a later read may succeed, because the error came from the system; a symlink is never
/// ours.
fn may_be_read_later(e: &io::Error) -> bool {
    e.raw_os_error().is_some_and(|code| code != Errno::ELOOP as i32)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::EXAMPLE;
    use super::*;
    use crate::scratch::Scratch;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Note {
        id: String,
        text: Option<String>,
    }

    impl Record for Note {
        const VERSION: u64 = 1;
        const LIMIT: usize = 4096;
        const ENDS_WITH_BOOT: bool = true;

        fn name(&self) -> String {
            self.id.clone()
        }
    }

    fn record(id: &str) -> Note {
        Note { id: id.to_owned(), text: Some("kept".to_owned()) }
    }

    fn open(dir: &Path) -> Result<Journal<Note>> {
        Journal::open(&EXAMPLE, dir)
    }

    fn left_behind(dir: &Path) -> Result<Option<Journal<Note>>> {
        Journal::left_behind(&EXAMPLE, dir)
    }

    fn records<R: Record>(journal: &Journal<R>) -> Vec<R> {
        let all = journal.read_all().unwrap().into_iter();
        all.filter_map(|read| if let Read::Record(record) = read { Some(*record) } else { None })
            .collect()
    }

    #[test]
    fn records_come_back_as_they_were_until_they_are_removed() {
        let scratch = Scratch::new();
        let dir = scratch.path().join("run/dhcp.leases");
        let journal = open(&dir).unwrap();
        let one = record("one");
        journal.write(&Note { text: None, ..one.clone() }).unwrap();
        journal.write(&one).unwrap();
        assert_eq!(
            (journal.find("one").unwrap(), records(&journal)),
            (Some(one.clone()), vec![one.clone()])
        );
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(
            (mode(&dir), mode(&journal.path("one")), mode(&dir.join("lock"))),
            (0o700, 0o600, 0o600)
        );
        journal.remove("one").unwrap();
        journal.remove("one").unwrap();
        assert_eq!((journal.find("one").unwrap(), records(&journal)), (None, vec![]));
    }

    #[test]
    fn a_directory_that_others_could_lock_is_closed_to_them() {
        let scratch = Scratch::new();
        let mode = || fs::metadata(scratch.path()).unwrap().permissions().mode() & 0o777;
        for open in [|dir: &Path| open(dir).map(drop), |dir: &Path| left_behind(dir).map(drop)] {
            fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
            open(scratch.path()).unwrap();
            assert_eq!(mode(), 0o700);
        }
    }

    #[test]
    fn what_is_no_record_stops_nothing() {
        let scratch = Scratch::new();
        let mut journal = open(scratch.path()).unwrap();
        let path = |name: &str| scratch.path().join(name);
        let good = record("good");
        journal.write(&good).unwrap();
        journal.write(&record("other")).unwrap();
        fs::rename(journal.path("other"), path("renamed.json")).unwrap();
        for (name, text) in
            [("a.json", ""), ("b.json", "{\"version\":1,"), ("c.json", "{}"), ("d.draft", "x")]
        {
            fs::write(path(name), text).unwrap();
        }
        fs::create_dir(path("e.json")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", path("f.json")).unwrap();
        nix::unistd::mkfifo(&path("g.json"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let torn = journal
            .read_all()
            .unwrap()
            .iter()
            .filter(|read| matches!(read, Read::Torn(..)))
            .count();
        assert_eq!(torn, 7);
        journal.remove("good").unwrap();
        fs::write(journal.path("good").with_extension(TORN), "x").unwrap();
        journal.remove("good").unwrap();
        assert!(!journal.path("good").with_extension(TORN).exists(), "DEL is the end of it");
        fs::write(journal.path("good"), format!(r#"{{"version":2,"boot":"{}"}}"#, journal.boot))
            .unwrap();
        assert!(
            matches!(journal.read_all().unwrap()[..], [Read::Unread(..)]),
            "it is still there for who made it"
        );
        journal.write(&good).unwrap();
        assert!(path("b.torn").exists() && !path("b.json").exists() && !path("d.draft").exists());
        assert_eq!(records(&journal), [good]);
        journal.boot = "another".to_owned();
        assert!(matches!(journal.read_all().unwrap()[..], [Read::Void(_)]));
        assert_eq!(journal.read_all().unwrap().len(), 0);
    }

    #[test]
    fn what_is_not_its_own_directory_is_refused() {
        let scratch = Scratch::new();
        let refused = |dir: &Path, why: &str| {
            let error = open(dir).map(drop).unwrap_err();
            assert!(error.msg.ends_with(why), "{error}");
        };
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o777)).unwrap();
        refused(scratch.path(), "others may write there");
        let file = scratch.path().join("file");
        let link = scratch.path().join("link");
        fs::write(&file, "").unwrap();
        refused(&file, "not a directory");
        std::os::unix::fs::symlink(scratch.path(), &link).unwrap();
        refused(&link, "not a directory");
    }

    #[test]
    fn the_second_daemon_learns_who_the_first_is() {
        let scratch = Scratch::new();
        assert!(left_behind(scratch.path()).unwrap().is_none());
        let mut first = open(scratch.path()).unwrap();
        first.started();
        let own = format!("the example daemon with process id {} has it", std::process::id());
        for second in [open(scratch.path()).map(drop), left_behind(scratch.path()).map(drop)] {
            let error = second.unwrap_err();
            assert!(error.code == Code::CONFLICT && error.msg.ends_with(&own), "{error}");
        }
        drop(first);
        let _one = left_behind(scratch.path()).unwrap();
        let _other = left_behind(scratch.path()).unwrap();
    }

    #[test]
    fn a_daemon_waits_for_a_del_that_is_on_its_way() {
        let scratch = Scratch::new();
        drop(open(scratch.path()).unwrap());
        let del = left_behind(scratch.path()).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| sender.send(open(scratch.path())).unwrap());
            assert!(receiver.recv_timeout(std::time::Duration::from_millis(50)).is_err());
            drop(del);
            receiver.recv_timeout(std::time::Duration::from_secs(5)).unwrap().unwrap();
        });
    }

    /// Otherwise a plugin would find the lock taken, and no daemon to ask.
    #[test]
    fn a_del_waits_for_a_daemon_that_starts() {
        let scratch = Scratch::new();
        let mut daemon = open(scratch.path()).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| sender.send(left_behind(scratch.path()).map(drop)).unwrap());
            assert!(receiver.recv_timeout(std::time::Duration::from_millis(50)).is_err());
            daemon.started();
            let error =
                receiver.recv_timeout(std::time::Duration::from_secs(5)).unwrap().unwrap_err();
            assert_eq!(error.code, Code::CONFLICT);
        });
    }

    /// Records that outlive a boot are read after it; torn and newer ones are treated as usual.
    #[test]
    fn a_record_that_outlives_the_boot_is_read_after_it() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Lasting {
            blocks: u64,
        }
        impl Record for Lasting {
            const VERSION: u64 = 1;
            const LIMIT: usize = 4096;
            const ENDS_WITH_BOOT: bool = false;
            fn name(&self) -> String {
                "lasting".to_owned()
            }
        }
        let scratch = Scratch::new();
        let mut journal: Journal<Lasting> = Journal::open(&EXAMPLE, scratch.path()).unwrap();
        journal.boot = "an earlier one".to_owned();
        journal.write(&Lasting { blocks: 3 }).unwrap();
        journal.boot = id_of_boot().unwrap();
        assert_eq!(records(&journal), [Lasting { blocks: 3 }]);
    }
}
