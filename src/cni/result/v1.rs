//! The result of CNI 1.0.0 and 1.1.0, the shape plugins work with.
//!
//! The two versions share one type, so a 1.0.0 result may carry what 1.1.0 added.
//!
//! Specification 1.1.0, section 5, "ADD Success".

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::fields::{Lists, is_zero};
use crate::cni::addr;
use crate::cni::json::Value;

/// An [`AddResult`] with the version it is labelled with.
pub type Result = Lists<Interface, IpConfig>;

/// A link of the attachment, on the host or in the container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its hardware address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// Its MTU, 0 if absent.
    #[serde(skip_serializing_if = "is_zero")]
    pub mtu: i64,
    /// The path of the netns it is in, empty for the host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
    /// The path of its socket (vhost-user and the like).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub socket_path: String,
    /// The PCI address of the device behind it.
    #[serde(rename = "pciID", skip_serializing_if = "String::is_empty")]
    pub pci_id: String,
}

/// An address of the attachment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IpConfig {
    /// Position in `interfaces` of the interface that has it; may be out of range in results of
    /// other plugins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<i64>,
    /// The address and its prefix.
    #[serde(with = "addr::cidr")]
    pub address: IpNet,
    /// The gateway of the address.
    #[serde(default, with = "addr::ip", skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

impl Result {
    /// The tree as the reference prints it, from a Go map: sorted at every level, and without an
    /// empty `dns`, unlike in the older shapes. That path also makes the reference round integers
    /// beyond 2^53 to doubles; ours stay exact.
    pub(super) fn to_value(&self) -> Value {
        let mut value = Value::of(self);
        if self.dns.is_empty() {
            value.remove("dns");
        }
        value.sorted()
    }
}

impl IpConfig {
    /// An address without gateway, not yet on an interface: what IPAM returns.
    pub fn new(address: IpNet) -> Self {
        IpConfig { interface: None, address, gateway: None }
    }
}
