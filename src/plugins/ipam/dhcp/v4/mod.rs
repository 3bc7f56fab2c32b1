//! DHCP for IPv4 (RFC 2131, RFC 2132), without sockets, clocks or chance of its own: what comes in
//! is told to [`client::Client`], what has to be done comes out.

pub mod client;
pub mod lease;
pub mod message;
pub mod options;
#[cfg(test)]
mod tests;
