//! Members of a crowd, which take turns on a few threads.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::Result;

/// What the calls of a member, or of all, have cost.
#[derive(Clone, Copy, Default)]
pub struct Spent {
    pub cpu: Duration,
    /// Requests to nf_tables, where the calls tell.
    pub requests: u64,
}

impl std::ops::AddAssign for Spent {
    fn add_assign(&mut self, other: Spent) {
        self.cpu += other.cpu;
        self.requests += other.requests;
    }
}

/// One member's turn.
#[derive(Clone, Copy)]
pub struct Turn {
    pub member: usize,
    /// A number that no other member has at the time: separates the files of processes.
    pub slot: usize,
}

/// What a crowd has cost: its time from the first to the last, and that of each member.
pub struct Crowd {
    pub wall: Duration,
    pub members: Vec<(Duration, Result<Spent>)>,
}

/// Does `work` for each member on `width` threads, which stay in this thread's namespace.
pub fn take([members, width]: [usize; 2], work: impl Fn(Turn) -> Result<Spent> + Sync) -> Crowd {
    let next = AtomicUsize::new(0);
    let all_of = |slot: usize| {
        let mine = std::iter::from_fn(|| Some(next.fetch_add(1, Relaxed)).filter(|&m| m < members));
        let one = |member| {
            let started = Instant::now();
            let spent = work(Turn { member, slot });
            (started.elapsed(), spent)
        };
        mine.map(one).collect::<Vec<_>>()
    };
    let started = Instant::now();
    let members = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..width).map(|slot| scope.spawn(move || all_of(slot))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    });
    Crowd { wall: started.elapsed(), members }
}
