//! Network configurations for firewall.

use serde_json::{Value, json};

use super::bridge;
use crate::support::attachment::with;
use crate::support::chain::Chain;
use crate::support::netns::{Lab, OUTSIDE};
use crate::support::traffic::{assert_no_ping, assert_pings};

/// A dual-stack network; its containers have a default route through the host.
pub fn network() -> Value {
    with(&bridge::dual_stack(), json!({"cniVersion": "1.1.0", "isDefaultGateway": true}))
}

/// None leaves the key `backend` out.
pub fn firewall(backend: Option<&str>) -> Value {
    json!({"type": "firewall", "backend": backend})
}

/// A new container on `network()` that the firewall plugin has admitted.
#[track_caller]
pub fn admit<'a>(lab: &'a Lab, chained: &Value) -> Chain<'a> {
    let chain = lab.chain(&network(), chained);
    chain.add();
    chain
}

/// Gives the peer outside a route to the containers of `network()`, so that only the firewall is in
/// between.
pub fn route_from_outside(lab: &Lab) {
    lab.outside.sh("ip route add 10.10.0.0/16 via 198.51.100.1; ip route add 2001:db8:10::/60 via 2001:db8:ffff::1");
}

/// The container reaches the outside; a new flow from the outside does not reach the container.
#[track_caller]
pub fn assert_admitted(lab: &Lab, chain: &Chain<'_>) {
    OUTSIDE.iter().for_each(|outside| assert_pings(&chain.container, outside));
    chain.ips().iter().for_each(|ip| assert_no_ping(&lab.outside, ip));
}

/// Drops every forwarded packet that no rule of iptables-nft accepts.
pub const DROPPING: &str = "iptables-nft -P FORWARD DROP; ip6tables-nft -P FORWARD DROP";
