//! When the members may be tried again after none could be reached.

use std::time::Duration;

use crate::sys::clock::Moment;
use crate::sys::random::Random;

/// The pause after the first failure.
const FIRST: Duration = Duration::from_millis(250);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(30);

/// Pauses that double with each failure, shortened at random by at most a half: nodes that lost
/// contact together do not return together.
#[derive(Debug)]
pub struct Backoff {
    failures: u32,
    until: Moment,
    random: Random,
}

impl Backoff {
    /// No pause yet.
    pub fn new(random: Random) -> Backoff {
        Backoff { failures: 0, until: Moment::ZERO, random }
    }

    /// Begins a pause, the longer the more failures there were since the last success.
    pub fn failed(&mut self, now: Moment) {
        let pause = FIRST.saturating_mul(1 << self.failures.min(7)).min(LONGEST);
        self.failures += 1;
        self.until = now + pause / 2 + self.random.below(pause / 2);
    }

    /// The members answer.
    pub fn succeeded(&mut self) {
        self.failures = 0;
        self.until = Moment::ZERO;
    }

    /// What is left of a pause.
    pub fn left(&self, now: Moment) -> Option<Duration> {
        self.until.checked_sub(now).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_half_a_minute() {
        let mut backoff = Backoff::new(Random::counting());
        let mut pauses = vec![];
        for _ in 0..10 {
            backoff.failed(Moment::from_secs(100));
            pauses.push(backoff.left(Moment::from_secs(100)).map_or(0, |left| left.as_millis()));
        }
        assert_eq!(
            pauses,
            [125, 250, 500, 1000, 2000, 4000, 8000, 15000, 15000, 15000],
            "the shortest"
        );
        assert_eq!(backoff.left(Moment::from_secs(115)), None);
        backoff.succeeded();
        assert_eq!(backoff.left(Moment::ZERO), None);
        for _ in 0..1000 {
            let mut backoff = Backoff { failures: 9, until: Moment::ZERO, random: Random::new() };
            backoff.failed(Moment::ZERO);
            let left = backoff.left(Moment::ZERO).unwrap();
            assert!(LONGEST / 2 <= left && left <= LONGEST, "{left:?}");
        }
    }
}
