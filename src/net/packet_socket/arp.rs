//! Finds out which host has an address: ARP (RFC 826), with the probes of RFC 5227.

use std::net::Ipv4Addr;

use nix::errno::Errno;
use nix::libc;

use super::{Filter, Link};
use crate::error::{Error, Result};
use crate::net::mac::MacAddr;
use crate::sys::impl_as_fd;

/// The types Ethernet and IPv4, with the lengths of their addresses.
const KIND: [u8; 6] = [0, 1, 8, 0, 6, 4];
/// The operation code of a request.
const REQUEST: [u8; 2] = [0, 1];
/// The length of an ARP packet for Ethernet and IPv4.
const LENGTH: usize = 28;

/// A host's claim to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The address.
    pub address: Ipv4Addr,
    /// The hardware address of the host that claims it.
    pub mac: MacAddr,
}

/// ARP on one link.
pub struct ArpSocket {
    link: Link,
}

impl ArpSocket {
    /// Opens a socket in the namespace of this thread. It receives nothing before
    /// [`ArpSocket::probe`].
    pub fn open(ifindex: u32) -> Result<ArpSocket> {
        let link = Link::open(ifindex, libc::ETH_P_ARP);
        let link = link
            .map_err(|e| Error::kernel(format_args!("open an ARP socket on link {ifindex}"), e))?;
        Ok(ArpSocket { link })
    }

    /// Probes for the address, without claiming it, and from now on receives the claims to it.
    pub fn probe(&self, address: Ipv4Addr, mac: &MacAddr) -> Result<()> {
        self.request(address, Ipv4Addr::UNSPECIFIED, mac)
    }

    /// As [`ArpSocket::probe`], from an address of this host: the owner answers as it would answer
    /// the kernel, also on behalf of another host.
    pub fn request(&self, address: Ipv4Addr, from: Ipv4Addr, mac: &MacAddr) -> Result<()> {
        let request = || {
            self.link.hear(&Filter::claims_of(address))?;
            self.link.send(&request(address, from, mac).ok_or(Errno::EAFNOSUPPORT)?)
        };
        request().map_err(|e| Error::kernel(format_args!("probe for {address}"), e))
    }

    /// The next claim to the address that was probed for. None if nothing has arrived, or nothing
    /// of use.
    pub fn receive(&self) -> Result<Option<Claim>> {
        let mut buffer = [0; LENGTH];
        let packet = self.link.receive(&mut buffer).map_err(|e| Error::kernel("receive ARP", e))?;
        Ok(packet.and_then(claim))
    }
}

impl_as_fd!(ArpSocket, link.socket);

/// An ARP request; the sender of a probe has no address yet.
fn request(address: Ipv4Addr, from: Ipv4Addr, mac: &MacAddr) -> Option<[u8; LENGTH]> {
    let mut packet = [0; LENGTH];
    packet[..6].copy_from_slice(&KIND);
    packet[6..8].copy_from_slice(&REQUEST);
    packet[8..14].copy_from_slice(mac.octets().try_into().ok().map(|mac: &[u8; 6]| mac)?);
    packet[14..18].copy_from_slice(&from.octets());
    packet[24..].copy_from_slice(&address.octets());
    Some(packet)
}

/// The claim in a packet: any packet with a sender address is one, requests included.
pub fn claim(packet: &[u8]) -> Option<Claim> {
    let packet: &[u8; LENGTH] = packet.try_into().ok()?;
    let address = Ipv4Addr::new(packet[14], packet[15], packet[16], packet[17]);
    let is_claim = packet[..6] == KIND && !address.is_unspecified();
    is_claim.then(|| Claim { address, mac: MacAddr::new(&packet[8..14]) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

    #[test]
    fn a_probe_claims_nothing() {
        let packet =
            request([10, 0, 0, 5].into(), NONE, &MacAddr::new(&[2, 0, 0, 0, 0, 9])).unwrap();
        let expected =
            [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 5];
        assert_eq!((packet, claim(&packet)), (expected, None));
        assert_eq!(request([10, 0, 0, 5].into(), NONE, &MacAddr::new(&[2; 20])), None);
    }

    #[test]
    fn requests_and_replies_with_a_sender_are_claims() {
        let mut packet =
            request([10, 0, 0, 6].into(), NONE, &MacAddr::new(&[2, 0, 0, 0, 0, 9])).unwrap();
        packet[14..18].copy_from_slice(&[10, 0, 0, 5]);
        let expected =
            Claim { address: [10, 0, 0, 5].into(), mac: MacAddr::new(&[2, 0, 0, 0, 0, 9]) };
        for op in [1, 2] {
            packet[7] = op;
            assert_eq!(claim(&packet), Some(expected.clone()));
        }
        assert_eq!(claim(&packet[..27]), None);
        for at in 0..6 {
            let mut foreign = packet;
            foreign[at] ^= 1;
            assert_eq!(claim(&foreign), None, "{at}");
        }
    }
}
