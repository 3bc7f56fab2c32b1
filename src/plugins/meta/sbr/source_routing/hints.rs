//! Routes in the main table to the addresses' own subnets: a program that binds its socket to no
//! address is led there by the destination, and sends from the address.

use ipnet::IpNet;

use super::is_same_family;
use crate::cni::result::IpConfig;
use crate::net::netlink::{Route, RouteEntry, Scope};

/// Whether the route leads into the subnet of an address, and packets by it are sent from the
/// address: it stays in the main table.
pub fn is_hint(route: &RouteEntry, ips: &[&IpConfig]) -> bool {
    let is_for = |ip: &&IpConfig| {
        is_same_family(ip, route)
            && ip.address.trunc().contains(&route.dst)
            && route.source() == Some(ip.address.addr())
    };
    route.is_in_main() && ips.iter().any(is_for)
}

/// The routes to the addresses' subnets, one for each subnet, that are not among those present. The
/// kernel's own IPv6 route names no source, so one that does takes its place.
pub fn missing(present: &[RouteEntry], ips: &[&IpConfig]) -> Vec<Route> {
    let mut known: Vec<IpNet> =
        present.iter().filter(|route| is_hint(route, ips)).map(|route| route.dst).collect();
    let mut missing = vec![];
    for ip in ips {
        let subnet = ip.address.trunc();
        if subnet.prefix_len() != subnet.max_prefix_len() && !known.contains(&subnet) {
            known.push(subnet);
            let source = Some(ip.address.addr());
            missing.push(Route { scope: Scope::LINK, source, ..Route::to(subnet) });
        }
    }
    missing
}
