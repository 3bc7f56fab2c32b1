//! A network: the list of plugins, or the one plugin, that a file has.

use super::document::below;
use crate::cni::json::Value;

/// What a list is called where its keys are told.
pub const A_LIST: &str = "a list of plugins";

/// A network as far as it could be read.
pub struct Network {
    /// Its `name`.
    pub name: String,
    /// The document that names it.
    pub document: usize,
    /// Its plugins, in their order.
    pub plugins: Vec<Plugin>,
    /// Whether libcni would load it.
    pub loads: bool,
    /// Whether all of its plugins are there and speak its version, which CRI-O asks for.
    pub is_served: bool,
}

/// A plugin of a network.
pub struct Plugin {
    /// The document that it stands in.
    pub document: usize,
    /// Its path there.
    pub path: String,
    /// Its object.
    pub value: Value,
    /// Whether it is the first of its network.
    pub is_first: bool,
}

impl Plugin {
    /// The string at `key`, empty where there is none.
    pub fn text(&self, key: &str) -> &str {
        self.value.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    /// `ipam.type`, empty where there is none.
    pub fn ipam_type(&self) -> &str {
        self.value
            .get("ipam")
            .and_then(|ipam| ipam.get("type"))
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// The path of a key of it.
    pub fn at(&self, key: &str) -> String {
        if key.is_empty() { self.path.clone() } else { below(&self.path, key) }
    }
}
