//! The rtnetlink socket: requests, dumps, and refusals of the kernel. Each module of messages adds
//! its own operations to it.

use std::fmt;
use std::os::fd::OwnedFd;

use netlink_sys::protocols::NETLINK_ROUTE;
use nix::errno::Errno;
use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL};

use super::request::Request;
use super::transport::{Refusal, Transport};
use crate::error::{Code, Error, Result};

/// How often an interrupted dump is retried. The kernel filters each dump here, so it is short, and
/// only a change of the very objects that are read interrupts it.
const DUMP_TRIES: usize = 20;

/// A socket for the network of one namespace, the one it was opened in.
pub struct Netlink {
    pub(super) transport: Transport,
}

impl Netlink {
    /// Opens a socket in the namespace of this thread.
    pub fn open() -> Result<Netlink> {
        let transport = Transport::open(NETLINK_ROUTE)
            .map_err(|e| Error::kernel("open a netlink socket", e))?;
        Ok(Netlink { transport })
    }

    /// Talks to a peer other than the kernel, see [`Transport::over`].
    pub fn over(socket: OwnedFd) -> Netlink {
        Netlink { transport: Transport::over(socket) }
    }

    /// From now on the kernel answers each question once, until [`Netlink::forget`].
    pub fn remember(&self) {
        self.transport.remember();
    }

    /// From now on the kernel answers each question.
    pub fn forget(&self) {
        self.transport.forget();
    }

    /// The kernel's cookie of the namespace. It is never reused, unlike a path and even an inode;
    /// None before Linux 5.14.
    pub fn netns_cookie(&self) -> Option<u64> {
        self.transport.netns_cookie()
    }

    /// Sends a request and waits for the acknowledgement; `what` names the request in the error.
    pub(super) fn request(
        &self,
        request: &Request,
        flags: u16,
        what: impl fmt::Display,
    ) -> Result<()> {
        let seq = self.send(request, flags | NLM_F_ACK).map_err(|e| Error::kernel(&what, e))?;
        self.transport.acknowledged(seq, |_| ()).map_err(|refusal| refused(&what, refusal))
    }

    /// Adds an object that must not exist.
    pub(super) fn add(&self, request: &Request, what: fmt::Arguments<'_>) -> Result<()> {
        self.request(request, NLM_F_CREATE | NLM_F_EXCL, what)
    }

    /// Removes an object, if it exists.
    pub(super) fn remove(&self, request: &Request, what: fmt::Arguments<'_>) -> Result<()> {
        none_if_gone(self.request(request, 0, what)).map(drop)
    }

    /// Sends a request that is answered by one message.
    pub(super) fn get<T>(
        &self,
        request: &Request,
        what: impl fmt::Display,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<T> {
        let mut found = None;
        self.transport
            .ask(request.to_bytes(0, 0), &mut |reply| found = read(reply.payload))
            .map_err(|refusal| refused(&what, refusal))?;
        found.ok_or_else(|| Error::kernel(&what, Errno::EBADMSG))
    }

    /// Dumps what `request` selects, filtered by the kernel, as one consistent list.
    pub(super) fn dump<T>(
        &self,
        request: &Request,
        what: impl fmt::Display,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>> {
        for _ in 0..DUMP_TRIES {
            let mut list = vec![];
            let question = request.to_bytes(NLM_F_DUMP, 0);
            let consistent =
                self.transport.ask(question, &mut |reply| list.extend(read(reply.payload)));
            if consistent.map_err(|refusal| refused(&what, refusal))? {
                return Ok(list);
            }
        }
        Err(never_consistent(what, DUMP_TRIES))
    }

    pub(super) fn send(&self, request: &Request, flags: u16) -> Result<u32, Errno> {
        let seq = self.transport.next_seq();
        self.transport.send(&request.to_bytes(flags, seq))?;
        Ok(seq)
    }
}

/// Builds an error from the operation, its object, the errno, and the kernel's own text.
pub(in crate::net) fn refused(what: impl fmt::Display, refusal: Refusal) -> Error {
    let error = Error::kernel(what, refusal.errno);
    if refusal.text.is_empty() {
        error
    } else {
        error.with_details(format_args!("kernel: {}", refusal.text))
    }
}

/// Builds the error about a dump that was interrupted each time.
pub(in crate::net) fn never_consistent(what: impl fmt::Display, tries: usize) -> Error {
    Error::system(Code::TRY_AGAIN, what, Errno::EINTR as i32)
        .with_details(format_args!("it changed during each of {tries} tries"))
}

/// Turns a "not found" error into None.
pub(super) fn none_if_gone<T>(result: Result<T>) -> Result<Option<T>> {
    match result.map(Some) {
        Err(error) if error.is_not_found() => Ok(None),
        result => result,
    }
}
