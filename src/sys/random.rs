//! Numbers that nobody can foresee: identifiers of exchanges, and pauses that must not be
//! everybody's.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

/// A source of them. Its key is the kernel's, through the standard library, which needs no /dev.
#[derive(Debug)]
pub struct Random {
    /// None where a test wants to foresee them.
    key: Option<RandomState>,
    drawn: u64,
}

impl Random {
    /// A source with a key of its own.
    pub fn new() -> Random {
        Random { key: Some(RandomState::new()), drawn: 0 }
    }

    /// 1, 2, 3 and so on; each pause is its shortest. For tests.
    pub fn counting() -> Random {
        Random { key: None, drawn: 0 }
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.drawn += 1;
        self.key.as_ref().map_or(self.drawn, |key| key.hash_one(self.drawn))
    }

    /// A number of 32 bits.
    pub fn word(&mut self) -> u32 {
        self.number() as u32
    }

    /// A time below `limit`, all alike likely.
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
