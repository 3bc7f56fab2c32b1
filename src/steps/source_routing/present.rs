//! CHECK: the rules and tables of an interface's addresses, as they are now.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Wishes, addresses, hints, is_same_family};
use crate::cni::result::{AddResult, IpConfig};
use crate::error::{Error, ErrorList, Result};
use crate::family::Family;
use crate::net::netlink::{FoundRoute, Link, RouteEntry, Rule};
use crate::plugin::Attachment;

/// Compares rules and tables with those that ADD makes of the result.
pub fn verify(at: &Attachment, result: &AddResult, wishes: &Wishes) -> Result<()> {
    let result = wishes.put_into(result);
    let ips = addresses(&result, at.ifname())?;
    let present = Present::read(at, wishes)?;
    let configured = wishes.table;
    let mut found = ErrorList::default();
    for ip in &ips {
        let table = found.push(present.verify_rule(ip, configured));
        if let Some(table) = table.filter(|_| configured.is_none()) {
            found.push(present.verify_table(ip, table));
        }
    }
    if configured.is_none() {
        found.push(present.verify_main(&result, &ips));
    }
    found.finish()
}

/// What the container has.
pub struct Present<'a> {
    wishes: &'a Wishes,
    pub link: Link,
    rules: Vec<Rule>,
    /// The routes of the interface.
    pub of_link: Vec<RouteEntry>,
    /// All routes.
    routes: Vec<FoundRoute>,
}

impl Present<'_> {
    pub fn read<'a>(at: &Attachment, wishes: &'a Wishes) -> Result<Present<'a>> {
        let container = at.netlink()?;
        let Some(link) = container.find_link(at.ifname())? else {
            return Err(Error::check(format!("interface {:?} not found", at.ifname())));
        };
        let rules = container.rules()?;
        let of_link = container.routes_through(&link)?;
        Ok(Present { wishes, link, rules, of_link, routes: container.routes()? })
    }

    /// Verifies that a rule leads from the address to the configured table, or to any; returns the
    /// table.
    fn verify_rule(&self, ip: &IpConfig, configured: Option<u32>) -> Result<u32> {
        let missing = || missing_rule(ip.address.addr(), configured);
        self.table_of(ip, configured).ok_or_else(missing)
    }

    /// The table that a rule leads to from the address: the configured one, or any.
    pub fn table_of(&self, ip: &IpConfig, configured: Option<u32>) -> Option<u32> {
        let source = ip.address.addr();
        let mut of_source = self.rules.iter().filter(|rule| rule.source == Some(source));
        let found = of_source.find(|rule| configured.is_none_or(|table| rule.table == table));
        found.map(|rule| rule.table)
    }

    /// Verifies that the table has routes of the interface, and a default route if the address has
    /// a gateway.
    fn verify_table(&self, ip: &IpConfig, table: u32) -> Result<()> {
        let mut in_table = self.of_link.iter().filter(|route| route.table == table);
        if !in_table.any(|route| is_same_family(ip, route)) {
            return Err(incomplete(table, ip, "no route of the interface"));
        }
        match ip.gateway {
            Some(gateway) if !self.has_default_route(ip, table) => {
                Err(incomplete(table, ip, &format!("no default route through {gateway}")))
            }
            _ => Ok(()),
        }
    }

    /// Whether the table has a default route: by any gateway, unless the configuration has one.
    pub fn has_default_route(&self, ip: &IpConfig, table: u32) -> bool {
        let default = Family::of_net(ip.address).whole();
        let gateway = self.wishes.gateway_for(ip);
        let mut routes =
            self.routes.iter().filter(|route| route.table == table && route.dst == default);
        routes.any(|route| gateway.is_none_or(|gateway| route.gateways.contains(&gateway)))
    }

    /// Verifies that no route of the result came back to the main table, as happens when the
    /// interface is set down and up, and that the routes with source hints are there.
    fn verify_main(&self, result: &AddResult, ips: &[&IpConfig]) -> Result<()> {
        let hinted = self.wishes.source_hints;
        let is_back = |route: &&RouteEntry| {
            is_of_result(&route.dst, result, ips) && !(hinted && hints::is_hint(route, ips))
        };
        let in_main = self.of_link.iter().filter(|route| route.is_in_main());
        let back = ErrorList::of(in_main.filter(is_back).map(|route| Err(in_main_table(route))));
        let missing = if hinted { hints::verify(&self.of_link, ips) } else { Ok(()) };
        ErrorList::of([back, missing])
    }
}

fn in_main_table(route: &RouteEntry) -> Error {
    Error::check(format!("route {} is in the main table", route.dst))
}

pub fn missing_rule(source: IpAddr, configured: Option<u32>) -> Error {
    let table = configured.map_or("a table".to_owned(), |table| format!("table {table}"));
    Error::check(format!("no rule leads what {source} sends to {table}"))
}

fn incomplete(table: u32, ip: &IpConfig, problem: &str) -> Error {
    Error::check(format!("table {table} of address {} has {problem}", ip.address.addr()))
}

fn is_of_result(dst: &IpNet, result: &AddResult, ips: &[&IpConfig]) -> bool {
    ips.iter().any(|ip| ip.address.trunc() == *dst)
        || result.routes.iter().any(|route| route.dst.trunc() == *dst)
}
