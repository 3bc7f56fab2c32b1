//! Finds out which host has an IPv6 address: neighbour discovery (RFC 4861), with the probes of
//! duplicate address detection (RFC 4862).

use std::net::Ipv6Addr;

use nix::errno::Errno;
use nix::libc;

use super::{Filter, Link, ipv4};
use crate::error::{Error, Result};
use crate::net::mac::MacAddr;
use crate::sys::impl_as_fd;

/// The length of an IPv6 header.
const HEADER: usize = 40;
const ICMPV6: u8 = 58;
/// The hop limit of neighbour discovery, which no forwarded packet has.
const HOP_LIMIT: u8 = 255;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
/// Where the target of an advertisement begins, and its options.
const TARGET: usize = HEADER + 8;
const OPTIONS: usize = TARGET + 16;
/// The option with the target's Ethernet address, and its length in units of eight octets.
const TARGET_LINK_ADDRESS: [u8; 2] = [2, 1];
/// More than an advertisement needs.
const LONGEST: usize = 512;

/// Neighbour discovery on one link. Unlike a raw socket, this one can send from the unspecified
/// address, and on links without a link-local one.
pub struct NdpSocket {
    link: Link,
}

impl NdpSocket {
    /// Opens a socket in the namespace of this thread, for the advertisements of one link.
    pub fn open(ifindex: u32) -> Result<NdpSocket> {
        let open = || {
            let link = Link::open(ifindex, libc::ETH_P_IPV6)?;
            link.hear(&Filter::neighbour_advertisements())?;
            Ok(NdpSocket { link })
        };
        open().map_err(|e| Error::kernel(format_args!("open an NDP socket on link {ifindex}"), e))
    }

    /// Asks for the owner of the address. From an address of this host the owner answers as it would
    /// answer the kernel; from none, as it answers duplicate address detection.
    pub fn solicit(&self, target: Ipv6Addr, from: Option<Ipv6Addr>, mac: &MacAddr) -> Result<()> {
        let is_ethernet = mac.octets().len() == 6;
        let packet = packet(target, from, mac).filter(|_| is_ethernet);
        let group = solicited_group(target).octets();
        let to = [0x33, 0x33, group[12], group[13], group[14], group[15]]; // RFC 2464, section 7
        let sent =
            packet.ok_or(Errno::EAFNOSUPPORT).and_then(|packet| self.link.send_to(&packet, to));
        sent.map_err(|e| Error::kernel(format_args!("solicit {target}"), e))
    }

    /// The next advertisement: an address and the hardware address of its owner. None if nothing has
    /// arrived, or nothing of use.
    pub fn receive(&self) -> Result<Option<(Ipv6Addr, MacAddr)>> {
        let mut buffer = [0; LONGEST];
        let packet = self.link.receive(&mut buffer);
        Ok(packet.map_err(|e| Error::kernel("receive from a neighbour", e))?.and_then(advertised))
    }
}

impl_as_fd!(NdpSocket, link.socket);

/// A solicitation with its IPv6 header.
fn packet(target: Ipv6Addr, from: Option<Ipv6Addr>, mac: &MacAddr) -> Option<Vec<u8>> {
    let mut message = solicitation(target, from.map(|_| mac));
    let from = from.unwrap_or(Ipv6Addr::UNSPECIFIED).octets();
    let to = solicited_group(target).octets();
    let length = u16::try_from(message.len()).ok()?.to_be_bytes();
    let pseudo = [&from[..], &to, &[0, 0], &length, &[0, 0, 0, ICMPV6], &message].concat();
    message[2..4].copy_from_slice(&ipv4::checksum(&pseudo).to_be_bytes());
    let header = [&[0x60, 0, 0, 0][..], &length, &[ICMPV6, HOP_LIMIT], &from, &to].concat();
    Some([header, message].concat())
}

/// What a packet advertises, if it is a Neighbour Advertisement from this link.
fn advertised(packet: &[u8]) -> Option<(Ipv6Addr, MacAddr)> {
    let is_it = packet.get(6..8)? == [ICMPV6, HOP_LIMIT]
        && packet.get(HEADER..HEADER + 2)? == [NEIGHBOUR_ADVERTISEMENT, 0];
    let target: &[u8; 16] = packet.get(TARGET..)?.first_chunk()?;
    let (options, _) = packet.get(OPTIONS..)?.as_chunks::<8>();
    let own = options.iter().find(|option| option[..2] == TARGET_LINK_ADDRESS)?;
    is_it.then(|| (Ipv6Addr::from(*target), MacAddr::new(&own[2..])))
}

const NEIGHBOUR_SOLICITATION: u8 = 135;
const SOURCE_LINK_ADDRESS: u8 = 1;

/// A message that the owner of the address will answer. Its checksum is 0. One from the unspecified
/// address has no hardware address.
pub fn solicitation(address: Ipv6Addr, mac: Option<&MacAddr>) -> Vec<u8> {
    let fixed = [NEIGHBOUR_SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    let option = mac.map(source_link_address).unwrap_or_default();
    [&fixed[..], &address.octets(), &option].concat()
}

/// The multicast group of the hosts with such an address (RFC 4291, section 2.7.1).
pub fn solicited_group(address: Ipv6Addr) -> Ipv6Addr {
    let mut group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0).octets();
    group[13..].copy_from_slice(&address.octets()[13..]);
    group.into()
}

/// The option with the sender's link-layer address, which saves the neighbour a solicitation. Only
/// an Ethernet address fits without padding.
pub fn source_link_address(mac: &MacAddr) -> Vec<u8> {
    match mac.octets() {
        octets @ [_, _, _, _, _, _] => [&[SOURCE_LINK_ADDRESS, 1], octets].concat(),
        _ => vec![],
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn mac() -> MacAddr {
        MacAddr::new(&[2, 0, 0, 0, 0, 9])
    }

    #[test]
    fn a_probe_has_no_source_and_the_checksum_of_its_pseudo_header() {
        let target: Ipv6Addr = "fd00::12:3456".parse().unwrap();
        let packet = packet(target, None, &mac()).unwrap();
        assert_eq!((packet.len(), packet[7], &packet[8..24]), (64, 255, &[0; 16][..]));
        assert_eq!(
            Ipv6Addr::from(*packet[24..].first_chunk().unwrap()).to_string(),
            "ff02::1:ff12:3456"
        );
        let length = [0, 0, 0, 24, 0, 0, 0, ICMPV6];
        let whole = [&packet[8..40], &length, &packet[40..]].concat();
        assert_eq!(ipv4::checksum(&whole), 0);
    }

    #[test]
    fn a_solicitation_from_an_address_has_the_hardware_address() {
        let packet = packet("fe80::1".parse().unwrap(), Some("fe80::2".parse().unwrap()), &mac());
        assert_eq!(packet.unwrap()[64..], [1, 1, 2, 0, 0, 0, 0, 9]);
    }

    #[test]
    fn an_advertisement_is_read_and_damaged_ones_are_not() {
        let target: Ipv6Addr = "fd00::7".parse().unwrap();
        let mut header = vec![0x60, 0, 0, 0, 0, 32, ICMPV6, 255];
        header.extend([0; 32]);
        let advert = [
            &header[..],
            &[136, 0, 0, 0, 0x60, 0, 0, 0],
            &target.octets(),
            &[2, 1, 2, 0, 0, 0, 0, 9],
        ]
        .concat();
        assert_eq!(advertised(&advert), Some((target, mac())));
        for (at, value) in [(6, 17), (7, 64), (40, 135), (41, 1), (64, 1)] {
            let mut other = advert.clone();
            other[at] = value;
            assert_eq!(advertised(&other), None, "octet {at}");
        }
        for length in 0..advert.len() {
            assert_eq!(advertised(&advert[..length]), None, "cut off at {length}");
        }
    }
}
