//! What a configuration of source routing wants.

use std::net::IpAddr;

use crate::cni::result::{AddResult, IpConfig};
use crate::family::Family;
use crate::net::netlink::RouteEntry;

/// How the packets of an attachment are routed by their source.
#[derive(Debug, Default)]
pub struct Wishes {
    /// The table of the rules, which is left unchanged; None for a table for each address.
    pub table: Option<u32>,
    /// The gateways that replace those of the result, at most one of each family.
    pub gateways: Vec<IpAddr>,
    /// Whether the main table keeps the routes to the addresses' subnets.
    pub source_hints: bool,
}

impl Wishes {
    /// The gateway that replaces the one of the address.
    pub fn gateway_for(&self, ip: &IpConfig) -> Option<IpAddr> {
        let family = Family::of_net(ip.address);
        self.gateways.iter().copied().find(|gateway| Family::of(*gateway) == family)
    }

    /// The result with the gateways that replace its own.
    pub(super) fn put_into(&self, result: &AddResult) -> AddResult {
        let mut result = result.clone();
        for ip in &mut result.ips {
            ip.gateway = self.gateway_for(ip).or(ip.gateway);
        }
        result
    }

    /// Whether the route is a default route by another gateway than the one that replaces it.
    pub(super) fn replaces(&self, route: &RouteEntry, ip: &IpConfig) -> bool {
        let is_other = |gateway| route.gateways() != [gateway];
        route.dst.prefix_len() == 0 && self.gateway_for(ip).is_some_and(is_other)
    }
}
