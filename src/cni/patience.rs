//! Hearing out a plugin that may never answer: as long as the caller is ready to wait, and no thread is needed for it.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// So much no plugin has to say.
const MUCH: usize = 1 << 20;
/// How long it takes to look again at a plugin that has closed its streams and not ended.
const GLANCE: Duration = Duration::from_millis(10);

/// How the plugin ended, its stdout and its stderr. Of one that takes longer its whole process group, which has to be its
/// own, is killed. `stdin` must fit into a pipe.
pub fn hear(mut child: Child, stdin: &[u8], patience: Duration) -> io::Result<(ExitStatus, Vec<u8>, Vec<u8>)> {
    let deadline = Instant::now() + patience;
    if let Some(mut to) = child.stdin.take() {
        let _ = to.write_all(stdin); // a plugin need not read it
    }
    let heard = read_streams(&mut child, deadline)
        .and_then(|[stdout, stderr]| Ok((wait_until(&mut child, deadline)?, stdout, stderr)));
    if heard.is_err() {
        let group = i32::try_from(child.id()).map(|id| Pid::from_raw(-id));
        let _ = group.map(|group| kill(group, Signal::SIGKILL)); // it may have ended
        child.wait()?;
    }
    heard
}

fn read_streams(child: &mut Child, deadline: Instant) -> io::Result<[Vec<u8>; 2]> {
    let open = |fd: Option<OwnedFd>| fd.map(File::from);
    let mut streams = [open(child.stdout.take().map(OwnedFd::from)), open(child.stderr.take().map(OwnedFd::from))];
    let mut texts = [vec![], vec![]];
    let mut chunk = [0; 4096];
    while streams.iter().any(Option::is_some) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || texts.iter().any(|text: &Vec<u8>| text.len() > MUCH) {
            return Err(ErrorKind::TimedOut.into());
        }
        let mut polled: Vec<PollFd<'_>> =
            streams.iter().flatten().map(|stream| PollFd::new(stream.as_fd(), PollFlags::POLLIN)).collect();
        let timeout = PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX);
        match poll(&mut polled, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => (),
            Err(error) => return Err(error.into()),
        }
        let mut ready = polled.iter().map(|fd| fd.any().unwrap_or(true)).collect::<Vec<_>>().into_iter();
        for (stream, text) in streams.iter_mut().zip(&mut texts) {
            let Some(from) = stream.as_mut().filter(|_| ready.next() == Some(true)) else { continue };
            match from.read(&mut chunk)? {
                0 => *stream = None,
                length => text.extend(chunk.iter().take(length)),
            }
        }
    }
    Ok(texts)
}

fn wait_until(child: &mut Child, deadline: Instant) -> io::Result<ExitStatus> {
    loop {
        match child.try_wait()? {
            Some(status) => return Ok(status),
            None if Instant::now() >= deadline => return Err(ErrorKind::TimedOut.into()),
            None => thread::sleep(GLANCE),
        }
    }
}
