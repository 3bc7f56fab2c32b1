//! The sockets of a conversation with servers. They are opened in the container's namespace and
//! used from outside it.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use super::exchange_v4::{self, ExchangeV4};
use super::exchange_v6::{self, ExchangeV6};
use super::interface::{Absent, Place};
use super::journal::Record;
use crate::error::Result;
use crate::family::Family;
use crate::plugins::ipam::dhcp::family::{Heard, Outgoing};

/// The sockets that are open while answers are expected.
pub enum Exchange {
    /// For DHCPv4.
    V4(ExchangeV4),
    /// For DHCPv6 and router advertisements.
    V6(ExchangeV6),
}

impl Exchange {
    /// Opens the sockets, if the interface still exists.
    pub fn open(record: &Record, prefix: &str) -> Result<Exchange, Absent> {
        let place = &record.place;
        match record.family() {
            Family::V4 => ExchangeV4::open(place, prefix).map(Exchange::V4),
            Family::V6 => ExchangeV6::open(place, prefix).map(Exchange::V6),
        }
    }

    /// Whether the exchange can send; a descriptor becomes readable when that changes.
    pub fn is_ready(&self) -> bool {
        match self {
            Exchange::V4(_) => true,
            Exchange::V6(exchange) => exchange.is_ready(),
        }
    }

    /// Sends a client's message.
    pub fn send(&mut self, outgoing: &Outgoing, place: &Place, prefix: &str) -> Result<(), Absent> {
        match (self, outgoing) {
            (Exchange::V4(exchange), Outgoing::V4(outgoing)) => {
                exchange.send(outgoing, place, prefix)
            }
            (Exchange::V6(exchange), Outgoing::V6(message)) => Ok(exchange.send(message)?),
            (Exchange::V6(exchange), Outgoing::Routers) => Ok(exchange.ask_routers()?),
            _ => Ok(()), // a client's exchange is of its own family
        }
    }

    /// Probes the link for a host that has the address.
    pub fn probe(&mut self, address: IpAddr, place: &Place, prefix: &str) -> Result<(), Absent> {
        match (self, address) {
            (Exchange::V4(exchange), IpAddr::V4(address)) => exchange.probe(address, place, prefix),
            (Exchange::V6(exchange), IpAddr::V6(address)) => Ok(exchange.probe(address)?),
            _ => Ok(()),
        }
    }

    /// Everything received. Reads each socket once: poll(2) reports it if there is more.
    pub fn hear(&mut self) -> Result<Vec<Heard>> {
        match self {
            Exchange::V4(exchange) => exchange.hear(),
            Exchange::V6(exchange) => exchange.hear(),
        }
    }

    /// The descriptors to poll for reading.
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

/// Sends the message that releases a lease. As a rule no exchange is open for it.
pub fn send_once(outgoing: &Outgoing, place: &Place, prefix: &str) -> Result<(), Absent> {
    match outgoing {
        Outgoing::V4(outgoing) => exchange_v4::send_once(outgoing, place, prefix),
        Outgoing::V6(message) => exchange_v6::send_once(message, place, prefix),
        Outgoing::Routers => Ok(()), // routers keep no state to release
    }
}
