//! Time since the machine started, which goes on while it sleeps: CLOCK_BOOTTIME of
//! clock_gettime(2).

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::clock_gettime;

use crate::error::{Error, Result};

/// A point in time: since the machine was started ([`since_boot`]).
pub type Moment = Duration;

/// When nothing is to be done any more.
pub const NEVER: Moment = Duration::MAX;

/// The time now. A kernel without this clock is older than all that we need.
pub fn since_boot() -> Moment {
    clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default()
}

/// Becomes readable at a moment, at once after a sleep that lasted longer: poll(2)'s own timeout
/// stops while the machine sleeps.
pub struct Alarm(TimerFd);

impl Alarm {
    /// One that is not set.
    pub fn new() -> Result<Alarm> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, flags);
        timer.map(Alarm).map_err(|e| Error::kernel("make a timer", e))
    }

    /// Sets it to a moment since boot in place of what it was set to; to none where there is none.
    pub fn set(&self, at: Option<Moment>) -> Result<()> {
        let set = match at {
            // Zero would mean never.
            Some(at) => {
                let at =
                    Expiration::OneShot(TimeSpec::from_duration(at.max(Duration::from_nanos(1))));
                self.0.set(at, TimerSetTimeFlags::TFD_TIMER_ABSTIME)
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
