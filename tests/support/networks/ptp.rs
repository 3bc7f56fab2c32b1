//! Network configurations for ptp.

use serde_json::{Value, json};

pub fn conf() -> Value {
    json!({"cniVersion": "1.0.0", "name": "net1", "type": "ptp", "ipam": {"type": "host-local", "subnet": "10.10.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}})
}
