//! The configuration of flannel, and the delegate's configuration, as the original makes it, byte
//! by byte.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::IpNet;
use serde::Deserialize;

use super::subnet_env::SubnetEnv;
use crate::cni::conf::Config;
use crate::cni::decode;
use crate::cni::json::{self, Value};
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

/// The IPAM plugin of a configuration that names none.
pub const USUAL_IPAM: &str = "host-local";

/// The configuration of ADD and STATUS.
pub fn of_add(config: &Config, conf: &Conf, env: &SubnetEnv) -> Result<Config> {
    let mut made = begun(config);
    set_if_absent(&mut made, "ipMasq", Value::Bool(!env.ip_masq));
    set_if_absent(&mut made, "mtu", Value::number(env.mtu));
    if conf.delegate_type() == "bridge" {
        set_if_absent(&mut made, "isGateway", Value::Bool(true));
    }
    let mut ipam = begun_ipam(config);
    let range = |net: &IpNet| Value::object([("subnet", Value::text(net.to_string()))]);
    let sets = env.subnets.iter().map(|net| Value::Array(vec![range(net)]));
    put(&mut ipam, "ranges", Value::Array(sets.collect()));
    let mut routes = routes(config)?;
    routes.extend(env.networks.iter().map(|net| Route::to(*net)));
    put(&mut ipam, "routes", Value::of(&routes));
    put(&mut made, "ipam", ipam);
    finished(made)
}

/// The configuration of DEL and GC where none is kept: our plugins find what they made by network,
/// container and interface.
pub fn of_del(config: &Config) -> Result<Config> {
    let mut made = begun(config);
    put(&mut made, "ipam", begun_ipam(config));
    for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
        if let Some(attachments) = config.value.get(key) {
            put(&mut made, key, attachments.clone());
        }
    }
    finished(made)
}

/// A kept configuration with the result of this call.
pub fn with_result_of(config: &Config, kept: &Config) -> Result<Config> {
    let mut value = kept.value.clone();
    if let Some(result) = config.value.get("prevResult") {
        put(&mut value, "prevResult", result.clone());
    }
    finished(value)
}

/// `delegate` with the keys that it always gets.
fn begun(config: &Config) -> Value {
    let mut made = object(config, "delegate");
    if config.value.get("runtimeConfig").is_some() {
        put(&mut made, "runtimeConfig", object(config, "runtimeConfig"));
    }
    put(&mut made, "name", Value::text(config.name.as_str()));
    set_if_absent(&mut made, "type", Value::text("bridge"));
    let version = config.value.get("cniVersion").filter(|version| version.as_str() != Some(""));
    if let Some(version) = version {
        put(&mut made, "cniVersion", version.clone());
    }
    made
}

fn begun_ipam(config: &Config) -> Value {
    let mut ipam = object(config, "ipam");
    set_if_absent(&mut ipam, "type", Value::text(USUAL_IPAM));
    ipam
}

fn finished(made: Value) -> Result<Config> {
    let made = made.sorted();
    Config::of(json::text(&made).into_bytes(), made)
}

/// Sets the member of exactly this name.
fn put(object: &mut Value, key: &str, value: Value) {
    if let Value::Object(members) = object {
        members.retain(|(name, _)| name != key);
        members.push((key.to_owned(), value));
    }
}

fn set_if_absent(object: &mut Value, key: &str, value: Value) {
    if member(object, key).is_none() {
        put(object, key, value);
    }
}
