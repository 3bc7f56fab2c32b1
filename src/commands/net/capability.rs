//! Capability arguments on the command line: `--publish` and similar options, or the JSON itself.

use super::operator::Operator;
use super::{bandwidth, publish};
use crate::cni::addr;
use crate::cni::json::Value;
use crate::error::{Code, Error, Result};
use crate::net::mac::MacAddr;
use crate::runtime::list::{NetworkList, PluginConfig};
use crate::runtime::parameters::parse_capability_args;

/// The option that takes any capability.
const JSON: &str = "capability-args";

/// An option for one capability.
struct CapabilityOption {
    name: &'static str,
    capability: &'static str,
    parse: fn(&[&str]) -> Result<Value>,
    /// The plugin that usually declares the capability.
    reader: &'static str,
}

const OPTIONS: [CapabilityOption; 4] = [
    CapabilityOption {
        name: "publish",
        capability: "portMappings",
        parse: publish::port_mappings,
        reader: "of type portmap",
    },
    CapabilityOption {
        name: "ip",
        capability: "ips",
        parse: ips,
        reader: "that has the ipam section",
    },
    CapabilityOption {
        name: "mac",
        capability: "mac",
        parse: mac,
        reader: "that makes the interface, or of type tuning",
    },
    CapabilityOption {
        name: "bandwidth",
        capability: "bandwidth",
        parse: bandwidth::limits,
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
/// plugin that does not declare a capability does not get it.
pub fn args(operator: &Operator<'_>, list: &NetworkList) -> Result<Value> {
    let mut args = of_variable(operator)?;
    let given = of_options(operator)?;
    for (index, argument) in given.iter().enumerate() {
        argument.require_single(&given[..index])?;
        argument.require_reader(list)?;
    }
    for Argument { capability, value, .. } in given {
        args.set(&capability, value);
    }
    Ok(args)
}

/// The arguments of the variable, which the option with JSON replaces.
fn of_variable(operator: &Operator<'_>) -> Result<Value> {
    let is_replaced = !operator.argument(JSON).is_empty();
    let text = if is_replaced { String::new() } else { operator.env.get("CAP_ARGS") };
    parse_capability_args(&text)
}

fn of_options(operator: &Operator<'_>) -> Result<Vec<Argument>> {
    let mut given = vec![];
    if let Value::Object(members) = parse_capability_args(operator.argument(JSON))? {
        for (capability, value) in members {
            given.push(Argument { option: JSON, capability, value });
        }
    }
    for CapabilityOption { name: option, capability, parse, .. } in OPTIONS {
        let values = operator.arguments(option);
        if !values.is_empty() {
            let value =
                parse(&values).map_err(|error| error.context(format_args!("--{option}")))?;
            given.push(Argument { option, capability: capability.to_owned(), value });
        }
    }
    Ok(given)
}

impl Argument {
    /// Rejects a second argument for a capability.
    fn require_single(&self, before: &[Argument]) -> Result<()> {
        let Argument { option, capability, .. } = self;
        match before.iter().find(|other| other.capability == *capability) {
            Some(Argument { option: other, .. }) => {
                Err(mistake(format!("--{option}: {capability} is given by --{other} as well")))
            }
            None => Ok(()),
        }
    }

    /// Rejects an argument that no plugin of the network reads.
    fn require_reader(&self, list: &NetworkList) -> Result<()> {
        let reads = |plugin: &PluginConfig| plugin.capabilities.contains(&self.capability);
        if list.plugins.iter().any(reads) {
            return Ok(());
        }
        Err(undeclared(self.option, &self.capability, list))
    }
}

fn undeclared(option: &str, capability: &str, list: &NetworkList) -> Error {
    let usual = OPTIONS
        .iter()
        .find(|known| known.capability == capability)
        .map_or("that understands it", |known| known.reader);
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
