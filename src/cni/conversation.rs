//! Exchanges data with a plugin process. A plugin may write before it reads, and may never end: one
//! loop serves all of its streams, so neither side blocks the other, until the caller's timeout.

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

/// The number of bytes that a writable pipe accepts (pipe(7)).
const PIPE_BUF: usize = 4096;
/// The output limit of a plugin that runs with a timeout.
const MUCH: usize = 1 << 20;
/// The polling interval for a plugin that has closed its streams and not exited.
const GLANCE: Duration = Duration::from_millis(10);

/// The exit status and output of a plugin.
pub struct Output {
    /// The exit status.
    pub status: ExitStatus,
    /// Its stdout.
    pub stdout: Vec<u8>,
    /// Its stderr.
    pub stderr: Vec<u8>,
}

/// The timeout of a plugin, and whether its stderr is copied while it runs.
pub enum Manner {
    /// No timeout; the plugin's stderr is copied to ours.
    Patient,
    /// A timeout. A plugin that takes longer is killed with its process group, which must be its
    /// own.
    Within(Duration),
}

/// Writes `stdin` and then end of file; returns the output after the plugin has exited.
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
            let _ = group.map(|group| kill(group, Signal::SIGKILL)); // it may have exited
        }
        child.wait()?; // no zombies
    }
    heard
}

/// Writes and reads until the plugin has closed its stdout and stderr and has read as much of its
/// stdin as it wants.
fn exchange(
    child: &mut Child,
    mut unsent: &[u8],
    deadline: Option<Instant>,
) -> io::Result<[Vec<u8>; 2]> {
    let mut to = child.stdin.take().map(OwnedFd::from).map(File::from);
    let mut from = [child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from)]
        .map(|stream| stream.map(File::from));
    // Copy to the file descriptor, as the plugin's own writes would: main holds the lock on the
    // stream.
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
                // the plugin need not read all; its exit status tells whether that was right
                Err(_) => unsent = &[],
            }
        }
        for (at, is_ready) in [has_stdout, has_stderr].into_iter().enumerate() {
            let Some(stream) = from[at].as_mut().filter(|_| is_ready) else { continue };
            match stream.read(&mut chunk)? {
                0 => from[at] = None,
                length => {
                    if let Some(ours) = ours.as_mut().filter(|_| at == 1) {
                        let _ = ours.write_all(&chunk[..length]); // a closed stderr of ours must not stop the plugin
                    }
                    texts[at].extend_from_slice(&chunk[..length]);
                }
            }
        }
    }
}

/// Waits until one of a plugin's stdin, stdout and stderr is ready; returns which ones are.
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
