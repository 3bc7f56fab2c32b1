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
    given.iter().try_for_each(|argument| argument.require_reader(list))?;
    for Argument { capability, value, .. } in given {
        args.set(&capability, value);
    }
    Ok(args)
}

/// Rejects options that are mistakes with any network.
pub fn require_readable(operator: &Operator<'_>) -> Result<()> {
    let given = of_options(operator)?;
    let mut numbered = given.iter().enumerate();
    numbered.try_for_each(|(index, argument)| argument.require_single(&given[..index]))
}

/// The arguments of the variable, which the option with JSON replaces.
fn of_variable(operator: &Operator<'_>) -> Result<Value> {
    let is_replaced = !operator.argument(JSON).is_empty();
    let text = if is_replaced { String::new() } else { operator.env.get("CAP_ARGS") };
    parse_capability_args(&text)
}

fn of_options(operator: &Operator<'_>) -> Result<Vec<Argument>> {
    let mut given = of_json(operator)?;
    for option in OPTIONS {
        given.extend(option.argument(operator)?);
    }
    Ok(given)
}

/// The arguments of the option with JSON.
fn of_json(operator: &Operator<'_>) -> Result<Vec<Argument>> {
    let json = parse_capability_args(operator.argument(JSON))?;
    let Value::Object(members) = json else { return Ok(vec![]) };
    let argument = |(capability, value)| Argument { option: JSON, capability, value };
    Ok(members.into_iter().map(argument).collect())
}

impl CapabilityOption {
    /// The argument that the option gives; None if it is not on the command line.
    fn argument(&self, operator: &Operator<'_>) -> Result<Option<Argument>> {
        let CapabilityOption { name: option, capability, parse, .. } = *self;
        let values = operator.arguments(option);
        if values.is_empty() {
            return Ok(None);
        }
        let value = parse(&values).map_err(|error| error.context(format_args!("--{option}")))?;
        Ok(Some(Argument { option, capability: capability.to_owned(), value }))
    }
}

impl Argument {
    /// Rejects a second argument for a capability.
    fn require_single(&self, before: &[Argument]) -> Result<()> {
        match before.iter().find(|other| other.capability == self.capability) {
            Some(other) => Err(self.repeats(other)),
            None => Ok(()),
        }
    }

    fn repeats(&self, other: &Argument) -> Error {
        let Argument { option, capability, .. } = self;
        mistake(format!("--{option}: {capability} is given by --{} as well", other.option))
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
    let usual = usual_reader(capability);
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

/// The plugin that usually declares the capability.
fn usual_reader(capability: &str) -> &'static str {
    let option = OPTIONS.iter().find(|option| option.capability == capability);
    option.map_or("that understands it", |option| option.reader)
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
    match values.iter().find(|text| !is_address(text)) {
        None => Ok(Value::of(values)),
        Some(text) => Err(mistake(format!(
            "{text:?} is not an address, expected one like 10.1.2.3 or fd00::2/64"
        ))),
    }
}

/// Whether the text is an address, with or without a prefix length.
fn is_address(text: &str) -> bool {
    addr::parse_cidr(text).is_ok() || matches!(addr::parse_ip(text), Ok(Some(_)))
}

fn mac(values: &[&str]) -> Result<Value> {
    let mac = once(values)?.parse::<MacAddr>().map_err(|e| mistake(e.to_string()))?;
    Ok(Value::text(mac.to_string()))
}
