//! The document that `export` prints and `import` reads.
//!
//! ```json
//! {"cniMultiLeases":1,"networks":[{"network":"pods","ipam":"host-local","leases":[
//!   {"address":"10.88.0.2","containerId":"4f1c","ifname":"eth0"}]}]}
//! ```
//!
//! Networks are sorted by name and leases by address, so two exports of one state are equal.

use std::collections::HashSet;
use std::net::IpAddr;

use crate::cni::attachment::{ContainerId, IfName, NetworkName};
use crate::cni::json::Value;
use crate::error::{Error, Result};
use crate::plugin::leases::Holding;
use crate::terminal::table::{Members, put_text};

/// The version of the format, which is the value of the first member.
const VERSION: u64 = 1;
/// The first member.
const KIND: &str = "cniMultiLeases";

/// The leases of one network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// The network.
    pub network: NetworkName,
    /// The name of the IPAM plugin.
    pub ipam: String,
    /// The leases; of their members only address, container and interface are in the document.
    pub leases: Vec<Holding>,
}

/// The document of these networks.
pub fn write(sections: &[Section]) -> Value {
    let lease = |held: &Holding| {
        let mut members = Members::new();
        put_text(&mut members, "address", &held.address.to_string());
        put_text(&mut members, "containerId", &held.container_id);
        put_text(&mut members, "ifname", &held.ifname);
        Value::Object(members)
    };
    let section = |section: &Section| {
        Value::object([
            ("network", Value::text(section.network.as_str())),
            ("ipam", Value::text(&section.ipam)),
            ("leases", Value::Array(section.leases.iter().map(lease).collect())),
        ])
    };
    let sections = sections.iter().map(section).collect();
    Value::object([(KIND, Value::number(VERSION)), ("networks", Value::Array(sections))])
}

/// Reads a document. An error names the place in it.
pub fn read(text: &[u8]) -> Result<Vec<Section>> {
    let document = Value::parse(text)?;
    match document.get(KIND) {
        None => return Err(Error::missing(KIND, "the output of cni-multi ipam export")),
        Some(version) if version.as_u64() == Some(VERSION) => (),
        Some(other) => {
            let problem = format!("version {} is unknown", other.to_text());
            return Err(Error::config(KIND, problem).expecting("1"));
        }
    }
    let mut sections: Vec<Section> = vec![];
    for (place, value) in items(&document, "", "networks")? {
        let section = read_section(value, &place)?;
        if sections
            .iter()
            .any(|known| known.network == section.network && known.ipam == section.ipam)
        {
            let problem = format!("{:?} is there twice", section.network.as_str());
            return Err(Error::config(format_args!("{place}.network"), problem));
        }
        sections.push(section);
    }
    Ok(sections)
}

fn read_section(value: &Value, place: &str) -> Result<Section> {
    let network = text(value, place, "network")?;
    let network =
        NetworkName::parse(network).map_err(|e| e.context(format_args!("{place}.network")))?;
    let ipam = text(value, place, "ipam")?.to_owned();
    let mut seen = HashSet::new();
    let mut leases = vec![];
    for (place, value) in items(value, place, "leases")? {
        let lease = read_lease(value, &place)?;
        if !seen.insert(lease.address) {
            let problem = format!("{} is there twice", lease.address);
            return Err(Error::config(format_args!("{place}.address"), problem));
        }
        leases.push(lease);
    }
    Ok(Section { network, ipam, leases })
}

fn read_lease(value: &Value, place: &str) -> Result<Holding> {
    let typed = text(value, place, "address")?;
    let no_address = |_| {
        let problem = format!("{typed:?} is not an IP address");
        Error::config(format_args!("{place}.address"), problem)
    };
    let address: IpAddr = typed.parse().map_err(no_address)?;
    let id = text(value, place, "containerId")?;
    ContainerId::parse(id).map_err(|e| e.context(format_args!("{place}.containerId")))?;
    let ifname = if value.get("ifname").is_some() { text(value, place, "ifname")? } else { "" };
    if !ifname.is_empty() {
        IfName::parse(ifname).map_err(|e| e.context(format_args!("{place}.ifname")))?;
    }
    Ok(Holding {
        address,
        container_id: id.to_owned(),
        ifname: ifname.to_owned(),
        since: None,
        netns_path: String::new(),
    })
}

/// The member, which must be a text.
pub fn text<'v>(value: &'v Value, place: &str, key: &str) -> Result<&'v str> {
    let found = value.get(key);
    found.and_then(Value::as_str).ok_or_else(|| wrong(found, &path(place, key), "a string"))
}

/// The items of the member, which must be a list, each with its path.
pub fn items<'v>(value: &'v Value, place: &str, key: &str) -> Result<Vec<(String, &'v Value)>> {
    let path = path(place, key);
    match value.get(key) {
        Some(Value::Array(items)) => {
            let place = |(index, item)| (format!("{path}[{index}]"), item);
            Ok(items.iter().enumerate().map(place).collect())
        }
        found => Err(wrong(found, &path, "a list")),
    }
}

fn path(place: &str, key: &str) -> String {
    let point = if place.is_empty() { "" } else { "." };
    [place, point, key].concat()
}

fn wrong(found: Option<&Value>, path: &str, expected: &'static str) -> Error {
    match found {
        None => Error::missing(path, expected),
        Some(found) => {
            Error::config(path, format_args!("{} found", found.kind())).expecting(expected)
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn held(address: &str, id: &str, ifname: &str) -> Holding {
        Holding {
            address: address.parse().unwrap(),
            container_id: id.to_owned(),
            ifname: ifname.to_owned(),
            since: None,
            netns_path: String::new(),
        }
    }

    #[test]
    fn document_is_read_as_it_was_written() {
        let section = Section {
            network: NetworkName::parse("pods").unwrap(),
            ipam: "host-local".to_owned(),
            leases: vec![held("10.88.0.2", "4f1c", "eth0"), held("fd00::2", "old", "")],
        };
        let text = write(std::slice::from_ref(&section)).to_text();
        assert_eq!(
            text,
            r#"{"cniMultiLeases":1,"networks":[{"network":"pods","ipam":"host-local","leases":[{"address":"10.88.0.2","containerId":"4f1c","ifname":"eth0"},{"address":"fd00::2","containerId":"old"}]}]}"#
        );
        assert_eq!(read(text.as_bytes()).unwrap(), [section]);
    }

    #[test]
    fn mistakes_have_their_place() {
        let lease = |members: &str| {
            format!(
                r#"{{"cniMultiLeases":1,"networks":[{{"network":"n","ipam":"x","leases":[{members}]}}]}}"#
            )
        };
        let one = r#"{"address":"10.0.0.2","containerId":"a"}"#;
        let torn = lease(one)[..60].to_owned();
        let twice = lease(&format!("{one},{one}"));
        for (text, problem) in [
            (torn.as_str(), "EOF while parsing"),
            ("[]", "cniMultiLeases: missing, expected the output of cni-multi ipam export"),
            (r#"{"cniMultiLeases":2}"#, "cniMultiLeases: version 2 is unknown, expected 1"),
            (r#"{"cniMultiLeases":"1"}"#, "cniMultiLeases: version \"1\" is unknown, expected 1"),
            (r#"{"cniMultiLeases":1}"#, "networks: missing, expected a list"),
            (r#"{"cniMultiLeases":1,"networks":{}}"#, "networks: object found, expected a list"),
            (
                r#"{"cniMultiLeases":1,"networks":[7]}"#,
                "networks[0].network: missing, expected a string",
            ),
            (
                r#"{"cniMultiLeases":1,"networks":[{"network":"../n"}]}"#,
                "networks[0].network: invalid characters found in network name; ../n",
            ),
            (&lease("1"), "networks[0].leases[0].address: missing, expected a string"),
            (
                &lease(r#"{"address":"10.0.0.300"}"#),
                "networks[0].leases[0].address: \"10.0.0.300\" is not an IP address",
            ),
            (
                &lease(r#"{"address":"10.0.0.2"}"#),
                "networks[0].leases[0].containerId: missing, expected a string",
            ),
            (
                &lease(r#"{"address":"10.0.0.2","containerId":"a/b"}"#),
                "networks[0].leases[0].containerId: invalid characters in containerID; a/b",
            ),
            (
                &lease(r#"{"address":"10.0.0.2","containerId":"a","ifname":7}"#),
                "networks[0].leases[0].ifname: number found, expected a string",
            ),
            (&twice, "networks[0].leases[1].address: 10.0.0.2 is there twice"),
        ] {
            let error = read(text.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(problem), "{text}: {error}");
        }
    }
}
