//! Code that every test tier shares.

pub mod again;
pub mod attachment;
pub mod beside;
pub mod broken;
pub mod call;
pub mod case;
pub mod chain;
pub mod contract;
pub mod dhcp;
pub mod entrance;
#[cfg(feature = "cluster")]
pub mod etcd;
pub mod extent;
pub mod failed_add;
pub mod flow;
pub mod held;
pub mod kernel;
pub mod limit;
pub mod list;
pub mod netns;
pub mod networks;
#[cfg(feature = "cluster")]
pub mod node;
pub mod peers;
pub mod placed;
pub mod probe;
pub mod programs;
pub mod scratch;
pub mod shells;
pub mod signals;
pub mod snapshot;
pub mod stdin;
pub mod subject;
pub mod synced;
pub mod table;
pub mod tracer;
pub mod traffic;

use std::time::Duration;

use extent::is_emulated;

/// A timeout for work that takes `seconds` at most on an idle machine. An emulated machine is
/// several times slower, and so is one with many processes per processor; a timeout that is too
/// long costs nothing when the work succeeds.
pub fn patience(seconds: u64) -> Duration {
    let slowness = if is_emulated() { 5 } else { 1 };
    Duration::from_secs(seconds * slowness * waiting_a_processor())
}

/// The number of processes per processor, from 1 to 10.
fn waiting_a_processor() -> u64 {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let running: f64 =
        load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    (running / processors as f64).clamp(1.0, 10.0).ceil() as u64
}
