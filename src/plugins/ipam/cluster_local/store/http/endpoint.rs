//! The address of a member: `https://10.0.0.1:2379`. Names come from /etc/hosts alone, since a
//! static binary has no getaddrinfo(3), and a resolver that waits would stop the daemon.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use crate::error::{Code, Error, Mistake, Result};
use crate::plain_file;

/// The file of names.
const HOSTS: &str = "/etc/hosts";
/// The limit in bytes of that file.
const LARGEST_HOSTS: usize = 4 << 20;
/// The port of etcd's clients.
const PORT: u16 = 2379;
/// The form of an endpoint.
const FORM: &str =
    "http://HOST:PORT or https://HOST:PORT with an IP address or a name in /etc/hosts";

/// The URL of one member, without a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Whether the scheme is https.
    pub tls: bool,
    /// An address or a name.
    pub host: Host,
    /// The TCP port.
    pub port: u16,
}

/// The host part of an [`Endpoint`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// An address.
    Address(IpAddr),
    /// A name of /etc/hosts, in lower case.
    Name(String),
}

impl Endpoint {
    /// Parses a URL; the port's default is 2379.
    pub fn parse(url: &str) -> Result<Endpoint, Mistake> {
        let mistake = || Mistake::new(format_args!("{url:?}")).expecting(FORM);
        let (scheme, rest) = url.split_once("://").ok_or_else(mistake)?;
        let tls = match scheme {
            "http" => false,
            "https" => true,
            _ => return Err(mistake()),
        };
        let (host, port) =
            split_port(rest.strip_suffix('/').unwrap_or(rest)).ok_or_else(mistake)?;
        Ok(Endpoint { tls, host: Host::parse(host).ok_or_else(mistake)?, port })
    }

    /// The socket addresses of the member.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>> {
        let found = match &self.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => look_up(name)?,
        };
        Ok(found.into_iter().map(|address| SocketAddr::new(address, self.port)).collect())
    }

    /// The value of the `Host` header.
    pub fn authority(&self) -> String {
        match &self.host {
            Host::Address(address) => SocketAddr::new(*address, self.port).to_string(),
            Host::Name(name) => format!("{name}:{}", self.port),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.authority())
    }
}

impl Host {
    fn parse(text: &str) -> Option<Host> {
        if let Some(inner) = text.strip_prefix('[') {
            let address = inner.strip_suffix(']')?.parse().ok()?;
            return Some(Host::Address(IpAddr::V6(address)));
        }
        if let Ok(address) = text.parse() {
            return Some(Host::Address(IpAddr::V4(address)));
        }
        is_host_name(text).then(|| Host::Name(text.to_ascii_lowercase()))
    }
}

/// `host`, `host:port`, `[v6]` or `[v6]:port`.
fn split_port(text: &str) -> Option<(&str, u16)> {
    match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => Some((host, decimal(port)?)),
        _ => Some((text, PORT)),
    }
}

fn decimal(port: &str) -> Option<u16> {
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    port.parse().ok().filter(|port| digits && *port != 0)
}

/// A name that begins like an address is a mistyped address.
fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let inside = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        !label.is_empty() && label.len() <= 63 && label.bytes().all(inside)
    };
    let last = text.rsplit('.').next().unwrap_or_default();
    let numeric = last.bytes().all(|byte| byte.is_ascii_digit());
    text.len() <= 253 && !numeric && text.split('.').all(is_label)
}

fn look_up(name: &str) -> Result<Vec<IpAddr>> {
    let hosts = plain_file::read_of_others(Path::new(HOSTS), LARGEST_HOSTS);
    let hosts = hosts.map_err(Error::at_path("read", Path::new(HOSTS)))?;
    let found = addresses_of(name, &String::from_utf8_lossy(&hosts));
    if found.is_empty() {
        let msg = format!("look up {name:?}: not in {HOSTS}");
        let advice = "only names in this file are resolved; add a line for it or use the address";
        return Err(Error::new(Code::INVALID_CONFIG, msg).with_details(advice));
    }
    Ok(found)
}

/// The addresses that a text in the form of hosts(5) has for a name.
fn addresses_of(name: &str, hosts: &str) -> Vec<IpAddr> {
    let mut found = vec![];
    for line in hosts.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(Ok(address)) = words.next().map(str::parse) else { continue };
        if words.any(|word| word.eq_ignore_ascii_case(name)) {
            found.push(address);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_members_are_read() {
        let cases = [
            ("http://10.0.0.1:2379", "http://10.0.0.1:2379"),
            ("https://10.0.0.1", "https://10.0.0.1:2379"),
            ("https://10.0.0.1/", "https://10.0.0.1:2379"),
            ("https://[fd00::1]:4001", "https://[fd00::1]:4001"),
            ("https://[fd00::1]", "https://[fd00::1]:2379"),
            ("https://Etcd-1.example:2379", "https://etcd-1.example:2379"),
        ];
        for (url, expected) in cases {
            assert_eq!(Endpoint::parse(url).map(|it| it.to_string()), Ok(expected.to_owned()));
        }
    }

    #[test]
    fn other_urls_are_refused() {
        let bad = [
            "10.0.0.1:2379",
            "ftp://10.0.0.1",
            "unix://x",
            "http://",
            "http://:2379",
            "http://a:0",
            "http://a:65536",
            "http://a:+1",
            "http://a:",
            "http://a/v3",
            "http://u@a",
            "http://a b",
            "http://10.0.0.300",
            "http://fd00::1",
            "http://[fd00::1",
            "http://[10.0.0.1]",
            "http://a..b",
            "http://a?x",
            "http://a\r\nb",
            "http://[fd00::1%eth0]",
        ];
        for url in bad {
            let text = Endpoint::parse(url).unwrap_err().to_string();
            assert_eq!(text, format!("{url:?}, expected {FORM}"));
        }
    }

    #[test]
    fn names_are_those_of_the_hosts_file() {
        let hosts = "127.0.0.1 localhost\n# 10.0.0.9 etcd\n10.0.0.1\tetcd-1 ETCD # etcd-2\n\nfd00::1 etcd\nbad etcd\n";
        let of = |name| addresses_of(name, hosts);
        assert_eq!(of("etcd"), ["10.0.0.1".parse::<IpAddr>().unwrap(), "fd00::1".parse().unwrap()]);
        assert_eq!(of("etcd-2"), [] as [IpAddr; 0]);
        let error = look_up("no-such-name.invalid").unwrap_err().to_string();
        assert!(
            error.starts_with("look up \"no-such-name.invalid\": not in /etc/hosts; "),
            "{error}"
        );
    }
}
