//! The time since boot, including suspend: CLOCK_BOOTTIME of clock_gettime(2); and the kernel's id
//! of the current boot (proc_sys_kernel(5)).

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::clock_gettime;

use crate::error::{Code, Error, Result};
use crate::sys::impl_as_fd;

/// A point in time, counted from boot ([`since_boot`]).
pub type Moment = Duration;

/// A time that never comes.
pub const NEVER: Moment = Duration::MAX;

/// The current time; zero if the kernel refuses the call, as with a seccomp filter. A caller that must not act
/// after some time compares with zero, too.
pub fn since_boot() -> Moment {
    clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default()
}

/// A timer that becomes readable at a point in time, or at once after a suspend that lasted longer:
/// the timeout of poll(2) stops during suspend.
pub struct Alarm(TimerFd);

impl Alarm {
    /// Creates an alarm that is not set.
    pub fn new() -> Result<Alarm> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, flags);
        timer.map(Alarm).map_err(|e| Error::kernel("make a timer", e))
    }

    /// Sets the alarm to a new time since boot; None disarms it.
    pub fn set(&self, at: Option<Moment>) -> Result<()> {
        let set = match at {
            Some(at) => {
                let at = at.max(Duration::from_nanos(1)); // zero would disarm the timer
                let once = Expiration::OneShot(TimeSpec::from_duration(at));
                self.0.set(once, TimerSetTimeFlags::TFD_TIMER_ABSTIME)
            }
            None => self.0.unset(),
        };
        set.map_err(|e| Error::kernel("set a timer", e))
    }
}

impl_as_fd!(Alarm, 0);

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The kernel's id of this boot. What is confirmed or recorded with it is void in another boot, so without it there is an error and
/// never an empty id.
pub fn id_of_boot() -> Result<String> {
    read_boot_id(Path::new(BOOT_ID))
}

/// The line with the id as the kernel prints it, with its end.
pub fn boot_line() -> io::Result<String> {
    content_of(Path::new(BOOT_ID))
}

fn content_of(path: &Path) -> io::Result<String> {
    let mut text = [0; 64];
    let count = File::open(path)?.read(&mut text)?;
    Ok(String::from_utf8_lossy(&text[..count]).into_owned())
}

fn read_boot_id(path: &Path) -> Result<String> {
    let id = content_of(path).map_err(Error::at_path("read", path))?;
    match id.trim() {
        "" => {
            let msg = format!("read {}: it is empty, expected the id of this boot", path.display());
            Err(Error::new(Code::IO, msg)
                .with_details("mount procfs at /proc, without another file on that path"))
        }
        id => Ok(id.to_owned()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::fd::AsFd as _;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn an_alarm_goes_off_at_its_moment_and_not_without_one() {
        let alarm = Alarm::new().unwrap();
        let rings = |patience: u16| {
            let mut fds = [PollFd::new(alarm.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::from(patience)).unwrap() == 1
        };
        assert!(!rings(0));
        alarm.set(Some(since_boot() + Duration::from_millis(30))).unwrap();
        assert!(!rings(0) && rings(5000));
        alarm.set(None).unwrap();
        assert!(!rings(0));
        alarm.set(Some(Duration::ZERO)).unwrap();
        assert!(rings(5000), "a moment that has been");
    }

    #[test]
    fn an_id_that_cannot_be_read_is_an_error_and_never_empty() {
        let dir = Scratch::new();
        let path = dir.path().join("boot_id");
        let missing = read_boot_id(&path).unwrap_err().to_string();
        assert!(missing.contains(&format!("read {}: no such file", path.display())), "{missing}");
        for (text, id) in [("", None), ("\n", None), ("0-1\n", Some("0-1"))] {
            dir.write("boot_id", text);
            match read_boot_id(&path) {
                Ok(read) => assert_eq!(Some(read.as_str()), id),
                Err(e) => assert!(id.is_none() && e.msg.contains("boot_id: it is empty"), "{e}"),
            }
        }
        assert_eq!(id_of_boot().unwrap().len(), 36);
    }
}
