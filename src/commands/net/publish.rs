//! `--publish [ADDRESS:]HOST:CONTAINER[/PROTOCOL]`, as container engines have it, with ranges of ports.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::capability::mistake;
use crate::cni::json::Value;
use crate::error::Result;

/// The capability `portMappings`: one entry a port.
pub fn port_mappings(values: &[&str]) -> Result<Value> {
    let mut mappings = vec![];
    for text in values {
        mappings.extend(of_value(text).map_err(|problem| mistake(format!("{text:?}: {problem}")))?);
    }
    Ok(Value::Array(mappings))
}

fn of_value(text: &str) -> Result<Vec<Value>, String> {
    const EXPECTED: &str = "expected [ADDRESS:]HOST:CONTAINER[/PROTOCOL], such as 8080:80/tcp or [::1]:8000-8010:80-90";
    let (ports, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    if !["tcp", "udp", "sctp"].contains(&protocol) {
        return Err(format!("{protocol:?} is no protocol, expected tcp, udp or sctp"));
    }
    let (rest, container) = ports.rsplit_once(':').ok_or(EXPECTED)?;
    let (address, host) = match rest.rsplit_once(':') {
        Some((address, host)) => (parse_address(address)?, host),
        None => (None, rest),
    };
    let (host, container) = (parse_ports(host)?, parse_ports(container)?);
    if host.len() != container.len() {
        let (host, container) = (host.len(), container.len());
        return Err(format!("{host} ports of the host and {container} of the container, expected as many"));
    }
    let mapping = |(host, container)| to_value(address, host, container, protocol);
    Ok(host.zip(container).map(mapping).collect())
}

/// An IPv6 address stands in brackets, which tell its colons from the others.
fn parse_address(text: &str) -> Result<Option<IpAddr>, String> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    match bare.unwrap_or(text).parse::<IpAddr>() {
        Ok(ip) if ip.is_ipv6() == bare.is_some() => Ok(Some(ip)),
        Ok(_) => Err(format!("{text:?}: brackets are for IPv6 addresses, and only for those")),
        Err(_) => Err(format!("{text:?} is no address of the host, expected one like 127.0.0.1 or [::1]")),
    }
}

fn parse_ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let port = |text: &str| match text.parse::<u16>() {
        Ok(port) if port > 0 && text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(port),
        _ => Err(format!("{text:?} is no port, expected 1 to 65535")),
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let ports = port(first)?..=port(last)?;
    if ports.is_empty() { Err(format!("{text:?} ends before it begins")) } else { Ok(ports) }
}

fn to_value(address: Option<IpAddr>, host: u16, container: u16, protocol: &str) -> Value {
    let mut mapping = vec![
        ("hostPort".to_owned(), Value::Number(host.into())),
        ("containerPort".to_owned(), Value::Number(container.into())),
        ("protocol".to_owned(), Value::String(protocol.to_owned())),
    ];
    mapping.extend(address.map(|ip| ("hostIP".to_owned(), Value::String(ip.to_string()))));
    Value::Object(mapping)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mappings(values: &[&str]) -> String {
        port_mappings(values).map_or_else(|error| error.to_string(), |value| value.to_text())
    }

    #[test]
    fn ports_are_published_as_engines_write_them() {
        assert_eq!(mappings(&["8080:80"]), r#"[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]"#);
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
    fn mistakes_name_the_value_and_what_was_expected() {
        let expected = "expected [ADDRESS:]HOST:CONTAINER[/PROTOCOL], such as 8080:80/tcp or [::1]:8000-8010:80-90";
        let cases = [
            ("80", expected),
            ("", expected),
            ("0:80", "\"0\" is no port, expected 1 to 65535"),
            ("80:65536", "\"65536\" is no port, expected 1 to 65535"),
            ("+80:80", "\"+80\" is no port, expected 1 to 65535"),
            ("80:", "\"\" is no port, expected 1 to 65535"),
            ("80-:80", "\"\" is no port, expected 1 to 65535"),
            ("90-80:90-80", "\"90-80\" ends before it begins"),
            ("80-81:80", "2 ports of the host and 1 of the container, expected as many"),
            ("80:80/TCP", "\"TCP\" is no protocol, expected tcp, udp or sctp"),
            ("80:80/", "\"\" is no protocol, expected tcp, udp or sctp"),
            ("1.2.3:80:80", "\"1.2.3\" is no address of the host, expected one like 127.0.0.1 or [::1]"),
            ("::1:80:80", "\"::1\": brackets are for IPv6 addresses, and only for those"),
            ("[1.2.3.4]:80:80", "\"[1.2.3.4]\": brackets are for IPv6 addresses, and only for those"),
            (":80:80", "\"\" is no address of the host, expected one like 127.0.0.1 or [::1]"),
        ];
        for (text, problem) in cases {
            assert_eq!(mappings(&[text]), format!("{text:?}: {problem}"));
        }
    }
}
