//! Unpredictable numbers: identifiers of exchanges, and pauses that must differ between hosts.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

/// A random number generator. Its key comes from the kernel through the standard library, without
/// /dev.
#[derive(Clone, Debug)]
pub struct Random {
    source: Source,
    drawn: u64,
}

/// Where numbers come from.
#[derive(Clone, Debug)]
enum Source {
    /// The kernel.
    Key(RandomState),
    /// A test's seed.
    Seed(u64),
    /// They count.
    Count,
}

impl Random {
    /// Creates a generator with its own key.
    pub fn new() -> Random {
        Random { source: Source::Key(RandomState::new()), drawn: 0 }
    }

    /// Creates a generator for tests: it counts 1, 2, 3 and so on, and every pause has its minimum
    /// length.
    pub fn counting() -> Random {
        Random { source: Source::Count, drawn: 0 }
    }

    /// Creates a generator for tests and simulations: the same seed gives the same numbers.
    pub fn seeded(seed: u64) -> Random {
        Random { source: Source::Seed(seed), drawn: 0 }
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.drawn += 1;
        match &self.source {
            Source::Key(key) => key.hash_one(self.drawn),
            Source::Seed(seed) => {
                mixed(seed.wrapping_add(self.drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
            }
            Source::Count => self.drawn,
        }
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

/// The output function of SplitMix64.
fn mixed(state: u64) -> u64 {
    let first = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let second = (first ^ (first >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    second ^ (second >> 31)
}

impl Default for Random {
    fn default() -> Random {
        Random::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_and_another_seed_others() {
        let numbers = |seed| {
            let mut random = Random::seeded(seed);
            [random.number(), random.number(), random.number()]
        };
        assert_eq!(numbers(1), numbers(1));
        assert_ne!(numbers(1), numbers(2));
        // The published sequence of SplitMix64 for the seed 1234567.
        assert_eq!(numbers(1_234_567)[..2], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }
}
