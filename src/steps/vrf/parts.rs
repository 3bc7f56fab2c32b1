//! What the membership of a VRF consists of: CHECK compares it, and a repair makes it again.

use super::{Joined, Port, Vrf, Wanted, has_master, join, records};
use crate::cni::result::{AddResult, Route};
use crate::error::{Code, Error, ErrorList, Result};
use crate::net::netlink::{Link, RouteEntry};
use crate::plugin::Attachment;
use crate::plugin::part::{Part, Parts, Target};
use crate::repair::Repairs;
use crate::rollback::{Rollback, transaction};
use crate::steps::addresses::{self, Inside};
use crate::steps::{kept_routes, prev_result, routing_table};

/// Compares VRF, interface, addresses and routes with those that ADD made of the result.
pub fn check(on: Target<'_>, wanted: &Wanted<'_>, result: &AddResult) -> Result<()> {
    let mut found = ErrorList::default();
    if let Some((link, index)) = prev_result::see(on.at, result, None, &mut found) {
        let routes = recorded_routes(on.at, &link);
        let kept = routes.as_ref().cloned().unwrap_or_default();
        let inside = Some((result, index));
        if let Some(seen) = found.push(Seen::read(on, wanted, link, kept, inside)) {
            found.push(seen.parts().compare(on));
        }
        found.push(routes);
    }
    found.finish()
}

/// Restores the membership of the interface, the VRF and the routes that the record keeps. Fails if
/// the interface has another master, which is the container's choice.
pub fn repair(on: Target<'_>, wanted: &Wanted<'_>, repairs: &Repairs) -> Result<()> {
    let link = on.at.netlink()?.link(on.at.ifname())?;
    let kept = recorded_routes(on.at, &link)?;
    let seen = Seen::read(on, wanted, link, kept, None)?;
    let vrf = seen.vrf.clone().transpose()?;
    let link = &seen.port.link;
    match link.master.filter(|master| vrf.is_none_or(|vrf| vrf.index != *master)) {
        Some(other) => Err(has_master(link, &other.to_string())),
        None => seen.parts().repair(on, repairs),
    }
}

/// The routes that the record of this namespace keeps.
fn recorded_routes(at: &Attachment, link: &Link) -> Result<Vec<RouteEntry>> {
    match records().find::<Joined>(&at.key)? {
        Some(record) if record.is_of(at.netns()?)? => match record.kept {
            Joined::Member { routes, .. } => Ok(kept_routes::read(&routes, link)),
            Joined::Creating { .. } | Joined::Refused { .. } => Ok(vec![]),
        },
        _ => Ok(vec![]),
    }
}

/// The interface and the VRF as they were found.
struct Seen<'p, 'a> {
    wanted: &'p Wanted<'p>,
    /// The interface with the routes of its record.
    port: Port<'a>,
    /// The VRF, if the container has one; an error if it is another than the wanted one.
    vrf: Option<Result<Vrf>>,
    /// The routes of the interface.
    present: Result<Vec<RouteEntry>>,
    /// For CHECK: the result as [`moved`] returns it, and the index of the interface there.
    inside: Option<(AddResult, usize)>,
}

impl<'p, 'a> Seen<'p, 'a> {
    fn read(
        Target { cx, at }: Target<'a>,
        wanted: &'p Wanted<'p>,
        link: Link,
        routes: Vec<RouteEntry>,
        inside: Option<(&AddResult, usize)>,
    ) -> Result<Seen<'p, 'a>> {
        let container = at.netlink()?;
        let vrf = container.find_link(wanted.name)?.map(|vrf| wanted.accept(&vrf));
        let present = if routes.is_empty() { Ok(vec![]) } else { container.routes_through(&link) };
        let table = vrf.as_ref().and_then(|vrf| Some(vrf.as_ref().ok()?.table));
        let inside = inside.zip(table);
        let inside = inside.map(|((result, index), table)| (moved(result, table, &routes), index));
        let port = Port { at, container, link, addresses: vec![], routes, deadline: cx.deadline() };
        Ok(Seen { wanted, port, vrf, present, inside })
    }

    /// Whether the interface is in the VRF.
    fn is_joined(&self) -> bool {
        matches!(&self.vrf, Some(Ok(vrf)) if self.port.link.master == Some(vrf.index))
    }

    fn parts(&self) -> Parts<'_, 'a> {
        let mut parts = Parts::default();
        parts.push(Membership { seen: self });
        if let Some(Ok(vrf)) = self.vrf {
            parts.push(Up { seen: self, vrf });
            let kept = self.port.routes.iter();
            parts.extend(kept.map(|route| Moved { seen: self, route: route.in_table(vrf.table) }));
            parts.extend(self.inside.iter().map(|(result, index)| {
                let found = Some((&self.port.link, *index));
                Inside { result, wiring: None, found }
            }));
        }
        parts
    }
}

/// The result with its routes in the tables where they are now, without those that the record keeps.
fn moved(result: &AddResult, table: u32, kept: &[RouteEntry]) -> AddResult {
    let mut result = result.clone();
    let is_moved = |route: &Route| {
        route.table.is_none_or(|table| [0, routing_table::MAIN.into()].contains(&table))
    };
    let is_kept = |route: &Route| kept.iter().any(|kept| kept.dst == route.dst.trunc());
    result.routes.retain(|route| !is_moved(route) || !is_kept(route));
    for route in result.routes.iter_mut().filter(|route| is_moved(route)) {
        route.table = Some(table.into());
    }
    result
}

/// The VRF with the interface as its port.
struct Membership<'p, 'a> {
    seen: &'p Seen<'p, 'a>,
}

impl<'a> Part<'a> for Membership<'_, 'a> {
    fn name(&self) -> &'static str {
        "vrf"
    }

    fn what(&self) -> String {
        let Seen { wanted, port, .. } = self.seen;
        format!("put {:?} into VRF {:?} in the container", port.link.name, wanted.name)
    }

    fn make(&self, on: Target<'a>, rb: &mut Rollback<'a>) -> Result<()> {
        join(on.cx, on.at, self.seen.wanted, rb)
    }

    /// The routes of the record were lost when the interface left the VRF.
    fn make_again(&self, on: Target<'a>, _: &mut Rollback<'a>) -> Result<()> {
        let Seen { wanted, port, .. } = self.seen;
        transaction(|rb| self.make(on, rb))?;
        let vrf = wanted.accept(&port.container.link(wanted.name)?)?;
        port.put_back_routes(Some(vrf.table))?;
        records().write(on.at, &port.member_of(vrf))
    }

    fn compare(&self, _: Target<'a>) -> Result<()> {
        let Seen { wanted, port, vrf, .. } = self.seen;
        let name = wanted.name;
        match vrf {
            None => Err(Error::check(format!("VRF {name:?} not found"))),
            Some(Err(other)) => Err(other.clone().with_code(Code::CHECK_FAILED)),
            Some(Ok(_)) if self.seen.is_joined() => Ok(()),
            Some(Ok(_)) => {
                let ifname = &port.link.name;
                Err(Error::check(format!("failed to find {ifname} associated to vrf {name}")))
            }
        }
    }

    fn is_base(&self) -> bool {
        true
    }
}

/// The VRF, up.
struct Up<'p, 'a> {
    seen: &'p Seen<'p, 'a>,
    vrf: Vrf,
}

impl<'a> Part<'a> for Up<'_, 'a> {
    fn name(&self) -> &'static str {
        "vrf up"
    }

    fn what(&self) -> String {
        format!("set VRF {:?} up in the container", self.seen.wanted.name)
    }

    /// For a repair: ADD creates it so.
    fn make(&self, _: Target<'a>, _: &mut Rollback<'a>) -> Result<()> {
        let container = self.seen.port.container;
        container.set_up(&container.link(self.seen.wanted.name)?)
    }

    fn compare(&self, _: Target<'a>) -> Result<()> {
        match self.vrf.is_down {
            true => Err(Error::check(format!("VRF {:?} is down", self.seen.wanted.name))),
            false => Ok(()),
        }
    }
}

/// A route that ADD moved to the VRF's table.
struct Moved<'p, 'a> {
    seen: &'p Seen<'p, 'a>,
    route: RouteEntry,
}

impl<'a> Part<'a> for Moved<'_, 'a> {
    fn name(&self) -> &'static str {
        "vrf route"
    }

    fn what(&self) -> String {
        let RouteEntry { dst, table, .. } = self.route;
        format!("add route {dst} to table {table} in the container")
    }

    /// For a repair: ADD moves all of them with the interface.
    fn make(&self, _: Target<'a>, _: &mut Rollback<'a>) -> Result<()> {
        self.seen.port.put_route(&self.route)
    }

    /// An interface outside the VRF has lost them, and gets them back with the membership.
    fn compare(&self, _: Target<'a>) -> Result<()> {
        let present = self.seen.present.as_ref().map_err(Error::clone)?;
        match !self.seen.is_joined() || kept_routes::has(present, &self.route) {
            true => Ok(()),
            false => Err(addresses::missing_route(self.route.dst, &self.route.gateways())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_of_the_result_are_looked_for_where_they_are_now() {
        let route = |table| Route { table, ..Route::to("10.0.0.0/8".parse().unwrap()) };
        let routes = vec![route(None), route(Some(0)), route(Some(254)), route(Some(77))];
        let moved = moved(&AddResult { routes, ..AddResult::default() }, 10, &[]);
        assert_eq!(
            moved.routes.iter().map(|route| route.table).collect::<Vec<_>>(),
            [10, 10, 10, 77].map(Some)
        );
    }
}
