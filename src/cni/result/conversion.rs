//! The steps between the shapes: `0.2 <-> 0.4 <-> 1.x`, and why a result cannot be read or
//! converted, in the words of the reference.

use std::fmt;

use super::fields::{Route, Shape};
use super::{v1, v02, v04};
use crate::family::Family;

impl v02::Result {
    /// The first address of each family with its routes; interfaces, indexes and further addresses
    /// are lost.
    pub(super) fn from_v04(from: v04::Result) -> Result<Self, ResultError> {
        let ip4 = v02::IpConfig::from_v04(&from, Family::V4);
        let ip6 = v02::IpConfig::from_v04(&from, Family::V6);
        if ip4.is_none() && ip6.is_none() {
            return Err(ResultError::NoAddress);
        }
        Ok(v02::Result { cni_version: from.cni_version, ip4, ip6, dns: from.dns })
    }
}

impl v02::IpConfig {
    /// Converts the first address labelled with the family, with the routes to destinations of it.
    fn from_v04(from: &v04::Result, family: Family) -> Option<Self> {
        let version = u8::from(family).to_string();
        let first = from.ips.iter().find(|ip| ip.version == version)?;
        let routes = from.routes.iter().filter(|route| Family::of_net(route.dst) == family);
        Some(v02::IpConfig {
            ip: first.address,
            gateway: first.gateway,
            // The reference keeps only these two fields, although it prints the others if they are
            // set.
            routes: routes.map(|route| Route { gw: route.gw, ..Route::to(route.dst) }).collect(),
        })
    }
}

impl v04::Result {
    /// Lists IPv4 before IPv6, for addresses and for routes; there are no interfaces to refer to.
    pub(super) fn from_v02(from: v02::Result) -> Self {
        let mut to =
            v04::Result { cni_version: from.cni_version, dns: from.dns, ..v04::Result::default() };
        for (version, ip) in [("4", from.ip4), ("6", from.ip6)] {
            let Some(ip) = ip else { continue };
            to.ips.push(v04::IpConfig {
                version: version.to_owned(),
                interface: None,
                address: ip.ip,
                gateway: ip.gateway,
            });
            to.routes.extend(ip.routes);
        }
        to
    }
}

/// Drops the fields for which 0.4.0 has no keys.
impl From<v1::Interface> for v04::Interface {
    fn from(from: v1::Interface) -> Self {
        v04::Interface { name: from.name, mac: from.mac, sandbox: from.sandbox }
    }
}

impl From<v1::IpConfig> for v04::IpConfig {
    fn from(from: v1::IpConfig) -> Self {
        v04::IpConfig {
            version: u8::from(Family::of_net(from.address)).to_string(),
            interface: from.interface,
            address: from.address,
            gateway: from.gateway,
        }
    }
}

impl From<v04::Interface> for v1::Interface {
    fn from(from: v04::Interface) -> Self {
        v1::Interface {
            name: from.name,
            mac: from.mac,
            sandbox: from.sandbox,
            ..v1::Interface::default()
        }
    }
}

/// Drops `version`, which follows from the address.
impl From<v04::IpConfig> for v1::IpConfig {
    fn from(from: v04::IpConfig) -> Self {
        v1::IpConfig { interface: from.interface, address: from.address, gateway: from.gateway }
    }
}

/// Why a result cannot be read or converted, in the words of the reference.
#[derive(Clone, Debug, PartialEq)]
pub enum ResultError {
    /// The version does not exist.
    UnsupportedVersion(String),
    /// The document is of another shape than required.
    ForeignVersion {
        /// The shape asked for.
        shape: Shape,
        /// The version found.
        found: String,
    },
    /// One of the two versions does not exist.
    NoConverter {
        /// The version of the document.
        from: String,
        /// The version asked for.
        to: String,
    },
    /// The result has no address, which 0.2.0 and older require.
    NoAddress,
    /// The document is not a result, in the words of the decoder.
    Decode(String),
    /// The `prevResult` of a configuration cannot be read.
    PrevResult(Box<ResultError>),
}

impl fmt::Display for ResultError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnsupportedVersion(version) => {
                write!(f, "unsupported CNI result version {version:?}")
            }
            Self::ForeignVersion { shape, found } => {
                let supported = shape.versions().join(" ");
                write!(
                    f,
                    "result type supports [{supported}] but unmarshalled CNIVersion is {found:?}"
                )
            }
            Self::NoConverter { from, to } => {
                write!(f, "no converter for CNI result version {from} to {to}")
            }
            Self::NoAddress => f.write_str("cannot convert: no valid IP addresses"),
            Self::Decode(message) => f.write_str(message),
            Self::PrevResult(err) => write!(f, "could not parse prevResult: {err}"),
        }
    }
}

impl std::error::Error for ResultError {}
