//! The result of CNI 0.1.0 and 0.2.0, and of configurations without a version: one address per
//! family.
//!
//! Specification 0.2.0, "Result".

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;

use super::print::{Json, Object, list, text};
use super::{Dns, ResultError, Route, v04};
use crate::cni::addr;

/// A result with at most one IPv4 and one IPv6 address, and no interfaces.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Result {
    /// The version it is labelled with.
    pub cni_version: String,
    /// The IPv4 address.
    pub ip4: Option<IpConfig>,
    /// The IPv6 address.
    pub ip6: Option<IpConfig>,
    /// What the container's resolver should use.
    pub dns: Dns,
}

/// An address with the routes of its family.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IpConfig {
    /// The address and its prefix.
    #[serde(with = "addr::cidr")]
    pub ip: IpNet,
    /// The gateway of the address.
    #[serde(default, with = "addr::ip")]
    pub gateway: Option<IpAddr>,
    /// Routes of this family.
    #[serde(default)]
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

    /// The tree in the order it prints.
    pub(super) fn to_json(&self) -> Json {
        Object::default()
            .with_some("cniVersion", text(&self.cni_version))
            .with_some("ip4", self.ip4.as_ref().map(IpConfig::to_json))
            .with_some("ip6", self.ip6.as_ref().map(IpConfig::to_json))
            .with("dns", self.dns.to_json())
            .into()
    }
}

impl IpConfig {
    /// The first address that says it is of `version`, with the routes whose destination is of
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
            // The reference keeps these two fields only, although it prints the others if they are
            // set.
            routes: routes.map(|route| Route { gw: route.gw, ..Route::to(route.dst) }).collect(),
        })
    }

    fn to_json(&self) -> Json {
        Object::default()
            .with("ip", self.ip.to_string())
            .with_some("gateway", self.gateway.map(|gateway| gateway.to_string()))
            .with_some("routes", list(&self.routes, Route::to_json))
            .into()
    }
}
