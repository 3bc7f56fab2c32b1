//! The packet that is walked through the chains, and what expressions load of it.

use std::net::IpAddr;
use std::ops::Range;

use crate::family::Family;
use crate::net::nft::uapi::*;
use crate::net::nft::wire::octets;

/// The length of a link's name in a register.
const NAME: usize = 16;
const TCP: u8 = 6;
const ETHERTYPES: [u16; 2] = [0x0800, 0x86dd];
/// NFPROTO_IPV4 and NFPROTO_IPV6.
const PROTOCOLS: [u8; 2] = [2, 10];
// RTN_UNICAST and RTN_LOCAL
pub(super) const UNICAST: u32 = 1;
pub(super) const LOCAL: u32 = 2;
/// The offset of the flags in a TCP header.
const FLAGS: usize = 13;
/// SYN, and SYN with ACK.
const SYN: u8 = 0x02;
const SYN_ACK: u8 = 0x12;
/// A mask with fewer bits than this distinguishes so little that a value without a name in any
/// rule may have the compared bits.
const FEW_BITS: u32 = 4;
/// A range that begins and ends this far apart in the first byte is an eighth of all values.
const WIDE: u8 = 32;

/// A link that a packet passes.
#[derive(Clone, Debug)]
pub struct Port {
    /// ifindex.
    pub index: u32,
    /// Its name.
    pub name: String,
}

/// The first packet of a TCP connection, or the answer to it.
#[derive(Clone, Debug)]
pub struct Packet {
    /// The container's address.
    pub container: IpAddr,
    /// The address of the other side; None for one that no rule names.
    pub peer: Option<IpAddr>,
    /// Whether the container has sent it.
    pub is_sent: bool,
    /// Whether it answers a packet of the other side, and so is of an established connection.
    pub is_reply: bool,
    /// Whether the host itself receives it.
    pub is_to_host: bool,
    /// The hardware address of the container, if the packet still has it.
    pub mac: Option<Vec<u8>>,
    /// The link it came in by; None if that is not known.
    pub from: Option<Port>,
    /// The link it goes out by; None if that is not known.
    pub to: Option<Port>,
}

/// What is in a register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Loaded {
    /// These bytes; whether they are the container's address, or the name of a link.
    Known(Vec<u8>, bool),
    /// A value that no rule names.
    Unnamed(usize),
    /// Any value.
    Unknown,
}

impl Loaded {
    pub(super) fn of(bytes: &[u8]) -> Loaded {
        Loaded::Known(bytes.to_vec(), false)
    }

    pub(super) fn number(value: u32) -> Loaded {
        Loaded::of(&value.to_ne_bytes())
    }

    fn is_of_packet(bytes: Vec<u8>) -> Loaded {
        Loaded::Known(bytes, true)
    }

    /// As a number in the machine's byte order.
    pub(super) fn as_number(&self) -> Option<u32> {
        match self {
            Loaded::Known(bytes, _) => Some(u32::from_ne_bytes(bytes.as_slice().try_into().ok()?)),
            Loaded::Unnamed(_) | Loaded::Unknown => None,
        }
    }

    /// The bits of the mask, with those of `xor` inverted.
    pub(super) fn masked(self, mask: &[u8], xor: &[u8]) -> Loaded {
        let ones: u32 = mask.iter().map(|byte| byte.count_ones()).sum();
        match self {
            _ if ones == 0 => Loaded::of(xor),
            Loaded::Known(bytes, is_of_packet) => {
                let bits = bytes.iter().zip(mask).zip(xor);
                let bytes = bits.map(|((byte, mask), xor)| byte & mask ^ xor).collect();
                Loaded::Known(bytes, is_of_packet)
            }
            Loaded::Unnamed(_) if ones < FEW_BITS => Loaded::Unknown,
            loaded => loaded,
        }
    }

    /// Some bytes of an address.
    fn part(&self, from: usize, length: usize) -> Loaded {
        match self {
            Loaded::Known(bytes, is_of_packet) => match bytes.get(from..from + length) {
                Some(bytes) => Loaded::Known(bytes.to_vec(), *is_of_packet),
                None => Loaded::Unknown,
            },
            Loaded::Unnamed(_) => Loaded::Unnamed(length),
            Loaded::Unknown => Loaded::Unknown,
        }
    }

    /// This field and the one behind it. A rule that names the whole names both.
    fn then(self, next: Loaded) -> Loaded {
        match (self, next) {
            (Loaded::Known(mut bytes, own), Loaded::Known(more, others)) => {
                bytes.extend(more);
                Loaded::Known(bytes, own || others)
            }
            (Loaded::Known(bytes, _), Loaded::Unnamed(length))
            | (Loaded::Unnamed(length), Loaded::Known(bytes, _)) => {
                Loaded::Unnamed(bytes.len() + length)
            }
            (Loaded::Unnamed(one), Loaded::Unnamed(other)) => Loaded::Unnamed(one + other),
            (Loaded::Unknown, _) | (_, Loaded::Unknown) => Loaded::Unknown,
        }
    }
}

/// Whether a range covers so much that a value without a name in any rule may be in it.
pub(super) fn is_wide(from: &[u8], to: &[u8]) -> bool {
    match (from.first(), to.first()) {
        (Some(from), Some(to)) => to.saturating_sub(*from) >= WIDE - 1,
        _ => false,
    }
}

impl Packet {
    pub(super) fn family(&self) -> Family {
        Family::of(self.container)
    }

    /// The source address as it is sent.
    pub(super) fn source(&self) -> Loaded {
        if self.is_sent { self.own() } else { self.other() }
    }

    /// The destination address as it is received.
    pub(super) fn destination(&self) -> Loaded {
        if self.is_sent { self.other() } else { self.own() }
    }

    fn own(&self) -> Loaded {
        Loaded::is_of_packet(octets(self.container))
    }

    fn other(&self) -> Loaded {
        let width = octets(self.container).len();
        self.peer.map_or(Loaded::Unnamed(width), |peer| Loaded::of(&octets(peer)))
    }

    /// What `meta` loads.
    pub(super) fn meta(&self, key: u32, mark: &Loaded) -> Loaded {
        let at = self.family() as usize;
        match key {
            NFT_META_PROTOCOL => Loaded::of(&ETHERTYPES[at].to_be_bytes()),
            NFT_META_MARK => mark.clone(),
            NFT_META_IIF => index(self.from.as_ref()),
            NFT_META_OIF => index(self.to.as_ref()),
            NFT_META_IIFNAME => name(self.from.as_ref()),
            NFT_META_OIFNAME => name(self.to.as_ref()),
            NFT_META_NFPROTO => Loaded::of(&[PROTOCOLS[at]]),
            NFT_META_L4PROTO => Loaded::of(&[TCP]),
            _ => Loaded::Unknown,
        }
    }

    /// The type of the destination in the routing table (RTN_*).
    pub(super) fn type_of_destination(&self) -> u32 {
        if self.is_to_host { LOCAL } else { UNICAST }
    }

    /// What `payload` loads of the link layer's header: the sender's address, if it is known.
    pub(super) fn link_header(&self, offset: usize, length: usize) -> Loaded {
        let at = self.family() as usize;
        match (offset, length, &self.mac) {
            (6, 6, Some(mac)) => Loaded::is_of_packet(mac.clone()),
            (12, 2, _) => Loaded::of(&ETHERTYPES[at].to_be_bytes()),
            _ => Loaded::Unknown,
        }
    }

    /// What `payload` loads of the network layer's header, with these addresses.
    pub(super) fn network_header(
        &self,
        wanted: Range<usize>,
        from: &Loaded,
        to: &Loaded,
    ) -> Loaded {
        let (protocol, source, width) = match self.family() {
            Family::V4 => (9, 12, 4),
            Family::V6 => (6, 8, 16),
        };
        let destination = source + width;
        let end = destination + width;
        if wanted == (protocol..protocol + 1) {
            Loaded::of(&[TCP])
        } else if wanted.start < source || wanted.end > end {
            Loaded::Unknown
        } else if wanted.end <= destination {
            from.part(wanted.start - source, wanted.len())
        } else if wanted.start >= destination {
            to.part(wanted.start - destination, wanted.len())
        } else {
            let begin = wanted.start - source;
            from.part(begin, width - begin).then(to.part(0, wanted.end - destination))
        }
    }

    /// What `payload` loads of the transport layer's header: ports and flags.
    pub(super) fn transport_header(&self, offset: usize, length: usize) -> Loaded {
        match (offset, length) {
            (FLAGS, 1) => Loaded::of(&[self.flags()]),
            (offset, length) if offset + length <= 4 => Loaded::Unnamed(length),
            _ => Loaded::Unknown,
        }
    }

    /// Whether it goes from one port of a bridge to another.
    pub(super) fn is_bridged(&self) -> bool {
        let index = |port: &Option<Port>| port.as_ref().map(|port| port.index);
        self.from.is_some() && index(&self.from) == index(&self.to)
    }

    /// The flags of its TCP header.
    pub(super) fn flags(&self) -> u8 {
        if self.is_reply { SYN_ACK } else { SYN }
    }
}

fn index(port: Option<&Port>) -> Loaded {
    let index = port.map(|port| port.index.to_ne_bytes().to_vec());
    index.map_or(Loaded::Unknown, Loaded::is_of_packet)
}

fn name(port: Option<&Port>) -> Loaded {
    let Some(port) = port else { return Loaded::Unknown };
    let mut bytes = port.name.as_bytes().to_vec();
    bytes.resize(NAME, 0);
    Loaded::is_of_packet(bytes)
}
