//! Routes of a container that an ADD deletes and adds, each with its undo, and those that a record
//! keeps: where they were moved to, nothing else describes them once they are deleted.
//!
//! Numbers of routing tables, too: which numbers an attachment may have, and which are free.
//! Nothing reserves a number. A caller that takes a free one keeps the namespace locked until a
//! rule, a route or a VRF uses it.

use std::fmt;
use std::ops::RangeInclusive;

use ipnet::IpNet;

use crate::error::{Code, Error, Result};
use crate::hex;
use crate::net::netlink::{Link, LinkKind, Netlink, Route, RouteEntry, Rule};
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

/// RT_TABLE_MAIN: the table that is searched unless a rule says otherwise.
pub const MAIN: u32 = 254;

/// Whether it is RT_TABLE_UNSPEC, or a table that every namespace has: default, main, local.
fn is_reserved(table: u32) -> bool {
    matches!(table, 0 | 253..=255)
}

/// The tables that are not the kernel's own.
const FREE: [RangeInclusive<i64>; 2] = [1..=252, 256..=u32::MAX as i64];

/// A number from the configuration, which must not be that of a table of the kernel.
pub fn parse_table(path: impl fmt::Display, table: i64) -> Result<u32> {
    match u32::try_from(table) {
        Ok(number) if !is_reserved(number) => Ok(number),
        Ok(number) if number != 0 => {
            let problem = format_args!("{number} is a table of the kernel");
            Err(Error::config(path, problem).expecting(FREE))
        }
        _ => Err(Error::out_of_range(path, table, FREE)),
    }
}

/// The tables that something in a namespace uses, once for each rule, route and VRF: containers
/// have few of these.
#[derive(Debug)]
pub struct Used(Vec<u32>);

impl Used {
    /// The tables that a rule leads to, that have a route, or that belong to a VRF. The reference's
    /// sbr considers only rules, its vrf only VRFs.
    pub fn find(container: &Netlink, rules: &[Rule]) -> Result<Used> {
        let routes = container.routes()?;
        let vrfs = container.links_of_kind("vrf")?;
        let mut used: Vec<u32> = rules.iter().map(|rule| rule.table).collect();
        used.extend(routes.iter().map(|route| route.table));
        used.extend(vrfs.iter().filter_map(table_of_vrf));
        Ok(Used(used))
    }

    /// The first free number from `first` on; it counts as used from now on.
    pub fn take_free(&mut self, first: u32) -> Result<u32> {
        let free = (first..=u32::MAX).find(|of| !is_reserved(*of) && !self.0.contains(of));
        let free =
            free.ok_or_else(|| Error::new(Code::CONFLICT, "every routing table is in use"))?;
        self.0.push(free);
        Ok(free)
    }
}

/// The table of a VRF; None for other links.
pub fn table_of_vrf(link: &Link) -> Option<u32> {
    match link.detail {
        Some(LinkKind::Vrf(table)) => Some(table),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_filled_and_the_kernel_s_tables_are_left_out() {
        let mut used = Used([1, 3, 252].into());
        assert_eq!(used.take_free(1).unwrap(), 2);
        assert_eq!(used.take_free(1).unwrap(), 4);
        assert_eq!(used.take_free(252).unwrap(), 256);
        assert_eq!(used.take_free(u32::MAX).unwrap(), u32::MAX);
        assert_eq!(used.take_free(u32::MAX).unwrap_err().code, Code::CONFLICT);
    }

    #[test]
    fn a_number_that_is_no_table_of_one_s_own_is_a_mistake() {
        assert_eq!(parse_table("table", 5000).unwrap(), 5000);
        for (table, msg) in [
            (0, "table: 0 is out of range, expected 1 to 252 or 256 to 4294967295"),
            (-1, "table: -1 is out of range, expected 1 to 252 or 256 to 4294967295"),
            (1 << 32, "table: 4294967296 is out of range, expected 1 to 252 or 256 to 4294967295"),
            (254, "table: 254 is a table of the kernel, expected 1 to 252 or 256 to 4294967295"),
        ] {
            let error = parse_table("table", table).unwrap_err();
            assert_eq!((error.code, error.msg.as_str()), (Code::INVALID_CONFIG, msg));
        }
    }
}
