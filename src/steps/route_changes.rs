//! Routes of a container that an ADD deletes and adds, each with its undo, and those that a record
//! keeps: where they were moved to, nothing else describes them once they are deleted.

use ipnet::IpNet;

use crate::error::{Code, Result};
use crate::hex;
use crate::net::netlink::{Link, Netlink, Route, RouteEntry};
use crate::rollback::Rollback;

/// Deletes routes of the link.
pub fn delete<'a>(
    container: &'a Netlink,
    link: &Link,
    mut routes: Vec<RouteEntry>,
    rb: &mut Rollback<'a>,
) -> Result<()> {
    // In reverse order: the rollback, in reverse again, restores each route after those that its
    // gateway is reached by.
    RouteEntry::sort_by_dependence(&mut routes);
    for route in routes.into_iter().rev() {
        container.delete_route(link, &route)?;
        let (what, link) = (format!("put back route {}", route.dst), link.clone());
        rb.undo(what, move || container.put_route(&link, &route));
    }
    Ok(())
}

/// Adds a route unless the link has exactly this one.
pub fn add<'a>(
    container: &'a Netlink,
    link: &Link,
    route: Route,
    rb: &mut Rollback<'a>,
) -> Result<()> {
    if container.routes_through(link)?.iter().any(|found| route.is(found)) {
        return Ok(());
    }
    container.add_only_route(link, &route).map_err(|e| match e.is_exists() {
        true => e.with_code(Code::CONFLICT).with_details(format_args!(
            "another route to {} has this metric: delete it, or give this one another priority",
            route.dst
        )),
        false => e,
    })?;
    let link = link.clone();
    let what = format!("delete route {}", route.dst);
    rb.undo(what, move || container.remove_route(&link, &route));
    Ok(())
}

/// Link-local destinations are distinguished by the interface that the sender names; the kernel
/// itself needs them in the main table.
pub fn is_link_local(dst: &IpNet) -> bool {
    matches!(dst, IpNet::V6(dst) if dst.addr().is_unicast_link_local())
}

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
