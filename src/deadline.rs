//! One deadline for everything an operation waits for: locks of other processes, links that come
//! up, addresses that settle, daemons that answer.
//!
//! Each wait also has its own timeout, whose error says what is wrong at that point. One operation
//! may run into several of them, and its undo into the same ones again, so they share a point in
//! time after which no wait is long.

use std::time::{Duration, Instant};

/// The time limit for all waits of one plugin operation, or of a whole plugin list run in this
/// process. kubelet gives each call two minutes.
pub const OPERATION: Duration = Duration::from_secs(90);

/// The time each wait gets even after the deadline: an undo must not fail because another process
/// holds a lock for milliseconds.
const GRACE: Duration = Duration::from_secs(1);

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

#[cfg(test)]
mod tests {
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
}
