//! The clock that leases are measured by.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The time since the machine was started, sleep included (CLOCK_BOOTTIME): nobody can set it.
pub fn since_boot() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default() // there since Linux 2.6.39
}
