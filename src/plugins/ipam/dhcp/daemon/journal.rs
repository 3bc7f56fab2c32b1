//! What the daemon knows of each lease, in a file: so that it goes on after a restart, an upgrade
//! and a crash.
//!
//! The directory lies beside the socket. Whoever has its lock may write there: the daemon for as
//! long as it runs, else a DEL or GC that finds no daemon. After a restart of the machine the files
//! mean nothing: no container is left, and their times are counted from that start.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::interface::Place;
use crate::cni::attachment::{Key, NetworkName, hex};
use crate::cni::json::Value;
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::file_lock::{self, Mode, Patience};
use crate::plain_file;
use crate::plugins::ipam::dhcp::family::{Family, Intent, Lease};
use crate::plugins::ipam::dhcp::wire::{self, Terms};

/// Of a record's shape; one that has another is not read.
const VERSION: u64 = 1;
/// The file that is locked.
const LOCK: &str = "lock";
/// No record is longer: a CNI configuration may provide 250 options of 255 octets.
const LIMIT: usize = 1 << 18;
/// The names of records end so.
const RECORD: &str = "json";
/// What cannot be read is called so, for people to look at.
const TORN: &str = "torn";

/// All that is known of a lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Whose it is.
    pub key: Key,
    /// Where the interface is.
    pub place: Place,
    /// What the configuration says.
    pub terms: Terms,
    /// The lease, once there is one.
    pub lease: Option<Lease>,
    /// The address has left the interface.
    pub lost: bool,
    /// What was asked for, while nothing is known of the answer.
    pub intent: Option<Intent>,
}

impl Record {
    /// Of its lease.
    pub fn family(&self) -> Family {
        self.terms.family()
    }

    /// As it is written down, in this boot.
    pub fn to_value(&self, boot: &str) -> Value {
        let mut members = wire::key_members(&self.key);
        members.extend(self.place.members());
        members.extend(self.terms.members());
        members.extend([
            ("version", Value::number(VERSION)),
            ("boot", Value::text(boot)),
            ("lost", Value::Bool(self.lost)),
        ]);
        members.extend(self.lease.as_ref().map(|lease| ("lease", lease.to_value())));
        members.extend(self.intent.as_ref().map(|intent| ("intent", intent.to_value())));
        Value::object(members)
    }

    /// From what is written down.
    pub fn of_value(value: &Value) -> Result<Record> {
        let key = wire::key_of(value)?;
        let (place, terms) = (Place::of_value(value)?, Terms::of_value(value)?);
        let family = terms.family();
        let lease = value.get("lease").map(|lease| Lease::of_value(lease, family)).transpose()?;
        let intent =
            value.get("intent").map(|intent| Intent::of_value(intent, family)).transpose()?;
        Ok(Record {
            key,
            place,
            terms,
            lease,
            lost: value.get("lost") == Some(&Value::Bool(true)),
            intent,
        })
    }
}

/// What a file of the journal turns out to be.
#[derive(Debug)]
pub enum Read {
    /// A record of this boot.
    Record(Box<Record>),
    /// Of an earlier boot, or a draft: removed.
    Void(PathBuf),
    /// None that we understand: set aside.
    Torn(PathBuf, String),
    /// It cannot be read now, or is for one that comes after us: left alone.
    Unread(PathBuf, String),
}

/// The records, and the lock that lets write them.
pub struct Journal {
    dir: PathBuf,
    boot: String,
    lock: File,
    door: Option<File>,
}

impl Journal {
    /// Where the journal of the daemon is that listens here.
    pub fn beside(socket: &Path) -> PathBuf {
        match socket.extension() {
            Some(extension) if extension == "sock" => socket.with_extension("leases"),
            _ => {
                let mut path = socket.as_os_str().to_owned();
                path.push(".leases");
                PathBuf::from(path)
            }
        }
    }

    /// For the daemon: makes the directory if there is none, and takes the lock for as long as it
    /// runs. Nobody else gets here before [`Journal::started`].
    pub fn open(dir: &Path) -> Result<Journal> {
        let made = plain_file::make_directories(dir, 0o700);
        made.and_then(|()| require_own(dir))
            .map_err(|e| Error::io(format_args!("make {}", dir.display()), &e))?;
        let mut journal = Journal::at(dir, Mode::Exclusive)?;
        let advice = "two daemons cannot have the same leases: stop that one, or give this one another -socketpath";
        journal.lock_for(Mode::Exclusive, advice)?;
        require_unlinked(&journal.lock).map_err(|e| {
            Error::io(format_args!("lock {}", journal.path_of_lock().display()), &e)
        })?;
        let own = std::process::id().to_string();
        let written = journal.lock.set_len(0).and_then(|()| journal.lock.write_all(own.as_bytes()));
        written.map_err(|e| {
            Error::io(format_args!("write {}", journal.path_of_lock().display()), &e)
        })?;
        Ok(journal)
    }

    /// The daemon can be asked from now on: who finds the lock taken will find somebody who
    /// listens.
    pub fn started(&mut self) {
        self.door = None;
    }

    /// For who finds no daemon: the journal that one has left, if any. Several may have it so at
    /// the same time, and none starts meanwhile.
    pub fn left_behind(dir: &Path) -> Result<Option<Journal>> {
        // A power loss may have left records without the lock. No daemon has its journal behind a
        // link.
        let failed = |e: io::Error| Error::io(format_args!("open {}", dir.display()), &e);
        let is_empty = match fs::symlink_metadata(dir) {
            Err(e)
                if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
            {
                true
            }
            Ok(found) if !found.is_dir() => true,
            _ => fs::read_dir(dir).map_err(failed)?.next().is_none(),
        };
        if is_empty {
            return Ok(None);
        }
        let journal = Journal::at(dir, Mode::Shared)?;
        journal.lock_for(Mode::Shared, "it cannot be asked: stop it, or start it anew")?;
        Ok(Some(journal))
    }

    /// Waits for the door, which is the directory itself: each process has it for milliseconds.
    fn at(dir: &Path, mode: Mode) -> Result<Journal> {
        close_to_others(dir)
            .map_err(|e| Error::io(format_args!("close {} to others", dir.display()), &e))?;
        let door =
            File::open(dir).map_err(|e| Error::io(format_args!("open {}", dir.display()), &e))?;
        let door = file_lock::take(door, dir, mode, Patience::of_operation(Deadline::default()))?;
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let lock = options
            .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
            .open(dir.join(LOCK));
        let lock =
            lock.map_err(|e| Error::io(format_args!("open {}", dir.join(LOCK).display()), &e))?;
        Ok(Journal { dir: dir.to_owned(), boot: boot_id()?, lock, door: Some(door) })
    }

    fn path_of_lock(&self) -> PathBuf {
        self.dir.join(LOCK)
    }

    /// Nobody waits for a daemon to end.
    fn lock_for(&self, mode: Mode, advice: &str) -> Result<()> {
        let what = format!("lock {}", self.path_of_lock().display());
        match mode.try_take(&self.lock).map_err(|e| Error::io(&what, &e))? {
            true => Ok(()),
            false => Err(self.held(&what).with_details(advice)),
        }
    }

    /// The lock was not to be had.
    fn held(&self, what: &str) -> Error {
        let mut holder = String::new();
        let mut lock = &self.lock;
        let read = lock.rewind().and_then(|()| lock.take(20).read_to_string(&mut holder));
        let holder = read.ok().and_then(|_| holder.trim().parse::<u32>().ok());
        let holder = holder.map_or("another process".to_owned(), |pid| {
            format!("the DHCP daemon with process id {pid}")
        });
        Error::new(Code::CONFLICT, format!("{what}: {holder} has it"))
    }

    /// All records. What is none is removed, or set aside where it may tell people something.
    pub fn read_all(&self) -> Result<Vec<Read>> {
        let entries = fs::read_dir(&self.dir)
            .map_err(|e| Error::io(format_args!("open {}", self.dir.display()), &e))?;
        let mut all = vec![];
        for entry in entries {
            let path = entry
                .map_err(|e| Error::io(format_args!("list {}", self.dir.display()), &e))?
                .path();
            let extension =
                path.extension().map(|extension| extension.to_string_lossy().into_owned());
            match extension.as_deref() {
                Some(RECORD) => all.push(self.read_file(path)),
                Some(plain_file::DRAFT) => {
                    let _ = plain_file::remove(&path); // it is written anew, or nobody needs it
                }
                _ => (),
            }
        }
        Ok(all)
    }

    fn read_file(&self, path: PathBuf) -> Read {
        match plain_file::read(&path, LIMIT) {
            Err(e) if may_be_read_later(&e) => Read::Unread(path, e.to_string()),
            text => self.judge(path, text),
        }
    }

    /// What a file says that has been read, or is none of ours.
    fn judge(&self, path: PathBuf, text: io::Result<Vec<u8>>) -> Read {
        let value = text.map_err(|e| Error::io("read it", &e)).and_then(|text| Value::parse(&text));
        let torn = |path: PathBuf, why: String| {
            let _ = fs::rename(&path, path.with_extension(TORN)); // else it is there the next time
            Read::Torn(path, why)
        };
        let value = match value {
            Ok(value) => value,
            Err(error) => return torn(path, error.to_string()),
        };
        let version = value.get("version").and_then(Value::as_u64);
        if version.is_some() && value.get("boot").and_then(Value::as_str) != Some(&self.boot) {
            let _ = plain_file::remove(&path); // it means nothing the next time either
            return Read::Void(path);
        }
        match version {
            Some(VERSION) => (),
            Some(newer) if newer > VERSION => {
                return Read::Unread(path, format!("it is of version {newer}"));
            }
            _ => return torn(path, format!("it is not of version {VERSION}")),
        }
        match Record::of_value(&value) {
            Ok(record) if path == self.path(&record.key, record.family()) => {
                Read::Record(Box::new(record))
            }
            Ok(_) => torn(path, "it has the name of another attachment".to_owned()),
            Err(error) => torn(path, error.to_string()),
        }
    }

    /// The record of an attachment's lease. An error where there may be one that cannot be read
    /// now.
    pub fn find(&self, key: &Key, family: Family) -> Result<Option<Record>> {
        let path = self.path(key, family);
        let text = match plain_file::read(&path, LIMIT) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) if may_be_read_later(&e) => {
                return Err(Error::io(format_args!("read {}", path.display()), &e));
            }
            text => text,
        };
        match self.judge(path, text) {
            Read::Record(record) => Ok(Some(*record)),
            _ => Ok(None),
        }
    }

    /// Keeps a record, in place of what was kept of the lease.
    pub fn write(&self, record: &Record) -> Result<()> {
        let path = self.path(&record.key, record.family());
        let text = record.to_value(&self.boot).to_text();
        plain_file::put(&path, text.as_bytes())
            .map_err(|e| Error::io(format_args!("write {}", path.display()), &e))
    }

    /// Keeps nothing of an attachment's lease.
    pub fn remove(&self, key: &Key, family: Family) -> Result<()> {
        let path = self.path(key, family);
        let removed =
            plain_file::take(&path).and_then(|()| plain_file::remove(&path.with_extension(TORN)));
        removed.map_err(|e| Error::io(format_args!("remove {}", path.display()), &e))
    }

    /// Removes what was set aside of an attachment's leases: it has ended, and nobody will ask what
    /// it was.
    pub fn forget_torn(&self, key: &Key) {
        for family in Family::ALL {
            let _ = plain_file::remove(&self.path(key, family).with_extension(TORN)); // it is in nobody's way
        }
    }

    /// Removes what was set aside of a network's leases, but for those of valid attachments. Whose
    /// they are their names tell.
    pub fn forget_all_torn<'v>(
        &self,
        network: &NetworkName,
        valid: impl Iterator<Item = (&'v str, &'v str)>,
    ) {
        let key = |(id, ifname)| Key::parse(network.as_str(), id, ifname).ok();
        let paths =
            |key: Key| Family::ALL.map(|family| self.path(&key, family).with_extension(TORN));
        let valid: HashSet<PathBuf> = valid.filter_map(key).flat_map(paths).collect();
        let of_network = format!("{}-", hex(&Key::network_hash(network)));
        let is_stale = |path: &PathBuf| {
            path.extension() == Some(OsStr::new(TORN))
                && path
                    .file_name()
                    .is_some_and(|name| name.to_string_lossy().starts_with(&of_network))
                && !valid.contains(path)
        };
        let entries = fs::read_dir(&self.dir).into_iter().flatten();
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_stale) {
            let _ = plain_file::remove(&path); // it is in nobody's way
        }
    }

    fn path(&self, key: &Key, family: Family) -> PathBuf {
        let family = if family == Family::V6 { "-6" } else { "" };
        self.dir.join(format!("{}{family}.{RECORD}", key.identity()))
    }
}

/// Who may write there decides what is done in any namespace.
fn require_own(dir: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(dir)?; // a link is none: what lies behind it is not for us to tidy up
    if !found.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    let is_own = found.uid() == nix::unistd::geteuid().as_raw() && found.mode() & 0o022 == 0;
    if is_own { Ok(()) } else { Err(io::Error::other("others may write there")) }
}

/// Any process that can open the directory can lock it. An administrator may have made it with the
/// usual mode.
fn close_to_others(dir: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(dir)?;
    let is_own = found.is_dir() && found.uid() == nix::unistd::geteuid().as_raw();
    if is_own && found.mode() & 0o077 != 0 {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))
    } else {
        Ok(())
    }
}

/// What is written there is written under every name that the file has.
fn require_unlinked(lock: &File) -> io::Result<()> {
    match lock.metadata()?.nlink() {
        0 | 1 => Ok(()),
        _ => Err(io::Error::other("the file has another name")),
    }
}

/// What tells this start of the machine from others (proc_sys_kernel(5)).
fn boot_id() -> Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    let id = fs::read_to_string(path).map_err(|e| Error::io(format_args!("read {path}"), &e))?;
    Ok(id.trim().to_owned())
}

/// Whether the error is of the system, which may let us read the file the next time; but a link is
/// never ours.
fn may_be_read_later(e: &io::Error) -> bool {
    e.raw_os_error().is_some_and(|code| code != Errno::ELOOP as i32)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::plugins::ipam::dhcp::v6::client::Mode;
    use crate::scratch::Scratch;

    fn record(id: &str) -> Record {
        let place = r#"{"netns":"/run/netns/x","device":4,"inode":4026532000,"cookie":77,"ifname":"eth0","ifindex":2,
            "mac":"0a5800010203","mtu":1500,"broadcast":false,"probe":true}"#;
        let lease = r#"{"address":"10.0.0.5/24","server":"10.0.0.1","xid":7,"options":"ff","acquired":1000,"t1":2000,
            "t2":3000,"expires":4000}"#;
        let value = |text: &str| Value::parse(text.as_bytes()).unwrap();
        Record {
            key: Key::parse("net", id, "eth0").unwrap(),
            place: Place::of_value(&value(place)).unwrap(),
            terms: Terms {
                provide: vec![(12, b"web".to_vec())],
                request: vec![3, 1],
                priority: 5,
                v6: None,
            },
            lease: Some(Lease::of_value(&value(lease), Family::V4).unwrap()),
            lost: false,
            intent: Some(intent(
                r#"{"address":"10.0.0.6","server":"10.0.0.1","xid":9}"#,
                Family::V4,
            )),
        }
    }

    fn intent(text: &str, family: Family) -> Intent {
        Intent::of_value(&Value::parse(text.as_bytes()).unwrap(), family).unwrap()
    }

    /// The same attachment's lease of IPv6.
    fn record_v6(id: &str) -> Record {
        let lease = r#"{"address":"2001:db8::10/64","server":"000a","router":"fe80::1","routes":[],"mtu":0,
            "nameServers":["2001:db8::53"],"domains":["lan"],"acquired":1000,"t1":2000,"t2":3000,"expires":4000}"#;
        let lease = Lease::of_value(&Value::parse(lease.as_bytes()).unwrap(), Family::V6).unwrap();
        let intent = intent(r#"{"address":"2001:db8::10","server":"000a"}"#, Family::V6);
        let v4 = record(id);
        let terms = Terms { v6: Some(Mode::Dhcp), ..v4.terms.clone() };
        Record { lease: Some(lease), intent: Some(intent), terms, ..v4 }
    }

    fn records(journal: &Journal) -> Vec<Record> {
        let all = journal.read_all().unwrap().into_iter();
        all.filter_map(|read| if let Read::Record(record) = read { Some(*record) } else { None })
            .collect()
    }

    #[test]
    fn records_come_back_as_they_were_until_they_are_removed() {
        let scratch = Scratch::new();
        let dir = scratch.path().join("run/dhcp.leases");
        let journal = Journal::open(&dir).unwrap();
        let one = record("one");
        journal.write(&Record { lease: None, ..one.clone() }).unwrap();
        journal.write(&one).unwrap();
        assert_eq!(
            (journal.find(&one.key, Family::V4).unwrap(), records(&journal)),
            (Some(one.clone()), vec![one.clone()])
        );
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(
            (mode(&dir), mode(&journal.path(&one.key, Family::V4)), mode(&dir.join("lock"))),
            (0o700, 0o600, 0o600)
        );
        journal.remove(&one.key, Family::V4).unwrap();
        journal.remove(&one.key, Family::V4).unwrap();
        assert_eq!(
            (journal.find(&one.key, Family::V4).unwrap(), records(&journal)),
            (None, vec![])
        );
    }

    #[test]
    fn a_directory_that_others_could_lock_is_closed_to_them() {
        let scratch = Scratch::new();
        let mode = || fs::metadata(scratch.path()).unwrap().permissions().mode() & 0o777;
        for open in [
            |dir: &Path| Journal::open(dir).map(drop),
            |dir: &Path| Journal::left_behind(dir).map(drop),
        ] {
            fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
            open(scratch.path()).unwrap();
            assert_eq!(mode(), 0o700);
        }
    }

    #[test]
    fn an_attachment_has_a_record_of_each_family() {
        let scratch = Scratch::new();
        let journal = Journal::open(scratch.path()).unwrap();
        let (v4, v6) = (record("one"), record_v6("one"));
        let slaac =
            Record { terms: Terms { v6: Some(Mode::Slaac), ..v6.terms.clone() }, ..v6.clone() };
        journal.write(&v4).unwrap();
        for v6 in [v6, slaac] {
            journal.write(&v6).unwrap();
            assert_eq!(journal.find(&v6.key, Family::V6).unwrap(), Some(v6));
        }
        journal.remove(&v4.key, Family::V6).unwrap();
        assert_eq!(records(&journal), [v4]);
    }

    #[test]
    fn what_is_no_record_stops_nothing() {
        let scratch = Scratch::new();
        let mut journal = Journal::open(scratch.path()).unwrap();
        let path = |name: &str| scratch.path().join(name);
        let good = record("good");
        journal.write(&good).unwrap();
        journal.write(&record("other")).unwrap();
        fs::rename(journal.path(&record("other").key, Family::V4), path("renamed.json")).unwrap();
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
        journal.remove(&good.key, Family::V4).unwrap();
        fs::write(journal.path(&good.key, Family::V4).with_extension(TORN), "x").unwrap();
        journal.remove(&good.key, Family::V4).unwrap();
        assert!(
            !journal.path(&good.key, Family::V4).with_extension(TORN).exists(),
            "DEL is the end of it"
        );
        let newer =
            good.to_value(&journal.boot).to_text().replace("\"version\":1", "\"version\":2");
        fs::write(journal.path(&good.key, Family::V4), newer).unwrap();
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
            let error = Journal::open(dir).map(drop).unwrap_err();
            assert!(error.msg.ends_with(why), "{error}");
        };
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o777)).unwrap();
        refused(scratch.path(), "others may write there");
        let (file, link) = (scratch.path().join("file"), scratch.path().join("link"));
        fs::write(&file, "").unwrap();
        refused(&file, "not a directory");
        std::os::unix::fs::symlink(scratch.path(), &link).unwrap();
        refused(&link, "not a directory");
    }

    #[test]
    fn the_second_daemon_learns_who_the_first_is() {
        let scratch = Scratch::new();
        assert!(Journal::left_behind(scratch.path()).unwrap().is_none());
        let mut first = Journal::open(scratch.path()).unwrap();
        first.started();
        let own = format!("the DHCP daemon with process id {} has it", std::process::id());
        for second in [
            Journal::open(scratch.path()).map(drop),
            Journal::left_behind(scratch.path()).map(drop),
        ] {
            let error = second.unwrap_err();
            assert!(error.code == Code::CONFLICT && error.msg.ends_with(&own), "{error}");
        }
        drop(first);
        let (_one, _other) = (
            Journal::left_behind(scratch.path()).unwrap(),
            Journal::left_behind(scratch.path()).unwrap(),
        );
    }

    #[test]
    fn a_daemon_waits_for_a_del_that_is_on_its_way() {
        let scratch = Scratch::new();
        drop(Journal::open(scratch.path()).unwrap());
        let del = Journal::left_behind(scratch.path()).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| sender.send(Journal::open(scratch.path())).unwrap());
            assert!(receiver.recv_timeout(std::time::Duration::from_millis(50)).is_err());
            drop(del);
            receiver.recv_timeout(std::time::Duration::from_secs(5)).unwrap().unwrap();
        });
    }

    /// Else it would find the lock taken, and nobody to ask.
    #[test]
    fn a_del_waits_for_a_daemon_that_starts() {
        let scratch = Scratch::new();
        let mut daemon = Journal::open(scratch.path()).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| sender.send(Journal::left_behind(scratch.path()).map(drop)).unwrap());
            assert!(receiver.recv_timeout(std::time::Duration::from_millis(50)).is_err());
            daemon.started();
            let error =
                receiver.recv_timeout(std::time::Duration::from_secs(5)).unwrap().unwrap_err();
            assert_eq!(error.code, Code::CONFLICT);
        });
    }

    #[test]
    fn the_journal_lies_beside_the_socket() {
        for (socket, dir) in [
            ("/run/cni/dhcp.sock", "/run/cni/dhcp.leases"),
            ("/x/a.b", "/x/a.b.leases"),
            ("/x/y", "/x/y.leases"),
        ] {
            assert_eq!(Journal::beside(Path::new(socket)), Path::new(dir));
        }
    }
}
