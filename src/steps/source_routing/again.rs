//! Adds again what an attachment has lost: rules, and routes of the tables that were created for its
//! addresses.

use super::present::{Present, missing_rule};
use super::{Made, OwnTable, Wishes, addresses, hints, records};
use crate::cni::result::{AddResult, IpConfig};
use crate::error::{Error, Result};
use crate::net::netlink::{Link, RouteEntry};
use crate::plugin::Attachment;
use crate::repair::Repairs;
use crate::steps::kept_routes;

/// Adds the rules and the routes that are missing, to the tables that ADD has chosen. Fails for an
/// address without a rule if no record has its table.
pub fn repair(
    at: &Attachment,
    result: &AddResult,
    wishes: &Wishes,
    repairs: &Repairs,
) -> Result<()> {
    let result = wishes.put_into(result);
    let ips = addresses(&result, at.ifname())?;
    let loss = Loss { at, present: Present::read(at, wishes)?, made: recorded(at)?, repairs };
    ips.iter().try_for_each(|ip| loss.repair(ip, wishes.table))?;
    if wishes.table.is_some() || !wishes.source_hints {
        return Ok(());
    }
    let missing = hints::missing(&loss.present.of_link, &ips);
    hints::repair(at.netlink()?, &loss.present.link, &missing, repairs)
}

/// What ADD made in this namespace.
fn recorded(at: &Attachment) -> Result<Made> {
    match records().find::<Made>(&at.key)? {
        Some(record) if record.is_of(at.netns()?)? => Ok(record.kept),
        _ => Ok(Made::default()),
    }
}

/// What an attachment has and what it should have.
struct Loss<'a> {
    at: &'a Attachment,
    present: Present<'a>,
    made: Made,
    repairs: &'a Repairs,
}

impl Loss<'_> {
    /// Repairs what belongs to one address: first its table, then the rule that leads there.
    fn repair(&self, ip: &IpConfig, configured: Option<u32>) -> Result<()> {
        let found = self.present.table_of(ip, configured);
        let table = found.or(configured).or_else(|| self.made.table_of(ip));
        let table = table.ok_or_else(|| unknown_table(ip))?;
        if configured.is_none() {
            self.own_table(ip, table)?.refill(&self.present, self.repairs)?;
        }
        match found {
            Some(_) => Ok(()),
            None => self.add_rule(ip, table),
        }
    }

    fn own_table<'a>(&'a self, ip: &'a IpConfig, id: u32) -> Result<OwnTable<'a, 'a>> {
        let link = &self.present.link;
        let routes = self.made.routes_of(id, link);
        Ok(OwnTable { id, ip, container: self.at.netlink()?, link, routes })
    }

    fn add_rule(&self, ip: &IpConfig, table: u32) -> Result<()> {
        let source = ip.address.addr();
        let what = format_args!("add rule from {source} to table {table} in the container");
        self.repairs.make(what, || self.at.netlink()?.add_rule(source, table))
    }
}

fn unknown_table(ip: &IpConfig) -> Error {
    let error = missing_rule(ip.address.addr(), None);
    error.with_details("no record has the table: attach the container again")
}

impl Made {
    /// The table that the address's rule led to. The newest come first.
    fn table_of(&self, ip: &IpConfig) -> Option<u32> {
        let source = ip.address.addr();
        self.rules.iter().find(|(of, _)| *of == source).map(|(_, table)| *table)
    }

    /// The recorded routes of a table.
    fn routes_of(&self, table: u32, link: &Link) -> Vec<RouteEntry> {
        let mut routes = kept_routes::read(&self.routes, link);
        routes.retain(|route| route.table == table);
        routes
    }
}

impl OwnTable<'_, '_> {
    /// Adds the routes that the table has lost.
    fn refill(&self, present: &Present<'_>, repairs: &Repairs) -> Result<()> {
        for route in self.routes.iter().filter(|route| !kept_routes::has(&present.of_link, route)) {
            let what =
                format_args!("add route {} to table {} in the container", route.dst, self.id);
            repairs.make(what, || self.container.put_route(self.link, route))?;
        }
        match self.ip.gateway {
            Some(gateway) if !self.has_default_route_now(present) => {
                let id = self.id;
                let what =
                    format_args!("add default route by {gateway} to table {id} in the container");
                repairs.make(what, || self.add_default_route(gateway))
            }
            _ => Ok(()),
        }
    }

    /// Whether the table has a default route, or had one among its recorded routes.
    fn has_default_route_now(&self, present: &Present<'_>) -> bool {
        self.has_default_route() || present.has_default_route(self.ip, self.id)
    }
}
