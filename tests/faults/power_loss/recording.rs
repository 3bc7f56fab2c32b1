//! The changes that a program makes on the disk, recorded by tracing its system calls.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::disk::{Change, Disk};
use crate::support::call::Call;
use crate::support::tracer::{Stop, Then, old_calls, trace};

/// The directory before the call, and the changes.
pub struct Recording {
    pub before: Disk,
    pub changes: Vec<Change>,
}

impl Recording {
    /// Runs a call, which must succeed, and records its changes below `root`, which this process
    /// sees at `here`. `before` is the recording of an earlier call on the same directory, if any:
    /// it knows what was synced.
    #[track_caller]
    pub fn of(call: &Call, before: Option<&Recording>, root: &str, here: &Path) -> Recording {
        let before = before.map_or_else(|| Disk::read(here), Recording::after_all);
        let mut reader = Reader::new(root, before.clone());
        let traced = trace(call, |stop| {
            if let Some(result) = stop.result.and_then(|result| usize::try_from(result).ok()) {
                reader.read(stop, result);
            }
            Then::Go
        });
        // A difference means that a call was missed, so the states would not be the possible ones.
        let (told, changes) = (reader.disk.told(), reader.changes);
        assert_eq!(told, Disk::read(here).told(), "what {root} has after {changes:#?}");
        traced.outcome.ok();
        Recording { before, changes }
    }

    fn after_all(&self) -> Disk {
        self.after(self.changes.len(), None)
    }
}

/// The recording of a program while other programs change the same directory. Their changes are recorded
/// with the next change of the program.
pub struct Beside<'a> {
    here: &'a Path,
    synced: &'a [&'a str],
    before: Disk,
    reader: Reader,
    /// The number of its calls that may have changed something in the directory or elsewhere.
    pub calls: usize,
}

impl<'a> Beside<'a> {
    /// As [`Recording::of`]. The files in `synced` count as synced, also those that other programs write.
    pub fn new(root: &str, here: &'a Path, synced: &'a [&'a str]) -> Beside<'a> {
        let mut before = Disk::read_busy(here);
        synced.iter().for_each(|name| before.apply(&Change::Sync(name.into())));
        Beside { here, synced, reader: Reader::new(root, before.clone()), before, calls: 0 }
    }

    /// Records a call. Returns whether it may have changed something in the directory or elsewhere.
    pub fn read(&mut self, stop: &Stop) -> bool {
        let Some(result) = stop.result.and_then(|result| usize::try_from(result).ok()) else {
            return false;
        };
        self.reader.read(stop, result);
        if stop.changes() {
            self.calls += 1;
            self.reader.take_over(&Disk::read_busy(self.here), self.synced);
        }
        stop.changes()
    }

    /// What was recorded so far.
    pub fn recording(&self) -> Recording {
        Recording { before: self.before.clone(), changes: self.reader.changes.clone() }
    }
}

struct Reader {
    root: PathBuf,
    disk: Disk,
    offsets: BTreeMap<u64, usize>,
    changes: Vec<Change>,
}

/// The path in argument `arg`, relative to the descriptor in argument `directory`.
fn path(stop: &Stop, arg: usize, directory: Option<usize>) -> PathBuf {
    let name = PathBuf::from(stop.text(arg));
    match directory {
        Some(directory) if name.is_relative() => {
            PathBuf::from(stop.descriptor(directory)).join(name)
        }
        _ => name,
    }
}

impl Reader {
    fn new(root: &str, disk: Disk) -> Reader {
        Reader { root: root.into(), disk, offsets: BTreeMap::new(), changes: vec![] }
    }

    /// Adds the changes that lead to this disk; those of files in `synced` were synced.
    fn take_over(&mut self, now: &Disk, synced: &[&str]) {
        let is_written =
            |change: &Change, name: &Path| matches!(change, Change::Write(to, ..) if to == name);
        for change in self.disk.changes_to(now) {
            let name = synced.iter().map(Path::new).find(|name| is_written(&change, name));
            for change in std::iter::once(change).chain(name.map(|name| Change::Sync(name.into())))
            {
                self.disk.apply(&change);
                self.changes.push(change);
            }
        }
    }

    /// Records a call that succeeded.
    fn read(&mut self, stop: &Stop, result: usize) {
        // A path alone, and a path after its directory's descriptor.
        let (at, below) = (|arg| path(stop, arg, None), |arg| path(stop, arg, Some(arg - 1)));
        let of_descriptor = || PathBuf::from(stop.descriptor(0));
        let length = |arg: usize| usize::try_from(stop.args[arg]).unwrap();
        let mode = |arg: usize| u32::try_from(stop.args[arg] & 0o7777).unwrap();
        match stop.call {
            old_calls::SYS_open => self.open(&at(0), result, stop.args[1], mode(2)),
            libc::SYS_openat => self.open(&below(1), result, stop.args[2], mode(3)),
            old_calls::SYS_mkdir => self.change(&at(0), |name| Change::MakeDir(name, mode(1))),
            libc::SYS_mkdirat => self.change(&below(1), |name| Change::MakeDir(name, mode(2))),
            old_calls::SYS_link => self.change_two(&at(0), &at(1), Change::Link),
            libc::SYS_linkat => self.change_two(&below(1), &below(3), Change::Link),
            old_calls::SYS_rename => self.change_two(&at(0), &at(1), Change::Rename),
            libc::SYS_renameat | libc::SYS_renameat2 => {
                self.change_two(&below(1), &below(3), Change::Rename)
            }
            old_calls::SYS_unlink | old_calls::SYS_rmdir => self.change(&at(0), Change::Remove),
            libc::SYS_unlinkat => self.change(&below(1), Change::Remove),
            libc::SYS_write => {
                let at = self.offsets.get(&stop.args[0]).copied().unwrap_or_default();
                let bytes = stop.memory(stop.args[1], result);
                self.change(&of_descriptor(), |name| Change::Write(name, at, bytes));
                self.offsets.insert(stop.args[0], at + result);
            }
            libc::SYS_lseek => drop(self.offsets.insert(stop.args[0], result)),
            libc::SYS_ftruncate => {
                self.change(&of_descriptor(), |name| Change::SetLen(name, length(1)))
            }
            libc::SYS_fsync | libc::SYS_fdatasync => self.change(&of_descriptor(), Change::Sync),
            libc::SYS_utimensat => self.set_time(stop),
            _ => (),
        }
    }

    fn open(&mut self, path: &Path, descriptor: usize, flags: u64, mode: u32) {
        self.offsets.insert(descriptor as u64, 0);
        let Some(name) = self.name(path) else { return };
        let has = |flag: i32| flags & flag as u64 != 0;
        if !self.disk.names.contains_key(&name) && has(libc::O_CREAT) {
            self.change(path, |name| Change::Create(name, mode));
        } else if has(libc::O_TRUNC) {
            self.change(path, |name| Change::SetLen(name, 0));
        }
    }

    /// The argument is the access and modification time, each in seconds and nanoseconds.
    fn set_time(&mut self, stop: &Stop) {
        let times = stop.memory(stop.args[2], 32);
        let words = times.chunks_exact(8).map(|word| i64::from_le_bytes(word.try_into().unwrap()));
        let words: Vec<i64> = words.collect();
        if let [_, _, seconds, nanoseconds] = words[..] {
            self.change(&path(stop, 1, Some(0)), |name| {
                Change::SetTime(name, seconds, nanoseconds)
            });
        }
    }

    /// The name relative to the root, if the path is below it.
    fn name(&self, path: &Path) -> Option<PathBuf> {
        path.strip_prefix(&self.root).ok().map(Path::to_owned)
    }

    fn change(&mut self, path: &Path, make: impl FnOnce(PathBuf) -> Change) {
        if let Some(name) = self.name(path) {
            let change = make(name);
            self.disk.apply(&change);
            self.changes.push(change);
        }
    }

    fn change_two(&mut self, from: &Path, to: &Path, make: fn(PathBuf, PathBuf) -> Change) {
        if let (Some(from), Some(to)) = (self.name(from), self.name(to)) {
            self.change(&self.root.join(to), |to| make(from, to));
        }
    }
}
