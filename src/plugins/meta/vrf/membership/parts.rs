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
use crate::steps::prev_result;
use crate::steps::routes::{self, is_link_local};

/// Compares VRF, interface, addresses and routes with those that ADD made of the result.
pub fn check(on: Target<'_>, wanted: &Wanted<'_>, result: &AddResult) -> Result<()> {
    let mut found = ErrorList::default();
    if let Some((link, index)) = prev_result::see(on.at, result, None, &mut found) {
        let kept = recorded_routes(on.at, &link);
        let seen = Seen::read(on, wanted, link, kept.clone().unwrap_or_default());
        if let Some(seen) = found.push(seen) {
            let vrf = seen.vrf.as_ref().ok().copied().flatten();
            let result = vrf.map(|vrf| moved(result, vrf.table, &seen.port.routes));
            let found_at = Some((&seen.port.link, index));
            let mut parts = seen.parts();
            parts.extend(
                "addresses and routes",
                result.iter().map(|result| Inside { result, wiring: None, found: found_at }),
            );
            found.push(parts.compare(on));
        }
        found.push(kept);
    }
    found.finish()
}

/// Restores the membership of the interface, the VRF and the routes that the record keeps. Fails if
/// the interface has another master, which is the container's choice.
pub fn repair(on: Target<'_>, wanted: &Wanted<'_>, repairs: &Repairs) -> Result<()> {
    let link = on.at.netlink()?.link(on.at.ifname())?;
    let kept = recorded_routes(on.at, &link)?;
    let seen = Seen::read(on, wanted, link, kept)?;
    let (vrf, link) = (seen.vrf.clone()?, &seen.port.link);
    match link.master.filter(|master| vrf.is_none_or(|vrf| vrf.index != *master)) {
        Some(other) => Err(has_master(link, &other.to_string())),
        None => seen.parts().repair(on, repairs),
    }
}

/// The routes that the record of this namespace keeps.
fn recorded_routes(at: &Attachment, link: &Link) -> Result<Vec<RouteEntry>> {
    match records().find::<Joined>(&at.key)? {
        Some(record) if record.is_of(at.netns()?)? => match record.kept {
            Joined::Member { routes, .. } => Ok(routes::read(&routes, link)),
            Joined::Creating { .. } | Joined::Refused { .. } => Ok(vec![]),
        },
        _ => Ok(vec![]),
    }
}

/// The result with its routes in the tables where they are now, without those that the record keeps.
fn moved(result: &AddResult, table: u32, kept: &[RouteEntry]) -> AddResult {
    let mut result = result.clone();
    let is_moved =
        |route: &Route| route.table.is_none_or(|table| [0, routes::MAIN.into()].contains(&table));
    let is_kept = |route: &Route| kept.iter().any(|kept| kept.dst == route.dst.trunc());
    result.routes.retain(|route| !is_moved(route) || !is_kept(route));
    for route in result.routes.iter_mut().filter(|route| is_moved(route)) {
        route.table = Some(table.into());
    }
    result
}

/// The interface and the VRF as they were found.
struct Seen<'p, 'a> {
    wanted: &'p Wanted<'p>,
    /// The interface with the routes of its record.
    port: Port<'a>,
    /// The VRF, if there is one; an error if it is another than the wanted one.
    vrf: Result<Option<Vrf>>,
    /// The routes of the interface.
    present: Result<Vec<RouteEntry>>,
}

impl<'p, 'a> Seen<'p, 'a> {
    fn read(
        Target { cx, at }: Target<'a>,
        wanted: &'p Wanted<'p>,
        link: Link,
        routes: Vec<RouteEntry>,
    ) -> Result<Seen<'p, 'a>> {
        let container = at.netlink()?;
        let vrf = container.find_link(wanted.name)?.map(|vrf| wanted.accept(&vrf)).transpose();
        let present = if routes.is_empty() { Ok(vec![]) } else { container.routes_through(&link) };
        let port = Port { at, container, link, addresses: vec![], routes, deadline: cx.deadline() };
        Ok(Seen { wanted, port, vrf, present })
    }

    /// The membership precedes what follows from it.
    fn parts(&self) -> Parts<'_, 'a> {
        let mut parts = Parts::default();
        parts.push("vrf", InVrf { seen: self, of: Of::Port });
        if let Ok(Some(vrf)) = self.vrf {
            parts.push("vrf up", InVrf { seen: self, of: Of::Up });
            // The kernel has its own as long as the link has IPv6.
            let kept = self.port.routes.iter().filter(|route| !is_link_local(&route.dst));
            let kept = kept.map(|route| Of::Route(route.in_table(vrf.table)));
            parts.extend("vrf route", kept.map(|of| InVrf { seen: self, of }));
        }
        parts
    }
}

/// What ADD makes by one [`join`].
struct InVrf<'p, 'a> {
    seen: &'p Seen<'p, 'a>,
    of: Of,
}

enum Of {
    /// The VRF with the interface as its port.
    Port,
    /// The VRF, up.
    Up,
    /// A route that was moved to the VRF's table.
    Route(RouteEntry),
}

impl<'a> Part<'a> for InVrf<'_, 'a> {
    fn what(&self) -> String {
        let Seen { wanted: Wanted { name, .. }, port, .. } = self.seen;
        match &self.of {
            Of::Port => format!("put {:?} into VRF {name:?} in the container", port.link.name),
            Of::Up => format!("set VRF {name:?} up in the container"),
            Of::Route(RouteEntry { dst, table, .. }) => {
                format!("add route {dst} to table {table} in the container")
            }
        }
    }

    /// For a repair. The routes were lost when the interface left the VRF.
    fn make(&self, on: Target<'a>, _: &mut Rollback<'a>) -> Result<()> {
        let Seen { wanted, port, .. } = self.seen;
        let vrf = || port.container.link(wanted.name);
        match &self.of {
            Of::Port => {
                transaction(|rb| join(on.cx, on.at, wanted, rb))?;
                let vrf = wanted.accept(&vrf()?)?;
                port.put_back_routes(Some(vrf.table))?;
                records().write(on.at, &port.member_of(vrf))
            }
            Of::Up => port.container.set_up(&vrf()?),
            Of::Route(route) => port.put_route(route),
        }
    }

    /// An interface outside the VRF has no routes there, and gets them with the membership.
    fn compare(&self, _: Target<'a>) -> Result<()> {
        let Seen { wanted: Wanted { name, .. }, port, vrf, present } = self.seen;
        let Some(vrf) = vrf.clone().map_err(|other| other.with_code(Code::CHECK_FAILED))? else {
            return Err(Error::check(format!("VRF {name:?} not found")));
        };
        let is_joined = port.link.master == Some(vrf.index);
        match &self.of {
            Of::Port if !is_joined => {
                let ifname = &port.link.name;
                Err(Error::check(format!("failed to find {ifname} associated to vrf {name}")))
            }
            Of::Up if vrf.is_down => Err(Error::check(format!("VRF {name:?} is down"))),
            Of::Route(route) if is_joined => {
                match routes::has(present.as_ref().map_err(Error::clone)?, route) {
                    true => Ok(()),
                    false => Err(addresses::missing_route(route.dst, &route.gateways())),
                }
            }
            Of::Port | Of::Up | Of::Route(_) => Ok(()),
        }
    }

    fn is_base(&self) -> bool {
        matches!(self.of, Of::Port)
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
