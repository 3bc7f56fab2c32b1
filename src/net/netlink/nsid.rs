//! The numbers by which a namespace knows others: `ip netns list-id`.

use std::os::fd::RawFd;

use rtnetlink::packet_route::nsid::{NsidAttribute, NsidMessage};

use super::attr::Attrs;
use super::request::{RTM_GETNSID, Request};
use super::socket::{Netlink, refused};
use crate::error::{Error, Result};

/// rtgenmsg, padded.
const HEADER: usize = 4;
// linux/net_namespace.h
const NETNSA_NSID: u16 = 1;
const NOT_ASSIGNED: u32 = -1_i32 as u32;

impl Netlink {
    /// The number by which this namespace knows the one that `netns` is open on; None if it has
    /// none. The kernel gives it one at the latest when it reports a link that leads there.
    pub fn nsid(&self, netns: RawFd) -> Result<Option<u32>> {
        let what = "find the number of a netns";
        let mut message = NsidMessage::default();
        message.attributes.push(NsidAttribute::Fd(netns as u32));
        let request = Request::new(RTM_GETNSID, &message);
        // Not by `get`, which may have kept the answer of another namespace: the question has only
        // the number of a descriptor.
        let seq = self.send(&request, 0).map_err(|e| Error::kernel(what, e))?;
        let mut found = None;
        self.transport
            .one(seq, |reply| found = Attrs::after(reply.payload, HEADER).u32(NETNSA_NSID))
            .map_err(|refusal| refused(what, refusal))?;
        Ok(found.filter(|nsid| *nsid != NOT_ASSIGNED))
    }
}
