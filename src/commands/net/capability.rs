//! Capability arguments on the command line: `--publish` and similar options, or the JSON itself.

use clap::ArgMatches;

use super::{bandwidth, publish};
use crate::cni::addr;
use crate::cni::env::Environment;
use crate::cni::json::Value;
use crate::error::{Code, Error, Result};
use crate::net::mac::MacAddr;
use crate::runtime::list::NetworkList;
use crate::runtime::parameters::parse_capability_args;

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
        parse: publish::port_mappings,
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
        parse: |values| bandwidth::limits(values[0]),
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
    let is_replaced = !json(matches).is_empty();
    let text = if is_replaced { String::new() } else { env.get("CAP_ARGS") };
    let mut args = parse_capability_args(&text)?;
    let given = of_options(matches)?;
    for Argument { option, capability, .. } in &given {
        if !list.plugins.iter().any(|plugin| plugin.capabilities.contains(capability)) {
            return Err(undeclared(option, capability, list));
        }
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

/// The option with JSON; empty if not given.
fn json(matches: &ArgMatches) -> &str {
    matches.try_get_one::<String>(JSON).ok().flatten().map_or("", |text| text)
}

fn of_options(matches: &ArgMatches) -> Result<Vec<Argument>> {
    let mut given = vec![];
    if let Value::Object(members) = parse_capability_args(json(matches))? {
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

fn undeclared(option: &str, capability: &str, list: &NetworkList) -> Error {
    let usual = OPTIONS.iter().find(|option| option.capability == capability);
    let usual = usual.map_or("that understands it", |option| option.reader);
    let plugins: Vec<&str> = list.plugins.iter().map(|plugin| plugin.kind.as_str()).collect();
    let msg = format!(
        "--{option}: no plugin of network {:?} declares the capability {capability}",
        list.name
    );
    Error::new(Code::INVALID_CONFIG, msg).with_details(format_args!(
        "its plugins are {}; the one {usual} needs the line \"capabilities\": {{\"{capability}\": true}}",
        plugins.join(", "),
    ))
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
