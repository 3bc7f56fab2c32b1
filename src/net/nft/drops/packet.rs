//! The packet that is walked through the chains, and what expressions load of it.

use std::net::IpAddr;

use crate::family::Family;
use crate::net::nft::uapi::*;
use crate::net::nft::wire::octets;

/// The length of a link's name in a register.
const NAME: usize = 16;
const TCP: u8 = 6;
const ETHERTYPES: [u16; 2] = [0x0800, 0x86dd];
/// NFPROTO_IPV4 and NFPROTO_IPV6.
const PROTOCOLS: [u8; 2] = [2, 10];
/// RTN_UNICAST.
const UNICAST: u32 = 1;
// NF_CT_STATE_BIT of linux/netfilter/nf_conntrack_common.h
const ESTABLISHED: u32 = 2;
const NEW: u32 = 8;

/// A link that a packet passes.
#[derive(Clone, Debug)]
pub struct Port {
    /// ifindex.
    pub index: u32,
    /// Its name.
    pub name: String,
}

/// A packet of TCP.
#[derive(Clone, Debug)]
pub struct Packet {
    /// The container's address.
    pub container: IpAddr,
    /// Whether the container has sent it.
    pub is_sent: bool,
    /// Whether it answers a packet of the other side, and so is of an established connection.
    pub is_reply: bool,
    /// The hardware address of the container, if the packet still has it.
    pub mac: Option<Vec<u8>>,
    /// The link it came in by; None if that is not known.
    pub from: Option<Port>,
    /// The link it goes out by; None if that is not known.
    pub to: Option<Port>,
}

/// What is in a register.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Loaded {
    /// These bytes; whether they are the container's address, or the name of a link.
    Known(Vec<u8>, bool),
    /// A value that no rule names.
    Unnamed(usize),
    /// Any value.
    Unknown,
}

impl Loaded {
    fn of(bytes: &[u8]) -> Loaded {
        Loaded::Known(bytes.to_vec(), false)
    }

    fn is_of_packet(bytes: Vec<u8>) -> Loaded {
        Loaded::Known(bytes, true)
    }
}

impl Packet {
    pub(super) fn family(&self) -> Family {
        Family::of(self.container)
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

    /// What `ct` loads. The status of a plain connection has neither of the bits of translation,
    /// unless it is answered.
    pub(super) fn connection(&self, key: u32) -> Loaded {
        match key {
            NFT_CT_STATE => Loaded::of(&self.state().to_ne_bytes()),
            NFT_CT_STATUS if !self.is_reply => Loaded::of(&0_u32.to_ne_bytes()),
            _ => Loaded::Unknown,
        }
    }

    /// The state of its connection, as a bit.
    pub(super) fn state(&self) -> u32 {
        if self.is_reply { ESTABLISHED } else { NEW }
    }

    /// What `fib` loads of the destination's type.
    pub(super) fn type_of_destination(&self) -> Loaded {
        Loaded::of(&UNICAST.to_ne_bytes())
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

    /// What `payload` loads of the network layer's header.
    pub(super) fn network_header(&self, offset: usize, length: usize) -> Loaded {
        let (protocol, source, width) = match self.family() {
            Family::V4 => (9, 12, 4),
            Family::V6 => (6, 8, 16),
        };
        let addresses = [source..source + width, source + width..source + 2 * width];
        let [own, other] = if self.is_sent { [0, 1] } else { [1, 0] };
        let wanted = offset..offset + length;
        let is_within =
            |outer: &std::ops::Range<usize>| outer.start <= wanted.start && wanted.end <= outer.end;
        if wanted == (protocol..protocol + 1) {
            Loaded::of(&[TCP])
        } else if is_within(&addresses[own]) {
            let from = offset - addresses[own].start;
            Loaded::is_of_packet(octets(self.container)[from..from + length].to_vec())
        } else if is_within(&addresses[other]) {
            Loaded::Unnamed(length)
        } else {
            Loaded::Unknown
        }
    }

    /// What `payload` loads of the transport layer's header: ports.
    pub(super) fn transport_header(&self, offset: usize, length: usize) -> Loaded {
        if offset + length <= 4 { Loaded::Unnamed(length) } else { Loaded::Unknown }
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
