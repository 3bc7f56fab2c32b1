//! Routes that a record keeps: where they were moved to, nothing else describes them once they are
//! deleted.

use crate::hex;
use crate::net::netlink::{Link, RouteEntry};

/// The routes for a record: each as a request adds it, in hexadecimal digits.
pub fn keep<'r>(routes: impl IntoIterator<Item = &'r RouteEntry>) -> Vec<String> {
    routes.into_iter().map(|route| hex::encode(&route.to_octets())).collect()
}

/// The routes of a record that are through this link.
pub fn read(kept: &[String], link: &Link) -> Vec<RouteEntry> {
    let octets = kept.iter().filter_map(|digits| hex::decode(digits));
    octets.filter_map(|octets| RouteEntry::from_octets(&octets, link)).collect()
}

/// Whether one of the routes leads to the same place, by the same table.
pub fn has(routes: &[RouteEntry], wanted: &RouteEntry) -> bool {
    let is_it = |route: &RouteEntry| route.table == wanted.table && route.dst == wanted.dst;
    routes.iter().any(|route| is_it(route) && route.gateways() == wanted.gateways())
}
