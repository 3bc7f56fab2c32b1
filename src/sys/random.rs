//! Unpredictable numbers: identifiers of exchanges, and pauses that must differ between hosts.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

/// A random number generator. Its key comes from the kernel through the standard library, without
/// /dev.
#[derive(Debug)]
pub struct Random {
    /// None in tests that need predictable numbers.
    key: Option<RandomState>,
    drawn: u64,
}

impl Random {
    /// Creates a generator with its own key.
    pub fn new() -> Random {
        Random { key: Some(RandomState::new()), drawn: 0 }
    }

    /// Creates a generator for tests: it counts 1, 2, 3 and so on, and every pause has its minimum
    /// length.
    pub fn counting() -> Random {
        Random { key: None, drawn: 0 }
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.drawn += 1;
        self.key.as_ref().map_or(self.drawn, |key| key.hash_one(self.drawn))
    }

    /// The next 32-bit number.
    pub fn word(&mut self) -> u32 {
        self.number() as u32
    }

    /// A duration below `limit`, uniformly distributed.
    pub fn below(&mut self, limit: Duration) -> Duration {
        let limit = limit.as_nanos().min(u64::MAX.into());
        Duration::from_nanos(((u128::from(self.number()) * limit) >> 64) as u64)
    }
}

impl Default for Random {
    fn default() -> Random {
        Random::new()
    }
}
