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
        let address = match text.strip_prefix("tcp:") {
            Some(place) => {
                let bare = place.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
                let of_bare = bare.map(|ip| SocketAddr::new(ip, PORT));
                place.parse().or(of_bare).ok().map(Address::Tcp)
            }
            None => {
                let path = text.strip_prefix("unix:").unwrap_or(text);
                let is_path = path.starts_with('/') && !path.contains('\0');
                is_path.then(|| Address::Unix(path.into()))
            }
        };
        address.ok_or_else(|| {
            let problem = format_args!("{text:?} is no address of OVSDB");
            Error::config("socket_file", problem).expecting(FORMS)
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}
