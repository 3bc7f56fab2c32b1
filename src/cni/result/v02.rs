//! The result of CNI 0.1.0 and 0.2.0, and of configurations without a version: one address per
//! family.
//!
//! Specification 0.2.0, "Result".

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::fields::{Dns, Route};
use crate::cni::addr;

/// A result with at most one IPv4 and one IPv6 address, and no interfaces.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Result {
    /// The version it is labelled with.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cni_version: String,
    /// The IPv4 address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip4: Option<IpConfig>,
    /// The IPv6 address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip6: Option<IpConfig>,
    /// What the container's resolver should use.
    pub dns: Dns,
}

/// An address with the routes of its family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IpConfig {
    /// The address and its prefix.
    #[serde(with = "addr::cidr")]
    pub ip: IpNet,
    /// The gateway of the address.
    #[serde(default, with = "addr::ip", skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// Routes of this family.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
}
