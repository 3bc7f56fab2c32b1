//! One deadline for all that an operation waits for: locks of other processes, links that come up,
//! addresses that settle, daemons that answer.
//!
//! Each wait has a limit of its own, which says what is wrong where it runs out. An operation may
//! meet several of them, and its undo the same ones again, so what they share is a moment after
//! which nothing waits for long.

use std::time::{Duration, Instant};

/// How long one operation of a plugin, or of a whole list of plugins in this process, waits for
/// others. kubelet gives each call two minutes.
pub const OPERATION: Duration = Duration::from_secs(90);

/// What each wait has even after the deadline: an undo must not fail because of a lock that another
/// process has for milliseconds.
const GRACE: Duration = Duration::from_secs(1);

/// The moment until which an operation waits.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Instant);

impl Deadline {
    /// So long from now on.
    pub fn after(time: Duration) -> Deadline {
        Deadline(Instant::now() + time)
    }

    /// How long one wait may take that is by itself so patient.
    pub fn limit(self, patience: Duration) -> Duration {
        let left = self.0.saturating_duration_since(Instant::now());
        patience.min(left.max(GRACE))
    }

    /// When a wait ends that begins now and is by itself so patient.
    pub fn of_wait(self, patience: Duration) -> Instant {
        Instant::now() + self.limit(patience)
    }
}

/// That of an operation that begins now.
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
