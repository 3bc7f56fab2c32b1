//! Network configurations for tuning.

use serde_json::{Value, json};

use super::bridge;
use crate::support::attachment::with;
use crate::support::chain::Chain;
use crate::support::netns::{Lab, Namespace};

pub const MAC: &str = "02:00:00:00:00:42";

/// The backup file of a chain's attachment.
pub fn backup_of(chain: &Chain<'_>) -> String {
    format!("/run/cni/tuning/{}_{}.json", chain.container_id, chain.ifname)
}

/// Tests inside the lab: an ordinary user cannot enter the reference's directory from outside.
pub fn has_backup(lab: &Lab, chain: &Chain<'_>) -> bool {
    lab.host.try_sh(&format!("test -e {}", backup_of(chain))).status.success()
}

pub fn tuning(changes: Value) -> Value {
    with(&json!({"type": "tuning"}), changes)
}

/// Each attribute with a value that a new interface does not have.
pub fn every_attribute() -> Value {
    json!({"mac": MAC, "mtu": 1400, "promisc": true, "allmulti": true, "txQLen": 77})
}

/// A new container on a bridge, before ADD of tuning.
#[track_caller]
pub fn chain<'a>(lab: &'a Lab, changes: Value) -> Chain<'a> {
    lab.chain(&bridge::conf(), &tuning(changes))
}

/// The value of a sysctl of a namespace, below /proc/sys/net.
pub fn sysctl(namespace: &Namespace, name: &str) -> String {
    namespace.sh(&format!("cat /proc/sys/net/{name}")).trim().to_owned()
}
