//! DHCP for IPv6 (RFC 8415), and addresses from router advertisements alone (RFC 4862), without
//! sockets, clocks or random numbers of its own: packets and the time go into [`super::client::dhcpv6::Client`],
//! actions come out.

pub mod lease;
pub mod message;
pub mod options;
pub mod router;
