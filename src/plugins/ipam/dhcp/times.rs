//! The times of a lease.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::sys::clock::{Moment, NEVER};
use crate::sys::random::Random;

/// The times of a lease; any but the first may be [`NEVER`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Journalled", into = "Journalled")]
pub struct Times {
    /// When it was requested, which is when its time began to run.
    pub acquired: Moment,
    /// T1: when to renew it.
    pub t1: Moment,
    /// T2: when to ask any server.
    pub t2: Moment,
    /// When it expires.
    pub expires: Moment,
}

impl Times {
    /// Lets T1 come early by up to this fraction of itself, so that containers started together do
    /// not renew together.
    const T1_SPREAD: u32 = 32;

    /// Moves T1 to a random moment before it.
    pub fn spread(&mut self, random: &mut Random) {
        if self.t1 != NEVER {
            self.t1 -= random.below(self.t1.saturating_sub(self.acquired) / Self::T1_SPREAD);
        }
    }
}

/// [`Times`] as journalled: milliseconds since boot, and absent for a lease without an end.
#[derive(Serialize, Deserialize)]
struct Journalled {
    #[serde(skip_serializing_if = "Option::is_none")]
    acquired: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    t1: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    t2: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<u64>,
}

impl From<Times> for Journalled {
    fn from(Times { acquired, t1, t2, expires }: Times) -> Journalled {
        let [acquired, t1, t2, expires] = [acquired, t1, t2, expires]
            .map(|moment| (moment != NEVER).then_some(moment.as_millis() as u64));
        Journalled { acquired, t1, t2, expires }
    }
}

impl From<Journalled> for Times {
    fn from(Journalled { acquired, t1, t2, expires }: Journalled) -> Times {
        let [acquired, t1, t2, expires] =
            [acquired, t1, t2, expires].map(|millis| millis.map_or(NEVER, Duration::from_millis));
        Times { acquired, t1, t2, expires }
    }
}
