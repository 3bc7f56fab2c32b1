//! A trial of ADD's checks on a plugin's object, without doing anything.

use std::rc::Rc;

use super::checker::is_true;
use super::paths::put;
use crate::cni::attachment::NetworkName;
use crate::cni::conf::Config;
use crate::cni::decode::{Observer, Shape};
use crate::cni::json::Value;
use crate::cni::version;
use crate::error::Result;
use crate::plugin::{Context, Entry};
use crate::registry::PLUGINS;

/// The values that runtimes supply by capabilities when configurations leave them out.
const SUPPLIED: [(&str, &str); 2] =
    [("ipRanges", "[[{\"subnet\":\"192.0.2.0/24\"}]]"), ("deviceID", "\"0000:00:00.0\"")];

/// A network in which plugins' objects are tried.
pub struct Trial<'a> {
    network: &'a str,
    version: &'a str,
    observer: Rc<Observer>,
}

impl<'a> Trial<'a> {
    /// A trial in the network of this name; an empty version stands for the newest.
    pub fn new(network: &'a str, version: &'a str) -> Trial<'a> {
        let version = if version.is_empty() { version::CURRENT } else { version };
        Trial { network, version, observer: Rc::default() }
    }

    /// Adds what a runtime adds to a plugin's object.
    pub fn prepare(&self, value: &mut Value, is_first: bool) {
        if value.get("runtimeConfig").is_none() {
            value.set("runtimeConfig", Value::Object(vec![])); // so that reads of it are observed
        }
        if !is_first {
            value.set("prevResult", self.result());
        }
    }

    /// Decodes and checks a plugin's object as ADD does, without doing anything.
    pub fn of(&self, entry: &Entry, mut value: Value) -> Result<()> {
        let name = NetworkName::parse(self.network).or_else(|_| NetworkName::parse("network"))?; // the fallback is valid
        value.set("name", Value::text(name.as_str()));
        value.set("cniVersion", Value::text(self.version));
        let version = self.version.to_owned();
        let observer = Some(Rc::clone(&self.observer));
        let config = Config { text: vec![], value, name, version, observer };
        let env = [("CNI_IFNAME".into(), "eth0".into())].into_iter().collect();
        entry.validate(&Context::new(PLUGINS, &config, &env, "", vec![]))
    }

    /// Tries an object of a file: as it is, and with what a runtime may supply.
    pub fn of_file(&self, entry: &Entry, value: &Value) -> Result<()> {
        let Err(error) = self.of(entry, value.clone()) else { return Ok(()) };
        let Some(completed) = supplied(value) else { return Err(error) };
        self.of(entry, completed).map_err(|other| match &other.mistake {
            Some(mistake) if mistake.path.starts_with("runtimeConfig") => error,
            _ => other,
        })
    }

    /// What the plugins expected at each place since the last call.
    pub fn observed(&self) -> Vec<(String, Shape)> {
        self.observer.take()
    }

    /// A result as a plugin may get it from the plugins before it.
    pub fn result(&self) -> Value {
        let address = || Value::text("192.0.2.2/24");
        let ip = Value::object([("version", Value::text("4")), ("address", address())]);
        Value::object([
            ("cniVersion", Value::text(self.version)),
            ("ips", Value::Array(vec![ip])),
            ("ip4", Value::object([("ip", address())])),
        ])
    }
}

/// The object with the values that a runtime supplies by its declared capabilities; None if it
/// declares none of those.
fn supplied(value: &Value) -> Option<Value> {
    let Some(Value::Object(declared)) = value.get("capabilities") else { return None };
    let mut completed = value.clone();
    let mut is_any = false;
    for (capability, text) in SUPPLIED {
        if declared.iter().any(|(key, value)| key == capability && is_true(Some(value))) {
            let path = ["runtimeConfig.", capability].concat();
            put(&mut completed, &path, Value::parse(text.as_bytes()).ok()?);
            is_any = true;
        }
    }
    is_any.then_some(completed)
}
