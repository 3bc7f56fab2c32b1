//! A trial of ADD's checks on a plugin's object, without doing anything.

use std::rc::Rc;

use super::checker::is_true;
use super::paths::put;
use crate::cni::attachment::NetworkName;
use crate::cni::conf::Config;
use crate::cni::decode::Observer;
use crate::cni::json::Value;
use crate::error::Result;
use crate::plugin::{Context, Entry};

/// Decodes and checks a plugin's object as ADD does, without doing anything.
pub fn try_out(
    entry: &Entry,
    plugins: &'static [Entry],
    mut value: Value,
    network: &str,
    version: &str,
    observer: &Rc<Observer>,
) -> Result<()> {
    let name = NetworkName::parse(network).or_else(|_| NetworkName::parse("network"))?; // the fallback is valid
    value.set("name", Value::text(name.as_str()));
    value.set("cniVersion", Value::text(version));
    let text = vec![];
    let version = version.to_owned();
    let observer = Some(Rc::clone(observer));
    let config = Config { text, value, name, version, observer };
    let env = [("CNI_IFNAME".into(), "eth0".into())].into_iter().collect();
    entry.validate(&Context::new(plugins, &config, &env, "", vec![]))
}

/// The values that runtimes supply by capabilities when configurations leave them out.
const SUPPLIED: [(&str, &str); 2] =
    [("ipRanges", "[[{\"subnet\":\"192.0.2.0/24\"}]]"), ("deviceID", "\"0000:00:00.0\"")];

/// The object with the values that a runtime supplies by its declared capabilities; None if it
/// declares none of those.
pub fn supplied(value: &Value) -> Option<Value> {
    let Some(Value::Object(declared)) = value.get("capabilities") else { return None };
    let mut all = vec![];
    for (capability, value) in SUPPLIED {
        if declared.iter().any(|(key, declared)| key == capability && is_true(Some(declared))) {
            all.push((capability, Value::parse(value.as_bytes()).ok()?));
        }
    }
    let mut completed = value.clone();
    let is_any = !all.is_empty();
    all.into_iter().for_each(|(capability, value)| {
        put(&mut completed, &["runtimeConfig.", capability].concat(), value)
    });
    is_any.then_some(completed)
}

/// A result as a plugin may get it from the plugins before it.
pub fn a_result(version: &str) -> Value {
    let address = || Value::text("192.0.2.2/24");
    let ip = Value::object(vec![("version", Value::text("4")), ("address", address())]);
    Value::object(vec![
        ("cniVersion", Value::text(version)),
        ("ips", Value::Array(vec![ip])),
        ("ip4", Value::object(vec![("ip", address())])),
    ])
}
