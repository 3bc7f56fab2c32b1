//! The result of CNI 1.0.0 and 1.1.0, the shape plugins work with.
//!
//! The two versions share one type, so a 1.0.0 result may carry what 1.1.0 added.
//!
//! Specification 1.1.0, section 5, "ADD Success".

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;

use super::print::{Json, Object, int, list, text};
use super::{AddResult, Dns, Route, v04};
use crate::cni::addr;

/// An [`AddResult`] with the version it is labelled with.
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

/// A link of the attachment, on the host or in the container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its hardware address.
    pub mac: String,
    /// Its MTU, 0 if not told.
    pub mtu: i64,
    /// The path of the netns it is in, empty for the host.
    pub sandbox: String,
    /// The path of the socket it is reached by (vhost-user and the like).
    pub socket_path: String,
    /// The PCI address of the device behind it.
    #[serde(rename = "pciID")]
    pub pci_id: String,
}

/// An address of the attachment.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IpConfig {
    /// Position in `interfaces` of the interface that has it; others' results may point outside
    /// the list.
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
    /// Nothing is lost but `ips[].version`, which the address says too.
    pub(super) fn from_v04(from: v04::Result) -> Self {
        Result {
            cni_version: from.cni_version,
            interfaces: from.interfaces.into_iter().map(Interface::from_v04).collect(),
            ips: from.ips.into_iter().map(IpConfig::from_v04).collect(),
            routes: from.routes,
            dns: from.dns,
        }
    }

    /// The tree in the order it prints; unlike in the older families, an empty `dns` does not.
    pub(super) fn to_json(&self) -> Json {
        let declared: Json = Object::default()
            .with_some("cniVersion", text(&self.cni_version))
            .with_some("interfaces", list(&self.interfaces, Interface::to_json))
            .with_some("ips", list(&self.ips, IpConfig::to_json))
            .with_some("routes", list(&self.routes, Route::to_json))
            .with_some("dns", (!self.dns.is_empty()).then(|| self.dns.to_json()))
            .into();
        declared.sorted()
    }
}

impl From<Result> for AddResult {
    fn from(result: Result) -> Self {
        AddResult {
            interfaces: result.interfaces,
            ips: result.ips,
            routes: result.routes,
            dns: result.dns,
        }
    }
}

impl Interface {
    fn from_v04(from: v04::Interface) -> Self {
        Interface { name: from.name, mac: from.mac, sandbox: from.sandbox, ..Interface::default() }
    }

    fn to_json(&self) -> Json {
        Object::default()
            .with("name", self.name.as_str())
            .with_some("mac", text(&self.mac))
            .with_some("mtu", int(self.mtu))
            .with_some("sandbox", text(&self.sandbox))
            .with_some("socketPath", text(&self.socket_path))
            .with_some("pciID", text(&self.pci_id))
            .into()
    }
}

impl IpConfig {
    /// An address without gateway, not yet on an interface: what IPAM returns.
    pub fn new(address: IpNet) -> Self {
        IpConfig { interface: None, address, gateway: None }
    }

    fn from_v04(from: v04::IpConfig) -> Self {
        IpConfig { interface: from.interface, address: from.address, gateway: from.gateway }
    }

    fn to_json(&self) -> Json {
        Object::default()
            .with_some("interface", self.interface)
            .with("address", self.address.to_string())
            .with_some("gateway", self.gateway.map(|gateway| gateway.to_string()))
            .into()
    }
}
