//! Routes and gateways of earlier plugins that a later one replaces, in the kernel and in the
//! result.

use ipnet::IpNet;

use crate::cni::result::{self, AddResult};
use crate::error::{Aspect, Error, ErrorList, Result};
use crate::family::Family;
use crate::net::netlink::{Link, Netlink, Route, RouteEntry, Scope};
use crate::plugin::Attachment;
use crate::repair::Repairs;
use crate::rollback::Rollback;
use crate::steps::addresses;
use crate::steps::routes::{self, is_link_local};

/// What to replace.
#[derive(Debug, Default)]
pub struct Wishes {
    /// Whether all routes leave that lead beyond the links.
    pub flush_routes: bool,
    /// Whether the default routes leave, and the gateways of the result.
    pub flush_gateway: bool,
    /// The routes to leave, by destination and table.
    pub deleted: Vec<Route>,
    /// The routes to add.
    pub added: Vec<Route>,
}

/// Changes the routes in the container.
pub fn create<'a>(
    at: &'a Attachment,
    wishes: &Wishes,
    result: &AddResult,
    rb: &mut Rollback<'a>,
) -> Result<()> {
    let container = at.netlink()?;
    let links = links(container, at, result)?;
    for link in &links {
        let mut leaving = container.routes_through(link)?;
        leaving.retain(|route| {
            wishes.has_leave(route) && !is_any(wishes.added_by(link, &links), route)
        });
        routes::delete(container, link, leaving, rb)?;
    }
    let Some(first) = links.first() else { return Ok(()) };
    for route in &wishes.added {
        routes::add(container, first, route.clone(), rb)?;
    }
    Ok(())
}

/// The container's interfaces of the result, or its one interface if it names none.
fn links(container: &Netlink, at: &Attachment, result: &AddResult) -> Result<Vec<Link>> {
    let inside = result.interfaces.iter().filter(|interface| !interface.sandbox.is_empty());
    let mut names: Vec<&str> = inside.map(|interface| interface.name.as_str()).collect();
    if names.is_empty() {
        names.push(at.ifname());
    }
    names.into_iter().map(|name| container.link(name)).collect()
}

impl Wishes {
    /// Whether a route of the kernel leaves.
    fn has_leave(&self, route: &RouteEntry) -> bool {
        // A flush leaves what leads to the link's own subnets.
        let is_on_link = route.scope() == Scope::LINK
            || is_link_local(&route.dst)
            || (!is_default(&route.dst) && route.gateways().is_empty());
        self.deleted.iter().any(|deleted| deleted.is_to(route))
            || (self.flush_routes && route.is_in_main() && !is_on_link)
            || (self.flush_gateway && route.is_in_main() && is_default(&route.dst))
    }

    /// The routes that are added by this one of the links: the first has them all.
    fn added_by(&self, link: &Link, links: &[Link]) -> &[Route] {
        let is_first = links.first().is_some_and(|first| first.index == link.index);
        if is_first { &self.added } else { &[] }
    }

    /// The result after the changes. `routes` are those that are added, as configured.
    pub fn put_into(&self, mut result: AddResult, routes: &[result::Route]) -> AddResult {
        result.routes.retain(|route| !self.drops(route));
        result.routes.extend_from_slice(routes);
        if self.flush_gateway {
            // The original writes 0.0.0.0, which a later reader takes for a gateway.
            result.ips.iter_mut().for_each(|ip| ip.gateway = None);
        }
        result
    }

    /// Whether a route of the earlier plugins' result leaves.
    fn drops(&self, route: &result::Route) -> bool {
        let dst = route.dst.trunc();
        let is_same = |deleted: &Route| deleted.dst == dst && has_table(route, deleted.table);
        let is_in_main = has_table(route, None);
        self.deleted.iter().any(is_same)
            || (self.flush_routes && is_in_main)
            || (self.flush_gateway && is_in_main && is_default(&dst))
    }
}

/// Whether a route of a result is in the table; None is the main one.
fn has_table(route: &result::Route, table: Option<u32>) -> bool {
    let named = route.table.filter(|named| ![0, MAIN].contains(named));
    named == table.map(i64::from).filter(|table| *table != MAIN)
}

/// RT_TABLE_MAIN.
const MAIN: i64 = 254;

fn is_default(dst: &IpNet) -> bool {
    *dst == Family::of_net(*dst).whole()
}

/// Compares the container's routes with what ADD made of them.
pub fn verify(at: &Attachment, wishes: &Wishes, result: &AddResult) -> Result<()> {
    let container = at.netlink()?;
    let links = links(container, at, result)?;
    let mut found = ErrorList::default();
    let is_listed = |route: &RouteEntry| {
        let gateways = route.gateways();
        result.routes.iter().any(|listed| {
            route.dst == listed.dst.trunc()
                && has_table(listed, Some(route.table))
                && listed.next_hops().iter().all(|gateway| gateways.contains(gateway))
        })
    };
    for link in &links {
        let present = container.routes_through(link)?;
        let added = wishes.added_by(link, &links);
        // Routes that left and are back, except those that this or a later plugin added.
        for route in present.iter().filter(|route| wishes.has_leave(route)) {
            if !is_any(added, route) && !is_listed(route) {
                let via: String = route.gateways().iter().map(|ip| format!(" via {ip}")).collect();
                let problem = format!("route is not removed: {}{via}", route.dst);
                found.add(Error::check(problem));
            }
        }
        for route in lost(&present, added) {
            let via: String = route.gateways().map(|ip| format!(" via {ip}")).collect();
            let problem = format!("route is not as it was added: {}{via}", route.dst);
            found.add(Error::check(problem).about(&Aspect::Route(route.dst)));
        }
    }
    found.push(addresses::verify_routes(container, &result.routes));
    found.finish()
}

/// Whether one of the added routes is there as it was added.
fn is_any(added: &[Route], route: &RouteEntry) -> bool {
    added.iter().any(|added| added.is(route))
}

/// The added routes that are not there as they were added.
fn lost<'r>(present: &'r [RouteEntry], added: &'r [Route]) -> impl Iterator<Item = &'r Route> {
    added.iter().filter(move |route| !present.iter().any(|found| route.is(found)))
}

/// Adds the routes again that ADD added and that are missing. Routes that it removed stay where they
/// are back: a repair deletes nothing in a container.
pub fn repair(
    at: &Attachment,
    wishes: &Wishes,
    result: &AddResult,
    repairs: &Repairs,
) -> Result<()> {
    let container = at.netlink()?;
    let links = links(container, at, result)?;
    let Some(first) = links.first() else { return Ok(()) };
    let present = container.routes_through(first)?;
    lost(&present, &wishes.added).try_for_each(|route| {
        let what = format_args!("add route {} in the container", route.dst);
        repairs.make(what, || container.add_only_route(first, route))
    })
}
