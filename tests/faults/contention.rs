//! Contention: hundreds of containers at once, a host with thousands of links under constant
//! change, and locks held by other processes. Concurrent ADDs on a small scale are in `parallel`.
//!
//! `CNI_LONG` runs the cases at the size of the tables in docs/evidence.

mod churn;
mod crowd;
mod growth;
mod locks;
mod networks;
mod strangers;

use super::in_turns;
use crate::support::extent::is_long;

/// The size of a case in the long or the short form.
fn long_or_short<T>(long: T, short: T) -> T {
    if is_long() { long } else { short }
}
