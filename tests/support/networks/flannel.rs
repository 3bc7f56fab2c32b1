//! Network configurations for flannel, and what flanneld writes.

use serde_json::{Value, json};

use crate::support::netns::Lab;

/// The lines of both families, and those of every network.
pub const V4: &str = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n";
pub const V6: &str =
    "FLANNEL_IPV6_NETWORK=2001:cafe:42::/56\nFLANNEL_IPV6_SUBNET=2001:cafe:42:1::1/64\n";
pub const REST: &str = "FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";

/// Writes flanneld's file.
pub fn write_env(lab: &Lab, text: &str) {
    lab.host.sh(&format!(
        "mkdir -p /run/flannel; cat >/run/flannel/subnet.env <<'END'\n{}\nEND",
        text.trim_end()
    ));
}

/// A dual-stack node, whose flanneld does not masquerade.
pub fn node(lab: &Lab) -> bool {
    write_env(lab, &format!("{V4}{V6}{}", REST.replace("true", "false")));
    true
}

pub fn conf() -> Value {
    json!({"type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true}})
}

/// The list that the agent of k3s writes.
pub fn list_of_k3s() -> Value {
    let delegate = json!({"hairpinMode": true, "forceAddress": true, "isDefaultGateway": true});
    json!({"cniVersion": "1.0.0", "name": "cbr0", "plugins": [
        {"type": "flannel", "delegate": delegate},
        {"type": "portmap", "capabilities": {"portMappings": true}},
        {"type": "bandwidth", "capabilities": {"bandwidth": true}},
    ]})
}
