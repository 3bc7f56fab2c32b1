//! What results of every shape and the configurations of plugins have in common.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::cni::addr;

/// The version of a document without `cniVersion`.
const OLDEST: &str = "0.1.0";
/// The version of an [`super::AddResult`], which has room for every field.
pub(super) const NEWEST: &str = "1.1.0";

/// The three shapes of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// 0.1.0, 0.2.0 and no version: [`super::v02::Result`].
    V02,
    /// 0.3.0, 0.3.1 and 0.4.0: [`super::v04::Result`].
    V04,
    /// 1.0.0 and 1.1.0: [`super::v1::Result`].
    V1,
}

impl Shape {
    const ALL: [Shape; 3] = [Shape::V02, Shape::V04, Shape::V1];

    /// The shape of a version, by exact text: `0.4` has none.
    pub fn of(version: &str) -> Option<Shape> {
        Shape::ALL.into_iter().find(|shape| shape.versions().contains(&version))
    }

    /// The versions of this shape, oldest first.
    pub fn versions(self) -> &'static [&'static str] {
        match self {
            Shape::V02 => &["", OLDEST, "0.2.0"],
            Shape::V04 => &["0.3.0", "0.3.1", "0.4.0"],
            Shape::V1 => &["1.0.0", NEWEST],
        }
    }

    /// The version of a result without a label: the newest of its shape.
    pub(super) fn newest(self) -> &'static str {
        match self {
            Shape::V02 => "0.2.0",
            Shape::V04 => "0.4.0",
            Shape::V1 => NEWEST,
        }
    }
}

/// The version, or 0.1.0 for none.
pub(super) fn or_oldest(version: &str) -> &str {
    if version.is_empty() { OLDEST } else { version }
}

/// A route, in results of every shape and in the configurations of plugins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Route {
    /// The destination. It is the one required field: a default here would be the default route.
    #[serde(with = "addr::cidr")]
    pub dst: IpNet,
    /// The next hop; without one the plugin chooses it, usually the gateway of the address.
    #[serde(default, with = "addr::ip", skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    /// Further next hops, of one route with several. No specification has the key yet, so no result
    /// of ours has it either.
    #[serde(default, with = "addr::ips", skip_serializing)]
    pub gws: Vec<IpAddr>,
    /// The MTU along the route, 0 if absent.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mtu: i64,
    /// The TCP segment size to advertise, 0 if absent.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub advmss: i64,
    /// The metric, 0 if absent.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: i64,
    /// The routing table; 0 is a table (`unspec`), not an absent one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<i64>,
    /// The scope; 0 is a scope (`global`), not an absent one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<i64>,
}

impl Route {
    /// The rows of `ipam.routes` for `KEYS` of plugins.
    pub const KEYS: &'static str = "ipam.routes | list | none | Routes for the result.
        ipam.routes[].dst | subnet | required | The destination, without host bits.
        ipam.routes[].gw | address | none | The next hop. By default the calling plugin uses the first gateway of the family.
        ipam.routes[].gws | list of addresses | none | Several next hops: with `gw` they are one multipath route. Results leave it out.
        ipam.routes[].mtu | integer | 0 | The MTU along the route; 0 for none.
        ipam.routes[].advmss | integer | 0 | The TCP segment size to advertise; 0 for none.
        ipam.routes[].priority | integer | 0 | The metric; 0 leaves it to the kernel.
        ipam.routes[].table | integer | main | The routing table.
        ipam.routes[].scope | integer | 0 | The scope, 0 to 255: 0 global, 253 link.";

    /// A route with only a destination.
    pub fn to(dst: IpNet) -> Self {
        let gws = vec![];
        Route { dst, gw: None, gws, mtu: 0, advmss: 0, priority: 0, table: None, scope: None }
    }

    /// The next hops: `gws` and then `gw`, each once.
    pub fn next_hops(&self) -> Vec<IpAddr> {
        let mut hops: Vec<IpAddr> = vec![];
        for hop in self.gws.iter().chain(&self.gw) {
            if !hops.contains(hop) {
                hops.push(*hop);
            }
        }
        hops
    }

    /// The next hops that a routing table shows: 0.0.0.0 is the link itself.
    pub fn gateways(&self) -> Vec<IpAddr> {
        self.next_hops().into_iter().filter(|hop| !hop.is_unspecified()).collect()
    }
}

/// For a number that is omitted if it is 0.
pub(super) fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// Resolver settings, in results of every shape and in the configurations of plugins.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Dns {
    /// Addresses of name servers, the preferred one first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// The local domain.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Domains to search, the preferred one first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// Options as in `resolv.conf`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl Dns {
    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        self.nameservers.is_empty()
            && self.domain.is_empty()
            && self.search.is_empty()
            && self.options.is_empty()
    }
}

/// The result of CNI 0.3.0 and later. Each address names its interface by index. The fields of
/// addresses and interfaces depend on the version: [`super::v04`] or [`super::v1`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[serde(bound(deserialize = "I: Deserialize<'de>, A: Deserialize<'de>"))]
pub struct Lists<I, A> {
    /// The version it is labelled with.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cni_version: String,
    /// The interfaces of the attachment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<I>,
    /// The addresses of the attachment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<A>,
    /// The routes of the container.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    /// What the container's resolver should use.
    pub dns: Dns,
}

impl<I, A> Default for Lists<I, A> {
    fn default() -> Self {
        Lists {
            cni_version: String::new(),
            interfaces: vec![],
            ips: vec![],
            routes: vec![],
            dns: Dns::default(),
        }
    }
}

impl<I, A> Lists<I, A> {
    /// Converts to the other shape, which has the same lists.
    pub(super) fn convert<J: From<I>, B: From<A>>(self) -> Lists<J, B> {
        Lists {
            cni_version: self.cni_version,
            interfaces: self.interfaces.into_iter().map(J::from).collect(),
            ips: self.ips.into_iter().map(B::from).collect(),
            routes: self.routes,
            dns: self.dns,
        }
    }
}
