//! A network: the plugin list, or the single plugin, of a file.

use super::document::Spot;
use crate::cni::json::Value;

/// A network, as far as it could be read.
pub struct Network {
    /// Its `name`.
    pub name: String,
    /// The version that its plugins are called with; empty if there is no valid one.
    pub version: String,
    /// The document that holds it.
    pub document: usize,
    /// Its plugins, in order.
    pub plugins: Vec<Plugin>,
    /// Whether libcni would load it.
    pub loads: bool,
    /// Whether all of its plugins exist and support its version, as CRI-O requires.
    pub is_served: bool,
}

impl Network {
    /// A network of which nothing is known yet.
    pub fn new(document: usize) -> Network {
        let name = String::new();
        let version = String::new();
        Network { name, version, document, plugins: vec![], loads: true, is_served: true }
    }
}

/// A plugin of a network.
pub struct Plugin {
    /// Its place.
    pub spot: Spot,
    /// Its object, with the own name of each plugin where the file has an alias.
    pub value: Value,
    /// Whether it is the first of its network.
    pub is_first: bool,
}

impl Plugin {
    /// The string at `key`, empty if there is none.
    pub fn text(&self, key: &str) -> &str {
        self.value.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    /// A member of `ipam`.
    pub fn ipam(&self, key: &str) -> Option<&Value> {
        self.value.get("ipam")?.get(key)
    }

    /// The string at this key of `ipam`, empty if there is none.
    pub fn ipam_text(&self, key: &str) -> &str {
        self.ipam(key).and_then(Value::as_str).unwrap_or_default()
    }

    /// A member of `args.cni`.
    pub fn arg(&self, key: &str) -> Option<&Value> {
        self.value.get("args")?.get("cni")?.get(key)
    }

    /// The place of the value at this path below.
    pub fn at(&self, path: &str) -> Spot {
        self.spot.at(path)
    }
}
