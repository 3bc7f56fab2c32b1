//! `route-override`: replaces routes and gateways that the plugins before it made.
//! <https://github.com/openshift/route-override-cni>

use ipnet::IpNet;
use serde::Deserialize;

use crate::cni::conf::{ConfArgs, ValidAttachments};
use crate::cni::result::{AddResult, Route};
use crate::error::{Aspect, Error, ErrorList, Result};
use crate::family::Family;
use crate::net::netlink::{self, Link, Netlink, RouteEntry, Scope};
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin, PluginConf};
use crate::repair::Repairs;
use crate::rollback::{Rollback, transaction};
use crate::steps::routes::{self, is_link_local};
use crate::steps::{addresses, prev_result};

/// The `route-override` plugin.
pub struct RouteOverride;

/// The configuration of `route-override`; `KEYS` describes the keys.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Conf {
    flushroutes: bool,
    flushgateway: bool,
    delroutes: Vec<Route>,
    addroutes: Vec<Route>,
    skipcheck: bool,
    args: ConfArgs<Overrides>,
}

/// The keys of the configuration that the network's user replaces, lists as a whole. The original
/// crashes where `args` has no `cni`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Overrides {
    flushroutes: Option<bool>,
    flushgateway: Option<bool>,
    delroutes: Option<Vec<Route>>,
    addroutes: Option<Vec<Route>>,
    skipcheck: Option<bool>,
}

impl PluginConf for Conf {
    const KEYS: &'static [&'static str] = &[
        "flushroutes | boolean | false | Removes the routes of the interfaces from the main table, except those of scope link, those to link-local destinations, and those to a subnet without a gateway. The result's routes of that table leave with them.
        flushgateway | boolean | false | Removes the default routes of the interfaces, and from the result the gateways of the addresses.
        delroutes | list | none | Removes routes by destination, also those that no result lists.
        delroutes[].dst | subnet | required | The destination. Host bits do not count.
        delroutes[].table | integer | main | The table that it is removed from.
        delroutes[].gw | address | none | No effect, as in the original: the destination counts.
        delroutes[].gws | list of addresses | none | No effect.
        delroutes[].mtu | integer | 0 | No effect.
        delroutes[].advmss | integer | 0 | No effect.
        delroutes[].priority | integer | 0 | No effect.
        delroutes[].scope | integer | 0 | No effect.
        addroutes | list | none | Adds routes by the first interface. One that is there exactly so is left as it is.
        addroutes[].dst | subnet | required | The destination, without host bits.
        addroutes[].gw | address | none | The next hop. Without it the destination is on the link.
        addroutes[].gws | list of addresses | none | Several next hops: with `gw` they are one multipath route. [Results](host-local.md#result) leave it out.
        addroutes[].mtu | integer | 0 | The MTU along the route; 0 for none.
        addroutes[].advmss | integer | 0 | The TCP segment size to advertise; 0 for none.
        addroutes[].priority | integer | 0 | The metric; 0 leaves it to the kernel.
        addroutes[].table | integer | main | The routing table.
        addroutes[].scope | integer | 0 | The scope, 0 to 255: 0 global, 253 link.
        skipcheck | boolean | false | CHECK succeeds without looking.
        args.cni.flushroutes | boolean | none | In place of `flushroutes`.
        args.cni.flushgateway | boolean | none | In place of `flushgateway`.
        args.cni.delroutes | list | none | In place of `delroutes`, as a whole.
        args.cni.delroutes[].dst | subnet | required | As `delroutes[].dst`.
        args.cni.delroutes[].gw | address | none | As `delroutes[].gw`.
        args.cni.delroutes[].gws | list of addresses | none | As `delroutes[].gws`.
        args.cni.delroutes[].mtu | integer | 0 | As `delroutes[].mtu`.
        args.cni.delroutes[].advmss | integer | 0 | As `delroutes[].advmss`.
        args.cni.delroutes[].priority | integer | 0 | As `delroutes[].priority`.
        args.cni.delroutes[].table | integer | main | As `delroutes[].table`.
        args.cni.delroutes[].scope | integer | 0 | As `delroutes[].scope`.
        args.cni.addroutes | list | none | In place of `addroutes`, as a whole.
        args.cni.addroutes[].dst | subnet | required | As `addroutes[].dst`.
        args.cni.addroutes[].gw | address | none | As `addroutes[].gw`.
        args.cni.addroutes[].gws | list of addresses | none | As `addroutes[].gws`.
        args.cni.addroutes[].mtu | integer | 0 | As `addroutes[].mtu`.
        args.cni.addroutes[].advmss | integer | 0 | As `addroutes[].advmss`.
        args.cni.addroutes[].priority | integer | 0 | As `addroutes[].priority`.
        args.cni.addroutes[].table | integer | main | As `addroutes[].table`.
        args.cni.addroutes[].scope | integer | 0 | As `addroutes[].scope`.
        args.cni.skipcheck | boolean | none | In place of `skipcheck`.",
    ];

    fn validate(&mut self, _cx: &Context<'_>) -> Result<()> {
        self.wishes().map(drop)
    }
}

impl Plugin for RouteOverride {
    const NAME: &'static str = "route-override";
    const KIND: Kind = Kind::Meta;
    const ABOUT: &'static str = "replaces routes that the plugins before it made";
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let result = prev_result::require_chained(cx, "Required prevResult missing")?;
        let wishes = conf.wishes()?;
        transaction(|rb| create(at, &wishes, &result, rb))?;
        Ok(wishes.put_into(result, conf.addroutes().1))
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        if conf.args.cni.skipcheck.unwrap_or(conf.skipcheck) {
            return Ok(());
        }
        verify(at, &conf.wishes()?, &prev_result::require(cx)?)
    }

    /// Nothing: the routes go with the interface.
    fn del(_cx: &Context<'_>, _conf: &Conf, _at: &Detachment) -> Result<()> {
        Ok(())
    }

    fn status(_cx: &Context<'_>, _conf: &Conf) -> Result<()> {
        Ok(())
    }

    fn gc(_cx: &Context<'_>, _conf: &Conf, _valid: &ValidAttachments) -> Result<()> {
        Ok(())
    }

    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        repair(at, &conf.wishes()?, &prev_result::require(cx)?, repairs)
    }
}

impl Conf {
    /// The routes to add, with their key.
    fn addroutes(&self) -> (&'static str, &[Route]) {
        match &self.args.cni.addroutes {
            Some(routes) => ("args.cni.addroutes", routes),
            None => ("addroutes", &self.addroutes),
        }
    }

    fn wishes(&self) -> Result<Wishes> {
        let asked = &self.args.cni;
        let (path, deleted) = match &asked.delroutes {
            Some(routes) => ("args.cni.delroutes", routes),
            None => ("delroutes", &self.delroutes),
        };
        // Of these only the destination and the table count.
        let bare = |route: &Route| Route { table: route.table, ..Route::to(route.dst.trunc()) };
        let deleted = planned(path, &deleted.iter().map(bare).collect::<Vec<_>>())?;
        let (path, added) = self.addroutes();
        Ok(Wishes {
            flush_routes: asked.flushroutes.unwrap_or(self.flushroutes),
            flush_gateway: asked.flushgateway.unwrap_or(self.flushgateway),
            deleted,
            added: planned(path, added)?,
        })
    }
}

/// The routes as the kernel takes them. One without a gateway is on the link.
fn planned(path: &str, routes: &[Route]) -> Result<Vec<netlink::Route>> {
    let each = routes.iter().enumerate();
    each.map(|(at, route)| addresses::plan(&format!("{path}[{at}]"), route, &[])).collect()
}

/// What to replace.
#[derive(Debug, Default)]
struct Wishes {
    /// Whether all routes leave that lead beyond the links.
    pub flush_routes: bool,
    /// Whether the default routes leave, and the gateways of the result.
    pub flush_gateway: bool,
    /// The routes to leave, by destination and table.
    pub deleted: Vec<netlink::Route>,
    /// The routes to add.
    pub added: Vec<netlink::Route>,
}

/// Changes the routes in the container.
fn create<'a>(
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
    fn added_by(&self, link: &Link, links: &[Link]) -> &[netlink::Route] {
        let is_first = links.first().is_some_and(|first| first.index == link.index);
        if is_first { &self.added } else { &[] }
    }

    /// The result after the changes. `routes` are those that are added, as configured.
    pub fn put_into(&self, mut result: AddResult, routes: &[Route]) -> AddResult {
        result.routes.retain(|route| !self.drops(route));
        result.routes.extend_from_slice(routes);
        if self.flush_gateway {
            // The original writes 0.0.0.0, which a later reader takes for a gateway.
            result.ips.iter_mut().for_each(|ip| ip.gateway = None);
        }
        result
    }

    /// Whether a route of the earlier plugins' result leaves.
    fn drops(&self, route: &Route) -> bool {
        let dst = route.dst.trunc();
        let is_same =
            |deleted: &netlink::Route| deleted.dst == dst && has_table(route, deleted.table);
        let is_in_main = has_table(route, None);
        self.deleted.iter().any(is_same)
            || (self.flush_routes && is_in_main)
            || (self.flush_gateway && is_in_main && is_default(&dst))
    }
}

/// Whether a route of a result is in the table; None is the main one.
fn has_table(route: &Route, table: Option<u32>) -> bool {
    let named = route.table.filter(|named| ![0, MAIN].contains(named));
    named == table.map(i64::from).filter(|table| *table != MAIN)
}

/// RT_TABLE_MAIN.
const MAIN: i64 = 254;

fn is_default(dst: &IpNet) -> bool {
    *dst == Family::of_net(*dst).whole()
}

/// Compares the container's routes with what ADD made of them.
fn verify(at: &Attachment, wishes: &Wishes, result: &AddResult) -> Result<()> {
    let container = at.netlink()?;
    let links = links(container, at, result)?;
    let mut found = ErrorList::default();
    let is_listed = |route: &RouteEntry| {
        let gateways = route.gateways();
        result.routes.iter().any(|listed| {
            route.dst == listed.dst.trunc()
                && has_table(listed, Some(route.table))
                && listed.gateways().iter().all(|gateway| gateways.contains(gateway))
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
fn is_any(added: &[netlink::Route], route: &RouteEntry) -> bool {
    added.iter().any(|added| added.is(route))
}

/// The added routes that are not there as they were added.
fn lost<'r>(
    present: &'r [RouteEntry],
    added: &'r [netlink::Route],
) -> impl Iterator<Item = &'r netlink::Route> {
    added.iter().filter(move |route| !present.iter().any(|found| route.is(found)))
}

/// Adds the routes again that ADD added and that are missing. Routes that it removed stay where they
/// are back: a repair deletes nothing in a container.
fn repair(at: &Attachment, wishes: &Wishes, result: &AddResult, repairs: &Repairs) -> Result<()> {
    let container = at.netlink()?;
    let links = links(container, at, result)?;
    let Some(first) = links.first() else { return Ok(()) };
    let present = container.routes_through(first)?;
    lost(&present, &wishes.added).try_for_each(|route| {
        let what = format_args!("add route {} in the container", route.dst);
        repairs.make(what, || container.add_only_route(first, route))
    })
}
