//! Asks many questions at once: the time is that of one.

use std::cell::Cell;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::question::Question;
use crate::error::{Error, Result};

/// How long one request waits for its answer before the next one is sent: a bridge drops packets of
/// a port that does not forward yet.
const INTERVAL: Duration = Duration::from_millis(200);

/// Asks until each question is answered, or its patience has ended. Adds to the packets that were
/// `sent`.
pub fn ask(questions: &mut [&mut Question], sent: &Cell<usize>) -> Result<()> {
    let begin = Instant::now();
    let mut next = Duration::ZERO;
    loop {
        let after = begin.elapsed();
        let mut open: Vec<&mut Question> =
            questions.iter_mut().map(|it| &mut **it).filter(|it| !it.is_done(after)).collect();
        if open.is_empty() {
            return Ok(());
        }
        if after >= next {
            open.iter_mut().for_each(|question| question.ask());
            sent.set(sent.get() + open.len());
            next += INTERVAL;
        }
        read_until(&mut open, begin + next)?;
    }
}

/// Reads the answers of the first moment that has any; nothing if none comes before `end`.
fn read_until(open: &mut [&mut Question], end: Instant) -> Result<()> {
    let left = end.saturating_duration_since(Instant::now());
    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
    let ready: Vec<bool> = {
        let sockets = open.iter().map(|question| &**question);
        let mut polled: Vec<PollFd<'_>> = sockets
            .map(|it| PollFd::new(std::os::fd::AsFd::as_fd(it), PollFlags::POLLIN))
            .collect();
        match poll(&mut polled, timeout) {
            Ok(_) | Err(Errno::EINTR) => (),
            Err(e) => return Err(Error::kernel("wait for answers", e)),
        }
        polled.iter().map(|it| it.any().unwrap_or(false)).collect()
    };
    let ready = open.iter_mut().zip(ready).filter(|(_, is_ready)| *is_ready);
    ready.for_each(|(question, _)| question.read());
    Ok(())
}
