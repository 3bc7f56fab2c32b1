//! Network configurations for sbr.

use serde_json::{Value, json};

use super::bridge;
use crate::support::attachment::with;
use crate::support::chain::Chained;
use crate::support::netns::{Container, Lab, Namespace};

/// The network of the container's first interface, which carries the default routes.
pub fn first() -> Value {
    with(&bridge::dual_stack(), json!({"isDefaultGateway": true}))
}

/// The network of the second interface.
pub fn second() -> Value {
    let changes = json!({"name": "net2", "bridge": "br1", "ipam": {
        "ranges": [[{"subnet": "10.20.0.0/24"}], [{"subnet": "2001:db8:20::/64"}]],
        "routes": [{"dst": "10.77.0.0/16", "gw": "10.20.0.1"}],
    }});
    with(&bridge::dual_stack(), changes)
}

/// Runs ADD of the main plugin as `ifname`; the case runs sbr.
#[track_caller]
pub fn attach<'a>(lab: &'a Lab, container: &Container, main: &Value, ifname: &str) -> Chained<'a> {
    lab.chain_in(container, ifname, main, &json!({"type": "sbr"}))
}

/// A container with both interfaces.
pub fn two_uplinks<'a>(lab: &'a Lab, changes: Value) -> (Container, Chained<'a>) {
    let container = lab.container();
    lab.attach(&container, &first()).add();
    let second = attach(lab, &container, &second(), "net1").changed(changes);
    (container, second)
}

/// Each rule with a source selector: address and table.
pub fn rules(container: &Namespace) -> Vec<(String, String)> {
    let all = ["ip -j rule", "ip -6 -j rule"].map(|command| container.json(command));
    let all = all.iter().flat_map(|rules| rules.as_array().unwrap());
    let text = |rule: &Value, key: &str| rule[key].as_str().unwrap().to_owned();
    all.filter(|rule| rule["src"] != "all")
        .map(|rule| (text(rule, "src"), text(rule, "table")))
        .collect()
}
