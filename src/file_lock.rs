//! flock(2) that is not waited for without end: whoever has the lock may be stopped, or hang on a
//! disk that does not answer.
//!
//! A lock that is free is taken by one system call. Where it is not, a thread waits in the kernel,
//! and we wait for the thread with a limit. So whoever comes first is first, and each starts when
//! the one before lets go. With tries and pauses between them, late comers overtake and every
//! hand-over costs half a pause; a signal that ends the wait would be for the whole process, and
//! comes for nothing when it comes a moment before the wait.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::stat::{major, minor};

use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};

/// How long one holder may have a lock that a plugin waits for. What is done under our locks takes
/// milliseconds, and with iptables a tenth of a second. An ADD that gives up and the runtime's DEL
/// after it can meet the same lock, and kubelet waits two minutes for each call.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How often we look in that time who has it. While /proc/locks is read nobody gets any lock, so it
/// is not done at once.
const LOOKS: u32 = 3;

/// How often /proc/locks is read for a lock that is not found there. It comes in pages: a lock that
/// goes from one that has been read lets another slip past the next.
const READS: u32 = 3;

/// The thread does nothing but wait.
const STACK: usize = 64 * 1024;

/// With whom a lock is had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// With nobody.
    Exclusive,
    /// With all who want it shared.
    Shared,
}

impl Mode {
    /// Takes the lock where it is free; whether it was.
    pub fn try_take(self, file: &File) -> io::Result<bool> {
        // In whole words, because std has methods of the same names.
        let tried = match self {
            Mode::Exclusive => fs2::FileExt::try_lock_exclusive(file),
            Mode::Shared => fs2::FileExt::try_lock_shared(file),
        };
        match tried {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
            tried => tried.map(|()| true),
        }
    }

    fn wait(self, file: &File) -> io::Result<()> {
        loop {
            let locked = match self {
                Mode::Exclusive => fs2::FileExt::lock_exclusive(file),
                Mode::Shared => fs2::FileExt::lock_shared(file),
            };
            if !locked.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::Interrupted) {
                return locked;
            }
        }
    }
}

/// Bytes of a file that are locked by themselves, for as long as the file is open (F_OFD_SETLK of
/// fcntl(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first byte.
    pub start: i64,
    /// How many; 0 for all that follow.
    pub length: i64,
}

impl Range {
    /// The one byte of what has this number.
    pub fn byte(number: u64) -> Range {
        Range { start: (number & i64::MAX as u64).cast_signed(), length: 1 }
    }

    fn as_flock(self) -> libc::flock {
        libc::flock {
            l_type: libc::F_WRLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: self.start,
            l_len: self.length,
            l_pid: 0,
        }
    }

    /// Takes the lock where it is free; whether it was.
    pub fn try_take(self, file: &File) -> io::Result<bool> {
        match fcntl(file, FcntlArg::F_OFD_SETLK(&self.as_flock())) {
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
            taken => Ok(taken.map(|_| true)?),
        }
    }

    /// Whether no other open file has any of the bytes.
    pub fn is_free(self, file: &File) -> io::Result<bool> {
        let mut found = self.as_flock();
        fcntl(file, FcntlArg::F_OFD_GETLK(&mut found))?;
        Ok(found.l_type == libc::F_UNLCK as libc::c_short)
    }
}

/// The file goes with the thread that waits for its lock, and comes back locked. Where nobody takes
/// it any more, it is closed with this and so unlocked.
#[derive(Default)]
struct Handover {
    locked: Mutex<Option<io::Result<File>>>,
    arrived: Condvar,
}

impl Handover {
    fn give(&self, locked: io::Result<File>) {
        *self.locked.lock().unwrap_or_else(PoisonError::into_inner) = Some(locked);
        self.arrived.notify_one();
    }

    /// None where nothing has come within the limit.
    fn wait(&self, limit: Duration) -> Option<io::Result<File>> {
        let locked = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
        let arrived = self.arrived.wait_timeout_while(locked, limit, |locked| locked.is_none());
        arrived.unwrap_or_else(PoisonError::into_inner).0.take()
    }
}

/// How long a lock is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// So long while one process has it.
    pub of_one: Duration,
    /// So long while it goes from hand to hand: a waiter in a long line gets on.
    pub deadline: Deadline,
}

impl Patience {
    /// That of plugins.
    pub fn of_operation(deadline: Deadline) -> Patience {
        Patience { of_one: PATIENCE, deadline }
    }

    /// How long a wait may take that begins now.
    pub fn limit(self) -> Duration {
        self.deadline.limit(self.of_one)
    }
}

/// Locks the file, which is at `path`, until it is closed. Code 11 where that takes too long.
pub fn take(file: File, path: &Path, mode: Mode, patience: Patience) -> Result<File> {
    let failed = |e: io::Error| Error::io(format_args!("lock {path:?}"), &e);
    if mode.try_take(&file).map_err(failed)? {
        return Ok(file);
    }
    let place = Place::of(&file).map_err(failed)?;
    let handover = Arc::new(Handover::default());
    let waiting = handover.clone();
    let wait = move || waiting.give(mode.wait(&file).map(|()| file));
    thread::Builder::new()
        .stack_size(STACK)
        .spawn(wait)
        .map_err(|e| Error::io("start a thread", &e))?;
    let limit = patience.deadline.limit(Duration::MAX);
    let mut seen = Seen::default();
    let mut waited = Duration::ZERO;
    while seen.looks < LOOKS && waited < limit {
        let between = (patience.of_one / LOOKS).min(limit - waited);
        if let Some(locked) = handover.wait(between) {
            return locked.map_err(failed);
        }
        waited += between;
        seen.look(place.holder());
    }
    Err(not_free(format_args!("lock {path:?}"), path, seen.holder, waited))
}

/// For what the kernel cannot be asked to wait for: looks again and again, with a pause between,
/// whether `is_free`; whether it was before the moment `end`.
pub fn poll_until(
    end: Instant,
    pause: Duration,
    is_free: impl Fn() -> io::Result<bool>,
) -> io::Result<bool> {
    loop {
        let found_free = is_free()?;
        if found_free || Instant::now() > end {
            return Ok(found_free);
        }
        thread::sleep(pause);
    }
}

/// Who was seen to have the lock, and at how many looks in a row it was no other.
#[derive(Debug, Default)]
struct Seen {
    holder: Option<String>,
    looks: u32,
}

impl Seen {
    /// Seeing nobody is no change of hands; see [`READS`].
    fn look(&mut self, now: Option<String>) {
        let is_another = now.is_some() && self.holder.is_some() && now != self.holder;
        self.looks = if is_another { 1 } else { self.looks + 1 };
        self.holder = now.or(self.holder.take());
    }
}

/// What who waited is told: that it may be tried again, and who has the lock.
pub fn not_free(
    what: impl std::fmt::Display,
    path: &Path,
    holder: Option<String>,
    waited: Duration,
) -> Error {
    let error = Error::new(Code::TRY_AGAIN, format!("{what}: not free within {waited:?}"));
    match holder {
        Some(holder) => error.with_details(format_args!("{holder} has it")),
        None => error.with_details(format_args!("`fuser -v {}` names its owner", path.display())),
    }
}

/// A file as /proc/locks names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place(String);

impl Place {
    /// That of an open file.
    pub fn of(file: &File) -> io::Result<Place> {
        file.metadata().map(|metadata| Place::new(&metadata))
    }

    /// That of the file of this name, if there is one.
    pub fn at(path: &Path) -> Option<Place> {
        fs::metadata(path).ok().map(|metadata| Place::new(&metadata))
    }

    fn new(metadata: &fs::Metadata) -> Place {
        let device = metadata.dev();
        Place(format!("{:02x}:{:02x}:{}", major(device), minor(device), metadata.ino()))
    }

    /// Who has the file locked: `process 17 (name)`. None where /proc does not tell: on file
    /// systems that have other numbers there (btrfs, overlay), in another process namespace, or
    /// when who took the lock has ended and left it to a child.
    pub fn holder(&self) -> Option<String> {
        let pid = (0..READS).find_map(|_| {
            let locks = fs::read_to_string("/proc/locks").ok()?;
            locks.lines().find_map(|line| self.holder_in(line))
        })?;
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        Some(format!("process {pid} ({})", name.trim_end().escape_debug()))
    }

    /// `1: FLOCK  ADVISORY  WRITE 17 08:01:4242 0 EOF`; those who wait have an arrow behind the
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
        assert!(
            first.try_take(&one).unwrap() && first.try_take(&one).unwrap(),
            "its own is free for a file"
        );
        assert!(!first.try_take(&other).unwrap() && !all.try_take(&other).unwrap());
        assert!(!all.is_free(&other).unwrap() && all.is_free(&one).unwrap());
        assert!(Range::byte(7).try_take(&other).unwrap());
        drop(one);
        assert!(all.try_take(&other).unwrap());
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
        assert!(told.contains(&error.details), "{error}");
        drop(first);
        drop(lock(&dir, Mode::Exclusive, LONG).unwrap());
    }

    #[test]
    fn waits_of_one_operation_end_with_its_deadline() {
        let dirs = [Scratch::new(), Scratch::new()];
        let _held = dirs.each_ref().map(|dir| lock(dir, Mode::Exclusive, LONG).unwrap());
        let of_one = Duration::from_secs(3);
        let whole = Duration::from_millis(3500);
        let patience = Patience { of_one, deadline: Deadline::after(whole) };
        let begin = Instant::now();
        let waited = dirs.each_ref().map(|dir| {
            let path = dir.path().join("lock");
            let error = take(open(dir), &path, Mode::Exclusive, patience).unwrap_err();
            assert_eq!(error.code, Code::TRY_AGAIN);
            begin.elapsed()
        });
        assert!(waited[0] >= of_one, "{waited:?}");
        let byte = Range::byte(1);
        let [one, other] = [open(&dirs[0]), open(&dirs[0])];
        assert!(byte.try_take(&one).unwrap());
        let end = patience.deadline.of_wait(of_one);
        assert!(!poll_until(end, SHORT, || byte.try_take(&other)).unwrap());
        // each wait after the deadline has a second; three patient ones would take nine
        assert!(begin.elapsed() < Duration::from_secs(6), "{waited:?}, {:?}", begin.elapsed());
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
