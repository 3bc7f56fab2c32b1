//! Results of every version, read and written.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Value, json};

use super::*;
use crate::cni::addr;

mod conversion;
mod fields;
mod text;
mod versions;

const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

impl Source for Value {
    fn decode<T: DeserializeOwned>(&self) -> Result<T, String> {
        T::deserialize(without_nulls(self)).map_err(|err| err.to_string())
    }
}

/// Implements the rule of [`Source`]: a null field is an absent one.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        Value::Object(fields) => {
            let set = fields.iter().filter(|(_, value)| !value.is_null());
            Value::Object(set.map(|(key, value)| (key.clone(), without_nulls(value))).collect())
        }
        other => other.clone(),
    }
}

fn parse(json: &str) -> Document {
    Document::parse(&serde_json::from_str::<Value>(json).unwrap(), "").unwrap()
}

fn prev_result(config_version: &str, json: &Value) -> Result<Document, String> {
    Document::parse_as_shape_of(json, config_version).map_err(|err| err.to_string())
}

fn cidr(text: &str) -> IpNet {
    addr::parse_cidr(text).unwrap()
}

fn ip(text: &str) -> Option<IpAddr> {
    addr::parse_ip(text).unwrap()
}

/// A result every version can express: one address per family, routes grouped by family.
fn common_result() -> AddResult {
    AddResult {
        interfaces: Vec::new(),
        ips: vec![
            IpConfig { gateway: ip("10.1.2.1"), ..IpConfig::new(cidr("10.1.2.3/24")) },
            IpConfig { gateway: ip("fd00::1"), ..IpConfig::new(cidr("fd00::5/64")) },
        ],
        routes: vec![
            Route::to(cidr("0.0.0.0/0")),
            Route { gw: ip("10.1.2.254"), ..Route::to(cidr("10.9.0.7/16")) },
            Route { gw: ip("fd00::1"), ..Route::to(cidr("::/0")) },
        ],
        dns: Dns {
            nameservers: vec!["10.1.2.1".to_owned()],
            domain: "a<b>&c".to_owned(),
            ..Dns::default()
        },
    }
}

/// A result with every field there is.
fn full_result() -> AddResult {
    let mut full = common_result();
    full.interfaces = vec![
        Interface { name: "br0".to_owned(), ..Interface::default() },
        Interface {
            name: "eth0".to_owned(),
            mac: "0a:58:0a:01:02:03".to_owned(),
            mtu: 1500,
            sandbox: "/run/netns/x".to_owned(),
            socket_path: "/p".to_owned(),
            pci_id: "0000:00:02.0".to_owned(),
        },
    ];
    full.ips[0].interface = Some(0);
    full.ips[1].interface = Some(1);
    full.ips.push(IpConfig::new(cidr("10.0.0.2/24")));
    full.routes[1] = Route {
        gw: ip("10.1.2.254"),
        mtu: 1500,
        advmss: 1340,
        priority: 100,
        table: Some(50),
        scope: Some(253),
        ..Route::to(cidr("10.9.0.0/16"))
    };
    full
}
