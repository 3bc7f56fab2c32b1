//! The requests that are sent. The crate's own enum of all that rtnetlink has would bring the code of all: of each kind of
//! message to be written, copied and freed.

use rtnetlink::packet_core::{Emitable, NLM_F_REQUEST};
use rtnetlink::packet_route::address::AddressMessage;
use rtnetlink::packet_route::link::LinkMessage;
use rtnetlink::packet_route::route::RouteMessage;
use rtnetlink::packet_route::rule::RuleMessage;
use rtnetlink::packet_route::tc::TcMessage;

/// nlmsghdr.
const HEADER: usize = 16;

/// RTM_*, with what follows the header.
pub(super) enum Request {
    NewLink(LinkMessage),
    DelLink(LinkMessage),
    GetLink(LinkMessage),
    SetLink(LinkMessage),
    NewAddress(AddressMessage),
    DelAddress(AddressMessage),
    GetAddress(AddressMessage),
    NewRoute(RouteMessage),
    DelRoute(RouteMessage),
    GetRoute(RouteMessage),
    NewRule(RuleMessage),
    DelRule(RuleMessage),
    GetRule(RuleMessage),
    NewQdisc(TcMessage),
    DelQdisc(TcMessage),
    GetQdisc(TcMessage),
    NewClass(TcMessage),
    GetClass(TcMessage),
    NewFilter(TcMessage),
    GetFilter(TcMessage),
}

impl Request {
    /// nlmsg_type of linux/rtnetlink.h, and the body.
    fn parts(&self) -> (u16, &dyn Emitable) {
        match self {
            Request::NewLink(link) => (16, link),
            Request::DelLink(link) => (17, link),
            Request::GetLink(link) => (18, link),
            Request::SetLink(link) => (19, link),
            Request::NewAddress(address) => (20, address),
            Request::DelAddress(address) => (21, address),
            Request::GetAddress(address) => (22, address),
            Request::NewRoute(route) => (24, route),
            Request::DelRoute(route) => (25, route),
            Request::GetRoute(route) => (26, route),
            Request::NewRule(rule) => (32, rule),
            Request::DelRule(rule) => (33, rule),
            Request::GetRule(rule) => (34, rule),
            Request::NewQdisc(qdisc) => (36, qdisc),
            Request::DelQdisc(qdisc) => (37, qdisc),
            Request::GetQdisc(qdisc) => (38, qdisc),
            Request::NewClass(class) => (40, class),
            Request::GetClass(class) => (42, class),
            Request::NewFilter(filter) => (44, filter),
            Request::GetFilter(filter) => (46, filter),
        }
    }

    /// The message as it is sent. Its port is 0: the kernel knows the sender.
    pub(super) fn to_bytes(&self, flags: u16, seq: u32) -> Vec<u8> {
        let (kind, body) = self.parts();
        let mut bytes = vec![0; HEADER + body.buffer_len()];
        let length = bytes.len() as u32;
        let (header, rest) = bytes.split_at_mut(HEADER);
        header[..4].copy_from_slice(&length.to_ne_bytes());
        header[4..6].copy_from_slice(&kind.to_ne_bytes());
        header[6..8].copy_from_slice(&(NLM_F_REQUEST | flags).to_ne_bytes());
        header[8..12].copy_from_slice(&seq.to_ne_bytes());
        body.emit(rest);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use rtnetlink::packet_core::{NLM_F_ACK, NetlinkMessage};
    use rtnetlink::packet_route::RouteNetlinkMessage;

    use super::*;

    #[test]
    fn what_is_sent_is_what_the_crate_sends() {
        let (mut link, mut address, mut route) =
            (LinkMessage::default(), AddressMessage::default(), RouteMessage::default());
        (link.header.index, address.header.index, route.header.table) = (7, 8, 9);
        let (mut rule, tc) = (RuleMessage::default(), TcMessage::with_index(10));
        rule.header.table = 11;
        use RouteNetlinkMessage as Their;
        let cases = [
            (Request::NewLink(link.clone()), Their::NewLink(link.clone())),
            (Request::DelLink(link.clone()), Their::DelLink(link.clone())),
            (Request::GetLink(link.clone()), Their::GetLink(link.clone())),
            (Request::SetLink(link.clone()), Their::SetLink(link)),
            (Request::NewAddress(address.clone()), Their::NewAddress(address.clone())),
            (Request::DelAddress(address.clone()), Their::DelAddress(address.clone())),
            (Request::GetAddress(address.clone()), Their::GetAddress(address)),
            (Request::NewRoute(route.clone()), Their::NewRoute(route.clone())),
            (Request::DelRoute(route.clone()), Their::DelRoute(route.clone())),
            (Request::GetRoute(route.clone()), Their::GetRoute(route)),
            (Request::NewRule(rule.clone()), Their::NewRule(rule.clone())),
            (Request::DelRule(rule.clone()), Their::DelRule(rule.clone())),
            (Request::GetRule(rule.clone()), Their::GetRule(rule)),
            (Request::NewQdisc(tc.clone()), Their::NewQueueDiscipline(tc.clone())),
            (Request::DelQdisc(tc.clone()), Their::DelQueueDiscipline(tc.clone())),
            (Request::GetQdisc(tc.clone()), Their::GetQueueDiscipline(tc.clone())),
            (Request::NewClass(tc.clone()), Their::NewTrafficClass(tc.clone())),
            (Request::GetClass(tc.clone()), Their::GetTrafficClass(tc.clone())),
            (Request::NewFilter(tc.clone()), Their::NewTrafficFilter(tc.clone())),
            (Request::GetFilter(tc.clone()), Their::GetTrafficFilter(tc)),
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
