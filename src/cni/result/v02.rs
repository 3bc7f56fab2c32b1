//! The result of CNI 0.1.0 and 0.2.0, and of configurations without a version: one address per
//! family.
//!
//! Specification 0.2.0, "Result".

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{Dns, ResultError, Route, v04};
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

impl Result {
    /// The first address of each family with its routes; interfaces, indexes and further addresses
    /// are lost.
    pub(super) fn from_v04(from: v04::Result) -> std::result::Result<Self, ResultError> {
        let ip4 = IpConfig::from_v04(&from, "4", |dst| matches!(dst, IpNet::V4(_)));
        let ip6 = IpConfig::from_v04(&from, "6", |dst| matches!(dst, IpNet::V6(_)));
        if ip4.is_none() && ip6.is_none() {
            return Err(ResultError::NoAddress);
        }
        Ok(Result { cni_version: from.cni_version, ip4, ip6, dns: from.dns })
    }
}

impl IpConfig {
    /// Converts the first address labelled `version`, with the routes whose destination is of
    /// `family`.
    fn from_v04(
        from: &v04::Result,
        version: &str,
        family: impl Fn(&IpNet) -> bool,
    ) -> Option<Self> {
        let first = from.ips.iter().find(|ip| ip.version == version)?;
        let routes = from.routes.iter().filter(|route| family(&route.dst));
        Some(IpConfig {
            ip: first.address,
            gateway: first.gateway,
            // The reference keeps only these two fields, although it prints the others if they are
            // set.
            routes: routes.map(|route| Route { gw: route.gw, ..Route::to(route.dst) }).collect(),
        })
    }
}
