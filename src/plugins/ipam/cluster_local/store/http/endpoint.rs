//! The address of a member: `https://10.0.0.1:2379`. Names come from /etc/hosts alone, since a
//! static binary has no getaddrinfo(3), and a resolver that waits would stop the daemon.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::path::Path;

use rustls::pki_types::ServerName;
use serde::{Deserialize, Deserializer};

use crate::error::{Code, Error, Mistake, Result};
use crate::plain_file;

/// The file of names.
const HOSTS: &str = "/etc/hosts";
/// The limit in bytes of that file.
const LARGEST_HOSTS: usize = 4 << 20;
/// The port of etcd's clients.
const PORT: &str = "2379";
/// The form of an endpoint.
const FORM: &str =
    "http://HOST:PORT or https://HOST:PORT with an IP address or a name in /etc/hosts";

/// The URL of one member, without a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Whether the scheme is https.
    pub tls: bool,
    /// An address, or a name of /etc/hosts in lower case.
    pub host: ServerName<'static>,
    port: NonZeroU16,
}

impl Endpoint {
    /// Parses a URL; the port's default is 2379.
    pub fn parse(url: &str) -> Result<Endpoint, Mistake> {
        let parsed = || {
            let (scheme, rest) = url.split_once("://")?;
            let rest = rest.strip_suffix('/').unwrap_or(rest);
            // `host`, `host:port`, `[v6]` or `[v6]:port`.
            let (host, port) = match rest.rsplit_once(':') {
                Some((host, port)) if !port.ends_with(']') => (host, port),
                _ => (rest, PORT),
            };
            let host = match host.strip_prefix('[') {
                Some(inner) => inner.strip_suffix(']')?.parse::<Ipv6Addr>().ok()?.into(),
                None if host.contains(':') || host.ends_with('.') => return None,
                None => ServerName::try_from(host.to_ascii_lowercase()).ok()?,
            };
            let port = port.parse().ok().filter(|_| !port.starts_with('+'))?;
            let tls = scheme == "https";
            (tls || scheme == "http").then_some(Endpoint { tls, host, port })
        };
        parsed().ok_or_else(|| Mistake::new(format_args!("{url:?}")).expecting(FORM))
    }

    /// The socket addresses of the member, of which there is one at least.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>> {
        let found = match &self.host {
            ServerName::IpAddress(address) => vec![IpAddr::from(*address)],
            name => {
                let hosts = plain_file::read_of_others(Path::new(HOSTS), LARGEST_HOSTS);
                let hosts = hosts.map_err(Error::at_path("read", Path::new(HOSTS)))?;
                addresses_of(&name.to_str(), &String::from_utf8_lossy(&hosts))
            }
        };
        if found.is_empty() {
            let msg = format!("look up {:?}: not in {HOSTS}", self.host.to_str());
            let advice =
                "only names in this file are resolved; add a line for it or use the address";
            return Err(Error::new(Code::INVALID_CONFIG, msg).with_details(advice));
        }
        Ok(found.into_iter().map(|address| SocketAddr::new(address, self.port.get())).collect())
    }

    /// The value of the `Host` header.
    pub fn authority(&self) -> String {
        match &self.host {
            ServerName::IpAddress(address) => {
                SocketAddr::new(IpAddr::from(*address), self.port.get()).to_string()
            }
            name => format!("{}:{}", name.to_str(), self.port),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.authority())
    }
}

impl<'de> Deserialize<'de> for Endpoint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Endpoint, D::Error> {
        Endpoint::parse(&String::deserialize(deserializer)?).map_err(|mistake| mistake.refuse())
    }
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
            "http://fd00::1:2379",
            "http://a.",
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
        let error =
            Endpoint::parse("http://no-such-name.invalid").unwrap().addresses().unwrap_err();
        let error = error.to_string();
        assert!(
            error.starts_with("look up \"no-such-name.invalid\": not in /etc/hosts; "),
            "{error}"
        );
    }
}
