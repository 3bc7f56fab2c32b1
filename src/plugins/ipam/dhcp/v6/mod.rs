//! DHCP for IPv6 (RFC 8415), and addresses by router advertisement alone (RFC 4862), without
//! sockets, clocks or chance of its own: what comes in is told to [`client::Client`], what has to
//! be done comes out.

pub mod client;
pub mod lease;
pub mod message;
pub mod options;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod packets;
pub mod router;
