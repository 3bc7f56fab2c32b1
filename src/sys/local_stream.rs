//! A Unix stream socket (unix(7)) with a deadline: the peer may have stopped.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use crate::timing::{self, Wait};

/// A connection whose operations all end by its deadline.
pub struct LocalStream {
    socket: UnixStream,
    patience: Duration,
    deadline: Instant,
}

impl LocalStream {
    /// Connects. A stopped program does not accept connections, so connecting can block.
    pub fn connect(address: &UnixAddr, patience: Duration) -> io::Result<LocalStream> {
        let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        let stream = LocalStream::over(socket.into(), patience);
        stream.socket.set_write_timeout(Some(stream.left()?))?;
        let fd = stream.socket.as_raw_fd();
        while let Err(errno) = timing::waiting_on(Wait::Daemons, || connect(fd, address)) {
            match errno {
                Errno::EINTR => stream.socket.set_write_timeout(Some(stream.left()?))?,
                errno => return Err(stream.late(errno.into())),
            }
        }
        Ok(stream)
    }

    /// Wraps an existing connection.
    pub fn over(socket: UnixStream, patience: Duration) -> LocalStream {
        LocalStream { socket, patience, deadline: Instant::now() + patience }
    }

    /// Sets a new deadline: `patience` from now.
    pub fn allow(&mut self, patience: Duration) {
        (self.patience, self.deadline) = (patience, Instant::now() + patience);
    }

    /// Waits, for any time, until there is something to read or the peer has hung up.
    pub fn wait(&self) -> io::Result<()> {
        let mut readable = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        while let Err(errno) = poll(&mut readable, PollTimeout::NONE) {
            if errno != Errno::EINTR {
                return Err(errno.into());
            }
        }
        Ok(())
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(self.late(io::ErrorKind::WouldBlock.into())) } else { Ok(left) }
    }

    /// Rewords a timeout, which the kernel calls "temporarily unavailable".
    fn late(&self, error: io::Error) -> io::Error {
        match error.kind() {
            io::ErrorKind::WouldBlock => {
                io::Error::other(format!("no answer within {} s", self.patience.as_secs()))
            }
            _ => error,
        }
    }
}

impl Read for LocalStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(self.left()?))?;
        let socket = &mut self.socket;
        timing::waiting_on(Wait::Daemons, || socket.read(buffer)).map_err(|e| self.late(e))
    }
}

impl Write for LocalStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(self.left()?))?;
        let socket = &mut self.socket;
        timing::waiting(Wait::Daemons, || socket.write(bytes)).map_err(|e| self.late(e))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(()) // a socket has no buffer to flush
    }
}
