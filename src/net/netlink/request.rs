//! The requests that are sent. The crate's own enum of all that rtnetlink has would bring the code
//! of all: of each kind of message to be written, copied and freed.

use rtnetlink::packet_core::{Emitable, NLM_F_REQUEST, Nla};
use rtnetlink::packet_route::address::AddressMessage;
use rtnetlink::packet_route::link::{
    InfoData, InfoPortData, InfoVeth, LinkAttribute, LinkInfo, LinkMessage,
};
use rtnetlink::packet_route::route::RouteMessage;
use rtnetlink::packet_route::rule::RuleMessage;
use rtnetlink::packet_route::tc::TcMessage;

use super::attributes::Attributes;

/// nlmsghdr.
const HEADER: usize = 16;
/// NLA_F_NESTED.
const NESTED: u16 = 0x8000;

/// RTM_*, with what follows the header.
pub(super) enum Request {
    NewLink(LinkMessage),
    DelLink(LinkMessage),
    GetLink(LinkMessage),
    SetLink(LinkMessage),
    NewLinkProperty(LinkMessage),
    DelLinkProperty(LinkMessage),
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
    fn parts(&self) -> (u16, Vec<u8>) {
        match self {
            Request::NewLink(link) => (16, link_body(link)),
            Request::DelLink(link) => (17, link_body(link)),
            Request::GetLink(link) => (18, link_body(link)),
            Request::SetLink(link) => (19, link_body(link)),
            Request::NewLinkProperty(link) => (108, link_body(link)),
            Request::DelLinkProperty(link) => (109, link_body(link)),
            Request::NewAddress(address) => (20, body(address)),
            Request::DelAddress(address) => (21, body(address)),
            Request::GetAddress(address) => (22, body(address)),
            Request::NewRoute(route) => (24, body(route)),
            Request::DelRoute(route) => (25, body(route)),
            Request::GetRoute(route) => (26, body(route)),
            Request::NewRule(rule) => (32, body(rule)),
            Request::DelRule(rule) => (33, body(rule)),
            Request::GetRule(rule) => (34, body(rule)),
            Request::NewQdisc(qdisc) => (36, body(qdisc)),
            Request::DelQdisc(qdisc) => (37, body(qdisc)),
            Request::GetQdisc(qdisc) => (38, body(qdisc)),
            Request::NewClass(class) => (40, body(class)),
            Request::GetClass(class) => (42, body(class)),
            Request::NewFilter(filter) => (44, body(filter)),
            Request::GetFilter(filter) => (46, body(filter)),
        }
    }

    /// The message as it is sent. Its port is 0: the kernel knows the sender.
    pub(super) fn to_bytes(&self, flags: u16, seq: u32) -> Vec<u8> {
        let (kind, body) = self.parts();
        let length = (HEADER + body.len()) as u32;
        let mut bytes = vec![];
        bytes.extend(length.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        bytes.extend(seq.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(body);
        bytes
    }
}

fn body(message: &impl Emitable) -> Vec<u8> {
    let mut bytes = vec![0; message.buffer_len()];
    message.emit(&mut bytes);
    bytes
}

/// As [`body`], without the code for the attributes that no link of ours has: it is longer than all
/// of a plugin. What is not written here is a bug, and ends as one; a build for tests has the
/// crate's code as well, and compares.
fn link_body(message: &LinkMessage) -> Vec<u8> {
    let mut attributes = Attributes::default();
    message
        .attributes
        .iter()
        .for_each(|attribute| write_link_attribute(&mut attributes, attribute));
    let bytes = [body(&message.header), attributes.bytes().to_vec()].concat();
    debug_assert_eq!(
        bytes,
        body(message),
        "an attribute that is not written: {:?}",
        message.attributes
    );
    bytes
}

/// IFLA_* of linux/if_link.h.
fn write_link_attribute(out: &mut Attributes, attribute: &LinkAttribute) {
    match attribute {
        LinkAttribute::Address(bytes) => out.raw(1, bytes),
        LinkAttribute::IfName(name) => out.text(3, name),
        LinkAttribute::Mtu(mtu) => out.u32(4, *mtu),
        LinkAttribute::Link(index) => out.u32(5, *index),
        LinkAttribute::Controller(index) => out.u32(10, *index),
        LinkAttribute::ProtoInfoBridge(port) => out.raw(12 | NESTED, &body(&port.as_slice())),
        LinkAttribute::TxQueueLen(length) => out.u32(13, *length),
        LinkAttribute::LinkInfo(infos) => out.raw(18, &link_info(infos)),
        LinkAttribute::IfAlias(alias) => out.text(20, alias),
        LinkAttribute::AfSpecBridge(specs) => out.raw(26, &body(&specs.as_slice())),
        LinkAttribute::NetNsFd(fd) => out.raw(28, &fd.to_ne_bytes()),
        LinkAttribute::ExtMask(flags) => {
            out.u32(29, flags.iter().map(|flag| u32::from(*flag)).fold(0, |all, one| all | one))
        }
        LinkAttribute::Other(other) => {
            let mut value = vec![0; other.value_len()];
            other.emit_value(&mut value);
            out.raw(other.kind(), &value)
        }
        other => unreachable!("link attribute {} is not written", other.kind()),
    };
}

/// IFLA_INFO_KIND, _DATA, _SLAVE_KIND and _SLAVE_DATA.
fn link_info(infos: &[LinkInfo]) -> Vec<u8> {
    let mut out = Attributes::default();
    for info in infos {
        match info {
            LinkInfo::Kind(kind) => out.text(1, &kind.to_string()),
            LinkInfo::Data(data) => out.raw(2, &link_data(data)),
            LinkInfo::PortKind(kind) => out.text(4, &kind.to_string()),
            LinkInfo::PortData(InfoPortData::BridgePort(data)) => {
                out.raw(5, &body(&data.as_slice()))
            }
            _ => unreachable!("this part of IFLA_LINKINFO is not written"),
        };
    }
    out.bytes().to_vec()
}

fn link_data(data: &InfoData) -> Vec<u8> {
    match data {
        InfoData::Veth(InfoVeth::Peer(peer)) => {
            let mut out = Attributes::default();
            out.raw(1, &link_body(peer)); // VETH_INFO_PEER
            out.bytes().to_vec()
        }
        InfoData::Bridge(data) => body(&data.as_slice()),
        InfoData::IpVlan(data) => body(&data.as_slice()),
        InfoData::MacVlan(data) => body(&data.as_slice()),
        InfoData::Vlan(data) => body(&data.as_slice()),
        InfoData::Vrf(data) => body(&data.as_slice()),
        _ => unreachable!("data of this kind of link are not written"),
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
            (Request::SetLink(link.clone()), Their::SetLink(link.clone())),
            (Request::NewLinkProperty(link.clone()), Their::NewLinkProp(link.clone())),
            (Request::DelLinkProperty(link.clone()), Their::DelLinkProp(link)),
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
