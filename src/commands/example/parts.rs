//! The object of each plugin in an example: the keys that it needs, and those that most networks
//! have.

use crate::cni::json::Value;

/// Each plugin with its keys, in the order of a list: what creates the interface, the IPAM plugins
/// that it calls, and what changes the interface.
const PARTS: [(&str, &str); 24] = [
    ("loopback", "{}"),
    ("bridge", r#"{"bridge": "cni0", "isGateway": true, "ipMasq": true}"#),
    ("ptp", r#"{"ipMasq": true}"#),
    ("macvlan", r#"{"master": "eth0"}"#),
    ("ipvlan", r#"{"master": "eth0"}"#),
    ("vlan", r#"{"master": "eth0", "vlanId": 100}"#),
    ("host-device", r#"{"device": "eth1"}"#),
    ("dummy", "{}"),
    ("tap", "{}"),
    ("flannel", r#"{"delegate": {"hairpinMode": true, "isDefaultGateway": true}}"#),
    ("bond", r#"{"mode": "active-backup", "links": [{"name": "eth1"}, {"name": "eth2"}]}"#),
    ("ovs", r#"{"bridge": "ovs0", "vlan": 100}"#),
    (
        "host-local",
        r#"{"ranges": [[{"subnet": "10.88.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}"#,
    ),
    (
        "static",
        r#"{"addresses": [{"address": "10.88.0.2/24", "gateway": "10.88.0.1"}], "routes": [{"dst": "0.0.0.0/0"}]}"#,
    ),
    ("dhcp", "{}"),
    (
        "cluster-local",
        r#"{"ranges": [[{"subnet": "10.88.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}"#,
    ),
    (
        "whereabouts",
        r#"{"range": "10.88.0.0/24", "gateway": "10.88.0.1", "routes": [{"dst": "0.0.0.0/0"}]}"#,
    ),
    ("tuning", r#"{"sysctl": {"net.core.somaxconn": "512"}}"#),
    ("vrf", r#"{"vrfname": "red"}"#),
    ("sbr", "{}"),
    ("route-override", r#"{"addroutes": [{"dst": "10.0.0.0/8"}]}"#),
    (
        "bandwidth",
        r#"{"ingressRate": 100000000, "ingressBurst": 10000000, "egressRate": 100000000, "egressBurst": 10000000}"#,
    ),
    ("firewall", "{}"),
    ("portmap", r#"{"capabilities": {"portMappings": true}}"#),
];

/// The position of a plugin in a list.
pub fn position(name: &str) -> usize {
    PARTS.iter().position(|part| part.0 == name).unwrap_or(PARTS.len())
}

/// The object of a plugin.
pub fn object(name: &str) -> Value {
    let mut object = Value::object([("type", Value::text(name))]);
    let keys = PARTS.iter().find(|part| part.0 == name).map_or("{}", |part| part.1);
    let Ok(Value::Object(members)) = Value::parse(keys.as_bytes()) else { return object };
    for (key, value) in members {
        object.set(&key, value);
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::PLUGINS;

    #[test]
    fn every_plugin_has_a_part_and_each_part_is_json() {
        for entry in PLUGINS {
            assert!(position(entry.name) < PARTS.len(), "{} has no part", entry.name);
        }
        assert_eq!(PARTS.len(), PLUGINS.len());
        for (name, keys) in PARTS {
            assert!(Value::parse(keys.as_bytes()).is_ok(), "{name}");
        }
    }
}
