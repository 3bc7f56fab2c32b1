//! What every tier of the tests shares.

pub mod attachment;
pub mod call;
pub mod chain;
pub mod dhcp;
pub mod flow;
pub mod netns;
pub mod peers;
pub mod scratch;
pub mod snapshot;
pub mod stdin;
pub mod traffic;

use std::time::Duration;

/// A time limit for what takes `seconds` at most on a machine that is not very busy. An emulated one (`tests/vm/run`, which
/// sets `CNI_VM` for the tests) is several times slower; a limit that is too long costs nothing where things work.
pub fn patience(seconds: u64) -> Duration {
    let slowness = if std::env::var_os("CNI_VM").is_some() { 5 } else { 1 };
    Duration::from_secs(seconds * slowness)
}
