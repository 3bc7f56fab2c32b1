//! Capability arguments on the command line: `--publish` and similar options, or the JSON itself; and
//! recorded ports in the syntax of `--publish`.

use std::net::IpAddr;

use clap::ArgMatches;
use serde::{Deserialize, Serialize};

use crate::cni::env::Environment;
use crate::cni::json::Value;
use crate::cni::{addr, decode};
use crate::error::{Code, Error, Result};
use crate::net::mac::MacAddr;
use crate::runtime::list::NetworkList;
use crate::runtime::parameters::parse_capability_args;
use crate::terminal::arguments::text;

/// The option that takes any capability.
const JSON: &str = "capability-args";

/// An option for one capability.
struct CapabilityOption {
    name: &'static str,
    capability: &'static str,
    parse: fn(&[&str]) -> Result<Value, String>,
    is_repeatable: bool,
    /// The plugin that usually declares the capability.
    reader: &'static str,
}

const OPTIONS: [CapabilityOption; 4] = [
    CapabilityOption {
        name: "publish",
        capability: "portMappings",
        parse: port_mappings,
        is_repeatable: true,
        reader: "of type portmap",
    },
    CapabilityOption {
        name: "ip",
        capability: "ips",
        parse: ips,
        is_repeatable: true,
        reader: "that has the ipam section",
    },
    CapabilityOption {
        name: "mac",
        capability: "mac",
        parse: |values| {
            let mac = values[0].parse::<MacAddr>().map_err(|error| error.to_string())?;
            Ok(Value::text(mac.to_string()))
        },
        is_repeatable: false,
        reader: "that makes the interface, or of type tuning",
    },
    CapabilityOption {
        name: "bandwidth",
        capability: "bandwidth",
        parse: |values| limits(values[0]),
        is_repeatable: false,
        reader: "of type bandwidth",
    },
];

/// An argument for one capability, and the option that gives it.
struct Argument {
    option: &'static str,
    capability: String,
    value: Value,
}

/// All capability arguments. An option must reach a plugin: a port that no plugin opens looks like
/// an open one. The variable may be set for networks of every kind and works as in a runtime: a
/// plugin that does not declare a capability does not get it. The option with JSON replaces it.
pub fn args(matches: &ArgMatches, env: &Environment, list: &NetworkList) -> Result<Value> {
    let is_replaced = !text(matches, JSON).is_empty();
    let text = if is_replaced { String::new() } else { env.get("CAP_ARGS") };
    let mut args = parse_capability_args(&text)?;
    let given = of_options(matches)?;
    for Argument { option, capability, .. } in &given {
        if list.plugins.iter().any(|plugin| plugin.capabilities.contains(capability)) {
            continue;
        }
        let reader = OPTIONS.iter().find(|option| option.capability == capability);
        let reader = reader.map_or("that understands it", |option| option.reader);
        let plugins: Vec<&str> = list.plugins.iter().map(|plugin| plugin.kind.as_str()).collect();
        let msg = format!(
            "--{option}: no plugin of network {:?} declares the capability {capability}",
            list.name
        );
        return Err(Error::new(Code::INVALID_CONFIG, msg).with_details(format_args!(
            "its plugins are {}; the one {reader} needs the line \"capabilities\": {{\"{capability}\": true}}",
            plugins.join(", "),
        )));
    }
    for Argument { capability, value, .. } in given {
        args.set(&capability, value);
    }
    Ok(args)
}

/// Rejects options that are mistakes with any network.
pub fn require_readable(matches: &ArgMatches) -> Result<()> {
    let given = of_options(matches)?;
    for (index, Argument { option, capability, .. }) in given.iter().enumerate() {
        if let Some(other) = given[..index].iter().find(|other| other.capability == *capability) {
            let other = other.option;
            let msg = format!("--{option}: {capability} is given by --{other} as well");
            return Err(Error::new(Code::INVALID_ENVIRONMENT, msg));
        }
    }
    Ok(())
}

fn of_options(matches: &ArgMatches) -> Result<Vec<Argument>> {
    let mut given = vec![];
    if let Value::Object(members) = parse_capability_args(text(matches, JSON))? {
        let argument = |(capability, value)| Argument { option: JSON, capability, value };
        given.extend(members.into_iter().map(argument));
    }
    for CapabilityOption { name: option, capability, parse, is_repeatable, .. } in OPTIONS {
        let values = matches.try_get_many::<String>(option).ok().flatten();
        let values: Vec<&str> = values.unwrap_or_default().map(String::as_str).collect();
        let value = match values.as_slice() {
            [] => continue,
            [_, _, ..] if !is_repeatable => Err("given twice, expected once".to_owned()),
            values => parse(values),
        };
        let value = value.map_err(|problem| {
            Error::new(Code::INVALID_ENVIRONMENT, format!("--{option}: {problem}"))
        })?;
        given.push(Argument { option, capability: capability.to_owned(), value });
    }
    Ok(given)
}

/// Addresses, each with or without a prefix length.
fn ips(values: &[&str]) -> Result<Value, String> {
    for text in values {
        if addr::parse_cidr(text).is_err() && !matches!(addr::parse_ip(text), Ok(Some(_))) {
            return Err(format!(
                "{text:?} is not an address, expected one like 10.1.2.3 or fd00::2/64"
            ));
        }
    }
    Ok(Value::of(values))
}

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

/// The capability `portMappings`, with one entry per port, from `[ADDRESS:]HOST:CONTAINER[/PROTOCOL]` in
/// the syntax of container engines.
fn port_mappings(values: &[&str]) -> Result<Value, String> {
    let mut mappings = vec![];
    for text in values {
        mappings.extend(parse_mappings(text).map_err(|problem| format!("{text:?}: {problem}"))?);
    }
    Ok(Value::of(&mappings))
}

/// The mappings of one value, one per port.
fn parse_mappings(text: &str) -> Result<Vec<PortMapping>, String> {
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

/// The largest chunk that TCP sends at once, in bits; a bucket that holds less would break up every
/// one.
const LEAST_BURST: u64 = 64 * 1024 * 8;
/// The maximum that the bandwidth plugin accepts.
const LARGEST_BURST: u64 = u32::MAX as u64 * 8 - 1;
/// The default burst is what the rate allows in a twentieth of a second.
const BURSTS_A_SECOND: u64 = 20;

/// The keys of the option and of the capability; a rate is followed by its burst.
const LIMITS: [(&str, &str); 4] = [
    ("ingress", "ingressRate"),
    ("ingressBurst", "ingressBurst"),
    ("egress", "egressRate"),
    ("egressBurst", "egressBurst"),
];

/// The capability `bandwidth` from `ingress=10M,egress=5M`: bursts in bits, rates in bits per second.
/// The plugin refuses a rate without a burst, so a default is added; the maximum burst, which runtimes
/// add, would let the first gigabytes pass unlimited.
fn limits(text: &str) -> Result<Value, String> {
    let limits = parse_limits(text).map_err(|problem| format!("{text:?}: {problem}"))?;
    let given = LIMITS.iter().zip(limits).filter(|(_, bits)| *bits > 0);
    Ok(Value::object(given.map(|((_, key), bits)| (*key, Value::number(bits)))))
}

/// The number for each of the [`LIMITS`]; 0 if not given.
fn parse_limits(text: &str) -> Result<[u64; 4], String> {
    const EXPECTED: &str = "expected ingress=RATE, egress=RATE or both separated by a comma, such as ingress=10M,egress=5M";
    let mut limits = [0; 4];
    for piece in text.split(',') {
        let (name, value) = piece.split_once('=').ok_or(EXPECTED)?;
        let Some(at) = LIMITS.iter().position(|(key, _)| *key == name) else {
            return Err(format!(
                "{name:?} is not a limit, expected ingress, egress, ingressBurst or egressBurst"
            ));
        };
        if limits[at] > 0 {
            return Err(format!("{name} is given twice"));
        }
        limits[at] = bits(value)?;
    }
    for rate in [0, 2] {
        match (limits[rate], limits[rate + 1]) {
            (0, 1..) => return Err(format!("{} without {}", LIMITS[rate + 1].0, LIMITS[rate].0)),
            (bits @ 1.., 0) => {
                limits[rate + 1] = (bits / BURSTS_A_SECOND).clamp(LEAST_BURST, LARGEST_BURST);
            }
            _ => (),
        }
    }
    Ok(limits)
}

/// A whole number, with the suffix k, M or G for powers of 1000, as in the kernel's tools.
fn bits(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(['k', 'M', 'G']);
    let factor = match &text[digits.len()..] {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        _ => 0, // several suffixes
    };
    match digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)) {
        Some(bits @ 1..) if !digits.starts_with('+') => Ok(bits),
        _ => Err(format!(
            "{text:?} is not a number of bits, expected a whole number above 0, optionally with k, M or G"
        )),
    }
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

    fn bandwidth(text: &str) -> String {
        limits(text).map_or_else(|problem| problem, |value| value.to_text())
    }

    #[test]
    fn limits_have_units_and_a_burst_of_their_own() {
        assert_eq!(
            bandwidth("ingress=100M,egress=5M"),
            r#"{"ingressRate":100000000,"ingressBurst":5000000,"egressRate":5000000,"egressBurst":524288}"#
        );
        assert_eq!(
            bandwidth("egress=800k,egressBurst=1000000"),
            r#"{"egressRate":800000,"egressBurst":1000000}"#
        );
        assert_eq!(
            bandwidth("ingress=9000G"),
            r#"{"ingressRate":9000000000000,"ingressBurst":34359738359}"#
        );
    }

    #[test]
    fn mistakes_name_the_value_and_what_was_expected() {
        let no_port = "is not a port or range of ports, expected 1 to 65535";
        let no_address = "is not an address of the host, expected one like 127.0.0.1 or [::1]";
        let no_number =
            "is not a number of bits, expected a whole number above 0, optionally with k, M or G";
        let expected = "expected [ADDRESS:]HOST:CONTAINER[/PROTOCOL], such as 8080:80/tcp or [::1]:8000-8010:80-90";
        let expected_rates = "expected ingress=RATE, egress=RATE or both separated by a comma, such as ingress=10M,egress=5M";
        for (text, wrong, problem) in [
            ("80", "", expected),
            ("", "", expected),
            ("0:80", "0", no_port),
            ("80:65536", "65536", no_port),
            ("+80:80", "+80", no_port),
            ("80:", "\"\"", no_port),
            ("80-:80", "80-", no_port),
            ("90-80:90-80", "90-80", no_port),
            ("80-81:80", "", "2 ports on the host and 1 in the container, expected equal numbers"),
            ("80:80/TCP", "TCP", "is not a protocol, expected tcp, udp or sctp"),
            ("80:80/", "\"\"", "is not a protocol, expected tcp, udp or sctp"),
            ("1.2.3:80:80", "1.2.3", no_address),
            ("::1:80:80", "::1", no_address),
            ("[1.2.3.4]:80:80", "[1.2.3.4]", no_address),
            (":80:80", "\"\"", no_address),
        ] {
            assert_eq!(mappings(&[text]), told(text, wrong, problem));
        }
        for (text, wrong, problem) in [
            ("10M", "", expected_rates),
            ("", "", expected_rates),
            ("ingress=10M,", "", expected_rates),
            ("in=1", "in", "is not a limit, expected ingress, egress, ingressBurst or egressBurst"),
            ("ingress=10m", "10m", no_number),
            ("ingress=", "\"\"", no_number),
            ("ingress=M", "M", no_number),
            ("ingress=0", "0", no_number),
            ("ingress=1.5M", "1.5M", no_number),
            ("ingress=-1", "-1", no_number),
            ("ingress=+1", "+1", no_number),
            ("ingress=1kM", "1kM", no_number),
            ("ingress=99999999999G", "99999999999G", no_number),
            ("ingress=1M,ingress=2M", "", "ingress is given twice"),
            ("egressBurst=1M,ingress=1M", "", "egressBurst without egress"),
        ] {
            assert_eq!(bandwidth(text), told(text, wrong, problem));
        }
    }

    /// `wrong` is the part of the text that the problem quotes.
    fn told(text: &str, wrong: &str, problem: &str) -> String {
        match wrong {
            "" => format!("{text:?}: {problem}"),
            "\"\"" => format!("{text:?}: \"\" {problem}"),
            _ => format!("{text:?}: {wrong:?} {problem}"),
        }
    }
}
