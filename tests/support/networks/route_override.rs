//! Network configurations for route-override.

use serde_json::{Value, json};

/// Every change at once, after a bridge of [`super::bridge::dual_stack`] that is the default
/// gateway.
pub fn every_key() -> Value {
    json!({
        "type": "route-override",
        "flushgateway": true,
        "delroutes": [{"dst": "10.77.0.0/16"}],
        "addroutes": [
            {"dst": "192.0.2.0/24", "gw": "10.10.0.1", "priority": 50, "mtu": 1400, "advmss": 1300},
            {"dst": "198.51.100.0/24", "gw": "10.10.0.1", "table": 300},
            {"dst": "203.0.113.0/24", "scope": 253},
            {"dst": "2001:db8:ffff::/64", "gw": "2001:db8:10::1"},
        ],
    })
}
