//! Mappings: which port of the host leads to which port of the container.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;

use crate::error::{Code, Error, Expected, Result};
use crate::family::Family;

/// A transport protocol with ports. The value is its number in IP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp = 6,
    /// UDP.
    Udp = 17,
    /// SCTP.
    Sctp = 132,
}

impl Protocol {
    const ALL: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    const WORDS: &'static [&'static str] = &["tcp", "udp", "sctp"];

    /// Returns the protocol with this number.
    pub fn of_number(number: u8) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|protocol| *protocol as u8 == number)
    }

    /// Returns the protocol of this name in any case; an empty name is TCP.
    pub fn of(name: &str) -> Option<Protocol> {
        let name = if name.is_empty() { "tcp" } else { name };
        Protocol::ALL.into_iter().find(|protocol| protocol.as_str().eq_ignore_ascii_case(name))
    }

    /// Returns its name in rules.
    pub fn as_str(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A mapping as the runtime passes it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Given {
    host_port: i64,
    container_port: i64,
    protocol: String,
    #[serde(rename = "hostIP")]
    host_ip: String,
}

/// The host's addresses that a port is opened at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// All addresses of both families.
    Any,
    /// All addresses of one family, given as an unspecified address.
    AnyOf(Family),
    /// One address.
    At(IpAddr),
}

impl Host {
    /// Returns the families of its addresses.
    fn families(self) -> Vec<Family> {
        match self {
            Host::At(ip) => vec![Family::of(ip)],
            Host::AnyOf(family) => vec![family],
            Host::Any => Family::ALL.to_vec(),
        }
    }

    /// Returns the address if it is one.
    fn address(self) -> Option<IpAddr> {
        if let Host::At(ip) = self { Some(ip) } else { None }
    }
}

/// What leads to one port of a container: a port of the host at one address of a family, or at all
/// others of it. The maps of nftables have an element for each.
type Place = (Protocol, u16, Family, Option<IpAddr>);

/// A valid mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its path in the configuration, for errors.
    path: String,
    host: Host,
    /// The host's port.
    pub host_port: u16,
    container_port: u16,
    /// The transport protocol.
    pub protocol: Protocol,
}

impl Mapping {
    /// Parses the list at `path`. Refuses what is not a port, a protocol or an address, and a port
    /// that leads to two ports of the container. The same mapping named twice is one, as in
    /// `-p 8080:80 -p [::]:8080:80`; the list keeps both, as the reference's rules of iptables do.
    pub fn read_all(path: &str, given: &[Given]) -> Result<Vec<Mapping>> {
        let mut mappings: Vec<Mapping> = vec![];
        let mut first: HashMap<Place, usize> = HashMap::new();
        for (index, given) in given.iter().enumerate() {
            let mapping = Mapping::read(format!("{path}[{index}]"), given)?;
            for family in mapping.host.families() {
                let same = *first.entry(mapping.place(family)).or_insert(index);
                let Some(same) = mappings.get(same) else { continue };
                if same.container_port != mapping.container_port {
                    let Mapping { path, host_port, protocol, host, .. } = &mapping;
                    // an unspecified address beside none: they have one family in common
                    let common = format!(" at all {family} addresses");
                    let at = if *host == same.host { "" } else { &common };
                    let problem = format_args!(
                        "{host_port} of {protocol}{at} is mapped by {} already",
                        same.path
                    );
                    return Err(Error::config(format_args!("{path}.hostPort"), problem)
                        .expecting("each port once"));
                }
            }
            mappings.push(mapping);
        }
        Ok(mappings)
    }

    fn place(&self, family: Family) -> Place {
        (self.protocol, self.host_port, family, self.host.address())
    }

    fn read(path: String, given: &Given) -> Result<Mapping> {
        let Given { protocol: name, host_ip, .. } = given;
        let container_port = port(&path, "container", given.container_port)?;
        let host_port = port(&path, "host", given.host_port)?;
        let protocol = Protocol::of(name).ok_or_else(|| {
            let problem = format_args!("{name:?} is not a protocol with ports");
            Error::config(format_args!("{path}.protocol"), problem)
                .expecting(Expected::OneOf(Protocol::WORDS))
        })?;
        let host = match host_ip.parse().map(|ip: IpAddr| ip.to_canonical()) {
            _ if host_ip.is_empty() => Host::Any,
            Ok(ip) if ip.is_unspecified() => Host::AnyOf(Family::of(ip)),
            Ok(ip) => Host::At(ip), // no packet carries ::ffff:10.0.0.1
            Err(_) => {
                let problem = format_args!(
                    "{host_ip:?} is not an IP address, expected one of the host's or none"
                );
                return Err(Error::config(format_args!("{path}.hostIP"), problem));
            }
        };
        Ok(Mapping { path, host, host_port, container_port, protocol })
    }
}

/// Reads the port of the host or of the container.
fn port(path: &str, which: &str, port: i64) -> Result<u16> {
    match u16::try_from(port) {
        Ok(valid) if valid != 0 => Ok(valid),
        _ => Err(Error::config(
            format_args!("{path}.{which}Port"),
            format_args!("{port} is not a port"),
        )
        .expecting(1..=i64::from(u16::MAX))
        .saying(format_args!("Invalid {which} port number: {port}"))),
    }
}

/// A mapping for one family, with its destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// The mapping's path in the configuration, for errors.
    pub path: String,
    /// The transport protocol.
    pub protocol: Protocol,
    /// The host's address; `None` for all addresses of the family.
    pub at: Option<IpAddr>,
    /// The host's port.
    pub host_port: u16,
    /// The container's address, with its prefix.
    pub to: IpNet,
    /// The container's port.
    pub container_port: u16,
}

impl Forward {
    /// Returns the error that another attachment has the port; `holder` names it.
    pub fn taken(&self, holder: &str) -> Error {
        let msg = format!("{}: hostPort {self} is taken by another attachment", self.path);
        Error::new(Code::CONFLICT, msg).with_details(format_args!("it is published for {holder}"))
    }

    /// The family of the container's address.
    pub fn family(&self) -> Family {
        Family::of_net(self.to)
    }

    /// Whether packets to this address of the host are forwarded.
    pub fn answers_at(&self, ip: IpAddr) -> bool {
        Family::of(ip) == self.family() && self.at.is_none_or(|at| at == ip)
    }
}

/// `8080/tcp`, or with the host's address before it.
impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some(IpAddr::V6(ip)) => write!(f, "[{ip}]:{}/{}", self.host_port, self.protocol),
            Some(ip) => write!(f, "{ip}:{}/{}", self.host_port, self.protocol),
            None => write!(f, "{}/{}", self.host_port, self.protocol),
        }
    }
}

/// A port that an attachment has released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// The transport protocol.
    pub protocol: Protocol,
    /// The host's port.
    pub host_port: u16,
    /// The container's address.
    pub to: IpAddr,
}

/// Plans the forwards to a container with these addresses. One address of the host whose family the
/// container lacks leads nowhere, which is an error; all addresses of such a family yield no
/// forward. A port at one address comes before the same at all: the first rule of iptables decides.
/// Otherwise the order is that of the mappings, as the reference's.
pub fn plan(mappings: &[Mapping], v4: Option<IpNet>, v6: Option<IpNet>) -> Result<Vec<Forward>> {
    let mut forwards = vec![];
    let mut planned = HashSet::new();
    for mapping in mappings {
        for family in mapping.host.families() {
            let to = if family == Family::V4 { v4 } else { v6 };
            match (to, mapping.host) {
                (Some(to), _) if planned.insert(mapping.place(family)) => {
                    forwards.push(Forward {
                        path: mapping.path.clone(),
                        protocol: mapping.protocol,
                        at: mapping.host.address(),
                        host_port: mapping.host_port,
                        to,
                        container_port: mapping.container_port,
                    });
                }
                (None, Host::At(ip)) => {
                    let problem = format_args!(
                        "\"{ip}\" leads nowhere: the container has no {} address",
                        Family::of(ip)
                    );
                    return Err(Error::config(format_args!("{}.hostIP", mapping.path), problem));
                }
                (Some(_), _) | (None, Host::Any | Host::AnyOf(_)) => (),
            }
        }
    }
    let at_all = forwards.iter().filter(|forward| forward.at.is_none());
    let at_all: HashSet<_> = at_all.map(|all| (all.protocol, all.host_port)).collect();
    let is_first =
        |one: &Forward| one.at.is_some() && at_all.contains(&(one.protocol, one.host_port));
    forwards.sort_by_key(|forward| !is_first(forward));
    Ok(forwards)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn given(host_ip: &str, host_port: i64, protocol: &str) -> Given {
        Given { host_port, container_port: 80, protocol: protocol.into(), host_ip: host_ip.into() }
    }

    #[test]
    fn mistakes_have_their_path() {
        for (bad, msg) in [
            (
                given("", 0, ""),
                "Invalid host port number: 0; p[0].hostPort: 0 is not a port, expected 1 to 65535",
            ),
            (
                given("", 65536, ""),
                "Invalid host port number: 65536; p[0].hostPort: 65536 is not a port, expected 1 to 65535",
            ),
            (
                given("", 1, "icmp"),
                "p[0].protocol: \"icmp\" is not a protocol with ports, expected \"tcp\", \"udp\" or \"sctp\"",
            ),
            (
                given("10.0.0", 1, ""),
                "p[0].hostIP: \"10.0.0\" is not an IP address, expected one of the host's or none",
            ),
        ] {
            assert_eq!(Mapping::read_all("p", &[bad]).unwrap_err().to_string(), msg);
        }
    }

    #[test]
    fn a_port_leads_to_one_port_at_each_address() {
        let to = |container_port, host_ip: &str| Given { container_port, ..given(host_ip, 80, "") };
        let ok = |list: &[Given]| Mapping::read_all("p", list).is_ok();
        assert!(ok(&[to(1, ""), Given { protocol: "UDP".into(), ..to(2, "") }]));
        assert!(ok(&[to(1, "0.0.0.0"), to(2, "::")]));
        assert!(ok(&[to(1, "10.0.0.1"), to(2, "10.0.0.2"), to(3, "::1"), to(4, "")]));
        for (one, other) in [("", ""), ("", "::"), ("0.0.0.0", ""), ("10.0.0.1", "10.0.0.1")] {
            assert!(ok(&[to(1, one), to(1, other)]), "{one} and {other}");
            assert!(!ok(&[to(1, one), to(2, other)]), "{one} and {other}");
        }
        assert_eq!(
            Mapping::read_all("p", &[to(1, ""), to(2, "::")]).unwrap_err().msg,
            "p[1].hostPort: 80 of tcp at all IPv6 addresses is mapped by p[0] already, expected each port once"
        );
    }

    #[test]
    fn equal_mappings_are_one_and_one_address_comes_before_all() {
        let [v4, v6] = ["10.1.0.2/24", "fd00::2/64"].map(|ip| ip.parse().ok());
        let plan = |hosts: &[&str]| {
            let all: Vec<Given> = hosts.iter().map(|host| given(host, 8080, "")).collect();
            let forwards = plan(&Mapping::read_all("p", &all).unwrap(), v4, v6).unwrap();
            forwards.iter().map(|forward| format!("{forward} {}", forward.to)).collect::<Vec<_>>()
        };
        let both = ["8080/tcp 10.1.0.2/24", "8080/tcp fd00::2/64"];
        assert_eq!(plan(&["", ""]), both);
        assert_eq!(plan(&["", "::"]), both);
        assert_eq!(plan(&["0.0.0.0", "", "::"]), both);
        assert_eq!(plan(&["", "127.0.0.1"])[0], "127.0.0.1:8080/tcp 10.1.0.2/24");
        assert_eq!(plan(&["", "127.0.0.1"])[1..], both);
    }

    #[test]
    fn a_mapping_leads_to_the_address_of_each_family_that_it_is_for() {
        let v4 = "10.1.0.2/24".parse().ok();
        let v6 = "fd00::2/64".parse().ok();
        let plan = |host: &str, v4, v6| {
            let mappings = Mapping::read_all("p", &[given(host, 8080, "")]).unwrap();
            super::plan(&mappings, v4, v6)
                .map(|all| all.iter().map(|f| format!("{f} {}", f.to)).collect::<Vec<_>>())
        };
        assert_eq!(plan("", v4, v6).unwrap(), ["8080/tcp 10.1.0.2/24", "8080/tcp fd00::2/64"]);
        assert_eq!(plan("::", v4, v6).unwrap(), ["8080/tcp fd00::2/64"]);
        assert_eq!(plan("::", v4, None).unwrap(), [""; 0]);
        assert_eq!(plan("::1", v4, v6).unwrap(), ["[::1]:8080/tcp fd00::2/64"]);
        let error = plan("::1", v4, None).unwrap_err();
        assert_eq!(
            error.msg,
            "p[0].hostIP: \"::1\" leads nowhere: the container has no IPv6 address"
        );
    }
}
