//! What every tier of the tests shares.

pub mod attachment;
pub mod beside;
pub mod call;
pub mod chain;
pub mod dhcp;
pub mod flow;
pub mod netns;
pub mod peers;
pub mod probe;
pub mod scratch;
pub mod shells;
pub mod snapshot;
pub mod stdin;
pub mod tracer;
pub mod traffic;

use std::time::Duration;

/// A time limit for what takes `seconds` at most on a machine that has nothing else to do. An
/// emulated one (`tests/vm/run`, which sets `CNI_VM` for the tests) is several times slower, and so
/// is one where many processes take turns; a limit that is too long costs nothing where things
/// work.
pub fn patience(seconds: u64) -> Duration {
    let slowness = if std::env::var_os("CNI_VM").is_some() { 5 } else { 1 };
    Duration::from_secs(seconds * slowness * waiting_a_processor())
}

/// How many processes take turns on each processor, as far as it makes a difference.
fn waiting_a_processor() -> u64 {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let running: f64 =
        load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    (running / processors as f64).clamp(1.0, 10.0).ceil() as u64
}
