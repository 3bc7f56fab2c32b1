//! Network configurations for bridge.

use serde_json::{Value, json};

use crate::support::attachment::with;
use crate::support::netns::Lab;

/// The network that most cases start from.
pub fn conf() -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "net1", "type": "bridge", "bridge": "br0", "isGateway": true,
        "ipam": {"type": "host-local", "subnet": "10.10.0.0/24"},
    })
}

pub fn dual_stack() -> Value {
    with(
        &conf(),
        json!({"ipam": {"subnet": null, "ranges": [[{"subnet": "10.10.0.0/24"}], [{"subnet": "2001:db8:10::/64"}]]}}),
    )
}

/// Static addresses and routes, as an operator writes them.
pub fn static_ipam(conf: &Value, addresses: Value, routes: Value) -> Value {
    let mut conf = conf.clone();
    conf["ipam"] = json!({"type": "static", "addresses": addresses, "routes": routes});
    conf
}

/// ADD and DEL of an unrelated container: afterwards, what stays by contract (bridge, tables)
/// exists.
pub fn warm_up(lab: &Lab, conf: &Value) {
    let attachment = lab.attach(&lab.container(), conf).id("warm-up").ifname("warm0");
    attachment.add();
    attachment.del();
}
