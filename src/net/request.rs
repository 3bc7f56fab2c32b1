//! A packet that asks a host for an answer, and is sent until there is one.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::error::{Error, Result};

/// How long one packet waits for its answer before the next one is sent: a bridge drops packets of a
/// port that does not forward yet.
const INTERVAL: Duration = Duration::from_millis(200);

/// What a host has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// That it is there.
    Yes,
    /// That nobody listens.
    Refused,
}

/// A request with its socket, which does not block.
pub trait Request: AsFd {
    /// Sends it once more.
    fn send(&mut self) -> Result<()>;

    /// Reads one packet that has arrived; the answer, if it is one. Reading until none is left would
    /// outlast the patience while a host floods.
    fn receive(&mut self) -> Result<Option<Answer>>;
}

/// Sends the request until it is answered; returns the answer with the time that it took, or None after
/// `patience`. Adds to the packets that were `sent`.
pub fn ask(
    request: &mut dyn Request,
    patience: Duration,
    sent: &mut usize,
) -> Result<Option<(Answer, Duration)>> {
    let end = Instant::now() + patience;
    while Instant::now() < end {
        let begin = Instant::now();
        request.send()?;
        *sent += 1;
        loop {
            let left = (begin + INTERVAL).saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let polled = poll(&mut [PollFd::new(request.as_fd(), PollFlags::POLLIN)], timeout);
            match polled {
                Ok(_) | Err(Errno::EINTR) => (),
                Err(errno) => return Err(Error::kernel("wait for an answer", errno)),
            }
            if let Some(answer) = request.receive()? {
                return Ok(Some((answer, begin.elapsed())));
            }
            if left.is_zero() {
                break;
            }
        }
    }
    Ok(None)
}

/// A neighbour that does not answer yet is no error: the next packet may reach it.
pub fn unless_unreachable(error: io::Error) -> io::Result<usize> {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EHOSTUNREACH) => Ok(0),
        _ => Err(error),
    }
}

/// The same for what an error message of ICMP says, which a rule or a router may have sent.
pub fn unless_rejected(error: io::Error) -> io::Result<usize> {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(
            Errno::ECONNREFUSED
            | Errno::EPROTO
            | Errno::ENOPROTOOPT
            | Errno::EACCES
            | Errno::ENETUNREACH
            | Errno::EMSGSIZE,
        ) => Ok(0),
        _ => unless_unreachable(error),
    }
}

/// Sends the message. An error that an earlier one has caused is reported once: the second try has its own.
pub fn send(socket: &UdpSocket, message: &[u8]) -> io::Result<usize> {
    socket.send(message).or_else(|_| socket.send(message)).or_else(unless_unreachable)
}
