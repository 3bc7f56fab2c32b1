//! A VRF in the container, with the interface as its port: its packets are routed by the VRF's
//! table only.
//!
//! When a link gets another master the kernel sets it down and up again. The link thereby loses its
//! IPv6 addresses, and its routes in all tables, apart from the routes that the kernel itself adds
//! for IPv4 addresses. We restore them; routes of the main table go to the VRF's table.
//!
//! With the first VRF of a namespace the kernel adds a rule, `l3mdev`, which stays after the VRF is
//! deleted: the kernel would not add it again.

use serde::{Deserialize, Serialize};

use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::deadline::Deadline;
use crate::error::{Code, Error, ErrorList, Result, warn};
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
/// The ifindex that takes a link away from its master.
const NO_MASTER: u32 = 0;
/// The alias of a VRF that was created here. It does not belong to one attachment alone.
const ALIAS: &str = "cni-multi: goes with its last interface";

/// What an ADD joined, recorded for DEL.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Joined {
    /// The VRF and the interface by their ifindexes, which outlast their names.
    Member { vrf: u32, link: u32 },
    /// The name of the VRF that is about to be created. The kernel takes no alias with a new link:
    /// after a kill in between, only this record says that the VRF is ours.
    Creating { creates: String },
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
        let mut errors = ErrorList::default();
        errors.push(self.put_back_addresses(container, link));
        // A route may name a source address, which must not be tentative at that time. The other
        // routes do not depend on it: an undo restores them even if an address is lost.
        errors.push(addresses::settle_if_tentative(at, link, self.deadline));
        errors.push(self.put_back_routes(container, link, table));
        errors.finish()
    }

    fn put_back_routes(&self, container: &Netlink, link: &Link, table: Option<u32>) -> Result<()> {
        let mut errors = ErrorList::default();
        for route in &self.routes {
            errors.push(match table {
                Some(table) if route.is_in_main() => {
                    put_route(container, link, &route.in_table(table))
                }
                _ => put_route(container, link, route),
            });
        }
        errors.finish()
    }

    fn put_back_addresses(&self, container: &Netlink, link: &Link) -> Result<()> {
        let left = container.ipv6_addresses(link)?;
        let is_lost = |address: &&AddressEntry| !left.iter().any(|left| left.net == address.net);
        // The kernel puts a new address in front of the others, and lists and prefers the first.
        let mut errors = ErrorList::default();
        for address in self.addresses.iter().rev().filter(is_lost) {
            errors.push(container.put_address(link, address));
        }
        errors.finish()
    }
}

/// Adds a route, if need be with an on-link gateway. The route to a gateway may have been removed
/// since, or be by another link: the kernel requires it only when a route is new.
fn put_route(container: &Netlink, link: &Link, route: &RouteEntry) -> Result<()> {
    match container.put_route(link, route) {
        Err(e) if e.is_unreachable() => container.put_route(link, &route.on_link()),
        done => done,
    }
}

/// A VRF as a configuration describes it.
pub struct Wanted<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its table; None for a free one.
    pub table: Option<u32>,
}

/// A VRF in the container.
#[derive(Clone, Copy)]
struct Vrf {
    index: u32,
    table: u32,
}

/// Makes the interface a port of the VRF, which is created if it is missing.
pub fn join<'a>(
    cx: &Context<'_>,
    at: &'a Attachment,
    wanted: &Wanted<'_>,
    rb: &mut Rollback<'a>,
) -> Result<()> {
    let container = at.netlink()?;
    let link = container.link(at.ifname())?;
    refuse_master(at, &link, wanted.name)?;
    let vrf = wanted.ensure(at, rb)?;
    records().write(at, &Joined::Member { vrf: vrf.index, link: link.index })?;
    rb.undo("forget the VRF", || records().remove(&at.key));
    let belongings = Belongings::of(container, &link, cx.deadline())?;
    let port = Port { at, link: link.clone(), belongings: belongings.clone() };
    // Before the change, which can half-succeed: the link may be down and not yet up again.
    rb.undo(format_args!("take {:?} out of VRF {:?}", link.name, wanted.name), move || {
        port.take_out(vrf)
    });
    set_master(container, &link, vrf.index)?;
    belongings.put_back(at, &link, Some(vrf.table))?;
    sweep(container, &link, routing_table::MAIN)
}

/// The interface as a port of its VRF.
struct Port<'a> {
    at: &'a Attachment,
    link: Link,
    belongings: Belongings,
}

impl Port<'_> {
    /// The undo of [`join`].
    fn take_out(&self, vrf: Vrf) -> Result<()> {
        let container = self.at.netlink()?;
        if let Some(member) = member_of(vrf.index, container.find_link_by_index(self.link.index)?) {
            set_master(container, &member, NO_MASTER)?;
        }
        sweep(container, &self.link, vrf.table)?;
        self.belongings.put_back(self.at, &self.link, None)
    }
}

/// Removes what the kernel leaves in the link's former table: the link's next hops of IPv6 routes
/// that another link has too.
fn sweep(container: &Netlink, link: &Link, table: u32) -> Result<()> {
    let left = container.routes_through(link)?;
    let mut in_table = left.iter().filter(|route| route.table == table);
    in_table.try_for_each(|route| container.delete_route(link, route))
}

fn refuse_master(at: &Attachment, link: &Link, name: &str) -> Result<()> {
    let Some(index) = link.master else { return Ok(()) };
    let found = at.netlink()?.find_link_by_index(index)?;
    let master = found.map_or_else(|| index.to_string(), |link| link.name);
    if master == name && records().read::<Joined>(&at.key)?.is_none() {
        records().write(at, &Joined::Named(None))?;
    }
    let msg = format!("interface {} has already a master set: {master}", link.name);
    Err(Error::new(Code::CONFLICT, msg))
}

impl Wanted<'_> {
    /// Finds or creates the VRF.
    fn ensure<'a>(&self, at: &'a Attachment, rb: &mut Rollback<'a>) -> Result<Vrf> {
        match at.netlink()?.find_link(self.name)? {
            Some(link) => self.accept(&link),
            None => self.create(at, rb),
        }
    }

    /// Requires a link with the VRF's name to be that VRF.
    fn accept(&self, link: &Link) -> Result<Vrf> {
        let table = table_of(link)?;
        match self.table.filter(|wanted| *wanted != table) {
            None => Ok(Vrf { index: link.index, table }),
            Some(wanted) => Err(self.other_table(wanted, table)),
        }
    }

    fn other_table(&self, table: u32, found: u32) -> Error {
        let name = self.name;
        Error::config("table", format_args!("{table} is not that of VRF {name:?}"))
            .expecting(format_args!("{found} or none"))
            .with_code(Code::CONFLICT)
            .saying(format_args!("VRF {name} already exist with different routing table {found}"))
    }

    fn create<'a>(&self, at: &'a Attachment, rb: &mut Rollback<'a>) -> Result<Vrf> {
        let container = at.netlink()?;
        let table = match self.table {
            Some(table) => table,
            None => Used::find(container, &container.rules()?)?.take_free(FIRST_TABLE)?,
        };
        records().write(at, &Joined::Creating { creates: self.name.to_owned() })?;
        rb.undo("forget the new VRF", || records().remove(&at.key));
        container.create_link(self.name, None, &LinkSpec::of(LinkKind::Vrf(table)))?;
        let link = container.link(self.name)?;
        let index = link.index;
        rb.undo(format_args!("delete VRF {:?}", self.name), move || container.delete_link(index));
        let change = LinkChange { up: Some(true), alias: Some(ALIAS), ..LinkChange::default() };
        container.change_link(&link, &change)?;
        Ok(Vrf { index, table })
    }
}

fn table_of(link: &Link) -> Result<u32> {
    routing_table::table_of_vrf(link).ok_or_else(|| not_a_vrf(link))
}

fn not_a_vrf(link: &Link) -> Error {
    let problem = format!("{:?} is a {} of the container", link.name, link.kind_text());
    Error::config("vrfname", problem)
        .expecting("a VRF or no link")
        .with_code(Code::CONFLICT)
        .saying(format_args!("Netlink {} is not a VRF", link.name))
}

/// The link, if it is a port of the VRF.
fn member_of(vrf: u32, link: Option<Link>) -> Option<Link> {
    link.filter(|link| link.master == Some(vrf))
}

fn set_master(container: &Netlink, link: &Link, master: u32) -> Result<()> {
    container.change_link(link, &LinkChange { master: Some(master), ..LinkChange::default() })
}

/// Compares VRF, interface, addresses and routes with those that ADD makes of the result.
pub fn verify(at: &Attachment, wanted: &Wanted<'_>, result: &AddResult) -> Result<()> {
    let container = at.netlink()?;
    let (index, interface) = prev_result::container_interface(result, at)?;
    let link = prev_result::verify_link(container, interface, None)?;
    let vrf = wanted.verify(container)?;
    if link.master != Some(vrf.index) {
        return Err(Error::check(format!(
            "failed to find {} associated to vrf {}",
            link.name, wanted.name
        )));
    }
    addresses::verify(at, &link, &moved(result, vrf.table), index)
}

impl Wanted<'_> {
    /// The VRF, which must be up. One that was not created here may be down on purpose.
    fn verify(&self, container: &Netlink) -> Result<Vrf> {
        let name = self.name;
        let Some(link) = container.find_link(name)? else {
            return Err(Error::check(format!("VRF {name:?} not found")));
        };
        let vrf = self.accept(&link).map_err(|e| e.with_code(Code::CHECK_FAILED))?;
        if !link.up && link.alias == ALIAS {
            return Err(Error::check(format!("VRF {name:?} is down")));
        }
        Ok(vrf)
    }
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
    /// Whether ADD was killed while it created the VRF.
    is_creating: bool,
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
        let is_recorded = joined.is_some();
        let is_creating = matches!(joined, Some(Joined::Creating { .. }));
        let (vrf, link) = match joined {
            Some(Joined::Member { vrf, link }) => (Which::Index(vrf), Which::Index(link)),
            Some(Joined::Creating { creates }) => (Which::Name(creates), named(at)),
            Some(Joined::Named(name)) => (Which::Name(name.unwrap_or_default()), named(at)),
            None => (Which::Name(configured.to_owned()), named(at)),
        };
        Membership { vrf, link, is_recorded, is_creating }
    }

    fn find_vrf(&self, container: &Netlink) -> Result<Option<Link>> {
        Ok(self.vrf.find(container)?.filter(|link| link.kind == KIND))
    }
}

fn named(at: &Detachment) -> Which {
    Which::Name(at.key.ifname.to_string())
}

fn leave_in(
    cx: &Context<'_>,
    netns: &Netns,
    at: &Detachment,
    membership: &Membership,
) -> Result<()> {
    let container = netns.netlink()?;
    if membership.find_vrf(container)?.is_none() {
        return Ok(());
    }
    // An ADD may be about to join it. A process that hangs could hold the lock indefinitely, and
    // DEL has to work.
    let _lock =
        netns.lock(cx.deadline()).map_err(|e| warn(format_args!("{e}; going on without"))).ok();
    let Some(vrf) = membership.find_vrf(container)? else { return Ok(()) };
    let is_released = release(netns, at, &vrf, membership)?;
    // The reference sets no alias and keeps no record: its VRF is deleted with the last interface
    // as well.
    let is_new = membership.is_creating && vrf.alias.is_empty();
    let goes = vrf.alias == ALIAS || is_new || (is_released && !membership.is_recorded);
    if goes && container.ports(&vrf)?.is_empty() {
        container.delete_link(vrf.index)
    } else {
        Ok(())
    }
}

/// Removes the interface from the VRF, if this attachment has put it there; returns whether it has.
fn release(netns: &Netns, at: &Detachment, vrf: &Link, membership: &Membership) -> Result<bool> {
    let container = netns.netlink()?;
    match member_of(vrf.index, membership.link.find(container)?) {
        Some(link) if !is_another_s(netns, at, vrf, &link)? => {
            set_master(container, &link, NO_MASTER)?;
            sweep(container, &link, table_of(vrf)?)?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Whether another attachment has put the link into the VRF, by its record.
fn is_another_s(netns: &Netns, at: &Detachment, vrf: &Link, link: &Link) -> Result<bool> {
    let others = records().others_in::<Joined>(netns, &at.netns_path, &at.key)?;
    Ok(others.iter().any(|other| match &other.kept {
        Joined::Member { vrf: of, link: member } => (*of, *member) == (vrf.index, link.index),
        Joined::Creating { .. } => false,
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
