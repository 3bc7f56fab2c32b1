//! The versions of the specification: which operations each has, and the shape of its results.

use serde_json::{Value, json};

use super::attachment::{EVERY_VERSION, with};
use super::netns::{Container, Lab};
use super::networks::stacked::hasty_container;

/// A dual-stack network of a main plugin, with a route for each family.
pub struct DualStack {
    pub conf: Value,
    pub gateways: [&'static str; 2],
    /// The index of the container's link in the `interfaces` of a result.
    pub interface: usize,
}

/// Runs every operation in every version, and expects results of the version's shape. Nothing waits
/// for duplicate address detection here.
pub fn assert_speaks_every_version(lab: &Lab, network: &DualStack) {
    for version in EVERY_VERSION {
        let container = hasty_container(lab);
        let attachment =
            lab.attach(&container, &with(&network.conf, json!({"cniVersion": version})));
        let result = attachment.add();
        let version = version.unwrap_or("0.1.0");
        assert_eq!(result, network.expected(&container, &result, version), "{version}");
        attachment.assert_operations_of(version, &result);
        attachment.del();
        assert!(container.link("eth0").is_none(), "{version}");
    }
}

impl DualStack {
    /// The result of ADD that goes with what the kernel has in the container. The interfaces of
    /// the host are those of `result`.
    fn expected(&self, container: &Container, result: &Value, version: &str) -> Value {
        let addresses = container.addresses("eth0");
        let [v4, v6] = [0, 1].map(|family| self.ip(family, &addresses[family], version));
        if version < "0.3.0" {
            return json!({"cniVersion": version, "ip4": v4, "ip6": v6, "dns": {}});
        }
        let mut interfaces = result["interfaces"].as_array().cloned().unwrap_or_default();
        interfaces.truncate(self.interface);
        let mac = &container.link("eth0").unwrap()["address"];
        interfaces.push(json!({"name": "eth0", "mac": mac, "sandbox": container.netns}));
        let routes = &self.conf["ipam"]["routes"];
        let expected = json!({"cniVersion": version, "interfaces": interfaces, "ips": [v4, v6], "routes": routes});
        // Before 1.0.0 it was always there.
        if version < "1.0.0" { with(&expected, json!({"dns": {}})) } else { expected }
    }

    /// The entry of one address.
    fn ip(&self, family: usize, address: &str, version: &str) -> Value {
        let (gateway, at) = (self.gateways[family], self.interface);
        let entry = json!({"interface": at, "address": address, "gateway": gateway});
        match version {
            "0.1.0" | "0.2.0" => {
                let route = &self.conf["ipam"]["routes"][family];
                json!({"ip": address, "gateway": gateway, "routes": [route]})
            }
            "0.3.0" | "0.3.1" | "0.4.0" => with(&entry, json!({"version": (["4", "6"][family])})),
            _ => entry,
        }
    }
}
