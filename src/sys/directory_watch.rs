//! Waiting for changes of a directory (inotify(7)), and for a signal to shut down.

use std::os::fd::AsFd as _;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// A file of the directory has changed.
    Change,
    /// The directory was removed, renamed or unmounted.
    Gone,
    /// The timeout expired.
    Timeout,
    /// SIGTERM, SIGINT or SIGHUP.
    Shutdown,
}

/// A watched directory. The signals stay blocked and are read from a signalfd(2): the kernel
/// discards signals without a handler for process 1 of a container, unless they are blocked.
pub struct DirectoryWatch {
    changes: Inotify,
    shutdown: SignalFd,
}

impl DirectoryWatch {
    /// Watches the names in the directory, and files that a program has finished writing.
    pub fn begin(dir: &str) -> Result<DirectoryWatch, Errno> {
        let changes = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let of_names = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_ONLYDIR;
        changes.add_watch(dir, of_names)?;
        let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
        signals.thread_block()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(DirectoryWatch { changes, shutdown: SignalFd::with_flags(&signals, flags)? })
    }

    /// Waits for a change or a signal; without a time, as long as it takes.
    pub fn wait(&self, at_most: Option<Duration>) -> Result<Wake, Errno> {
        let mut fds = [
            PollFd::new(self.shutdown.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.changes.as_fd(), PollFlags::POLLIN),
        ];
        if poll(&mut fds, timeout(at_most))? == 0 {
            return Ok(Wake::Timeout);
        }
        if fds[0].any() == Some(true) { Ok(Wake::Shutdown) } else { self.drain() }
    }

    /// Lets time pass; only a signal ends it earlier.
    pub fn sleep(&self, time: Duration) -> Result<Wake, Errno> {
        let mut fds = [PollFd::new(self.shutdown.as_fd(), PollFlags::POLLIN)];
        let ready = poll(&mut fds, timeout(Some(time)))?;
        Ok(if ready == 0 { Wake::Timeout } else { Wake::Shutdown })
    }

    /// Discards the pending events: the caller looks at the directory itself, so an overflow of the
    /// queue loses nothing.
    pub fn drain(&self) -> Result<Wake, Errno> {
        // The directory is no longer at its path, or the kernel sends no more events.
        let last = AddWatchFlags::IN_IGNORED | AddWatchFlags::IN_MOVE_SELF;
        let is_last = |event: &InotifyEvent| event.mask.intersects(last);
        loop {
            match self.changes.read_events() {
                Ok(events) if events.iter().any(is_last) => return Ok(Wake::Gone),
                Ok(_) => (),
                Err(Errno::EAGAIN) => return Ok(Wake::Change),
                Err(error) => return Err(error),
            }
        }
    }
}

fn timeout(at_most: Option<Duration>) -> PollTimeout {
    let limited = at_most.map(|time| PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX));
    limited.unwrap_or(PollTimeout::NONE)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_change_wakes_and_nothing_else_does() {
        let dir = std::env::temp_dir().join(format!("watch-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let watch = DirectoryWatch::begin(dir.to_str().unwrap()).unwrap();
        let moment = Some(Duration::from_millis(20));
        assert_eq!(watch.wait(moment), Ok(Wake::Timeout));
        fs::write(dir.join("bridge"), "").unwrap();
        assert_eq!(watch.wait(None), Ok(Wake::Change));
        assert_eq!(watch.wait(moment), Ok(Wake::Timeout), "one wake for all of them");
        fs::read(dir.join("bridge")).unwrap();
        assert_eq!(watch.wait(moment), Ok(Wake::Timeout), "reading is no change");
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(watch.wait(None), Ok(Wake::Gone));
        assert_eq!(DirectoryWatch::begin("/proc/version").err(), Some(Errno::ENOTDIR));
    }
}
