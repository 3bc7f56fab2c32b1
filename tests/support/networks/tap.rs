//! Network configurations for tap.

use serde_json::{Value, json};

use crate::support::attachment::with;
use crate::support::kernel::has;
use crate::support::netns::Lab;

/// A network without addresses.
pub fn layer_two() -> Value {
    json!({"cniVersion": "1.0.0", "name": "net1", "type": "tap"})
}

pub fn conf() -> Value {
    with(
        &layer_two(),
        json!({"ipam": {"type": "host-local", "subnet": "10.50.0.0/24", "routes": [{"dst": "10.99.0.0/16"}]}}),
    )
}

/// Whether this machine permits creating taps. A user namespace alone is not enough: on many
/// machines only root may open the device file.
pub fn makes_taps(lab: &Lab) -> bool {
    has(&lab.host, "/dev/net/tun", ": <>/dev/net/tun")
}
