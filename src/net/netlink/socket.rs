//! The rtnetlink socket: requests, dumps, and refusals of the kernel. Each module of messages adds
//! its own operations to it.
//!
//! A [`Request`] is nlmsghdr and a body that the rtnetlink crate writes. The crate has an enum of
//! all messages of rtnetlink. Building requests through it would link the code for every kind of
//! message; a type and a body only link those that are sent.

use std::fmt;
use std::os::fd::OwnedFd;

use netlink_sys::protocols::NETLINK_ROUTE;
use nix::errno::Errno;
use rtnetlink::packet_core::{
    Emitable, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader,
};
use rtnetlink::packet_route::AddressFamily;

use super::transport::{Refusal, Transport};
use crate::error::{Code, Error, Result};
use crate::family::Family;

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

// linux/rtnetlink.h
pub(super) use nix::libc::{
    RTM_DELADDR, RTM_DELLINK, RTM_DELQDISC, RTM_DELROUTE, RTM_DELRULE, RTM_GETADDR, RTM_GETLINK,
    RTM_GETNEIGH, RTM_GETQDISC, RTM_GETROUTE, RTM_GETRULE, RTM_GETTCLASS, RTM_GETTFILTER,
    RTM_NEWADDR, RTM_NEWLINK, RTM_NEWQDISC, RTM_NEWROUTE, RTM_NEWRULE, RTM_NEWTCLASS,
    RTM_NEWTFILTER, RTM_SETLINK,
};
pub(super) const RTM_GETNSID: u16 = 90;
pub(super) const RTM_NEWLINKPROP: u16 = 108;
pub(super) const RTM_DELLINKPROP: u16 = 109;

/// A message without its flags and its sequence number.
pub(super) struct Request {
    kind: u16,
    body: Vec<u8>,
}

impl Request {
    /// A request of a type (RTM_*) with its body.
    pub(super) fn new(kind: u16, body: &impl Emitable) -> Request {
        Request { kind, body: emitted(body) }
    }

    /// The message as it is sent. Its port id is 0: the kernel knows the sender.
    pub(super) fn to_bytes(&self, flags: u16, seq: u32) -> Vec<u8> {
        let mut header = NetlinkHeader::default();
        header.length = (header.buffer_len() + self.body.len()) as u32;
        header.message_type = self.kind;
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = seq;
        [emitted(&header), self.body.clone()].concat()
    }
}

/// As headers of addresses, routes and rules have it.
impl From<Family> for AddressFamily {
    fn from(family: Family) -> AddressFamily {
        match family {
            Family::V4 => AddressFamily::Inet,
            Family::V6 => AddressFamily::Inet6,
        }
    }
}

fn emitted(part: &impl Emitable) -> Vec<u8> {
    let mut bytes = vec![0; part.buffer_len()];
    part.emit(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use rtnetlink::packet_core::{NLM_F_ACK, NetlinkMessage};
    use rtnetlink::packet_route::RouteNetlinkMessage;
    use rtnetlink::packet_route::address::AddressMessage;
    use rtnetlink::packet_route::link::LinkMessage;
    use rtnetlink::packet_route::route::RouteMessage;
    use rtnetlink::packet_route::rule::RuleMessage;
    use rtnetlink::packet_route::tc::TcMessage;

    use super::*;

    #[test]
    fn what_is_sent_is_what_the_crate_sends() {
        let mut link = LinkMessage::default();
        let mut address = AddressMessage::default();
        let mut route = RouteMessage::default();
        (link.header.index, address.header.index, route.header.table) = (7, 8, 9);
        let mut rule = RuleMessage::default();
        let tc = TcMessage::with_index(10);
        rule.header.table = 11;
        use RouteNetlinkMessage as Their;
        let cases = [
            (Request::new(RTM_NEWLINK, &link), Their::NewLink(link.clone())),
            (Request::new(RTM_DELLINK, &link), Their::DelLink(link.clone())),
            (Request::new(RTM_GETLINK, &link), Their::GetLink(link.clone())),
            (Request::new(RTM_SETLINK, &link), Their::SetLink(link.clone())),
            (Request::new(RTM_NEWLINKPROP, &link), Their::NewLinkProp(link.clone())),
            (Request::new(RTM_DELLINKPROP, &link), Their::DelLinkProp(link)),
            (Request::new(RTM_NEWADDR, &address), Their::NewAddress(address.clone())),
            (Request::new(RTM_DELADDR, &address), Their::DelAddress(address.clone())),
            (Request::new(RTM_GETADDR, &address), Their::GetAddress(address)),
            (Request::new(RTM_NEWROUTE, &route), Their::NewRoute(route.clone())),
            (Request::new(RTM_DELROUTE, &route), Their::DelRoute(route.clone())),
            (Request::new(RTM_GETROUTE, &route), Their::GetRoute(route)),
            (Request::new(RTM_NEWRULE, &rule), Their::NewRule(rule.clone())),
            (Request::new(RTM_DELRULE, &rule), Their::DelRule(rule.clone())),
            (Request::new(RTM_GETRULE, &rule), Their::GetRule(rule)),
            (Request::new(RTM_NEWQDISC, &tc), Their::NewQueueDiscipline(tc.clone())),
            (Request::new(RTM_DELQDISC, &tc), Their::DelQueueDiscipline(tc.clone())),
            (Request::new(RTM_GETQDISC, &tc), Their::GetQueueDiscipline(tc.clone())),
            (Request::new(RTM_NEWTCLASS, &tc), Their::NewTrafficClass(tc.clone())),
            (Request::new(RTM_GETTCLASS, &tc), Their::GetTrafficClass(tc.clone())),
            (Request::new(RTM_NEWTFILTER, &tc), Their::NewTrafficFilter(tc.clone())),
            (Request::new(RTM_GETTFILTER, &tc), Their::GetTrafficFilter(tc)),
        ];
        for (ours, theirs) in cases {
            let mut message = NetlinkMessage::from(theirs);
            message.header.flags = NLM_F_REQUEST | NLM_F_ACK;
            message.header.sequence_number = 5;
            message.finalize();
            let mut bytes = vec![0; message.buffer_len()];
            message.serialize(&mut bytes);
            assert_eq!(ours.to_bytes(NLM_F_ACK, 5), bytes);
        }
    }
}
