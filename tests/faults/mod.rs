//! Nothing leaks, whatever happens: faults at every step of every plugin.

#[cfg(feature = "cluster")]
pub mod cluster_local;
mod contention;
pub mod dhcp;
mod error;
mod kill;
mod life;
pub mod lives;
mod orphan;
mod power_loss;
mod table;

use std::sync::Mutex;

use crate::support::tracer::{Stop, Then};

/// Decides the fate of system calls.
type Decide<'a> = dyn FnMut(&Stop) -> Then + Send + 'a;

/// Runs `work` for each number below `count`, `at_a_time` in parallel. Returns the results in
/// order.
fn in_turns<T: Send>(count: usize, at_a_time: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let numbers = Mutex::new(0..count);
    let take = || numbers.lock().unwrap().next();
    let worker =
        || std::iter::from_fn(|| take().map(|number| (number, work(number)))).collect::<Vec<_>>();
    let mut done: Vec<(usize, T)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..at_a_time).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}
