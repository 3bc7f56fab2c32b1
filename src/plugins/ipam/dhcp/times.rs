//! The times of a lease as journalled: milliseconds since boot, and absent for a lease without an
//! end.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::sys::clock::{Moment, NEVER};

/// When a lease was requested, its T1, T2 and expiry.
#[derive(Serialize, Deserialize)]
pub struct Times {
    #[serde(skip_serializing_if = "Option::is_none")]
    acquired: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    t1: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    t2: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<u64>,
}

impl From<[Moment; 4]> for Times {
    fn from(moments: [Moment; 4]) -> Times {
        let [acquired, t1, t2, expires] = moments.map(millis);
        Times { acquired, t1, t2, expires }
    }
}

impl From<Times> for [Moment; 4] {
    fn from(times: Times) -> [Moment; 4] {
        [times.acquired, times.t1, times.t2, times.expires]
            .map(|millis| millis.map_or(NEVER, Duration::from_millis))
    }
}

/// The milliseconds of a moment; None for NEVER.
fn millis(moment: Moment) -> Option<u64> {
    (moment != NEVER).then_some(moment.as_millis() as u64)
}
