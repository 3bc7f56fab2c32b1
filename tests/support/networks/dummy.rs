//! Network configurations for dummy.

use serde_json::{Value, json};

use crate::support::kernel::has_link;
use crate::support::netns::Lab;

pub fn conf() -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "net1", "type": "dummy",
        "ipam": {"type": "host-local", "subnet": "10.60.0.0/24", "routes": [{"dst": "10.99.0.0/16"}]},
    })
}

/// Whether this kernel supports dummy links; skips the case if it does not.
pub fn makes_dummies(lab: &Lab) -> bool {
    has_link(&lab.host, "dummy", "probe type dummy")
}
