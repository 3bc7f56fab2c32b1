//! Network configurations for portmap.

use serde_json::{Value, json};

use super::bridge;
use crate::support::attachment::with;
use crate::support::chain::Chain;
use crate::support::netns::{Lab, Namespace, UPLINK};
use crate::support::traffic::connect;

/// Both values of the key `backend`. Without the key ours uses nftables, and the reference probes
/// for one.
pub const BACKENDS: [&str; 2] = ["iptables", "nftables"];

/// A dual-stack network; its containers reach everything through the host, themselves included.
pub fn network() -> Value {
    with(&bridge::dual_stack(), json!({"isDefaultGateway": true, "hairpinMode": true}))
}

/// A second network, on a bridge of its own.
pub fn other_network() -> Value {
    let ranges = json!([[{"subnet": "10.20.0.0/24"}], [{"subnet": "2001:db8:20::/64"}]]);
    with(&network(), json!({"name": "net2", "bridge": "br2", "ipam": {"ranges": ranges}}))
}

/// None leaves the key `backend` out.
pub fn portmap(backend: Option<&str>, mappings: Value) -> Value {
    json!({"type": "portmap", "backend": backend, "runtimeConfig": {"portMappings": mappings}})
}

/// One mapping: TCP port 8080 of the host to port 80 of the container.
pub fn web() -> Value {
    json!({"hostPort": 8080, "containerPort": 80, "protocol": "tcp"})
}

/// A new container on `network()` with published ports.
#[track_caller]
pub fn publish<'a>(lab: &'a Lab, backend: Option<&str>, mappings: Value) -> Chain<'a> {
    let chain = lab.chain(&network(), &portmap(backend, mappings));
    chain.add();
    chain
}

/// ADD and DEL of an unrelated container: afterwards, what stays by contract (the reference's
/// chains and tables) exists.
pub fn warm_up(lab: &Lab, main: &Value, chained: &Value) {
    let chain = lab.chain(main, chained);
    chain.add();
    chain.del_all();
}

/// An address of the host as `address:port`.
pub fn at(address: &str, port: u16) -> String {
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}

/// Whether the host's port leads to the server from outside, for IPv4 and IPv6.
pub fn is_open(lab: &Lab, port: u16) -> [bool; 2] {
    UPLINK.map(|address| connect(&lab.outside, &at(address, port)).is_some())
}

/// Verifies that our table guards every link whose `route_localnet` has our value.
#[track_caller]
pub fn assert_localnet_is_guarded(host: &Namespace) {
    let open = host.sh(
        "for f in $(grep -lx 127 /proc/sys/net/ipv4/conf/*/route_localnet); do
            link=${f%/*}; link=${link##*/}
            nft get element inet cni_multi_portmap localnet \"{ $link }\" >/dev/null 2>&1 || echo $link
        done",
    );
    assert_eq!(open, "", "127.0.0.0/8 of the host is open to these links");
}

/// Switches off bridge netfilter, if the kernel has it, so that bridged packets bypass the rules:
/// the host then does not see an answer between two ports of one bridge.
pub fn without_bridge_netfilter(lab: &Lab) {
    lab.host
        .sh("for f in /proc/sys/net/bridge/bridge-nf-call-*; do [ ! -e $f ] || echo 0 > $f; done");
}
