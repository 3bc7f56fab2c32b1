//! One deadline for everything an operation waits for: locks of other processes, links that come
//! up, addresses that settle, daemons that answer.
//!
//! Each wait also has its own timeout, whose error says what is wrong at that point. One operation
//! may run into several of them, and its undo into the same ones again, so they share a point in
//! time after which no wait is long.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The time limit for all waits of one plugin operation, or of a whole plugin list run in this
/// process. kubelet gives each call two minutes.
pub const OPERATION: Duration = Duration::from_secs(90);

/// The time each wait gets even after the deadline: enough for what the kernel itself takes, such
/// as duplicate address detection (up to two seconds), and for an undo to get a lock that other
/// processes hold for milliseconds.
const GRACE: Duration = Duration::from_secs(5);

/// The point in time until which an operation waits.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Instant);

impl Deadline {
    /// A deadline `time` from now.
    pub fn after(time: Duration) -> Deadline {
        Deadline(Instant::now() + time)
    }

    /// The timeout of one wait: `patience`, cut to what is left until the deadline.
    pub fn limit(self, patience: Duration) -> Duration {
        let left = self.0.saturating_duration_since(Instant::now());
        patience.min(left.max(GRACE))
    }

    /// The end of a wait that begins now with this `patience`.
    pub fn of_wait(self, patience: Duration) -> Instant {
        Instant::now() + self.limit(patience)
    }
}

/// The deadline of an operation that begins now.
impl Default for Deadline {
    fn default() -> Deadline {
        Deadline::after(OPERATION)
    }
}

/// The deadline that the steps of an operation share. Clones are the same clock.
#[derive(Clone, Debug, Default)]
pub struct Clock(Rc<Cell<Deadline>>);

impl Clock {
    /// A clock with this deadline.
    pub fn new(deadline: Deadline) -> Clock {
        Clock(Rc::new(Cell::new(deadline)))
    }

    /// The deadline as it is now.
    pub fn deadline(&self) -> Deadline {
        self.0.get()
    }

    /// Begins the next operation of this process, such as the next DEL of a garbage collection.
    pub fn restart(&self) {
        self.0.set(Deadline::default());
    }

    /// Runs `work` that has no limit of ours, such as another program: the deadline moves by the
    /// time that it takes.
    pub fn outside<T>(&self, work: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let done = work();
        self.0.set(Deadline(self.deadline().0 + begin.elapsed()));
        done
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_wait_is_as_patient_as_it_is_itself_while_there_is_time() {
        let deadline = Deadline::default();
        assert_eq!(deadline.limit(Duration::from_secs(30)), Duration::from_secs(30));
        assert!(deadline.limit(OPERATION * 2) <= OPERATION);
    }

    #[test]
    fn a_wait_after_the_deadline_is_short() {
        let deadline = Deadline::after(Duration::ZERO);
        assert_eq!(deadline.limit(Duration::from_secs(30)), GRACE);
        assert_eq!(deadline.limit(Duration::from_millis(2)), Duration::from_millis(2));
    }

    #[test]
    fn work_outside_moves_the_deadline_by_its_time() {
        let clock = Clock::new(Deadline::after(Duration::ZERO));
        let before = clock.deadline().0;
        let time = Duration::from_millis(20);
        clock.clone().outside(|| thread::sleep(time));
        assert!(clock.deadline().0 >= before + time);
    }

    #[test]
    fn the_next_operation_has_its_whole_time() {
        let clock = Clock::new(Deadline::after(Duration::ZERO));
        clock.clone().restart();
        assert_eq!(clock.deadline().limit(OPERATION / 2), OPERATION / 2);
    }
}
