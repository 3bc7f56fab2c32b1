//! DHCP for IPv4 (RFC 2131, RFC 2132), without sockets, clocks or random numbers of its own:
//! packets and the time go into [`super::client::dhcpv4::Client`], actions come out.

pub mod lease;
pub mod message;
pub mod options;
#[cfg(test)]
mod tests;
