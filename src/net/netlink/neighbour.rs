//! Neighbours: `ip neighbour`.

use std::net::IpAddr;

use rtnetlink::packet_route::neighbour::NeighbourMessage;

use super::attr::{Attrs, read_u16, read_u32};
use super::socket::{Netlink, RTM_GETNEIGH, Request};
use crate::error::Result;
use crate::family::Family;
use crate::net::mac::MacAddr;

/// ndmsg.
const HEADER: usize = 12;
/// The offsets of its fields.
const IFINDEX: usize = 4;
const STATE: usize = 8;
// linux/neighbour.h
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NUD_INCOMPLETE: u16 = 0x01;
const NUD_FAILED: u16 = 0x20;
const NUD_PERMANENT: u16 = 0x80;

/// A neighbour whose hardware address the kernel uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// ifindex of the link that it is on.
    pub link: u32,
    /// Its address.
    pub address: IpAddr,
    /// Its hardware address.
    pub mac: MacAddr,
    /// Whether the kernel never asks for another one.
    pub is_permanent: bool,
}

impl Neighbour {
    /// None for one that has no hardware address, or not yet.
    fn read(payload: &[u8]) -> Option<Neighbour> {
        let attrs = Attrs::after(payload, HEADER);
        let state =
            read_u16(payload, STATE).filter(|it| it & (NUD_INCOMPLETE | NUD_FAILED) == 0)?;
        Some(Neighbour {
            link: read_u32(payload, IFINDEX)?,
            address: attrs.ip(NDA_DST)?,
            mac: MacAddr::new(attrs.bytes(NDA_LLADDR)?),
            is_permanent: state & NUD_PERMANENT != 0,
        })
    }
}

impl Netlink {
    /// The neighbours of all links.
    pub fn neighbours(&self) -> Result<Vec<Neighbour>> {
        let mut all = vec![];
        for family in Family::ALL {
            let mut message = NeighbourMessage::default();
            message.header.family = family.into();
            let request = Request::new(RTM_GETNEIGH, &message);
            all.extend(self.dump(&request, "list the neighbours", Neighbour::read)?);
        }
        Ok(all)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// `ip neighbour add 10.0.0.1 lladdr 02:00:00:00:00:09 dev LINK7` as the kernel lists it.
    fn listed(state: u8) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0];
        bytes.extend(7_u32.to_ne_bytes());
        bytes.extend(u16::from(state).to_ne_bytes());
        bytes.extend([0, 1]);
        bytes.extend([8_u16.to_ne_bytes(), NDA_DST.to_ne_bytes()].concat());
        bytes.extend([10, 0, 0, 1]);
        bytes.extend([10_u16.to_ne_bytes(), NDA_LLADDR.to_ne_bytes()].concat());
        bytes.extend([2, 0, 0, 0, 0, 9, 0, 0]);
        bytes
    }

    #[test]
    fn a_neighbour_is_read_and_a_failed_one_is_none() {
        let read = Neighbour::read(&listed(0x80)).unwrap();
        assert_eq!((read.link, read.address.to_string()), (7, "10.0.0.1".to_owned()));
        assert_eq!((read.mac.to_string().as_str(), read.is_permanent), ("02:00:00:00:00:09", true));
        assert!(!Neighbour::read(&listed(0x02)).unwrap().is_permanent);
        assert_eq!((Neighbour::read(&listed(0x20)), Neighbour::read(&listed(0x01))), (None, None));
        let whole = listed(0x80);
        for length in 0..whole.len() - 2 {
            assert_eq!(Neighbour::read(&whole[..length]), None, "cut off at {length}");
        }
    }
}
