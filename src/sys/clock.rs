//! The time since boot, including suspend: CLOCK_BOOTTIME of clock_gettime(2).

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::clock_gettime;

use crate::error::{Error, Result};

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

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

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
}
