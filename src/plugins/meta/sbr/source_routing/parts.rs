//! What source routing consists of: routes of the addresses' tables, rules that lead there, and what the
//! main table keeps.

use std::net::IpAddr;

use super::{
    Made, Wishes, addresses, delete_rules, empty_tables, has_rule, is_hint, is_same_family,
    missing_hints, records,
};
use crate::cni::result::{AddResult, IpConfig};
use crate::error::{Error, ErrorList, Result};
use crate::family::Family;
use crate::net::netlink::{FoundRoute, Link, Netlink, Route, RouteEntry, Rule};
use crate::plugin::Attachment;
use crate::plugin::part::{Part, Parts, Target};
use crate::repair::Repairs;
use crate::rollback::Rollback;
use crate::steps::routes;

/// Compares rules and tables with those that ADD made of the result.
pub fn check(on: Target<'_>, result: &AddResult, wishes: &Wishes) -> Result<()> {
    let result = wishes.put_into(result);
    let mut found = ErrorList::default();
    let made = recorded(on.at);
    let plan =
        Plan::find(on.at, &result, wishes, made.as_ref().unwrap_or(&Made::default()), &mut found)?;
    found.push(plan.parts().compare(on));
    found.push(made);
    found.finish()
}

/// Adds the rules and the routes that are missing, to the tables that ADD has chosen.
pub fn repair(
    on: Target<'_>,
    result: &AddResult,
    wishes: &Wishes,
    repairs: &Repairs,
) -> Result<()> {
    let result = wishes.put_into(result);
    let mut errors = ErrorList::default();
    let plan = Plan::find(on.at, &result, wishes, &recorded(on.at)?, &mut errors)?;
    errors.push(plan.parts().repair(on, repairs));
    errors.finish()
}

/// What ADD made in this namespace.
fn recorded(at: &Attachment) -> Result<Made> {
    match records().find::<Made>(&at.key)? {
        Some(record) if record.is_of(at.netns()?)? => Ok(record.kept),
        _ => Ok(Made::default()),
    }
}

/// How an interface's addresses are routed: as ADD is about to make it, or as it was made.
pub struct Plan<'p, 'a> {
    pub container: &'a Netlink,
    pub link: Link,
    /// With the gateways of the wishes.
    pub result: &'p AddResult,
    pub wishes: &'p Wishes,
    /// The addresses of the interface.
    pub ips: Vec<&'p IpConfig>,
    pub tables: Vec<Table<'p>>,
    /// The routes that ADD removes from the main table.
    pub leaving: Vec<RouteEntry>,
    /// The routes that the main table gets, or has.
    pub hints: Vec<Route>,
    /// What there is to compare with: nothing for ADD.
    pub present: Present,
}

/// The table of one address.
pub struct Table<'p> {
    pub id: u32,
    pub ip: &'p IpConfig,
    /// The routes that belong in the table, as routes of the table.
    pub routes: Vec<RouteEntry>,
}

impl Table<'_> {
    /// The rule that leads there.
    pub fn rule(&self) -> (IpAddr, u32) {
        (self.ip.address.addr(), self.id)
    }
}

/// What the container has.
#[derive(Default)]
pub struct Present {
    rules: Vec<Rule>,
    /// The routes of the interface.
    of_link: Vec<RouteEntry>,
    /// All routes.
    routes: Vec<FoundRoute>,
}

impl<'p, 'a> Plan<'p, 'a> {
    /// What ADD made. An address without a rule and without a record of its table is an error in
    /// `found`.
    fn find(
        at: &'a Attachment,
        result: &'p AddResult,
        wishes: &'p Wishes,
        made: &Made,
        found: &mut ErrorList,
    ) -> Result<Plan<'p, 'a>> {
        let ips = addresses(result, at.ifname())?;
        let container = at.netlink()?;
        let Some(link) = container.find_link(at.ifname())? else {
            return Err(Error::check(format!("interface {:?} not found", at.ifname())));
        };
        let rules = container.rules()?;
        let of_link = container.routes_through(&link)?;
        let present = Present { rules, of_link, routes: container.routes()? };
        let recorded = routes::read(&made.routes, &link);
        let mut tables = vec![];
        for ip in &ips {
            let source = ip.address.addr();
            let led = present.rules.iter().find(|rule| rule.source == Some(source));
            let made = made.rules.iter().find(|(of, _)| *of == source); // the newest come first
            let table = wishes.table.or(led.map(|rule| rule.table)).or(made.map(|rule| rule.1));
            let without = || {
                let details = "no record has the table: attach the container again";
                missing_rule(source, None).with_details(details)
            };
            if let Some(id) = found.push(table.ok_or_else(without)) {
                let mut routes = recorded.clone();
                routes.retain(|route| route.table == id && !wishes.replaces(route, ip));
                tables.push(Table { id, ip, routes });
            }
        }
        let is_hinted = wishes.source_hints && wishes.table.is_none();
        let hints = if is_hinted { missing_hints(&[], &ips) } else { vec![] };
        let leaving = vec![]; // they have left
        Ok(Plan { container, link, result, wishes, ips, tables, leaving, hints, present })
    }

    /// Each table precedes the rule that leads there.
    pub fn parts(&self) -> Parts<'_, 'a> {
        let mut parts = Parts::default();
        let has_own = self.wishes.table.is_none();
        for table in &self.tables {
            let entry = |of| Entry { plan: self, table, of };
            if has_own {
                parts.push("source table", entry(Of::Table));
                parts.extend(
                    "source table",
                    table.routes.iter().map(|route| entry(Of::Route(route))),
                );
                let has_default = table.routes.iter().any(|route| route.dst.prefix_len() == 0);
                let gateway = table.ip.gateway.filter(|_| !has_default);
                parts.extend("source table", gateway.map(|gateway| entry(Of::Gateway(gateway))));
            }
            parts.push("source rule", SourceRule { plan: self, table });
        }
        if has_own {
            parts.push("main table", LeftMain { plan: self });
        }
        parts.extend("source hint", self.hints.iter().map(|route| Hint { plan: self, route }));
        parts
    }
}

/// What belongs in a table of an address's own.
struct Entry<'p, 'a> {
    plan: &'p Plan<'p, 'a>,
    table: &'p Table<'p>,
    of: Of<'p>,
}

enum Of<'p> {
    /// Any route, if no record has those of ADD.
    Table,
    Route(&'p RouteEntry),
    /// The default route by the address's gateway, which no other route is.
    Gateway(IpAddr),
}

impl<'a> Part<'a> for Entry<'_, 'a> {
    fn what(&self) -> String {
        let id = self.table.id;
        match self.of {
            Of::Table => format!("fill table {id} in the container"),
            Of::Route(route) => format!("add route {} to table {id} in the container", route.dst),
            Of::Gateway(gateway) => {
                format!("add default route by {gateway} to table {id} in the container")
            }
        }
    }

    fn make(&self, _: Target<'a>, rb: &mut Rollback<'a>) -> Result<()> {
        let Plan { container, ref link, .. } = *self.plan;
        let id = self.table.id;
        match self.of {
            Of::Table => {
                let link = link.clone();
                rb.undo(format_args!("empty table {id}"), move || {
                    empty_tables(container, &link, &[id])
                });
                Ok(())
            }
            Of::Route(route) => container.put_route(link, route),
            Of::Gateway(gateway) => {
                let dst = Family::of(gateway).whole();
                let route = Route { gateway: Some(gateway), table: Some(id), ..Route::to(dst) };
                container.add_route(link, &route).map_err(|e| {
                    e.worded(format_args!("Failed to add default route to {gateway}"))
                        .with_details(format_args!("in table {id}, through {:?}", link.name))
                })
            }
        }
    }

    fn compare(&self, _: Target<'a>) -> Result<()> {
        let Plan { present, wishes, .. } = self.plan;
        let Table { id, ip, routes } = self.table;
        let is_of_ip = |route: &RouteEntry| route.table == *id && is_same_family(ip, route);
        let is_default = |route: &FoundRoute| {
            // By any gateway, unless the configuration has one.
            let is_by = |gateway| route.gateways.contains(&gateway);
            let default = Family::of_net(ip.address).whole();
            (route.table, route.dst) == (*id, default) && wishes.gateway_for(ip).is_none_or(is_by)
        };
        let has = match self.of {
            Of::Table if routes.is_empty() && !present.of_link.iter().any(is_of_ip) => {
                "no route of the interface".to_owned()
            }
            Of::Route(route) if !routes::has(&present.of_link, route) => {
                match route.gateways().first().filter(|_| route.dst.prefix_len() == 0) {
                    Some(gateway) => format!("no default route through {gateway}"),
                    None => format!("no route to {}", route.dst),
                }
            }
            Of::Gateway(gateway) if !present.routes.iter().any(is_default) => {
                format!("no default route through {gateway}")
            }
            Of::Table | Of::Route(_) | Of::Gateway(_) => return Ok(()),
        };
        Err(Error::check(format!("table {id} of address {} has {has}", ip.address.addr())))
    }

    fn is_repaired(&self) -> bool {
        !matches!(self.of, Of::Table)
    }
}

/// The rule that leads what an address sends to its table.
struct SourceRule<'p, 'a> {
    plan: &'p Plan<'p, 'a>,
    table: &'p Table<'p>,
}

impl<'a> Part<'a> for SourceRule<'_, 'a> {
    fn what(&self) -> String {
        let (source, table) = self.table.rule();
        format!("add rule from {source} to table {table} in the container")
    }

    fn make(&self, _: Target<'a>, rb: &mut Rollback<'a>) -> Result<()> {
        let container = self.plan.container;
        let (source, table) = self.table.rule();
        container.add_rule(source, table)?;
        rb.undo(format_args!("delete rule from {source}"), move || {
            delete_rules(container, &[(source, table)])
        });
        Ok(())
    }

    fn compare(&self, _: Target<'a>) -> Result<()> {
        let rule = self.table.rule();
        match has_rule(&self.plan.present.rules, &rule) {
            true => Ok(()),
            false => Err(missing_rule(rule.0, self.plan.wishes.table)),
        }
    }
}

fn missing_rule(source: IpAddr, configured: Option<u32>) -> Error {
    let table = configured.map_or("a table".to_owned(), |table| format!("table {table}"));
    Error::check(format!("no rule leads what {source} sends to {table}"))
}

/// The main table without the routes that have left it. They come back when the interface is set
/// down and up.
struct LeftMain<'p, 'a> {
    plan: &'p Plan<'p, 'a>,
}

impl<'a> Part<'a> for LeftMain<'_, 'a> {
    fn what(&self) -> String {
        "delete routes from the main table in the container".to_owned()
    }

    fn make(&self, _: Target<'a>, rb: &mut Rollback<'a>) -> Result<()> {
        let Plan { container, link, leaving, .. } = self.plan;
        routes::delete(container, link, leaving.clone(), rb)
    }

    fn compare(&self, _: Target<'a>) -> Result<()> {
        let Plan { present, result, wishes, ips, .. } = self.plan;
        let is_back = |route: &&RouteEntry| {
            let is_of_result = ips.iter().any(|ip| ip.address.trunc() == route.dst)
                || result.routes.iter().any(|of| of.dst.trunc() == route.dst);
            let is_hint = wishes.source_hints && is_hint(route, ips);
            route.is_in_main() && is_of_result && !is_hint
        };
        ErrorList::of(
            present.of_link.iter().filter(is_back).map(|route| {
                Err(Error::check(format!("route {} is in the main table", route.dst)))
            }),
        )
    }

    /// Nothing in a container is deleted.
    fn is_repaired(&self) -> bool {
        false
    }
}

/// A route to the subnet of an address in the main table.
struct Hint<'p, 'a> {
    plan: &'p Plan<'p, 'a>,
    route: &'p Route,
}

impl<'a> Part<'a> for Hint<'_, 'a> {
    fn what(&self) -> String {
        format!("add route {} to the main table in the container", self.route.dst)
    }

    fn make(&self, _: Target<'a>, rb: &mut Rollback<'a>) -> Result<()> {
        let container = self.plan.container;
        let (link, route) = (self.plan.link.clone(), self.route.clone());
        container.add_route(&link, &route)?;
        let what = format!("delete route {}", route.dst);
        rb.undo(what, move || container.remove_route(&link, &route));
        Ok(())
    }

    fn compare(&self, _: Target<'a>) -> Result<()> {
        let Plan { present, ips, .. } = self.plan;
        let dst = self.route.dst;
        let is_it = |route: &RouteEntry| route.dst == dst && is_hint(route, ips);
        match present.of_link.iter().any(is_it) {
            true => Ok(()),
            false => {
                Err(Error::check(format!("no route to {dst} by its address is in the main table")))
            }
        }
    }
}
