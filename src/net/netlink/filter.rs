//! Filters of a qdisc by address, tc-u32(8), and what they do with packets, tc-mirred(8).

use ipnet::IpNet;

use super::attr::{Attrs, read_u32};
use super::attributes::Attributes;
use super::link::Link;
use super::qdisc::{HEADER, Handle, TCA_KIND, TCA_OPTIONS, message, read_of};
use super::request::{RTM_GETTFILTER, RTM_NEWTFILTER, Request};
use super::socket::Netlink;
use crate::error::Result;

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
/// The offsets of the source address in an IPv4 and in an IPv6 header; the destination follows it.
const SOURCE: [u32; 2] = [12, 8];

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
        let (protocol, source, words, masks) = match subnet {
            IpNet::V4(net) => {
                (ETH_P_IP, SOURCE[0], words(&net.addr().octets()), words(&net.netmask().octets()))
            }
            IpNet::V6(net) => {
                (ETH_P_IPV6, SOURCE[1], words(&net.addr().octets()), words(&net.netmask().octets()))
            }
        };
        let start = match side {
            Side::Source => source,
            Side::Destination => source + 4 * words.len() as u32,
        };
        let offsets = (start..).step_by(4);
        let key = |((value, mask), offset): ((&u32, &u32), u32)| Key {
            mask: *mask,
            value: value & mask,
            offset,
        };
        let mut keys: Vec<Key> = words.iter().zip(&masks).zip(offsets).map(key).collect();
        let asked = keys.iter().filter(|key| key.mask != 0).count();
        keys.truncate(asked.max(1)); // the kernel requires one
        Filter { priority, protocol, keys, verdict }
    }

    fn options(&self) -> Vec<u8> {
        let mut options = Attributes::default();
        let class = match self.verdict {
            Verdict::Class(class) => class,
            // as the reference sets it, without an effect
            Verdict::Redirect(_) | Verdict::Other => Handle::new(1, 1),
        };
        options.u32(TCA_U32_CLASSID, class.number()).raw(TCA_U32_SEL, &self.selector());
        if let Verdict::Redirect(link) = self.verdict {
            options.nest(TCA_U32_ACT, |actions| {
                actions.nest(FIRST_ACTION, |action| redirect(action, link));
            });
        }
        options.bytes().to_vec()
    }

    fn selector(&self) -> Vec<u8> {
        let mut bytes = vec![TERMINAL, 0, self.keys.len() as u8];
        bytes.resize(SELECTOR, 0);
        for key in &self.keys {
            bytes.extend(key.mask.to_be_bytes());
            bytes.extend(key.value.to_be_bytes());
            bytes.extend(key.offset.to_ne_bytes());
            bytes.extend([0; 4]);
        }
        bytes
    }

    /// Reads a filter; None for the tables of a u32, which the kernel reports too and which select
    /// nothing.
    fn read(payload: &[u8]) -> Option<Filter> {
        let attrs = Attrs::after(payload, HEADER);
        let info = read_u32(payload, TCM_INFO)?;
        let options = attrs.nested(TCA_OPTIONS)?;
        if attrs.text(TCA_KIND)? != KIND {
            return Some(Filter {
                priority: (info >> 16) as u16,
                protocol: 0,
                keys: vec![],
                verdict: Verdict::Other,
            });
        }
        Some(Filter {
            priority: (info >> 16) as u16,
            protocol: u16::from_be(info as u16),
            keys: keys(options.bytes(TCA_U32_SEL)?),
            verdict: verdict(options),
        })
    }
}

/// Reads what a filter does. The reference adds a second action after the one that takes the
/// packet; it is never reached.
fn verdict(options: Attrs<'_>) -> Verdict {
    let Some(action) = options.nested(TCA_U32_ACT).and_then(|actions| actions.nested(FIRST_ACTION))
    else {
        return options
            .u32(TCA_U32_CLASSID)
            .map_or(Verdict::Other, |class| Verdict::Class(Handle::of(class)));
    };
    let redirected = || {
        let mirred = action
            .nested(TCA_ACT_OPTIONS)
            .filter(|_| action.text(TCA_ACT_KIND).as_deref() == Some("mirred"))?;
        let parameters = mirred.bytes(TCA_MIRRED_PARMS)?;
        let link = read_u32(parameters, MIRRED_LINK)?;
        (read_u32(parameters, MIRRED_ACTION)? == TCA_EGRESS_REDIR)
            .then_some(Verdict::Redirect(link))
    };
    redirected().unwrap_or(Verdict::Other)
}

fn redirect(action: &mut Attributes, link: u32) {
    action.text(TCA_ACT_KIND, "mirred").nest(TCA_ACT_OPTIONS, |options| {
        // tc_mirred: index, capabilities, what happens to the packet here, two counts, action, link
        options.words(TCA_MIRRED_PARMS, &[0, 0, TC_ACT_STOLEN, 0, 0, TCA_EGRESS_REDIR, link]);
    });
}

fn keys(selector: &[u8]) -> Vec<Key> {
    let be = |bytes: &[u8], at| read_u32(bytes, at).map(u32::from_be);
    let key = |bytes: &[u8]| {
        Some(Key { mask: be(bytes, 0)?, value: be(bytes, 4)?, offset: read_u32(bytes, 8)? })
    };
    selector.get(SELECTOR..).unwrap_or_default().chunks_exact(KEY).filter_map(key).collect()
}

fn words(octets: &[u8]) -> Vec<u32> {
    octets
        .chunks_exact(4)
        .map(|word| word.iter().fold(0, |all, octet| all << 8 | u32::from(*octet)))
        .collect()
}

impl Netlink {
    /// Adds a filter to a qdisc: `tc filter add`.
    pub fn create_filter(&self, link: &Link, qdisc: Handle, filter: &Filter) -> Result<()> {
        let mut message = message(link, Handle::of(0), qdisc, KIND, Some(filter.options()));
        message.header.info = u32::from(filter.priority) << 16 | u32::from(filter.protocol.to_be());
        let what = format_args!("add filter {} of {qdisc} to {:?}", filter.priority, link.name);
        self.add(&Request::new(RTM_NEWTFILTER, &message), what)
    }

    /// The filters of a qdisc, in the order of their priorities; empty if there is no such qdisc.
    pub fn filters(&self, link: &Link, qdisc: Handle) -> Result<Vec<Filter>> {
        let mut message = message(link, Handle::of(0), qdisc, KIND, None);
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
