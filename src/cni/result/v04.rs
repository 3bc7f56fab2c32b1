//! The result of CNI 0.3.0, 0.3.1 and 0.4.0: lists of interfaces, addresses that name their family,
//! and routes.
//!
//! Specification 0.4.0, "Result".

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;

use super::print::{Json, Object, list, text};
use super::{Dns, Route, v1, v02};
use crate::cni::addr;

/// A result whose addresses refer to its interfaces.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Result {
    /// The version it is labelled with.
    pub cni_version: String,
    /// The interfaces of the attachment.
    pub interfaces: Vec<Interface>,
    /// The addresses of the attachment.
    pub ips: Vec<IpConfig>,
    /// The routes of the container.
    pub routes: Vec<Route>,
    /// What the container's resolver should use.
    pub dns: Dns,
}

/// An interface: what 1.x says about it, without MTU, socket and PCI address.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its hardware address.
    pub mac: String,
    /// The path of the netns it is in, empty for the host.
    pub sandbox: String,
}

/// An address.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IpConfig {
    /// `"4"` or `"6"`; conversion to 0.2.0 believes it, so it is kept as it was read.
    #[serde(default)]
    pub version: String,
    /// Position in `interfaces` of the interface that has it.
    #[serde(default)]
    pub interface: Option<i64>,
    /// The address and its prefix.
    #[serde(with = "addr::cidr")]
    pub address: IpNet,
    /// The gateway of the address.
    #[serde(default, with = "addr::ip")]
    pub gateway: Option<IpAddr>,
}

impl Result {
    /// IPv4 before IPv6, for addresses and for routes; there are no interfaces to refer to.
    pub(super) fn from_v02(from: v02::Result) -> Self {
        let mut to = Result { cni_version: from.cni_version, dns: from.dns, ..Result::default() };
        for (version, ip) in [("4", from.ip4), ("6", from.ip6)] {
            let Some(ip) = ip else { continue };
            to.ips.push(IpConfig {
                version: version.to_owned(),
                interface: None,
                address: ip.ip,
                gateway: ip.gateway,
            });
            to.routes.extend(ip.routes);
        }
        to
    }

    /// Interfaces lose what 0.4.0 has no keys for; routes keep everything, as in the reference.
    pub(super) fn from_v1(from: v1::Result) -> Self {
        Result {
            cni_version: from.cni_version,
            interfaces: from.interfaces.into_iter().map(Interface::from_v1).collect(),
            ips: from.ips.into_iter().map(IpConfig::from_v1).collect(),
            routes: from.routes,
            dns: from.dns,
        }
    }

    /// The tree in the order it prints.
    pub(super) fn to_json(&self) -> Json {
        Object::default()
            .with_some("cniVersion", text(&self.cni_version))
            .with_some("interfaces", list(&self.interfaces, Interface::to_json))
            .with_some("ips", list(&self.ips, IpConfig::to_json))
            .with_some("routes", list(&self.routes, Route::to_json))
            .with("dns", self.dns.to_json())
            .into()
    }
}

impl Interface {
    fn from_v1(from: v1::Interface) -> Self {
        Interface { name: from.name, mac: from.mac, sandbox: from.sandbox }
    }

    fn to_json(&self) -> Json {
        Object::default()
            .with("name", self.name.as_str())
            .with_some("mac", text(&self.mac))
            .with_some("sandbox", text(&self.sandbox))
            .into()
    }
}

impl IpConfig {
    fn from_v1(from: v1::IpConfig) -> Self {
        let version = match from.address {
            IpNet::V4(_) => "4",
            IpNet::V6(_) => "6",
        };
        IpConfig {
            version: version.to_owned(),
            interface: from.interface,
            address: from.address,
            gateway: from.gateway,
        }
    }

    fn to_json(&self) -> Json {
        Object::default()
            .with("version", self.version.as_str())
            .with_some("interface", self.interface)
            .with("address", self.address.to_string())
            .with_some("gateway", self.gateway.map(|gateway| gateway.to_string()))
            .into()
    }
}
