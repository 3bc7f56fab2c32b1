//! Capability arguments that the operator types: `--publish` and its like, or the JSON itself.

use crate::cni::addr;
use crate::cni::json::Value;
use crate::error::{Code, Error, Result};
use crate::net::mac::MacAddr;
use crate::runtime::list::NetworkList;
use crate::runtime::parameters;

use super::operator::Operator;
use super::{bandwidth, publish};

/// The option that takes any capability.
const JSON: &str = "capability-args";

/// Which option makes which capability's argument, and the plugin that usually declares it.
const OPTIONS: [(&str, &str, &str, fn(&[&str]) -> Result<Value>); 4] = [
    ("publish", "portMappings", "of type portmap", publish::port_mappings),
    ("ip", "ips", "that has the ipam section", ips),
    ("mac", "mac", "that makes the interface, or of type tuning", mac),
    ("bandwidth", "bandwidth", "of type bandwidth", bandwidth::limits),
];

/// One capability's argument, and the option that it came by.
pub struct Typed {
    option: &'static str,
    /// The key in `runtimeConfig`.
    pub capability: String,
    /// What plugins get.
    pub value: Value,
}

/// All that was typed. A capability that is told twice is a mistake: one of the two would be lost.
pub fn typed(operator: &Operator<'_>) -> Result<Vec<Typed>> {
    let mut found: Vec<Typed> = vec![];
    if let Value::Object(pairs) = parameters::parse_capability_args(&operator.argument(JSON))? {
        found.extend(pairs.into_iter().map(|(capability, value)| Typed { option: JSON, capability, value }));
    }
    for (option, capability, _, value_of) in OPTIONS {
        let values = operator.arguments(option);
        if !values.is_empty() {
            let value = value_of(&values).map_err(|error| error.context(format_args!("--{option}")))?;
            found.push(Typed { option, capability: capability.to_owned(), value });
        }
    }
    for (index, later) in found.iter().enumerate() {
        if let Some(earlier) = found[..index].iter().find(|earlier| earlier.capability == later.capability) {
            let (option, capability) = (later.option, &later.capability);
            return Err(mistake(format!("--{option}: {capability} is given by --{} as well", earlier.option)));
        }
    }
    Ok(found)
}

/// A plugin gets what it has declared. What none has would be lost without a word, and a port that nobody opens looks
/// like one that is open.
pub fn require_declared(list: &NetworkList, typed: &[Typed]) -> Result<()> {
    let is_declared =
        |typed: &&Typed| list.plugins.iter().any(|plugin| plugin.capabilities.contains(&typed.capability));
    let Some(Typed { option, capability, .. }) = typed.iter().find(|typed| !is_declared(typed)) else { return Ok(()) };
    let usual = OPTIONS.iter().find(|(_, known, ..)| known == capability);
    let usual = usual.map_or("that understands it", |(_, _, usual, _)| *usual);
    let msg = format!("--{option}: no plugin of network {:?} declares the capability {capability}", list.name);
    Err(Error::new(Code::INVALID_CONFIG, msg).with_details(format_args!(
        "its plugins are {}; the one {usual} needs the line \"capabilities\": {{\"{capability}\": true}}",
        list.plugins.iter().map(|plugin| plugin.kind.as_str()).collect::<Vec<_>>().join(", "),
    )))
}

/// A value of an option that cannot be.
pub fn mistake(problem: String) -> Error {
    Error::new(Code::INVALID_ENVIRONMENT, problem)
}

fn ips(values: &[&str]) -> Result<Value> {
    let ip = |text: &&str| {
        let is_address = addr::parse_cidr(text).is_ok() || matches!(addr::parse_ip(text), Ok(Some(_)));
        match is_address {
            true => Ok(Value::String((*text).to_owned())),
            false => Err(mistake(format!("{text:?} is no address, expected one like 10.1.2.3 or fd00::2/64"))),
        }
    };
    values.iter().map(ip).collect::<Result<_>>().map(Value::Array)
}

fn mac(values: &[&str]) -> Result<Value> {
    let [text] = values else { return Err(mistake("given twice, expected once".to_owned())) };
    text.parse::<MacAddr>().map(|mac| Value::String(mac.to_string())).map_err(mistake)
}
