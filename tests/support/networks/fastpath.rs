//! Networks with `fastPath`, and the host that they need.

use serde_json::{Value, json};

use crate::support::attachment::with;
use crate::support::kernel::has_flowtables;
use crate::support::netns::{Lab, OUTSIDE};

/// The table of the plugins.
pub const TABLE: &str = "inet cni_multi_fastpath";

/// The configuration with `fastPath`, and with masquerading by nftables.
pub fn fast(conf: &Value) -> Value {
    let changes = json!({"cniVersion": "1.1.0", "fastPath": true, "ipMasq": true, "ipMasqBackend": "nftables"});
    with(conf, changes)
}

/// The host's default routes go through the uplink. False after a skip, if the kernel has no
/// flowtables.
pub fn prepare(lab: &Lab) -> bool {
    let [v4, v6] = OUTSIDE;
    lab.host.sh(&format!("ip route add default via {v4}; ip -6 route add default via {v6}"));
    has_flowtables(lab)
}
