//! Where the database listens: `socket_file` of a configuration.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use crate::error::{Error, Result};

/// The port that IANA has assigned to OVSDB.
const PORT: u16 = 6640;
/// The forms of an address.
const FORMS: &str = "unix:PATH or tcp:IP:PORT";

/// An address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP port.
    Tcp(SocketAddr),
}

impl Address {
    /// Parses `unix:PATH`, `tcp:IP:PORT` or an absolute path; IPv6 stands in brackets.
    pub fn parse(text: &str) -> Result<Address> {
        if text.starts_with("ssl:") {
            return Err(Error::config("socket_file", "this client has no TLS").expecting(FORMS));
        }
        match text.strip_prefix("tcp:") {
            Some(place) => tcp(place).map(Address::Tcp).ok_or_else(|| unknown(text)),
            None => unix(text.strip_prefix("unix:").unwrap_or(text)).ok_or_else(|| unknown(text)),
        }
    }
}

fn tcp(place: &str) -> Option<SocketAddr> {
    let bare = place.trim_start_matches('[').trim_end_matches(']');
    place.parse().ok().or_else(|| Some(SocketAddr::new(bare.parse::<IpAddr>().ok()?, PORT)))
}

fn unix(path: &str) -> Option<Address> {
    (path.starts_with('/') && !path.contains('\0')).then(|| Address::Unix(path.into()))
}

fn unknown(text: &str) -> Error {
    Error::config("socket_file", format_args!("{text:?} is no address of OVSDB")).expecting(FORMS)
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}
