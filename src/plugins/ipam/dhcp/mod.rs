//! `dhcp` has a daemon lease an address from a DHCP server.

mod conf;
mod wire;
