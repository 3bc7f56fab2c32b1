//! The configuration of flannel.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::Deserialize;

use crate::cni::conf::Config;
use crate::cni::decode;
use crate::cni::json::Value;
use crate::cni::result::Route;
use crate::error::{Error, Result};
use crate::plugin::{Context, PluginConf};

/// In seconds. kubelet gives an ADD two minutes, and the delegate needs its part of them.
const TIMEOUT: RangeInclusive<i64> = 0..=60;

/// What flannel reads. The objects are passed on as they are written, see [`object`].
#[derive(Debug, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Conf {
    pub(super) subnet_file: String,
    pub(super) subnet_file_timeout: u32,
    pub(super) data_dir: String,
    pub(super) delegate: BTreeMap<String, Value>,
    pub(super) ipam: BTreeMap<String, Value>,
    pub(super) runtime_config: BTreeMap<String, Value>,
}

impl Default for Conf {
    fn default() -> Conf {
        Conf {
            subnet_file: "/run/flannel/subnet.env".into(),
            subnet_file_timeout: 0,
            data_dir: "/var/lib/cni/flannel".into(),
            delegate: BTreeMap::new(),
            ipam: BTreeMap::new(),
            runtime_config: BTreeMap::new(),
        }
    }
}

/// The member with exactly this name; unlike elsewhere, the case counts.
pub fn member<'v>(object: &'v Value, key: &str) -> Option<&'v Value> {
    let Value::Object(members) = object else { return None };
    members.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value)
}

/// The object at a key of the configuration, as it is written; empty if it is absent.
pub fn object(config: &Config, key: &str) -> Value {
    match config.value.get(key) {
        Some(Value::Object(members)) => Value::Object(members.clone()),
        _ => Value::Object(vec![]),
    }
}

/// The routes of `ipam`.
pub fn routes(config: &Config) -> Result<Vec<Route>> {
    decode::member(&object(config, "ipam"), "routes").map_err(|e| e.within("ipam"))
}

impl PluginConf for Conf {
    const KEYS: &'static [&'static str] = &[
        "subnetFile | path | `/run/flannel/subnet.env` | The file of flanneld.
        subnetFileTimeout | integer | 0 | How many seconds ADD waits for that file, 0 to 60.
        dataDir | path | `/var/lib/cni/flannel` | Where the delegate's configuration is kept for each attachment.
        delegate | object | `{}` | What the delegate's configuration begins with; `type` is bridge by default. `name` and `ipam` are flannel's.
        ipam | object | `{}` | What the delegate's `ipam` begins with; `type` is host-local by default. Its `routes` come before those to the networks.
        runtimeConfig | object | none | Capability arguments, for the delegate.",
    ];

    fn validate(&mut self, cx: &Context<'_>) -> Result<()> {
        routes(cx.config)?;
        let seconds = self.subnet_file_timeout;
        if !TIMEOUT.contains(&i64::from(seconds)) {
            return Err(Error::out_of_range("subnetFileTimeout", seconds, TIMEOUT));
        }
        if self.delegate.get("type").is_some_and(|kind| kind.as_str().is_none()) {
            return Err(Error::config("delegate.type", "it is no string")
                .saying("'delegate' dictionary, if present, must have (string) 'type' field"));
        }
        if let Some(key) = ["name", "ipam"].into_iter().find(|key| self.delegate.contains_key(*key))
        {
            let sentence = format!(
                "'delegate' dictionary must not have '{key}' field, it'll be set by flannel"
            );
            return Err(
                Error::config(format_args!("delegate.{key}"), "flannel sets it").saying(sentence)
            );
        }
        if self.delegate_type() == "flannel" {
            return Err(Error::config("delegate.type", "flannel would run itself")
                .expecting("a plugin that creates the interface"));
        }
        Ok(())
    }
}

impl Conf {
    /// The type of the delegate; bridge by default.
    pub fn delegate_type(&self) -> &str {
        self.delegate.get("type").and_then(Value::as_str).unwrap_or("bridge")
    }

    /// How long ADD waits for the file.
    pub fn patience(&self) -> Duration {
        Duration::from_secs(self.subnet_file_timeout.into())
    }
}
