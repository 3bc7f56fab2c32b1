//! The delegate's configuration, as the original makes it, byte by byte.

use ipnet::IpNet;

use super::conf::{Conf, member, object, routes};
use super::subnet_env::SubnetEnv;
use crate::cni::conf::Config;
use crate::cni::json::{self, Value};
use crate::cni::result::Route;
use crate::error::Result;

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
