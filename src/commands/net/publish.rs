//! Parses `--publish [ADDRESS:]HOST:CONTAINER[/PROTOCOL]`, in the syntax of container engines, with
//! port ranges, and formats recorded ports in the same syntax.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::cni::decode;
use crate::cni::json::Value;

/// One entry of the capability `portMappings`.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PortMapping {
    host_port: u32,
    container_port: u32,
    protocol: String,
    #[serde(rename = "hostIP", skip_serializing_if = "String::is_empty")]
    host_ip: String,
}

/// The capability `portMappings`, with one entry per port.
pub fn port_mappings(values: &[&str]) -> Result<Value, String> {
    let mut mappings = vec![];
    for text in values {
        mappings.extend(parse(text).map_err(|problem| format!("{text:?}: {problem}"))?);
    }
    Ok(Value::of(&mappings))
}

/// The mappings of one value, one per port.
fn parse(text: &str) -> Result<Vec<PortMapping>, String> {
    const EXPECTED: &str = "expected [ADDRESS:]HOST:CONTAINER[/PROTOCOL], such as 8080:80/tcp or [::1]:8000-8010:80-90";
    let (ports, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    if !["tcp", "udp", "sctp"].contains(&protocol) {
        return Err(format!("{protocol:?} is not a protocol, expected tcp, udp or sctp"));
    }
    let (rest, container) = ports.rsplit_once(':').ok_or(EXPECTED)?;
    let (host_ip, host) = match rest.rsplit_once(':') {
        Some((address, host)) => (parse_address(address)?.to_string(), host),
        None => (String::new(), rest),
    };
    let (host_port, count) = parse_ports(host)?;
    let (container_port, places) = parse_ports(container)?;
    if count != places {
        return Err(format!(
            "{count} ports on the host and {places} in the container, expected equal numbers"
        ));
    }
    let first = PortMapping { host_port, container_port, protocol: protocol.to_owned(), host_ip };
    Ok((0..count).map(|offset| first.above(offset)).collect())
}

/// Parses an address. An IPv6 address is in brackets, which separate its colons from the others.
fn parse_address(text: &str) -> Result<IpAddr, String> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    match bare.unwrap_or(text).parse::<IpAddr>() {
        Ok(ip) if ip.is_ipv6() == bare.is_some() => Ok(ip),
        _ => Err(format!(
            "{text:?} is not an address of the host, expected one like 127.0.0.1 or [::1]"
        )),
    }
}

/// The first port, and the number of ports.
fn parse_ports(text: &str) -> Result<(u32, u32), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let [first, last] = [first, last].map(|text| match text.parse::<u16>() {
        Ok(number) if !text.starts_with('+') => u32::from(number),
        _ => 0,
    });
    if first == 0 || last < first {
        return Err(format!("{text:?} is not a port or range of ports, expected 1 to 65535"));
    }
    Ok((first, last - first + 1))
}

/// The ports among recorded capability arguments. A runtime may have passed them in any case.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Recorded {
    #[serde(rename = "portMappings", deserialize_with = "decode::readable_items")]
    mappings: Vec<PortMapping>,
}

impl PortMapping {
    /// The mapping of the port that follows at this distance.
    fn above(&self, offset: u32) -> PortMapping {
        let host_port = self.host_port.saturating_add(offset);
        let container_port = self.container_port.saturating_add(offset);
        PortMapping { host_port, container_port, ..self.clone() }
    }

    /// The text of this many consecutive mappings, of which this is the first.
    fn text(&self, count: u32) -> String {
        let ports = |first: u32| match count {
            1 => first.to_string(),
            _ => format!("{first}-{}", first.saturating_add(count - 1)),
        };
        let address = match self.host_ip.as_str() {
            "" => String::new(),
            ip if ip.contains(':') => format!("[{ip}]:"),
            ip => format!("{ip}:"),
        };
        let protocol = self.protocol.to_ascii_lowercase();
        let protocol = if protocol.is_empty() { "tcp" } else { &protocol };
        format!("{address}{}:{}/{protocol}", ports(self.host_port), ports(self.container_port))
    }
}

/// The addresses of the host that ports are published at alone, by recorded capability arguments.
pub fn host_addresses(capability_args: &Value) -> Vec<IpAddr> {
    let recorded: Recorded = decode::from_value(capability_args).unwrap_or_default();
    recorded.mappings.iter().filter_map(|port| port.host_ip.parse().ok()).collect()
}

/// The published ports of recorded capability arguments, as `--publish` takes them; consecutive ones
/// as a range.
pub fn published(capability_args: &Value) -> Vec<String> {
    let recorded: Recorded = decode::from_value(capability_args).unwrap_or_default();
    let mut ranges: Vec<(PortMapping, u32)> = vec![];
    for port in recorded.mappings.into_iter().filter(|port| port.host_port > 0) {
        match ranges.last_mut() {
            Some((first, count)) if first.above(*count) == port => *count += 1,
            _ => ranges.push((port, 1)),
        }
    }
    ranges.iter().map(|(first, count)| first.text(*count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mappings(values: &[&str]) -> String {
        port_mappings(values).map_or_else(|problem| problem, |value| value.to_text())
    }

    #[test]
    fn ports_are_published_as_engines_write_them() {
        assert_eq!(
            mappings(&["8080:80"]),
            r#"[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]"#
        );
        assert_eq!(
            mappings(&["127.0.0.1:8080:80/udp", "[::1]:53:5353/sctp"]),
            concat!(
                r#"[{"hostPort":8080,"containerPort":80,"protocol":"udp","hostIP":"127.0.0.1"},"#,
                r#"{"hostPort":53,"containerPort":5353,"protocol":"sctp","hostIP":"::1"}]"#
            )
        );
        assert_eq!(
            mappings(&["65534-65535:1-2"]),
            concat!(
                r#"[{"hostPort":65534,"containerPort":1,"protocol":"tcp"},"#,
                r#"{"hostPort":65535,"containerPort":2,"protocol":"tcp"}]"#
            )
        );
    }

    #[test]
    fn recorded_ports_are_printed_as_they_are_typed() {
        let typed = ["8080:80/tcp", "127.0.0.1:8000-8010:80-90/udp", "[::1]:53:5353/sctp"];
        let args = Value::object([("portMappings", port_mappings(&typed).unwrap())]);
        assert_eq!(published(&args), typed);
        let of = |text: &str| published(&Value::parse(text.as_bytes()).unwrap()).join(" ");
        let containerd = r#"{"portMappings":[{"HostPort":81,"ContainerPort":81,"Protocol":"TCP","HostIP":""},
            {"HostPort":0,"ContainerPort":9},{"HostPort":82,"ContainerPort":82,"Protocol":"TCP"},"x",
            {"HostPort":4294967295,"ContainerPort":4294967295}]}"#;
        assert_eq!(of(containerd), "81-82:81-82/tcp 4294967295:4294967295/tcp");
        for none in ["{}", r#"{"portMappings":null}"#, r#"{"portMappings":{}}"#, "null"] {
            assert_eq!(of(none), "", "{none}");
        }
    }

    #[test]
    fn mistakes_name_the_value_and_what_was_expected() {
        let expected = "expected [ADDRESS:]HOST:CONTAINER[/PROTOCOL], such as 8080:80/tcp or [::1]:8000-8010:80-90";
        let cases = [
            ("80", expected),
            ("", expected),
            ("0:80", "\"0\" is not a port or range of ports, expected 1 to 65535"),
            ("80:65536", "\"65536\" is not a port or range of ports, expected 1 to 65535"),
            ("+80:80", "\"+80\" is not a port or range of ports, expected 1 to 65535"),
            ("80:", "\"\" is not a port or range of ports, expected 1 to 65535"),
            ("80-:80", "\"80-\" is not a port or range of ports, expected 1 to 65535"),
            ("90-80:90-80", "\"90-80\" is not a port or range of ports, expected 1 to 65535"),
            ("80-81:80", "2 ports on the host and 1 in the container, expected equal numbers"),
            ("80:80/TCP", "\"TCP\" is not a protocol, expected tcp, udp or sctp"),
            ("80:80/", "\"\" is not a protocol, expected tcp, udp or sctp"),
            (
                "1.2.3:80:80",
                "\"1.2.3\" is not an address of the host, expected one like 127.0.0.1 or [::1]",
            ),
            (
                "::1:80:80",
                "\"::1\" is not an address of the host, expected one like 127.0.0.1 or [::1]",
            ),
            (
                "[1.2.3.4]:80:80",
                "\"[1.2.3.4]\" is not an address of the host, expected one like 127.0.0.1 or [::1]",
            ),
            (":80:80", "\"\" is not an address of the host, expected one like 127.0.0.1 or [::1]"),
        ];
        for (text, problem) in cases {
            assert_eq!(mappings(&[text]), format!("{text:?}: {problem}"));
        }
    }
}
