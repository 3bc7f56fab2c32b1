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
/// The longest polling interval for a plugin that has closed its streams and not exited.
const GLANCE: Duration = Duration::from_millis(10);
/// The first interval, which doubles: a plugin usually exits at once.
const SHORTEST_GLANCE: Duration = Duration::from_micros(100);

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
    stdin: &[u8],
    deadline: Option<Instant>,
) -> io::Result<[Vec<u8>; 2]> {
    let stdout = child.stdout.take().map(OwnedFd::from);
    let stderr = child.stderr.take().map(OwnedFd::from);
    // Main holds the lock on our stderr, so the plugin's is copied to the descriptor.
    let own_stderr = || io::stderr().as_fd().try_clone_to_owned().ok().map(File::from);
    let mut streams = Streams {
        to: child.stdin.take().map(OwnedFd::from).map(File::from),
        unsent: stdin,
        from: [stdout, stderr].map(|stream| stream.map(File::from)),
        texts: [vec![], vec![]],
        ours: deadline.is_none().then(own_stderr).flatten(),
    };
    streams.close_if_all_is_sent();
    while streams.to.is_some() || streams.from.iter().any(Option::is_some) {
        if deadline.is_some() && streams.texts.iter().any(|text| text.len() > MUCH) {
            return Err(ErrorKind::TimedOut.into());
        }
        let [is_writable, has_stdout, has_stderr] = streams.wait(deadline)?;
        if is_writable {
            streams.write();
        }
        if has_stdout {
            streams.read(STDOUT)?;
        }
        if has_stderr {
            streams.read(STDERR)?;
        }
    }
    Ok(streams.texts)
}

/// The indices of a plugin's output streams.
const STDOUT: usize = 0;
const STDERR: usize = 1;

/// The streams of a plugin, and what is left to write and was read.
struct Streams<'a> {
    to: Option<File>,
    unsent: &'a [u8],
    from: [Option<File>; 2],
    texts: [Vec<u8>; 2],
    /// Our stderr, if the plugin's is copied there.
    ours: Option<File>,
}

impl Streams<'_> {
    /// Closes the plugin's stdin once it has the whole input.
    fn close_if_all_is_sent(&mut self) {
        if self.unsent.is_empty() {
            self.to = None;
        }
    }

    /// Waits until one of stdin, stdout and stderr is ready; returns which ones are.
    fn wait(&self, deadline: Option<Instant>) -> io::Result<[bool; 3]> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = match left {
            None => PollTimeout::NONE,
            Some(Duration::ZERO) => return Err(ErrorKind::TimedOut.into()),
            Some(left) => PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX),
        };
        let [stdout, stderr] = &self.from;
        let streams = [self.to.as_ref(), stdout.as_ref(), stderr.as_ref()];
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

    /// Writes a piece of the plugin's stdin.
    fn write(&mut self) {
        let Some(pipe) = &mut self.to else { return };
        let piece = &self.unsent[..self.unsent.len().min(PIPE_BUF)];
        match pipe.write(piece) {
            Ok(length) => self.unsent = &self.unsent[length..],
            // the plugin need not read all; its exit status tells whether that was right
            Err(_) => self.unsent = &[],
        }
        self.close_if_all_is_sent();
    }

    /// Reads a piece of one output stream, or its end.
    fn read(&mut self, at: usize) -> io::Result<()> {
        let Some(stream) = &mut self.from[at] else { return Ok(()) };
        let mut chunk = [0; PIPE_BUF];
        let bytes = match stream.read(&mut chunk)? {
            0 => {
                self.from[at] = None;
                return Ok(());
            }
            length => &chunk[..length],
        };
        if let Some(ours) = self.ours.as_mut().filter(|_| at == STDERR) {
            let _ = ours.write_all(bytes); // a closed stderr of ours must not stop the plugin
        }
        self.texts[at].extend_from_slice(bytes);
        Ok(())
    }
}

fn wait_until(child: &mut Child, deadline: Option<Instant>) -> io::Result<ExitStatus> {
    let Some(deadline) = deadline else { return child.wait() };
    let mut pause = SHORTEST_GLANCE;
    loop {
        match child.try_wait()? {
            Some(status) => return Ok(status),
            None if Instant::now() >= deadline => return Err(ErrorKind::TimedOut.into()),
            None => thread::sleep(pause),
        }
        pause = GLANCE.min(pause * 2);
    }
}
