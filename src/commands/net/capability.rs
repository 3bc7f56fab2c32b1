//! Capability arguments on the command line: `--publish` and similar options, or the JSON itself.

use super::operator::Operator;
use super::{bandwidth, publish};
use crate::cni::addr;
use crate::cni::json::Value;
use crate::error::{Code, Error, Result};
use crate::net::mac::MacAddr;
use crate::runtime::list::NetworkList;
use crate::runtime::parameters::parse_capability_args;

/// The option that takes any capability.
const JSON: &str = "capability-args";

/// An option, its capability, the parser of its values, and the plugin that usually declares it.
type CapabilityOption = (&'static str, &'static str, fn(&[&str]) -> Result<Value>, &'static str);

const OPTIONS: [CapabilityOption; 4] = [
    ("publish", "portMappings", publish::port_mappings, "of type portmap"),
    ("ip", "ips", ips, "that has the ipam section"),
    ("mac", "mac", mac, "that makes the interface, or of type tuning"),
    ("bandwidth", "bandwidth", bandwidth::limits, "of type bandwidth"),
];

/// All capability arguments. An option must reach a plugin: a port that no plugin opens looks like
/// an open one. The variable may be set for networks of every kind and works as in a runtime: a
/// plugin that does not declare a capability does not get it.
pub fn args(operator: &Operator<'_>, list: &NetworkList) -> Result<Value> {
    let json = operator.argument(JSON);
    let variable = if json.is_empty() { operator.env.get("CAP_ARGS") } else { String::new() };
    let mut args = parse_capability_args(&variable)?;
    let mut typed: Vec<(&str, String, Value)> = vec![];
    if let Value::Object(members) = parse_capability_args(json)? {
        for (capability, value) in members {
            typed.push((JSON, capability, value));
        }
    }
    for (option, capability, read, _) in OPTIONS {
        let values = operator.arguments(option);
        if !values.is_empty() {
            let value = read(&values).map_err(|error| error.context(format_args!("--{option}")))?;
            typed.push((option, capability.to_owned(), value));
        }
    }
    for (index, (option, capability, _)) in typed.iter().enumerate() {
        if let Some((other, ..)) = typed[..index].iter().find(|(_, other, _)| other == capability) {
            return Err(mistake(format!("--{option}: {capability} is given by --{other} as well")));
        }
        if !list.plugins.iter().any(|plugin| plugin.capabilities.contains(capability)) {
            return Err(undeclared(option, capability, list));
        }
    }
    for (_, capability, value) in typed {
        args.set(&capability, value);
    }
    Ok(args)
}

fn undeclared(option: &str, capability: &str, list: &NetworkList) -> Error {
    let usual = OPTIONS
        .iter()
        .find(|known| known.1 == capability)
        .map_or("that understands it", |known| known.3);
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

/// The error for an invalid value of an option.
pub fn mistake(problem: String) -> Error {
    Error::new(Code::INVALID_ENVIRONMENT, problem)
}

/// The value of an option that must not be repeated.
pub fn once<'a>(values: &[&'a str]) -> Result<&'a str> {
    if let [text] = values {
        Ok(text)
    } else {
        Err(mistake("given twice, expected once".to_owned()))
    }
}

fn ips(values: &[&str]) -> Result<Value> {
    for text in values {
        if addr::parse_cidr(text).is_err() && !matches!(addr::parse_ip(text), Ok(Some(_))) {
            return Err(mistake(format!(
                "{text:?} is not an address, expected one like 10.1.2.3 or fd00::2/64"
            )));
        }
    }
    Ok(Value::of(values))
}

fn mac(values: &[&str]) -> Result<Value> {
    let mac = once(values)?.parse::<MacAddr>().map_err(|e| mistake(e.to_string()))?;
    Ok(Value::text(mac.to_string()))
}
