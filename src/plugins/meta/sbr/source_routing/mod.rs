//! Routes by source address: packets from an interface's address leave by that interface.
//!
//! Each address gets a rule that leads to a table. Unless the configuration names the table, each
//! address has its own, and the interface's routes move there from the main table, where they would
//! compete with those of other interfaces.
//!
//! DEL removes the tables' routes and does not restore them in main: the interface is deleted next,
//! and a second default route for a moment would misdirect the other interfaces' packets.

mod parts;

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use self::parts::{Plan, Present, Table};
use crate::cni::conf::ValidAttachments;
use crate::cni::result::{AddResult, IpConfig};
use crate::error::{Code, Error, ErrorList, Result};
use crate::family::Family;
use crate::net::netlink::{Link, Netlink, Route, RouteEntry, Rule, Scope};
use crate::net::netns::Netns;
use crate::plugin::part::Target;
use crate::plugin::{Attachment, Context, Detachment};
use crate::rollback::Rollback;
use crate::steps::records::{Records, Site};
use crate::steps::routes::{self, Used, is_link_local};

pub use self::parts::{check, repair};

/// Where the search for a free table begins, as in the reference.
const FIRST_TABLE: u32 = 100;

/// What ADDs made, for DEL.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Made {
    /// Pairs of a source address and the table that its rule leads to.
    rules: Vec<(IpAddr, u32)>,
    /// The tables that were created too. A configured table may have routes of other owners.
    tables: Vec<u32>,
    /// The interface's ifindex, which outlasts its name.
    link: Option<u32>,
    /// The [kept routes](routes::keep) of the created tables, except default routes by the addresses' gateways.
    routes: Vec<String>,
}

fn records() -> Records {
    Records::of_plugin("sbr")
}

/// The addresses of the interface. An address of a result that does not name its interface counts.
fn addresses<'r>(result: &'r AddResult, ifname: &str) -> Result<Vec<&'r IpConfig>> {
    let interface_of = |ip: &IpConfig| result.interfaces.get(usize::try_from(ip.interface?).ok()?);
    let is_its = |ip: &&IpConfig| interface_of(ip).is_none_or(|of| of.name == ifname);
    let found: Vec<&IpConfig> = result.ips.iter().filter(is_its).collect();
    if !found.is_empty() {
        return Ok(found);
    }
    Err(Error::config("prevResult.ips", format_args!("no address is of interface {ifname:?}"))
        .with_details("sbr routes by addresses; does the plugin before it have an IPAM plugin?")
        .saying(format_args!("No IP addresses supplied on interface: {ifname}")))
}

/// Routes what the interface's addresses send by the configured table, or by a table of each
/// address's own, where the interface's routes move.
pub fn create<'a>(
    on: Target<'a>,
    result: &AddResult,
    wishes: &Wishes,
    rb: &mut Rollback<'a>,
) -> Result<()> {
    let result = &wishes.put_into(result);
    let ips = addresses(result, on.at.ifname())?;
    let container = on.at.netlink()?;
    let link = container.link(on.at.ifname())?;
    let rules = container.rules()?;
    refuse_rules(on.at, &link, &rules, &ips, wishes.table)?;
    let (mut tables, mut leaving, mut hints) = (vec![], vec![], vec![]);
    if let Some(id) = wishes.table {
        tables.extend(ips.iter().map(|ip| Table { id, ip, routes: vec![] }));
    } else {
        let mut used = Used::find(container, &rules)?;
        let ids = ips.iter().map(|_| used.take_free(FIRST_TABLE));
        let ids = ids.collect::<Result<Vec<u32>>>()?;
        leaving = container.routes_through(&link)?;
        let is_of_any = |route: &RouteEntry| ips.iter().any(|ip| is_same_family(ip, route));
        leaving.retain(|route| route.is_in_main() && is_of_any(route));
        RouteEntry::sort_by_dependence(&mut leaving);
        for (ip, id) in ips.iter().zip(ids) {
            // The address's own routes, and those that belong to no address. (The reference drops the
            // latter unless they are on the link.)
            let is_its = |route: &&RouteEntry| {
                is_same_family(ip, route)
                    && (belongs(route, ip) || !ips.iter().any(|other| belongs(route, other)))
                    && !wishes.replaces(route, ip)
            };
            let own = leaving.iter().filter(is_its);
            let routes = own.map(|route| route.in_table(id)).collect();
            tables.push(Table { id, ip, routes });
        }
        if wishes.source_hints {
            hints = missing_hints(&leaving, &ips);
            leaving.retain(|route| !is_hint(route, &ips));
        }
        leaving.retain(|route| !is_link_local(&route.dst));
    }
    let present = Present::default();
    let plan = Plan { container, link, result, wishes, ips, tables, leaving, hints, present };
    let ids = plan.tables.iter().map(|table| table.id);
    let made = Made {
        rules: plan.tables.iter().map(Table::rule).collect(),
        tables: ids.filter(|_| wishes.table.is_none()).collect(),
        link: Some(plan.link.index),
        routes: routes::keep(plan.tables.iter().flat_map(|table| &table.routes)),
    };
    remember(on.at, made, rb)?;
    plan.parts().make(on, rb)
}

fn has_rule(rules: &[Rule], (source, table): &(IpAddr, u32)) -> bool {
    rules.iter().any(|rule| rule.source == Some(*source) && rule.table == *table)
}

/// Refuses rules that exist for one of the addresses, or only those that lead to the configured
/// table: one would hide ours, or be hidden, since the kernel tries the newest first. DEL must not
/// take such a rule for one of the reference's, so a record without rules is written.
fn refuse_rules(
    at: &Attachment,
    link: &Link,
    rules: &[Rule],
    ips: &[&IpConfig],
    configured: Option<u32>,
) -> Result<()> {
    let is_in_the_way = |rule: &&Rule| {
        configured.is_none_or(|table| rule.table == table)
            && ips.iter().any(|ip| rule.source == Some(ip.address.addr()))
    };
    let Some(rule) = rules.iter().find(is_in_the_way) else { return Ok(()) };
    records().write_first(at, &Made { link: Some(link.index), ..Made::default() })?;
    let source = rule.source.map(|ip| ip.to_string()).unwrap_or_default();
    let msg = format!("address {source} has a rule already: it leads to table {}", rule.table);
    Err(Error::new(Code::CONFLICT, msg)
        .with_details("was the interface attached before, or does another have this address?"))
}

/// Adds to the record: an earlier ADD may have led the addresses to another table. A record without
/// any rule in the kernel is of before a DEL of the reference.
fn remember<'a>(at: &'a Attachment, mut made: Made, rb: &mut Rollback<'a>) -> Result<()> {
    let earlier: Option<Made> = records().read(&at.key)?;
    if let Some(earlier) = &earlier {
        let rules = at.netlink()?.rules()?;
        if earlier.rules.iter().any(|recorded| has_rule(&rules, recorded)) {
            made.rules.extend(&earlier.rules);
            made.tables.extend(&earlier.tables);
            made.routes.extend(earlier.routes.iter().cloned());
        }
    }
    records().write(at, &made)?;
    rb.undo("forget the rules", move || match earlier {
        Some(earlier) => records().write(at, &earlier),
        None => records().remove(&at.key),
    });
    Ok(())
}

fn is_same_family(ip: &IpConfig, route: &RouteEntry) -> bool {
    Family::of_net(ip.address) == Family::of_net(route.dst)
}

/// Whether a route belongs to the address's subnet, or to no subnet in particular.
fn belongs(route: &RouteEntry, ip: &IpConfig) -> bool {
    let gateways = route.gateways();
    let is_near = |other: &IpAddr| ip.address.contains(other) || ip.gateway == Some(*other);
    let has_near_gateway = gateways.iter().any(is_near);
    match route.source() {
        Some(source) => has_near_gateway || is_near(&source),
        None => is_same_family(ip, route) && (has_near_gateway || gateways.is_empty()),
    }
}

/// Removes the listed rules.
fn delete_rules(container: &Netlink, listed: &[(IpAddr, u32)]) -> Result<()> {
    let mut errors = ErrorList::default();
    for rule in container.rules()? {
        if let Some(source) = rule.source.filter(|source| listed.contains(&(*source, rule.table))) {
            errors.push(container.delete_rule(source, rule.table, rule.priority));
        }
    }
    errors.finish()
}

/// Removes the link's routes from the tables.
fn empty_tables(container: &Netlink, link: &Link, tables: &[u32]) -> Result<()> {
    if tables.is_empty() {
        return Ok(());
    }
    let mut routes = container.routes_through(link)?;
    routes.retain(|route| tables.contains(&route.table));
    ErrorList::of(routes.iter().map(|route| container.delete_route(link, route)))
}

/// Removes the rules, and the routes in tables that were created for the addresses.
pub fn delete(at: &Detachment, configured: Option<u32>) -> Result<()> {
    if let Some(netns) = &at.netns {
        let container = netns.netlink()?;
        let mut errors = ErrorList::default();
        for Leftover { mut made, link } in Leftover::find(netns, at, configured)? {
            // A later ADD for another interface of this container, which has the address now, may
            // have made the same again.
            for other in records().others_in::<Made>(Site::of(at, netns))? {
                made.rules.retain(|rule| !other.kept.rules.contains(rule));
                made.tables.retain(|table| !other.kept.tables.contains(table));
            }
            errors.push(delete_rules(container, &made.rules));
            errors.push(link.map_or(Ok(()), |link| empty_tables(container, &link, &made.tables)));
        }
        errors.finish()?;
    }
    records().remove(&at.key)
}

/// What an ADD has left for its DEL.
struct Leftover {
    made: Made,
    /// The interface, if it still exists.
    link: Option<Link>,
}

impl Leftover {
    /// What ADD made. Without a record, or if the kernel has other rules or another interface than
    /// the record says, also what the reference made: its DEL leaves the record, and its next ADD
    /// makes rules of its own.
    fn find(netns: &Netns, at: &Detachment, configured: Option<u32>) -> Result<Vec<Leftover>> {
        let container = netns.netlink()?;
        let named = container.find_link(at.key.ifname.as_str())?;
        let Some(record) = records().find::<Made>(&at.key)? else {
            let ips = known_addresses(container, named.as_ref(), at)?;
            return Ok(vec![Leftover::of_reference(container, named, &ips, configured)?]);
        };
        if !record.is_of(netns)? {
            // Deleted with its namespace. This one may be another container's: the addresses of the
            // interface prove nothing.
            let ips = addresses_of_result(at);
            return Ok(vec![Leftover::of_reference(container, named, &ips, configured)?]);
        }
        let made: Made = record.kept;
        let link =
            made.link.map(|index| container.find_link_by_index(index)).transpose()?.flatten();
        let is_replaced = link.is_none() && made.link.is_some() && named.is_some();
        let rules = container.rules()?;
        let is_whole = made.rules.iter().all(|recorded| has_rule(&rules, recorded));
        let mut found = vec![Leftover { made, link }];
        if is_replaced || !is_whole {
            let ips = known_addresses(container, named.as_ref(), at)?;
            found.push(Leftover::of_reference(container, named, &ips, configured)?);
        }
        Ok(found)
    }

    /// What the reference made: rules for these addresses that carry no signature, and tables that
    /// belong to the addresses. Such a rule leads to the configured table, or to one without routes
    /// of another interface.
    fn of_reference(
        container: &Netlink,
        link: Option<Link>,
        ips: &[IpAddr],
        configured: Option<u32>,
    ) -> Result<Leftover> {
        let (mut own, mut all) = (vec![], vec![]);
        if configured.is_none() {
            own = link.as_ref().map_or(Ok(vec![]), |link| container.routes_through(link))?;
            all = container.routes()?;
        }
        let may_be_its = |table: u32| match configured {
            Some(configured) => table == configured,
            None => {
                let of_link = own.iter().filter(|route| route.table == table).count();
                let of_all = all.iter().filter(|route| route.table == table).count();
                table >= FIRST_TABLE && table != routes::MAIN && of_all == of_link
            }
        };
        let mut rules: Vec<(IpAddr, u32)> = vec![];
        for rule in container.rules()? {
            if let Some(source) = rule.source.filter(|source| ips.contains(source))
                && !rule.is_signed
                && may_be_its(rule.table)
            {
                rules.push((source, rule.table));
            }
        }
        let tables = rules.iter().map(|(_, table)| *table).filter(|_| configured.is_none());
        let tables = tables.collect();
        Ok(Leftover { made: Made { rules, tables, ..Made::default() }, link })
    }
}

/// The addresses of the interface, and those in prevResult.
fn known_addresses(
    container: &Netlink,
    link: Option<&Link>,
    at: &Detachment,
) -> Result<Vec<IpAddr>> {
    let mut ips = addresses_of_result(at);
    if let Some(link) = link {
        ips.extend(container.addresses(link)?.iter().map(|address| address.net.addr()));
    }
    Ok(ips)
}

fn addresses_of_result(at: &Detachment) -> Vec<IpAddr> {
    let results = at.prev_result.iter();
    let found = results.filter_map(|result| addresses(result, at.key.ifname.as_str()).ok());
    found.flatten().map(|ip| ip.address.addr()).collect()
}

/// Removes the records of this network's attachments that are not valid. Their rules are in a
/// container, and disappear with it.
pub fn collect_garbage(cx: &Context<'_>, valid: &ValidAttachments) -> Result<()> {
    records().forget_stale::<Made>(&cx.config.name, valid)
}

/// How the packets of an attachment are routed by their source.
#[derive(Debug, Default)]
pub struct Wishes {
    /// The table of the rules, which is left unchanged; None for a table for each address.
    pub table: Option<u32>,
    /// The gateways that replace those of the result, at most one of each family.
    pub gateways: Vec<IpAddr>,
    /// Whether the main table keeps the routes to the addresses' subnets.
    pub source_hints: bool,
}

impl Wishes {
    /// The gateway that replaces the one of the address.
    pub fn gateway_for(&self, ip: &IpConfig) -> Option<IpAddr> {
        let family = Family::of_net(ip.address);
        self.gateways.iter().copied().find(|gateway| Family::of(*gateway) == family)
    }

    /// The result with the gateways that replace its own.
    fn put_into(&self, result: &AddResult) -> AddResult {
        let mut result = result.clone();
        for ip in &mut result.ips {
            ip.gateway = self.gateway_for(ip).or(ip.gateway);
        }
        result
    }

    /// Whether the route is a default route by another gateway than the one that replaces it.
    fn replaces(&self, route: &RouteEntry, ip: &IpConfig) -> bool {
        let is_other = |gateway| route.gateways() != [gateway];
        route.dst.prefix_len() == 0 && self.gateway_for(ip).is_some_and(is_other)
    }
}

/// Whether the route leads into the subnet of an address, and packets by it are sent from the
/// address: it stays in the main table.
fn is_hint(route: &RouteEntry, ips: &[&IpConfig]) -> bool {
    let is_for = |ip: &&IpConfig| {
        is_same_family(ip, route)
            && ip.address.trunc().contains(&route.dst)
            && route.source() == Some(ip.address.addr())
    };
    route.is_in_main() && ips.iter().any(is_for)
}

/// The routes to the addresses' subnets, one for each subnet, that are not among those present. The
/// kernel's own IPv6 route names no source, so one that does takes its place.
fn missing_hints(present: &[RouteEntry], ips: &[&IpConfig]) -> Vec<Route> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cni::result::Interface;

    #[test]
    fn addresses_of_other_interfaces_do_not_count() {
        let ip = |address: &str, interface| IpConfig {
            interface,
            ..IpConfig::new(address.parse().unwrap())
        };
        let named = |name: &str| Interface { name: name.into(), ..Interface::default() };
        let result = AddResult {
            interfaces: vec![named("br0"), named("eth0")],
            ips: vec![
                ip("10.0.0.1/24", Some(0)),
                ip("10.0.0.2/24", Some(1)),
                ip("10.0.0.3/24", None),
                ip("10.0.0.4/24", Some(7)),
                ip("10.0.0.5/24", Some(-1)),
            ],
            ..AddResult::default()
        };
        let found: Vec<String> = addresses(&result, "eth0")
            .unwrap()
            .iter()
            .map(|ip| ip.address.addr().to_string())
            .collect();
        assert_eq!(found, ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"]);
        let error = addresses(&AddResult::default(), "eth0").unwrap_err();
        assert_eq!(error.msg, "No IP addresses supplied on interface: eth0");
    }
}
