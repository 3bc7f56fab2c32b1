//! The configuration of flannel.

use serde::Deserialize;

use crate::cni::decode;
use crate::cni::json::Value;
use crate::cni::result::Route;
use crate::error::{Error, Result};
use crate::plugin::{Context, PluginConf};

/// What flannel reads. `delegate` and `ipam` are passed on as they are written.
#[derive(Debug, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Conf {
    /// The file of flanneld; `/run/flannel/subnet.env` by default.
    pub subnet_file: String,
    /// Where the configurations of attachments are kept; `/var/lib/cni/flannel` by default.
    pub data_dir: String,
    /// What the delegate's configuration begins with.
    pub delegate: Value,
    /// What the delegate's `ipam` begins with.
    pub ipam: Value,
    /// Capability arguments, for the delegate.
    pub runtime_config: Value,
}

impl Default for Conf {
    fn default() -> Conf {
        Conf {
            subnet_file: "/run/flannel/subnet.env".into(),
            data_dir: "/var/lib/cni/flannel".into(),
            delegate: Value::default(),
            ipam: Value::default(),
            runtime_config: Value::default(),
        }
    }
}

/// The member with exactly this name; unlike elsewhere, the case counts.
pub fn member<'v>(object: &'v Value, key: &str) -> Option<&'v Value> {
    let Value::Object(members) = object else { return None };
    members.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value)
}

impl PluginConf for Conf {
    fn validate(&mut self, _cx: &Context<'_>) -> Result<()> {
        require_object("delegate", &self.delegate)?;
        require_object("ipam", &self.ipam)?;
        self.routes()?;
        self.validate_delegate()
    }
}

fn require_object(path: &str, value: &Value) -> Result<()> {
    match value {
        Value::Null | Value::Object(_) => Ok(()),
        other => {
            Err(Error::config(path, format_args!("it is a {}", other.kind()))
                .expecting("an object"))
        }
    }
}

impl Conf {
    /// The routes of `ipam`.
    pub fn routes(&self) -> Result<Vec<Route>> {
        decode::member(&self.ipam, "routes").map_err(|e| e.within("ipam"))
    }

    /// The type of the delegate; bridge by default.
    pub fn delegate_type(&self) -> &str {
        member(&self.delegate, "type").and_then(Value::as_str).unwrap_or("bridge")
    }

    fn validate_delegate(&self) -> Result<()> {
        if member(&self.delegate, "type").is_some_and(|kind| kind.as_str().is_none()) {
            return Err(Error::config("delegate.type", "it is no string")
                .saying("'delegate' dictionary, if present, must have (string) 'type' field"));
        }
        for key in ["name", "ipam"] {
            if member(&self.delegate, key).is_some() {
                return Err(set_by_flannel(key));
            }
        }
        match self.delegate_type() {
            "flannel" => Err(Error::config("delegate.type", "flannel would run itself")
                .expecting("a plugin that creates the interface")),
            _ => Ok(()),
        }
    }
}

fn set_by_flannel(key: &str) -> Error {
    Error::config(format_args!("delegate.{key}"), "flannel sets it").saying(format_args!(
        "'delegate' dictionary must not have '{key}' field, it'll be set by flannel"
    ))
}
