//! Waits for the kernel's notification that something changed, instead of polling.

use std::os::fd::AsFd as _;
use std::time::Instant;

use netlink_sys::protocols::NETLINK_ROUTE;
use nix::errno::Errno;
use nix::libc::{RTNLGRP_IPV6_IFADDR, RTNLGRP_LINK};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::link::Link;
use super::socket::Netlink;
use super::transport::Transport;
use crate::error::{Error, Result};
use crate::sys::impl_as_fd;
use crate::timing::{self, Wait};

/// Receives changes from its creation on: create it before the change to wait for.
pub struct Watch {
    transport: Transport,
}

impl Watch {
    /// Listens for changes of links in the namespace of this thread.
    pub fn links() -> Result<Watch> {
        Watch::of(RTNLGRP_LINK)
    }

    /// Listens for changes of IPv6 addresses in the namespace of this thread.
    pub fn ipv6_addresses() -> Result<Watch> {
        Watch::of(RTNLGRP_IPV6_IFADDR)
    }

    fn of(group: u32) -> Result<Watch> {
        let begin = || {
            let mut transport = Transport::open(NETLINK_ROUTE)?;
            transport.join(group)?;
            Ok(Watch { transport })
        };
        begin().map_err(listening)
    }

    /// Waits until the link is operational; its state is read again whenever any link changes.
    /// Returns the last state seen when time is up.
    pub fn until_operational(
        &self,
        netlink: &Netlink,
        name: &str,
        deadline: Instant,
    ) -> Result<Link> {
        loop {
            let link = netlink.link(name)?;
            if link.is_operational() || !self.until(deadline)? {
                return Ok(link);
            }
        }
    }

    /// Waits for the next change; false when time is up.
    pub fn until(&self, deadline: Instant) -> Result<bool> {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left.as_millis()).unwrap_or(PollTimeout::MAX);
        let changed = timing::waiting_on(Wait::Links, || {
            poll(&mut [PollFd::new(self.as_fd(), PollFlags::POLLIN)], timeout)
        });
        match changed {
            Ok(0) => Ok(false),
            Err(Errno::EINTR) => Ok(true),
            Err(e) => Err(listening(e)),
            Ok(_) => match self.transport.events(|_| ()) {
                // more changes than fit into the queue: at least one happened
                Ok(()) | Err(Errno::ENOBUFS) => Ok(true),
                Err(e) => Err(listening(e)),
            },
        }
    }
}

// Readable when something changed.
impl_as_fd!(Watch, transport);

fn listening(errno: Errno) -> Error {
    Error::kernel("listen for changes of the network", errno)
}
