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

/// How a thread speaks to the event loop.
#[derive(Clone)]
struct Voice {
    told: Sender<Told>,
    wake: Arc<EventFd>,
}

impl Worker {
    /// Starts the threads, each with a store of its own. A thread keeps the privileges that this one
    /// has now: start them once those are given up. The filter of system calls must have eventfd2(2).
    pub fn start(mut open: impl FnMut(Note) -> Result<Box<dyn Store + Send>>) -> Result<Worker> {
        let failed = |errno| Error::kernel("make an eventfd", errno);
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = Arc::new(EventFd::from_flags(flags).map_err(failed)?);
        let (operations, waiting) = channel();
        let (tell, told) = channel();
        let voice = Voice { told: tell, wake: wake.clone() };
        let of_worker = voice.clone();
        let store = open(of_worker.clone().note())?;
        spawn(move || work(store, &waiting, &of_worker))?;
        let store = open(voice.clone().note())?;
        spawn(move || watch(store, &voice))?;
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

impl Voice {
    /// Whether anybody listens still.
    fn tell(&self, told: Told) -> bool {
        let is_heard = self.told.send(told).is_ok();
        let _ = self.wake.write(1); // it fails only where it is ready anyway
        is_heard
    }

    fn note(self) -> Note {
        Box::new(move |line| {
            self.tell(Told::Note(line));
        })
    }
}

/// A thread without its work would be missed by nobody: if it panics, the daemon ends.
fn spawn(work: impl FnOnce() + Send + 'static) -> Result<()> {
    let guarded = || catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| abort());
    let started = thread::Builder::new().spawn(guarded);
    started.map(drop).map_err(|error| Error::io("start a thread", &error))
}

fn work(mut store: Box<dyn Store + Send>, operations: &Receiver<Operation>, voice: &Voice) {
    for operation in operations {
        if !voice.tell(Told::Outcome(operation.perform(&mut *store))) {
            return;
        }
    }
}

fn watch(mut store: Box<dyn Store + Send>, voice: &Voice) {
    let mut pause = FIRST_PAUSE;
    let mut last_end = None;
    loop {
        let outcome = store.watch(&mut |heard| {
            pause = FIRST_PAUSE;
            last_end = None;
            voice.tell(Told::Heard(heard))
        });
        if matches!(outcome, Outcome::Done(())) {
            return;
        }
        if last_end.as_ref() != Some(&outcome) {
            let again = pause.as_secs();
            voice.tell(Told::Note(format!("the watch has ended: {outcome:?}; again in {again} s")));
            last_end = Some(outcome);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
