//! Feeding a plugin and hearing it out. It may write before it reads, and may never end: one loop
//! looks after all of its streams, so nobody waits for anybody, and for as long as the caller is
//! ready to wait.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// So much a pipe takes, if it takes anything (pipe(7)).
const PIPE_BUF: usize = 4096;
/// So much no plugin has to say to who has not got all the time.
const MUCH: usize = 1 << 20;
/// How long it takes to look again at a plugin that has closed its streams and not ended.
const GLANCE: Duration = Duration::from_millis(10);

/// What a plugin left behind.
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// Its stdout.
    pub stdout: Vec<u8>,
    /// Its stderr.
    pub stderr: Vec<u8>,
}

/// How long a plugin may take, and who hears its stderr while it speaks.
pub enum Manner {
    /// As long as it likes; its stderr is copied to ours.
    Patient,
    /// So long. One that takes longer is killed with its process group, which has to be its own.
    Within(Duration),
}

/// Has the conversation: `stdin` and then end of file, until the plugin has ended.
pub fn converse(mut child: Child, stdin: &[u8], manner: &Manner) -> io::Result<Output> {
    let deadline = match manner {
        Manner::Patient => None,
        Manner::Within(time) => Some(Instant::now() + *time),
    };
    let heard = exchange(&mut child, stdin, deadline).and_then(|[stdout, stderr]| {
        Ok(Output { status: wait_until(&mut child, deadline)?, stdout, stderr })
    });
    if heard.is_err() {
        if deadline.is_some() {
            let group = i32::try_from(child.id()).map(|id| Pid::from_raw(-id));
            let _ = group.map(|group| kill(group, Signal::SIGKILL)); // it may have ended
        }
        child.wait()?; // no zombies
    }
    heard
}

/// Writes and reads until the plugin has closed its stdout and stderr and has all that it wants of
/// its stdin.
fn exchange(
    child: &mut Child,
    mut unsent: &[u8],
    deadline: Option<Instant>,
) -> io::Result<[Vec<u8>; 2]> {
    let mut to = child.stdin.take().map(OwnedFd::from).map(File::from);
    let mut from = [child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from)]
        .map(|stream| stream.map(File::from));
    // The copy goes to the file descriptor, as the plugin's own writes would: the lock on the
    // stream is main's.
    let mut ours = if deadline.is_none() {
        io::stderr().as_fd().try_clone_to_owned().ok().map(File::from)
    } else {
        None
    };
    let mut texts = [vec![], vec![]];
    let mut chunk = [0; PIPE_BUF];
    loop {
        if unsent.is_empty() {
            to = None;
        }
        if to.is_none() && from.iter().all(Option::is_none) {
            return Ok(texts);
        }
        if deadline.is_some() && texts.iter().any(|text: &Vec<u8>| text.len() > MUCH) {
            return Err(ErrorKind::TimedOut.into());
        }
        let [is_writable, has_stdout, has_stderr] =
            wait_for([to.as_ref(), from[0].as_ref(), from[1].as_ref()], deadline)?;
        if let Some(pipe) = to.as_mut().filter(|_| is_writable) {
            let piece = &unsent[..unsent.len().min(PIPE_BUF)];
            match pipe.write(piece) {
                Ok(length) => unsent = &unsent[length..],
                // it need not read all, and its status says whether that was right
                Err(_) => unsent = &[],
            }
        }
        for (at, is_ready) in [has_stdout, has_stderr].into_iter().enumerate() {
            let Some(stream) = from[at].as_mut().filter(|_| is_ready) else { continue };
            match stream.read(&mut chunk)? {
                0 => from[at] = None,
                length => {
                    if let Some(ours) = ours.as_mut().filter(|_| at == 1) {
                        let _ = ours.write_all(&chunk[..length]); // nobody reads our stderr: no reason to stop the plugin
                    }
                    texts[at].extend_from_slice(&chunk[..length]);
                }
            }
        }
    }
}

/// Which of a plugin's stdin, stdout and stderr can be written to, or read from. Waits until one
/// can.
fn wait_for(streams: [Option<&File>; 3], deadline: Option<Instant>) -> io::Result<[bool; 3]> {
    let timeout = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    {
        None => PollTimeout::NONE,
        Some(Duration::ZERO) => return Err(ErrorKind::TimedOut.into()),
        Some(left) => PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX),
    };
    let flags = [PollFlags::POLLOUT, PollFlags::POLLIN, PollFlags::POLLIN];
    let open = streams
        .iter()
        .zip(flags)
        .filter_map(|(stream, flags)| Some(PollFd::new((*stream)?.as_fd(), flags)));
    let mut polled: Vec<PollFd<'_>> = open.collect();
    match poll(&mut polled, timeout) {
        Ok(_) | Err(Errno::EINTR) => (),
        Err(error) => return Err(error.into()),
    }
    let mut events = polled.iter().map(|fd| fd.any() == Some(true));
    Ok(streams.map(|stream| stream.is_some() && events.next() == Some(true)))
}

fn wait_until(child: &mut Child, deadline: Option<Instant>) -> io::Result<ExitStatus> {
    let Some(deadline) = deadline else { return child.wait() };
    loop {
        match child.try_wait()? {
            Some(status) => return Ok(status),
            None if Instant::now() >= deadline => return Err(ErrorKind::TimedOut.into()),
            None => thread::sleep(GLANCE),
        }
    }
}
