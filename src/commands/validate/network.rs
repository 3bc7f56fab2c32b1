//! A network: the plugin list, or the single plugin, of a file.

use super::document::below;
use crate::cni::json::Value;

/// The name of a list in messages about its keys.
pub const A_LIST: &str = "a list of plugins";

/// A network, as far as it could be read.
pub struct Network {
    /// Its `name`.
    pub name: String,
    /// The document that holds it.
    pub document: usize,
    /// Its plugins, in order.
    pub plugins: Vec<Plugin>,
    /// Whether libcni would load it.
    pub loads: bool,
    /// Whether all of its plugins exist and support its version, as CRI-O requires.
    pub is_served: bool,
}

/// A plugin of a network.
pub struct Plugin {
    /// The document that holds it.
    pub document: usize,
    /// Its path in that document.
    pub path: String,
    /// Its object.
    pub value: Value,
    /// Whether it is the first of its network.
    pub is_first: bool,
}

impl Plugin {
    /// The string at `key`, empty if there is none.
    pub fn text(&self, key: &str) -> &str {
        self.value.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    /// `ipam.type`, empty if there is none.
    pub fn ipam_type(&self) -> &str {
        self.value
            .get("ipam")
            .and_then(|ipam| ipam.get("type"))
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// The path of one of its keys.
    pub fn at(&self, key: &str) -> String {
        if key.is_empty() { self.path.clone() } else { below(&self.path, key) }
    }
}
