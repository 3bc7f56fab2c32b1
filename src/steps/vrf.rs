//! A VRF in the container, with the interface as its port: its packets are routed by the VRF's
//! table only.
//!
//! When a link gets another master the kernel sets it down and up again. The link thereby loses its
//! IPv6 addresses, and its routes in all tables, apart from the routes that the kernel itself adds
//! for IPv4 addresses. We restore them; routes of the main table go to the VRF's table.
//!
//! With the first VRF of a namespace the kernel adds a rule, `l3mdev`, which stays after the VRF is
//! deleted: the kernel would not add it again.

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result, warn};
use crate::net::netlink::{
    AddressEntry, Link, LinkChange, LinkKind, LinkSpec, Netlink, RouteEntry,
};
use crate::net::netns::Netns;
use crate::plugin::{Attachment, Context, Detachment};
use crate::rollback::Rollback;
use crate::steps::records::{Found, Records};
use crate::steps::routing_table::{self, Used};
use crate::steps::{addresses, prev_result};

/// The kernel's name for this kind of link.
pub const KIND: &str = "vrf";
/// Where the search for a free table begins, as in the reference.
const FIRST_TABLE: u32 = 1;
/// The alias of a VRF that was created here. It does not belong to one attachment alone.
const ALIAS: &str = "cni-multi: goes with its last interface";

/// What an ADD joined, recorded for DEL.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Joined {
    /// The VRF and the interface by their ifindexes, which outlast their names.
    Member { vrf: u32, link: u32 },
    /// The VRF's name, in a record of an earlier version. None where ADD was refused because the
    /// interface was in the VRF before: DEL must not take that for the reference's work.
    Named(Option<String>),
}

fn records() -> Records {
    Records::of_plugin("vrf")
}

/// What a link loses when it gets another master.
#[derive(Clone)]
struct Belongings {
    addresses: Vec<AddressEntry>,
    routes: Vec<RouteEntry>,
    /// The limit for duplicate address detection of restored addresses.
    deadline: Deadline,
}

impl Belongings {
    fn of(container: &Netlink, link: &Link, deadline: Deadline) -> Result<Belongings> {
        let mut routes = container.routes_through(link)?;
        RouteEntry::sort_by_dependence(&mut routes);
        Ok(Belongings { addresses: container.ipv6_addresses(link)?, routes, deadline })
    }

    /// Restores what the link has lost; routes of the main table go to `table`, if one is given.
    fn put_back(&self, at: &Attachment, link: &Link, table: Option<u32>) -> Result<()> {
        let container = at.netlink()?;
        let left = container.ipv6_addresses(link)?;
        // The kernel puts a new address in front of the others, and lists and prefers the first.
        for lost in self
            .addresses
            .iter()
            .rev()
            .filter(|address| !left.iter().any(|left| left.net == address.net))
        {
            container.put_address(link, lost)?;
        }
        // A route may name a source address, which must not be tentative at that time.
        addresses::settle_if_tentative(at, link, self.deadline)?;
        for route in &self.routes {
            match table {
                Some(table) if route.is_in_main() => {
                    put_route(container, link, &route.in_table(table))?
                }
                _ => put_route(container, link, route)?,
            }
        }
        Ok(())
    }
}

/// Adds a route, if need be with an on-link gateway. The route to a gateway may have been removed
/// since, or be by another link: the kernel requires it only when a route is new.
fn put_route(container: &Netlink, link: &Link, route: &RouteEntry) -> Result<()> {
    match container.put_route(link, route) {
        Err(e) if e.is_errno(Errno::ENETUNREACH) || e.is_errno(Errno::EHOSTUNREACH) => {
            container.put_route(link, &route.on_link())
        }
        done => done,
    }
}

/// Makes the interface a port of the VRF `name`, which is created if it is missing: with `table`,
/// or with a free table.
pub fn join<'a>(
    cx: &Context<'_>,
    at: &'a Attachment,
    name: &str,
    table: Option<u32>,
    rb: &mut Rollback<'a>,
) -> Result<()> {
    let container = at.netlink()?;
    let link = container.link(at.ifname())?;
    refuse_master(at, &link, name)?;
    let (vrf, table) = ensure(container, name, table, rb)?;
    records().write(at, &Joined::Member { vrf: vrf.index, link: link.index })?;
    rb.undo("forget the VRF", || records().remove(&at.key));
    let belongings = Belongings::of(container, &link, cx.deadline())?;
    let kept = belongings.clone();
    let port = link.clone();
    let vrf_index = vrf.index;
    // Before the change, which can half-succeed: the link may be down and not yet up again.
    rb.undo(format_args!("take {:?} out of VRF {name:?}", link.name), move || {
        if let Some(member) = member_of(vrf_index, container.find_link_by_index(port.index)?) {
            release(container, &member)?;
        }
        sweep(container, &port, table)?;
        kept.put_back(at, &port, None)
    });
    container
        .change_link(&link, &LinkChange { master: Some(vrf.index), ..LinkChange::default() })?;
    belongings.put_back(at, &link, Some(table))?;
    sweep(container, &link, routing_table::MAIN)
}

/// Removes what the kernel leaves in the link's former table: the link's next hops of IPv6 routes
/// that another link has too.
fn sweep(container: &Netlink, link: &Link, table: u32) -> Result<()> {
    let left = container.routes_through(link)?;
    left.iter()
        .filter(|route| route.table == table)
        .try_for_each(|route| container.delete_route(link, route))
}

fn refuse_master(at: &Attachment, link: &Link, name: &str) -> Result<()> {
    let Some(index) = link.master else { return Ok(()) };
    let master = at
        .netlink()?
        .find_link_by_index(index)?
        .map_or_else(|| index.to_string(), |link| link.name);
    if master == name && records().read::<Joined>(&at.key)?.is_none() {
        records().write(at, &Joined::Named(None))?;
    }
    Err(Error::new(
        Code::CONFLICT,
        format!("interface {} has already a master set: {master}", link.name),
    ))
}

/// Finds or creates the VRF of this name; returns it with its table.
fn ensure<'a>(
    container: &'a Netlink,
    name: &str,
    table: Option<u32>,
    rb: &mut Rollback<'a>,
) -> Result<(Link, u32)> {
    if let Some(link) = container.find_link(name)? {
        let found = table_of(&link)?;
        return match table.filter(|table| *table != found) {
            None => Ok((link, found)),
            Some(other) => Err(other_table(name, other, found)),
        };
    }
    let table = match table {
        Some(table) => table,
        None => Used::find(container, &container.rules()?)?.take_free(FIRST_TABLE)?,
    };
    container.create_link(name, None, &spec(table))?;
    let link = container.link(name)?;
    let index = link.index;
    rb.undo(format_args!("delete VRF {name:?}"), move || container.delete_link(index));
    container.change_link(
        &link,
        &LinkChange { up: Some(true), alias: Some(ALIAS), ..LinkChange::default() },
    )?;
    Ok((link, table))
}

fn spec(table: u32) -> LinkSpec {
    LinkSpec { kind: LinkKind::Vrf(table), lower: None, mtu: None, mac: None }
}

fn table_of(link: &Link) -> Result<u32> {
    match link.detail {
        Some(LinkKind::Vrf(table)) => Ok(table),
        _ => {
            let kind = if link.kind.is_empty() { "device" } else { &link.kind };
            let problem = format!("{:?} is a {kind} of the container", link.name);
            Err(Error::config("vrfname", problem)
                .expecting("a VRF or no link")
                .with_code(Code::CONFLICT)
                .saying(format_args!("Netlink {} is not a VRF", link.name)))
        }
    }
}

fn other_table(name: &str, table: u32, found: u32) -> Error {
    Error::config("table", format_args!("{table} is not that of VRF {name:?}"))
        .expecting(format_args!("{found} or none"))
        .with_code(Code::CONFLICT)
        .saying(format_args!("VRF {name} already exist with different routing table {found}"))
}

/// The link, if it is a port of the VRF.
fn member_of(vrf: u32, link: Option<Link>) -> Option<Link> {
    link.filter(|link| link.master == Some(vrf))
}

/// Removes the interface from its VRF.
fn release(container: &Netlink, member: &Link) -> Result<()> {
    container.change_link(member, &LinkChange { master: Some(0), ..LinkChange::default() })
}

/// Compares VRF, interface, addresses and routes with those that ADD makes of the result.
pub fn verify(at: &Attachment, name: &str, table: Option<u32>, result: &AddResult) -> Result<()> {
    let container = at.netlink()?;
    let (index, interface) = prev_result::container_interface(result, at)?;
    let link = prev_result::verify_link(container, interface, None)?;
    let vrf = container
        .find_link(name)?
        .ok_or_else(|| Error::check(format!("VRF {name:?} not found")))?;
    let found = table_of(&vrf).map_err(|e| e.with_code(Code::CHECK_FAILED))?;
    if let Some(other) = table.filter(|table| *table != found) {
        return Err(other_table(name, other, found).with_code(Code::CHECK_FAILED));
    }
    // A VRF that was not created here may be down on purpose.
    if !vrf.up && vrf.alias == ALIAS {
        return Err(Error::check(format!("VRF {name:?} is down")));
    }
    if link.master != Some(vrf.index) {
        let ifname = &link.name;
        return Err(Error::check(format!("failed to find {ifname} associated to vrf {name}")));
    }
    addresses::verify(at, &link, &moved(result, found), index)
}

/// The result with its routes in the tables where they are now.
fn moved(result: &AddResult, table: u32) -> AddResult {
    let mut result = result.clone();
    for route in &mut result.routes {
        let elsewhere =
            route.table.filter(|table| ![0, i64::from(routing_table::MAIN)].contains(table));
        route.table = elsewhere.or(Some(table.into()));
    }
    result
}

/// Removes the interface from its VRF. A VRF that was created here is deleted with its last
/// interface.
pub fn leave(cx: &Context<'_>, at: &Detachment, configured: &str) -> Result<()> {
    if let Some(netns) = &at.netns {
        match records().find::<Joined>(&at.key)? {
            Some(record) if !record.is_of(netns)? => (), // both were deleted with their namespace
            Some(Found { kept: Joined::Named(None), .. }) => (),
            record => leave_in(
                cx,
                netns,
                at,
                &Membership::of(at, record.map(|found| found.kept), configured),
            )?,
        }
    }
    records().remove(&at.key)
}

/// What DEL has to undo, as the record says, or else the configuration.
struct Membership {
    vrf: Which,
    link: Which,
    is_recorded: bool,
}

/// A link of the container.
enum Which {
    Index(u32),
    Name(String),
}

impl Which {
    fn find(&self, container: &Netlink) -> Result<Option<Link>> {
        match self {
            Which::Index(index) => container.find_link_by_index(*index),
            Which::Name(name) => container.find_link(name),
        }
    }
}

impl Membership {
    fn of(at: &Detachment, joined: Option<Joined>, configured: &str) -> Membership {
        let named = |vrf: String, is_recorded| Membership {
            vrf: Which::Name(vrf),
            link: Which::Name(at.key.ifname.to_string()),
            is_recorded,
        };
        match joined {
            Some(Joined::Member { vrf, link }) => {
                Membership { vrf: Which::Index(vrf), link: Which::Index(link), is_recorded: true }
            }
            Some(Joined::Named(name)) => named(name.unwrap_or_default(), true),
            None => named(configured.to_owned(), false),
        }
    }
}

fn leave_in(
    cx: &Context<'_>,
    netns: &Netns,
    at: &Detachment,
    membership: &Membership,
) -> Result<()> {
    let container = netns.netlink()?;
    let find = || Ok::<_, Error>(membership.vrf.find(container)?.filter(|link| link.kind == KIND));
    if find()?.is_none() {
        return Ok(());
    }
    // An ADD may be about to join it. A process that hangs could hold the lock indefinitely, and
    // DEL has to work.
    let _lock =
        netns.lock(cx.deadline()).map_err(|e| warn(format_args!("{e}; going on without"))).ok();
    let Some(vrf) = find()? else { return Ok(()) };
    let released = match member_of(vrf.index, membership.link.find(container)?) {
        Some(link) if !is_another_s(netns, at, &vrf, &link)? => Some(link),
        _ => None,
    };
    if let Some(link) = &released {
        release(container, link)?;
        sweep(container, link, table_of(&vrf)?)?;
    }
    // The reference sets no alias and keeps no record: its VRF is deleted with the last interface
    // as well.
    let goes = vrf.alias == ALIAS || (released.is_some() && !membership.is_recorded);
    if goes && container.ports(&vrf)?.is_empty() {
        container.delete_link(vrf.index)
    } else {
        Ok(())
    }
}

/// Whether another attachment has put the link into the VRF, by its record.
fn is_another_s(netns: &Netns, at: &Detachment, vrf: &Link, link: &Link) -> Result<bool> {
    let others = records().others_in::<Joined>(netns, &at.netns_path, &at.key)?;
    Ok(others.iter().any(|other| match &other.kept {
        Joined::Member { vrf: of, link: member } => (*of, *member) == (vrf.index, link.index),
        Joined::Named(of) => {
            other.key.ifname.as_str() == link.name && of.as_deref() == Some(vrf.name.as_str())
        }
    }))
}

/// Removes the records of this network's attachments that are not valid. Their VRFs are in a
/// container, and disappear with it.
pub fn collect_garbage(cx: &Context<'_>, valid: &ValidAttachments) -> Result<()> {
    records().forget_stale::<Joined>(&cx.config.name, valid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cni::result::Route;

    #[test]
    fn routes_of_the_result_are_looked_for_where_they_are_now() {
        let route = |table| Route { table, ..Route::to("10.0.0.0/8".parse().unwrap()) };
        let routes = vec![route(None), route(Some(0)), route(Some(254)), route(Some(77))];
        let moved = moved(&AddResult { routes, ..AddResult::default() }, 10);
        assert_eq!(
            moved.routes.iter().map(|route| route.table).collect::<Vec<_>>(),
            [10, 10, 10, 77].map(Some)
        );
    }
}
