//! Any octets as a packet of ARP and of IPv4: they are refused, or say what they say; what is sent is read.

use std::net::Ipv4Addr;

use cni_multi::net::packet_socket::{claim, ipv4};

const US: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 9), 68);
const SERVER: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 67);

/// See above.
pub fn run(bytes: &[u8]) {
    if let Some(claim) = claim(bytes) {
        assert!(!claim.address.is_unspecified() && claim.mac.octets().len() == 6);
    }
    if let Some((_, payload)) = ipv4::payload(bytes, US.1) {
        assert!(payload.len() + 28 <= bytes.len());
    }
    if let Some(packet) = ipv4::datagram(SERVER, US, bytes) {
        assert_eq!(ipv4::payload(&packet, US.1), Some((SERVER.0, bytes)));
    }
}
