//! Locks of files with a timeout, of the whole file (flock(2)) or of a range of its bytes: the lock
//! holder may be stopped, or hang on a disk that does not answer.
//!
//! A free lock is taken by one system call. For a held one, a thread waits in the kernel and the
//! caller waits for the thread with a timeout. So a waiter starts as soon as the holder unlocks, and
//! flock(2) serves waiters in order of arrival. With polling, late arrivals would overtake and every
//! hand-over would cost half a pause. With a signal to end the wait, the signal would affect the
//! whole process, and would be lost if it came just before the wait. A thread that is no
//! longer waited for has a file of its own: once it gets the lock it closes the file, which unlocks.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::stat::{major, minor};

use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::timing::{self, Wait};

/// How long a plugin waits for one lock holder. Work under our locks takes milliseconds, and with
/// iptables a tenth of a second. An ADD that gives up and the runtime's DEL after it can meet the
/// same lock, and kubelet waits two minutes for each call.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How often the holder is looked up in that time. Reading /proc/locks blocks every lock operation
/// of the machine, so the first look is not immediate.
const LOOKS: u32 = 3;

/// How often /proc/locks is read again for a lock that it does not show. It is read in pages: when
/// a lock in an earlier page is removed, another one can be skipped by the next page.
const READS: u32 = 3;

/// The stack of a thread that only waits.
const STACK: usize = 64 * 1024;

/// How a lock is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Held by one file alone.
    Exclusive,
    /// Shared with all other holders in this mode.
    Shared,
}

impl Mode {
    /// Takes the lock if it is free; returns whether it did.
    pub fn try_take(self, file: &File) -> io::Result<bool> {
        // Fully qualified, because std has methods of the same names.
        let tried = match self {
            Mode::Exclusive => fs2::FileExt::try_lock_exclusive(file),
            Mode::Shared => fs2::FileExt::try_lock_shared(file),
        };
        match tried {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
            tried => tried.map(|()| true),
        }
    }
}

/// A range of bytes in a file, locked on its own for as long as the file is open (F_OFD_SETLK of
/// fcntl(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first byte.
    pub start: i64,
    /// The number of bytes; 0 for all that follow.
    pub length: i64,
}

impl Range {
    /// The byte that stands for this number.
    pub fn byte(number: u64) -> Range {
        Range { start: (number & i64::MAX as u64).cast_signed(), length: 1 }
    }

    fn as_flock(self, mode: Mode) -> libc::flock {
        let l_type = match mode {
            Mode::Exclusive => libc::F_WRLCK,
            Mode::Shared => libc::F_RDLCK,
        };
        libc::flock {
            l_type: l_type as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: self.start,
            l_len: self.length,
            l_pid: 0,
        }
    }

    /// Takes the lock if it is free; returns whether it did.
    pub fn try_take(self, file: &File, mode: Mode) -> io::Result<bool> {
        match fcntl(file, FcntlArg::F_OFD_SETLK(&self.as_flock(mode))) {
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
            taken => Ok(taken.map(|_| true)?),
        }
    }

    /// Whether no other open file description has any of the bytes locked for itself alone.
    pub fn is_shareable(self, file: &File) -> io::Result<bool> {
        let mut found = self.as_flock(Mode::Shared);
        fcntl(file, FcntlArg::F_OFD_GETLK(&mut found))?;
        Ok(found.l_type == libc::F_UNLCK as libc::c_short)
    }
}

/// A lock of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// Of the whole file.
    Whole(Mode),
    /// Of some of its bytes.
    Bytes(Range, Mode),
}

impl Lock {
    fn try_take(self, file: &File) -> io::Result<bool> {
        match self {
            Lock::Whole(mode) => mode.try_take(file),
            Lock::Bytes(range, mode) => range.try_take(file, mode),
        }
    }

    fn wait(self, file: &File) -> io::Result<()> {
        loop {
            let locked = match self {
                Lock::Whole(Mode::Exclusive) => fs2::FileExt::lock_exclusive(file),
                Lock::Whole(Mode::Shared) => fs2::FileExt::lock_shared(file),
                Lock::Bytes(range, mode) => {
                    let flock = range.as_flock(mode);
                    fcntl(file, FcntlArg::F_OFD_SETLKW(&flock)).map(drop).map_err(io::Error::from)
                }
            };
            match locked {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => (),
                locked => return locked,
            }
        }
    }
}

/// Passes the file to the thread that waits for its lock, and back once it is locked. If the caller
/// has given up, the file is closed together with this value, which unlocks it.
#[derive(Default)]
struct Handover {
    locked: Mutex<Option<io::Result<File>>>,
    arrived: Condvar,
}

/// A wait that timed out.
struct Waited {
    time: Duration,
    /// The last holder.
    holder: Option<String>,
}

impl Handover {
    /// Starts a thread that waits for the lock.
    fn start(file: File, lock: Lock) -> io::Result<Arc<Handover>> {
        let handover = Arc::new(Handover::default());
        let waiting = handover.clone();
        let wait = move || {
            let locked = lock.wait(&file).map(|()| file);
            *waiting.locked.lock().unwrap_or_else(PoisonError::into_inner) = Some(locked);
            waiting.arrived.notify_one();
        };
        thread::Builder::new().stack_size(STACK).spawn(wait)?;
        Ok(handover)
    }

    /// Waits for the file; None on timeout.
    fn wait(&self, limit: Duration) -> Option<io::Result<File>> {
        let locked = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
        let arrived = timing::waiting(Wait::Locks, || {
            self.arrived.wait_timeout_while(locked, limit, |locked| locked.is_none())
        });
        arrived.unwrap_or_else(PoisonError::into_inner).0.take()
    }

    /// Waits for the file while the holder changes; looks up the holder in between.
    fn wait_for(&self, place: &Place, patience: Patience) -> Result<io::Result<File>, Waited> {
        let limit = patience.deadline.limit(Duration::MAX);
        let mut seen = Seen::default();
        let mut time = Duration::ZERO;
        while seen.looks < LOOKS && time < limit {
            let between = (patience.of_one / LOOKS).min(limit - time);
            if let Some(locked) = self.wait(between) {
                return Ok(locked);
            }
            time += between;
            seen.look(place.holder());
        }
        Err(Waited { time, holder: seen.holder })
    }
}

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// The timeout while one process holds the lock.
    pub of_one: Duration,
    /// The timeout while the holder changes: a waiter in a long queue makes progress.
    pub deadline: Deadline,
}

impl Patience {
    /// The patience of plugin operations.
    pub fn of_operation(deadline: Deadline) -> Patience {
        Patience { of_one: PATIENCE, deadline }
    }

    /// The timeout of a wait that begins now.
    pub fn limit(self) -> Duration {
        self.deadline.limit(self.of_one)
    }
}

/// An operation waits for a stuck holder of a lock once; its later attempts fail at once with the same
/// error.
#[derive(Debug, Default)]
pub struct StuckHolder(RefCell<Option<Error>>);

impl StuckHolder {
    /// Fails with the error of the first wait if that was in vain.
    pub fn fail_again(&self) -> Result<()> {
        self.0.borrow().clone().map_or(Ok(()), Err)
    }

    /// Records the error of an attempt, and returns it.
    pub fn record(&self, error: Error) -> Error {
        if error.code == Code::TRY_AGAIN {
            self.0.borrow_mut().get_or_insert_with(|| error.clone()); // only the first one waited
        }
        error
    }
}

/// Locks the file at `path` until it is closed. Code 11 on timeout.
pub fn take(file: File, path: &Path, mode: Mode, patience: Patience) -> Result<File> {
    let failed = |e: io::Error| Error::io(format_args!("lock {path:?}"), &e);
    if mode.try_take(&file).map_err(failed)? {
        return Ok(file);
    }
    let place = Place::of(&file).map_err(failed)?;
    let handover =
        Handover::start(file, Lock::Whole(mode)).map_err(|e| Error::io("start a thread", &e))?;
    match handover.wait_for(&place, patience) {
        Ok(locked) => locked.map_err(failed),
        Err(Waited { time, holder }) => {
            Err(not_free(format_args!("lock {path:?}"), path, holder, time))
        }
    }
}

/// Locks the file until it is closed; None on timeout. For locks with holders that /proc/locks does
/// not name.
pub fn take_within(file: File, lock: Lock, limit: Duration) -> io::Result<Option<File>> {
    if lock.try_take(&file)? {
        return Ok(Some(file));
    }
    if limit.is_zero() {
        return Ok(None);
    }
    Handover::start(file, lock)?.wait(limit).transpose()
}

/// Like [`take_within`], for a file that has other locks or outlives this one: returns a file of
/// its own that has the lock.
pub fn take_beside(file: &File, lock: Lock, limit: Duration) -> io::Result<Option<File>> {
    let mut options = File::options();
    let options = match lock {
        Lock::Bytes(_, Mode::Exclusive) => options.write(true), // as fcntl(2) requires
        Lock::Bytes(_, Mode::Shared) | Lock::Whole(_) => options.read(true),
    };
    take_within(options.open(format!("/proc/self/fd/{}", file.as_raw_fd()))?, lock, limit)
}

/// The holder seen last, and the number of looks in a row that found no other.
#[derive(Debug, Default)]
struct Seen {
    holder: Option<String>,
    looks: u32,
}

impl Seen {
    /// Records one look. A look without a holder is not a change of holder; see [`READS`].
    fn look(&mut self, now: Option<String>) {
        let is_another = now.is_some() && self.holder.is_some() && now != self.holder;
        self.looks = if is_another { 1 } else { self.looks + 1 };
        self.holder = now.or(self.holder.take());
    }
}

/// The error after a timeout: it may be retried, and names the holder.
pub fn not_free(
    what: impl std::fmt::Display,
    path: &Path,
    holder: Option<String>,
    waited: Duration,
) -> Error {
    let error = Error::new(Code::TRY_AGAIN, format!("{what}: not free within {waited:?}"));
    match holder {
        Some(holder) => error.with_details(format_args!("{holder} has it")),
        None => with_fuser_advice(error, path),
    }
}

/// The error, with the way to find the owner of the lock.
pub fn with_fuser_advice(error: Error, path: &Path) -> Error {
    error.with_details(format_args!("`fuser -v {}` names its owner", path.display()))
}

/// The identity of a file in /proc/locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place(String);

impl Place {
    /// The place of an open file.
    pub fn of(file: &File) -> io::Result<Place> {
        file.metadata().map(|metadata| Place::new(&metadata))
    }

    /// The place of the file at `path`, if it exists.
    pub fn at(path: &Path) -> Option<Place> {
        fs::metadata(path).ok().map(|metadata| Place::new(&metadata))
    }

    fn new(metadata: &fs::Metadata) -> Place {
        let device = metadata.dev();
        Place(format!("{:02x}:{:02x}:{}", major(device), minor(device), metadata.ino()))
    }

    /// The process that has the file locked: `process 17 (name)`. None where /proc does not show
    /// it: on file systems whose device numbers differ there (btrfs, overlay), in another PID
    /// namespace, or when the process that took the lock has exited and a child keeps it.
    pub fn holder(&self) -> Option<String> {
        let look_up = |_| {
            let locks = fs::read_to_string("/proc/locks").ok()?;
            locks.lines().find_map(|line| self.holder_in(line))
        };
        let pid = (0..READS).find_map(look_up)?;
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        Some(format!("process {pid} ({})", name.trim_end().escape_debug()))
    }

    /// Parses `1: FLOCK  ADVISORY  WRITE 17 08:01:4242 0 EOF`; waiters have an arrow after the
    /// number.
    fn holder_in(&self, line: &str) -> Option<u32> {
        let mut words = line.split_whitespace().skip(1);
        let is_held = words.next() == Some("FLOCK");
        let pid = words.nth(2)?;
        let place = words.next()?;
        if is_held && place == self.0 { pid.parse().ok() } else { None }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::scratch::Scratch;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(60);

    fn open(dir: &Scratch) -> File {
        File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(dir.path().join("lock"))
            .unwrap()
    }

    fn lock(dir: &Scratch, mode: Mode, of_one: Duration) -> Result<File> {
        let patience = Patience { of_one, deadline: Deadline::default() };
        take(open(dir), &dir.path().join("lock"), mode, patience)
    }

    #[test]
    fn who_comes_second_waits_for_the_first() {
        let dir = Scratch::new();
        let first = lock(&dir, Mode::Exclusive, LONG).unwrap();
        thread::scope(|scope| {
            let second = scope.spawn(|| lock(&dir, Mode::Exclusive, LONG).map(|_| Instant::now()));
            thread::sleep(SHORT);
            let released = Instant::now();
            drop(first);
            assert!(second.join().unwrap().unwrap() >= released);
        });
    }

    #[test]
    fn ranges_of_one_file_exclude_only_what_they_share() {
        let dir = Scratch::new();
        let one = open(&dir);
        let other = open(&dir);
        let first = Range::byte(u64::MAX);
        let all = Range { start: 0, length: 0 };
        let take = |range: Range, file: &File| range.try_take(file, Mode::Exclusive).unwrap();
        assert!(take(first, &one) && take(first, &one), "its own is free for a file");
        assert!(!take(first, &other) && !take(all, &other));
        assert!(!all.is_shareable(&other).unwrap() && all.is_shareable(&one).unwrap());
        assert!(take(Range::byte(7), &other));
        drop(one);
        assert!(take(all, &other));
    }

    #[test]
    fn a_shared_range_keeps_out_only_exclusive_locks() {
        let dir = Scratch::new();
        let byte = Range::byte(0);
        let shared = Lock::Bytes(byte, Mode::Shared);
        let one = take_beside(&open(&dir), shared, Duration::ZERO).unwrap().unwrap();
        assert!(byte.is_shareable(&open(&dir)).unwrap());
        assert!(take_beside(&open(&dir), shared, Duration::ZERO).unwrap().is_some());
        let other = open(&dir);
        assert!(!byte.try_take(&other, Mode::Exclusive).unwrap());
        drop(one);
        assert!(byte.try_take(&other, Mode::Exclusive).unwrap());
    }

    #[test]
    fn a_range_in_use_is_taken_when_its_holder_closes_the_file() {
        let dir = Scratch::new();
        let byte = Lock::Bytes(Range::byte(3), Mode::Exclusive);
        let first = take_within(open(&dir), byte, Duration::ZERO).unwrap().unwrap();
        assert!(take_within(open(&dir), byte, Duration::ZERO).unwrap().is_none());
        let other = open(&dir);
        assert!(take_beside(&other, byte, SHORT).unwrap().is_none());
        thread::scope(|scope| {
            let second = scope.spawn(|| {
                let file = take_beside(&other, byte, LONG).unwrap().unwrap();
                (file, Instant::now())
            });
            thread::sleep(SHORT);
            let released = Instant::now();
            drop(first);
            let (second, taken) = second.join().unwrap();
            assert!(taken >= released);
            assert!(!byte.try_take(&other).unwrap(), "the other file has it");
            drop(second);
        });
        assert!(take_within(other, byte, LONG).unwrap().is_some());
    }

    #[test]
    fn a_shared_lock_is_kept_from_those_only_who_want_it_alone() {
        let dir = Scratch::new();
        let _one = lock(&dir, Mode::Shared, SHORT).unwrap();
        let _other = lock(&dir, Mode::Shared, Duration::ZERO).unwrap();
        assert_eq!(lock(&dir, Mode::Exclusive, SHORT).unwrap_err().code, Code::TRY_AGAIN);
    }

    #[test]
    fn who_waits_too_long_is_told_for_whom_and_takes_nothing_later() {
        let dir = Scratch::new();
        let first = lock(&dir, Mode::Exclusive, SHORT).unwrap();
        let error = lock(&dir, Mode::Exclusive, SHORT).unwrap_err();
        let what = format!("lock {:?}: not free within 60ms", dir.path().join("lock"));
        assert_eq!((error.code, &error.msg), (Code::TRY_AGAIN, &what));
        let own = format!(
            "process {} ({})",
            std::process::id(),
            fs::read_to_string("/proc/self/comm").unwrap().trim_end()
        );
        let told = [
            format!("{own} has it"),
            format!("`fuser -v {}/lock` names its owner", dir.path().display()),
        ];
        assert!(told.contains(&error.details()), "{error}");
        drop(first);
        drop(lock(&dir, Mode::Exclusive, LONG).unwrap());
    }

    #[test]
    fn waits_of_one_operation_end_with_its_deadline() {
        let dir = Scratch::new();
        let _held = lock(&dir, Mode::Exclusive, LONG).unwrap();
        let byte = Lock::Bytes(Range::byte(1), Mode::Exclusive);
        let one = open(&dir);
        assert!(byte.try_take(&one).unwrap());
        // Five seconds are left to each wait after the deadline.
        let patience =
            Patience { of_one: Duration::from_secs(60), deadline: Deadline::after(Duration::ZERO) };
        let begin = Instant::now();
        thread::scope(|scope| {
            let of_file = scope.spawn(|| {
                let path = dir.path().join("lock");
                take(open(&dir), &path, Mode::Exclusive, patience).unwrap_err()
            });
            assert!(take_within(open(&dir), byte, patience.limit()).unwrap().is_none());
            assert_eq!(of_file.join().unwrap().code, Code::TRY_AGAIN);
        });
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    }

    #[test]
    fn a_wait_in_vain_is_not_repeated() {
        let stuck_holder = StuckHolder::default();
        stuck_holder.record(Error::new(Code::IO, "no file"));
        assert!(stuck_holder.fail_again().is_ok());
        stuck_holder.record(Error::new(Code::TRY_AGAIN, "first"));
        stuck_holder.record(Error::new(Code::TRY_AGAIN, "second"));
        assert_eq!(stuck_holder.fail_again().unwrap_err().msg, "first");
    }

    #[test]
    fn a_holder_that_was_not_seen_for_once_is_the_same() {
        for (looks, known) in [
            (["a", "a", "a"], (3, Some("a"))),
            (["a", "", "a"], (3, Some("a"))),
            (["", "a", "a"], (3, Some("a"))),
            (["a", "a", ""], (3, Some("a"))),
            (["", "", ""], (3, None)),
            (["a", "b", "b"], (2, Some("b"))),
            (["a", "", "b"], (1, Some("b"))),
            (["a", "b", "a"], (1, Some("a"))),
        ] {
            let mut seen = Seen::default();
            looks.iter().for_each(|who| seen.look((!who.is_empty()).then(|| (*who).to_owned())));
            assert_eq!((seen.looks, seen.holder.as_deref()), known, "{looks:?}");
        }
    }

    #[test]
    fn the_holder_is_read_from_the_line_of_the_file_that_is_held() {
        let place = Place("08:01:42".to_owned());
        for (line, holder) in [
            ("1: FLOCK  ADVISORY  WRITE 17 08:01:42 0 EOF", Some(17)),
            ("1: -> FLOCK  ADVISORY  WRITE 18 08:01:42 0 EOF", None),
            ("2: FLOCK  ADVISORY  READ 19 08:01:421 0 EOF", None),
            ("3: POSIX  ADVISORY  WRITE 20 08:01:42 0 EOF", None),
            ("4: FLOCK  ADVISORY  WRITE -1 08:01:42 0 EOF", None),
            ("", None),
        ] {
            assert_eq!(place.holder_in(line), holder, "{line}");
        }
    }
}
