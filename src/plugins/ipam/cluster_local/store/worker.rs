//! The daemon's two threads beside its event loop: one performs an operation at a time, the other
//! watches the store on a connection of its own. What they say wakes the event loop.

use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::abort;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::settings::Note;
use super::{Answer, Heard, Operation, Outcome, Store};
use crate::error::{Error, Result};

/// The pause before a watch begins again after it ended, at first.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What the threads say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// The operation has ended.
    Outcome(Outcome<Answer>),
    /// The watch has heard something.
    Heard(Heard),
    /// A line for the log.
    Note(String),
}

/// The threads.
#[derive(Debug)]
pub struct Worker {
    operations: Sender<Operation>,
    told: Receiver<Told>,
    wake: Arc<EventFd>,
}

/// Sends a message to the event loop; returns whether that still exists.
type Tell = Arc<dyn Fn(Told) -> bool + Send + Sync>;

impl Worker {
    /// Starts the threads, each with a store of its own. A thread keeps the privileges that this one
    /// has now: start them once those are given up. The filter of system calls must have eventfd2(2).
    pub fn start(mut open: impl FnMut(Note) -> Result<Box<dyn Store + Send>>) -> Result<Worker> {
        let failed = |errno| Error::kernel("make an eventfd", errno);
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = Arc::new(EventFd::from_flags(flags).map_err(failed)?);
        let (operations, waiting) = channel::<Operation>();
        let (sender, told) = channel();
        let waker = wake.clone();
        let tell: Tell = Arc::new(move |message| {
            let is_heard = sender.send(message).is_ok();
            let _ = waker.write(1); // it fails only where it is ready anyway
            is_heard
        });
        let [of_worker, of_store] = [tell.clone(), tell.clone()];
        let mut store = open(Box::new(move |line| {
            of_store(Told::Note(line));
        }))?;
        spawn(move || {
            let mut outcomes = waiting.iter().map(|operation| operation.perform(&mut *store));
            let _ = outcomes.all(|outcome| of_worker(Told::Outcome(outcome))); // until nobody hears
        })?;
        let store = open(Box::new(|_| ()))?; // its notes would be the same
        spawn(move || watch(store, &tell))?;
        Ok(Worker { operations, told, wake })
    }

    /// Performs an operation after those before. Its outcome is told.
    pub fn send(&self, operation: Operation) {
        let _ = self.operations.send(operation); // the thread ends with this process alone
    }

    /// What was told since the last call.
    pub fn told(&self) -> Vec<Told> {
        let _ = self.wake.read(); // before the queue: what comes after it wakes the loop again
        self.told.try_iter().collect()
    }
}

/// Ready for reading once something was told.
impl AsFd for Worker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// Starts a thread. If it panics, the daemon aborts, and systemd restarts it.
fn spawn(work: impl FnOnce() + Send + 'static) -> Result<()> {
    let guarded = || catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| abort());
    let started = thread::Builder::new().spawn(guarded);
    started.map(drop).map_err(|error| Error::io("start a thread", &error))
}

fn watch(mut store: Box<dyn Store + Send>, tell: &Tell) {
    let mut pause = FIRST_PAUSE;
    let mut last_end = String::new();
    loop {
        let outcome = store.watch(&mut |heard| {
            pause = FIRST_PAUSE;
            last_end.clear();
            tell(Told::Heard(heard))
        });
        let Err(end) = outcome.value() else { return };
        if last_end != end {
            let again = pause.as_secs();
            tell(Told::Note(format!("the watch has ended: {end}; again in {again} s")));
            last_end = end;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::super::{Key, Record, Selection, Stored};
    use super::*;

    /// A store that is away, and tells so; its watch has heard one thing.
    struct Away(Note);

    impl Store for Away {
        fn get(&mut self, _: &Key) -> Outcome<Option<Stored>> {
            (self.0)("asked".to_owned());
            Outcome::Unreachable("away".to_owned())
        }

        fn list(&mut self, _: &Selection) -> Outcome<Vec<Stored>> {
            Outcome::Done(vec![])
        }

        fn create(&mut self, _: &Record) -> Outcome<Stored> {
            Outcome::Lost
        }

        fn update(&mut self, _: &Record, _: &Stored) -> Outcome<Stored> {
            Outcome::Lost
        }

        fn delete(&mut self, _: &Stored) -> Outcome<()> {
            Outcome::Lost
        }

        fn watch(&mut self, tell: &mut dyn FnMut(Heard) -> bool) -> Outcome<()> {
            match tell(Heard::Gone(Key::Meta)) {
                true => Outcome::Unknown("gone".to_owned()),
                false => Outcome::Done(()),
            }
        }
    }

    /// What is told until there are so many.
    fn told(worker: &Worker, count: usize) -> Vec<Told> {
        let mut all = vec![];
        while all.len() < count {
            let mut fds = [PollFd::new(worker.as_fd(), PollFlags::POLLIN)];
            assert_eq!(poll(&mut fds, PollTimeout::from(10_000_u16)), Ok(1), "{all:?}");
            all.extend(worker.told());
        }
        all
    }

    #[test]
    fn what_is_told_wakes_the_loop_and_a_watch_begins_again() {
        let worker = Worker::start(|note| Ok(Box::new(Away(note)))).unwrap();
        let heard = Told::Heard(Heard::Gone(Key::Meta));
        let ended = Told::Note("the watch has ended: gone; again in 1 s".to_owned());
        assert_eq!(told(&worker, 2), [heard.clone(), ended.clone()]);
        worker.send(Operation::Get(Key::Meta));
        worker.send(Operation::List(Selection::All));
        let outcomes = [
            Told::Note("asked".to_owned()),
            Told::Outcome(Outcome::Unreachable("away".to_owned())),
            Told::Outcome(Outcome::Done(Answer::Listed(vec![]))),
        ];
        assert_eq!(told(&worker, 3), outcomes);
        assert_eq!(told(&worker, 2), [heard, ended], "after a pause");
    }
}
