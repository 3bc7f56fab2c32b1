//! firewall with firewalld: a real one of its own, on a bus of its own.
//! TODO
