//! Any octets, as a DHCPv6 message and as one of a router or neighbour: they are rejected or
//! parsed, and a DHCPv6 message is unchanged when encoded and parsed again.

use std::net::Ipv6Addr;

use cni_multi::plugins::ipam::dhcp::v6::Message;
use cni_multi::plugins::ipam::dhcp::v6::router;

/// Runs the target on one input.
pub fn run(bytes: &[u8]) {
    let _ = router::decode(bytes, Ipv6Addr::LOCALHOST); // must return, with any result
    let Some(message) = Message::decode(bytes) else { return };
    assert_eq!(Message::decode(&message.encode()).as_ref(), Some(&message));
    let (_, _, _) = (message.status(), message.preference(), message.association(1));
    let names = message.name_servers().into_iter().chain(message.domains());
    assert!(names.flat_map(String::into_bytes).all(|byte| byte.is_ascii_graphic()));
}
