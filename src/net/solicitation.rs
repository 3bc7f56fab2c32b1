//! Neighbour Solicitations (RFC 4861, section 4.3): the ICMPv6 message, and where it is sent.

use std::net::Ipv6Addr;

use super::mac::MacAddr;

const NEIGHBOUR_SOLICITATION: u8 = 135;
const SOURCE_LINK_ADDRESS: u8 = 1;

/// A message that the owner of the address will answer. Its checksum is 0. One from the unspecified
/// address has no hardware address.
pub fn message(address: Ipv6Addr, mac: Option<&MacAddr>) -> Vec<u8> {
    let fixed = [NEIGHBOUR_SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    let option = mac.map(source_link_address).unwrap_or_default();
    [&fixed[..], &address.octets(), &option].concat()
}

/// The multicast group of the hosts with such an address (RFC 4291, section 2.7.1).
pub fn group(address: Ipv6Addr) -> Ipv6Addr {
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
