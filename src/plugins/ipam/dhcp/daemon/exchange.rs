//! The sockets of a conversation with servers. They are opened in the container's namespace and
//! used from here.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use super::exchange_v4::{self, ExchangeV4};
use super::exchange_v6::{self, ExchangeV6};
use super::interface::{Absent, Place};
use crate::error::Result;
use crate::plugins::ipam::dhcp::family::{Family, Heard, Outgoing};

/// What is open while answers are expected.
pub enum Exchange {
    /// In IPv4.
    V4(ExchangeV4),
    /// In IPv6.
    V6(ExchangeV6),
}

impl Exchange {
    /// Opens the sockets, if the interface still is there.
    pub fn open(place: &Place, prefix: &str, family: Family) -> Result<Exchange, Absent> {
        match family {
            Family::V4 => ExchangeV4::open(place, prefix).map(Exchange::V4),
            Family::V6 => ExchangeV6::open(place, prefix).map(Exchange::V6),
        }
    }

    /// Whether anything can be sent; when that changes, something becomes readable.
    pub fn is_ready(&self) -> bool {
        match self {
            Exchange::V4(_) => true,
            Exchange::V6(exchange) => exchange.is_ready(),
        }
    }

    /// Sends what a client wants to be sent.
    pub fn send(&mut self, outgoing: &Outgoing, place: &Place, prefix: &str) -> Result<(), Absent> {
        match (self, outgoing) {
            (Exchange::V4(exchange), Outgoing::V4(outgoing)) => {
                exchange.send(outgoing, place, prefix)
            }
            (Exchange::V6(exchange), Outgoing::V6(message)) => Ok(exchange.send(message)?),
            (Exchange::V6(exchange), Outgoing::Routers) => Ok(exchange.ask_routers()?),
            _ => Ok(()), // a client has an exchange of its own family
        }
    }

    /// Asks who has an address.
    pub fn probe(&mut self, address: IpAddr, place: &Place, prefix: &str) -> Result<(), Absent> {
        match (self, address) {
            (Exchange::V4(exchange), IpAddr::V4(address)) => exchange.probe(address, place, prefix),
            (Exchange::V6(exchange), IpAddr::V6(address)) => Ok(exchange.probe(address)?),
            _ => Ok(()),
        }
    }

    /// What has come. The sockets are asked once each: poll(2) says whether there is more.
    pub fn hear(&mut self) -> Result<Vec<Heard>> {
        match self {
            Exchange::V4(exchange) => exchange.hear(),
            Exchange::V6(exchange) => exchange.hear(),
        }
    }

    /// What becomes readable.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Exchange::V4(exchange) => exchange.descriptors(),
            Exchange::V6(exchange) => exchange.descriptors(),
        }
    }

    /// Closes the sockets.
    pub fn close(self) {
        if let Exchange::V4(exchange) = self {
            exchange.close();
        }
    }
}

/// Sends what gives a lease back. Nothing is open for it as a rule.
pub fn send_once(outgoing: &Outgoing, place: &Place, prefix: &str) -> Result<(), Absent> {
    match outgoing {
        Outgoing::V4(outgoing) => exchange_v4::send_once(outgoing, place, prefix),
        Outgoing::V6(message) => exchange_v6::send_once(message, place, prefix),
        Outgoing::Routers => Ok(()), // they keep nothing
    }
}
