//! Serializes requests: nlmsghdr and a body that the rtnetlink crate writes.
//!
//! The crate has an enum of all messages of rtnetlink. Building requests through it would link the
//! code for every kind of message; a type and a body only link those that are sent.

use rtnetlink::packet_core::{Emitable, NLM_F_REQUEST, NetlinkHeader};
use rtnetlink::packet_route::AddressFamily;

use crate::family::Family;

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
