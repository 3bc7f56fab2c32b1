//! Filters of a qdisc by address, tc-u32(8), and what they do with packets, tc-mirred(8).

use ipnet::IpNet;

use super::attr::{Attributes, Attrs, octets, read_u32};
use super::link::Link;
use super::qdisc::{HEADER, Handle, TCA_KIND, TCA_OPTIONS, message, read_of};
use super::socket::{Netlink, RTM_GETTFILTER, RTM_NEWTFILTER, Request};
use crate::error::Result;
use crate::family::Family;

const KIND: &str = "u32";
// linux/pkt_cls.h
const TCA_U32_CLASSID: u16 = 1;
const TCA_U32_SEL: u16 = 5;
const TCA_U32_ACT: u16 = 7;
/// The number of the first action; actions run in the order of their numbers.
const FIRST_ACTION: u16 = 1;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TCA_MIRRED_PARMS: u16 = 2;
const TC_ACT_STOLEN: u32 = 4;
const TCA_EGRESS_REDIR: u32 = 1;
const TCA_INGRESS_REDIR: u32 = 3;
/// The offset of tcm_info in tcmsg.
const TCM_INFO: usize = 16;
/// The first word of tc_u32_sel without the number of keys: a match ends the search.
const TERMINAL: u8 = 1;
/// The size of tc_u32_sel without keys, and of one key.
const SELECTOR: usize = 16;
const KEY: usize = 16;
/// The offsets in tc_mirred of the action and of the link.
const MIRRED_ACTION: usize = 20;
const MIRRED_LINK: usize = 24;
// linux/if_ether.h
const ETH_P_ALL: u16 = 3;
const ETH_P_IP: u16 = 0x0800;
const ETH_P_IPV6: u16 = 0x86dd;
/// The offsets of the source address in an IPv4 and in an IPv6 header.
const SOURCE: [u32; 2] = [12, 8];
/// The offsets of the destination address.
const DESTINATION: [u32; 2] = [16, 24];

/// Which address of a packet a filter looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The source address.
    Source,
    /// The destination address.
    Destination,
}

/// What happens to a packet that matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It belongs to this class; on ingress it continues as if there were no filters.
    Class(Handle),
    /// It is redirected to the link of this ifindex, which is 0 when that link is gone.
    Redirect(u32),
    /// It goes on as if the link of this ifindex had received it.
    Receive(u32),
    /// An action that we never use.
    Other,
}

/// A u32 filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Filters with a lower priority are tried first; all filters of one priority are of one
    /// protocol.
    pub priority: u16,
    protocol: u16,
    keys: Vec<Key>,
    /// What happens to a packet that matches.
    pub verdict: Verdict,
}

/// A word of the packet that must have this value where the mask has ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    mask: u32,
    value: u32,
    offset: u32,
}

impl Filter {
    /// A filter that every packet matches.
    pub fn of_all(priority: u16, verdict: Verdict) -> Filter {
        let keys = vec![Key { mask: 0, value: 0, offset: 0 }];
        Filter { priority, protocol: ETH_P_ALL, keys, verdict }
    }

    /// A filter for the packets that come from, or go to, this subnet.
    pub fn of_subnet(priority: u16, side: Side, subnet: &IpNet, verdict: Verdict) -> Filter {
        let values = words(&octets(subnet.addr()));
        let masks = words(&octets(subnet.netmask()));
        let family = Family::of_net(*subnet) as usize;
        let offset = match side {
            Side::Source => SOURCE[family],
            Side::Destination => DESTINATION[family],
        };
        let offsets = (offset..).step_by(4);
        let key = |((value, mask), offset)| Key { mask, value: value & mask, offset };
        let mut keys: Vec<Key> = values.into_iter().zip(masks).zip(offsets).map(key).collect();
        let asked = keys.iter().filter(|key| key.mask != 0).count();
        keys.truncate(asked.max(1)); // the kernel requires one
        let protocol = match subnet {
            IpNet::V4(_) => ETH_P_IP,
            IpNet::V6(_) => ETH_P_IPV6,
        };
        Filter { priority, protocol, keys, verdict }
    }

    fn options(&self) -> Vec<u8> {
        let class = match self.verdict {
            Verdict::Class(class) => class,
            // as the reference sets it, without an effect
            Verdict::Redirect(_) | Verdict::Receive(_) | Verdict::Other => Handle::new(1, 1),
        };
        let mut selector = vec![TERMINAL, 0, self.keys.len() as u8];
        selector.resize(SELECTOR, 0);
        for Key { mask, value, offset } in &self.keys {
            selector.extend([mask.to_be_bytes(), value.to_be_bytes()].concat());
            selector.extend([offset.to_ne_bytes(), [0; 4]].concat());
        }
        let mut options = Attributes::default();
        options.u32(TCA_U32_CLASSID, class.0).raw(TCA_U32_SEL, &selector);
        let action = match self.verdict {
            Verdict::Redirect(link) => Some((TCA_EGRESS_REDIR, link)),
            Verdict::Receive(link) => Some((TCA_INGRESS_REDIR, link)),
            Verdict::Class(_) | Verdict::Other => None,
        };
        if let Some((way, link)) = action {
            options.nest(TCA_U32_ACT, |actions| {
                actions.nest(FIRST_ACTION, |action| redirect(action, way, link));
            });
        }
        options.bytes().to_vec()
    }

    /// Reads a filter; None for the tables of a u32, which the kernel reports too and which select
    /// nothing.
    fn read(payload: &[u8]) -> Option<Filter> {
        let attrs = Attrs::after(payload, HEADER);
        let info = read_u32(payload, TCM_INFO)?;
        let priority = (info >> 16) as u16;
        let options = attrs.nested(TCA_OPTIONS)?;
        if attrs.text(TCA_KIND)? != KIND {
            return Some(Filter { priority, protocol: 0, keys: vec![], verdict: Verdict::Other });
        }
        let protocol = u16::from_be(info as u16);
        let keys = options.bytes(TCA_U32_SEL)?.get(SELECTOR..).unwrap_or_default();
        let keys = keys.chunks_exact(KEY).filter_map(Key::read).collect();
        Some(Filter { priority, protocol, keys, verdict: verdict(options) })
    }
}

impl Key {
    fn read(bytes: &[u8]) -> Option<Key> {
        let mask = u32::from_be(read_u32(bytes, 0)?);
        let value = u32::from_be(read_u32(bytes, 4)?);
        Some(Key { mask, value, offset: read_u32(bytes, 8)? })
    }
}

fn redirect(action: &mut Attributes, way: u32, link: u32) {
    action.text(TCA_ACT_KIND, "mirred").nest(TCA_ACT_OPTIONS, |options| {
        // tc_mirred: index, capabilities, what happens to the packet here, two counts, action, link
        options.words(TCA_MIRRED_PARMS, &[0, 0, TC_ACT_STOLEN, 0, 0, way, link]);
    });
}

/// Reads what a filter does. The reference adds a second action after the one that takes the
/// packet; it is never reached.
fn verdict(options: Attrs<'_>) -> Verdict {
    let Some(action) = options.nested(TCA_U32_ACT).and_then(|actions| actions.nested(FIRST_ACTION))
    else {
        return options
            .u32(TCA_U32_CLASSID)
            .map_or(Verdict::Other, |class| Verdict::Class(Handle(class)));
    };
    redirection(action).unwrap_or(Verdict::Other)
}

/// Where an action redirects to, if that is what it does.
fn redirection(action: Attrs<'_>) -> Option<Verdict> {
    if action.text(TCA_ACT_KIND)? != "mirred" {
        return None;
    }
    let parameters = action.nested(TCA_ACT_OPTIONS)?.bytes(TCA_MIRRED_PARMS)?;
    let link = read_u32(parameters, MIRRED_LINK)?;
    match read_u32(parameters, MIRRED_ACTION)? {
        TCA_EGRESS_REDIR => Some(Verdict::Redirect(link)),
        TCA_INGRESS_REDIR => Some(Verdict::Receive(link)),
        _ => None,
    }
}

fn words(octets: &[u8]) -> Vec<u32> {
    octets.as_chunks::<4>().0.iter().map(|word| u32::from_be_bytes(*word)).collect()
}

impl Netlink {
    /// Adds a filter to a qdisc: `tc filter add`.
    pub fn create_filter(&self, link: &Link, qdisc: Handle, filter: &Filter) -> Result<()> {
        let mut message = message(link, Handle(0), qdisc, KIND, Some(filter.options()));
        message.header.info = u32::from(filter.priority) << 16 | u32::from(filter.protocol.to_be());
        let what = format_args!("add filter {} of {qdisc} to {:?}", filter.priority, link.name);
        self.add(&Request::new(RTM_NEWTFILTER, &message), what)
    }

    /// The filters of a qdisc, in the order of their priorities; empty if there is no such qdisc.
    pub fn filters(&self, link: &Link, qdisc: Handle) -> Result<Vec<Filter>> {
        let mut message = message(link, Handle(0), qdisc, KIND, None);
        message.attributes.clear(); // of all kinds
        let what = format_args!("list the filters of {:?}", link.name);
        self.dump(&Request::new(RTM_GETTFILTER, &message), what, |payload| {
            read_of(link, payload).and_then(Filter::read)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnet_is_looked_for_where_the_header_has_it() {
        let filter = |side, net: &str| {
            Filter::of_subnet(1, side, &net.parse().unwrap(), Verdict::Redirect(7)).keys
        };
        let key = |mask, value, offset| Key { mask, value, offset };
        assert_eq!(filter(Side::Source, "10.1.2.3/9"), [key(0xff80_0000, 0x0a00_0000, 12)]);
        assert_eq!(filter(Side::Destination, "0.0.0.0/0"), [key(0, 0, 16)]);
        let expected = [key(u32::MAX, 0xfd00_0db8, 24), key(0xf000_0000, 0xa000_0000, 28)];
        assert_eq!(filter(Side::Destination, "fd00:db8:abcd::/36"), expected);
    }

    #[test]
    fn a_filter_is_read_as_it_is_written() {
        let subnet = "2001:db8::/32".parse().unwrap();
        for verdict in [Verdict::Redirect(7), Verdict::Class(Handle::new(1, 0x30))] {
            for filter in
                [Filter::of_all(3, verdict), Filter::of_subnet(2, Side::Source, &subnet, verdict)]
            {
                let mut attributes = Attributes::default();
                attributes.text(TCA_KIND, KIND).raw(TCA_OPTIONS, &filter.options());
                let mut payload = vec![0; HEADER];
                let info = u32::from(filter.priority) << 16 | u32::from(filter.protocol.to_be());
                payload[TCM_INFO..].copy_from_slice(&info.to_ne_bytes());
                payload.extend(attributes.bytes());
                assert_eq!(Filter::read(&payload), Some(filter));
            }
        }
    }
}
