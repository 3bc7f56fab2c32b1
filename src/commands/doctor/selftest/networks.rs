//! The configurations of the walk: what people use.

use super::world::{Network, has_ipv6};
use crate::error::Result;

/// The bridge of the network of the walk.
pub const BRIDGE: &str = "cni0";
/// The port of the host that leads to the first container.
pub const HOST_PORT: u16 = 8080;
/// A port of the host that no container has.
const OTHER_PORT: u16 = 8081;
/// The port that the container listens on.
pub const PORT: u16 = 80;
/// The limit of what a container receives, and of what it sends, in bits per second.
pub const LIMIT: u32 = 20_000_000;
/// What the limit lets pass at once, in bits: a tenth of a second, so that a busy machine may stop
/// this process for as long without a loss.
const BURST: u32 = LIMIT / 10;

/// Pods as most clusters have them: a bridge with masquerading, published ports, a firewall that
/// lets them pass.
pub fn pods() -> Result<Network> {
    Network::new("pods", &format!("[{}]", plugins()))
}

/// Pods, and a port of the host that leads to the container.
pub fn published() -> Result<Network> {
    pods()?.with_capabilities(&publishing(HOST_PORT))
}

/// Pods that receive and send no more than [`LIMIT`].
pub fn limited() -> Result<Network> {
    let limit = format!(
        r#"{{"type":"bandwidth","ingressRate":{LIMIT},"ingressBurst":{BURST},"egressRate":{LIMIT},"egressBurst":{BURST}}}"#
    );
    Network::new("pods", &format!("[{},{limit}]", plugins()))
}

/// Pods whose last plugin fails: the kernel has no such sysctl.
pub fn failing() -> Result<Network> {
    let tuning = r#"{"type":"tuning","sysctl":{"net.ipv4.conf.eth0.no_such_key":"1"}}"#;
    let plugins = format!("[{},{tuning}]", plugins());
    Network::new("pods", &plugins)?.with_capabilities(&publishing(OTHER_PORT))
}

/// The capability arguments that publish the container's port.
fn publishing(host_port: u16) -> String {
    format!(
        r#"{{"portMappings":[{{"hostPort":{host_port},"containerPort":{PORT},"protocol":"tcp"}}]}}"#
    )
}

/// The plugins of pods, without the list's brackets.
fn plugins() -> String {
    const DUAL_STACK: &str = r#"{"type":"host-local",
        "ranges":[[{"subnet":"10.88.0.0/24"}],[{"subnet":"fd00:88::/64"}]],
        "routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}"#;
    const IPV4: &str = r#"{"type":"host-local","ranges":[[{"subnet":"10.88.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}"#;
    let ipam = if has_ipv6() { DUAL_STACK } else { IPV4 };
    format!(
        r#"{{"type":"bridge","bridge":"{BRIDGE}","isGateway":true,"ipMasq":true,"hairpinMode":true,"ipam":{ipam}}},
        {{"type":"portmap","capabilities":{{"portMappings":true}}}},
        {{"type":"firewall"}}"#
    )
}
