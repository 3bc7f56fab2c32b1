//! Any octets as an ARP and as an IPv4 packet: they are rejected or parsed within bounds; a packet
//! of ours can be parsed.

use std::net::Ipv4Addr;

use cni_multi::net::packet_socket::{claim, ipv4};

const US: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 9), 68);
const SERVER: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 67);

/// Runs the target on one input.
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
