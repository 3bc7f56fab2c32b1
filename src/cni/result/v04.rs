//! The result of CNI 0.3.0, 0.3.1 and 0.4.0: addresses name their family.
//!
//! Specification 0.4.0, "Result".

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::fields::Lists;
use crate::cni::addr;

/// A result of this shape.
pub type Result = Lists<Interface, IpConfig>;

/// An interface: what 1.x says about it, without MTU, socket and PCI address.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its hardware address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// The path of the netns it is in, empty for the host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
}

/// An address.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IpConfig {
    /// `"4"` or `"6"`; kept as read, because conversion to 0.2.0 relies on it.
    #[serde(default)]
    pub version: String,
    /// Position in `interfaces` of the interface that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<i64>,
    /// The address and its prefix.
    #[serde(with = "addr::cidr")]
    pub address: IpNet,
    /// The gateway of the address.
    #[serde(default, with = "addr::ip", skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}
