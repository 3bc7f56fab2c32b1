//! A VRF in the container, with the interface as its port: its packets are routed by the VRF's
//! table only.
//!
//! When a link gets another master the kernel sets it down and up again. The link thereby loses its
//! IPv6 addresses, and its routes in all tables, apart from the routes that the kernel itself adds
//! for IPv4 addresses. We restore them; routes of the main table go to the VRF's table.
//!
//! With the first VRF of a namespace the kernel adds a rule, `l3mdev`, which stays after the VRF is
//! deleted: the kernel would not add it again.

mod parts;

use serde::{Deserialize, Serialize};

use crate::cni::conf::ValidAttachments;
use crate::deadline::Deadline;
use crate::error::{Code, Error, ErrorList, Result, warn};
use crate::net::netlink::{
    AddressEntry, Link, LinkChange, LinkKind, LinkSpec, Netlink, RouteEntry,
};
use crate::net::netns::Netns;
use crate::plugin::{Attachment, Context, Detachment};
use crate::rollback::Rollback;
use crate::steps::addresses;
use crate::steps::records::{Found, Records, Site};
use crate::steps::routes::{self, Used};

pub use self::parts::{check, repair};

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
    Member {
        vrf: u32,
        link: u32,
        /// The [kept routes](routes::keep) that were moved from the main table.
        routes: Vec<String>,
    },
    /// The name of the VRF that is about to be created. The kernel takes no alias with a new link:
    /// after a kill in between, only this record says that the VRF is ours.
    Creating { creates: String },
    /// The ifindex of an interface that was in the VRF before, so that ADD was refused: DEL must not
    /// take that for the reference's work.
    Refused { refused: u32 },
}

fn records() -> Records {
    Records::of_plugin("vrf")
}

impl Joined {
    /// Whether a link of the record is gone.
    fn is_gone(&self, container: &Netlink) -> Result<bool> {
        let links = match self {
            Joined::Member { vrf, link, .. } => vec![*vrf, *link],
            Joined::Refused { refused } => vec![*refused],
            Joined::Creating { .. } => vec![],
        };
        for index in links {
            if container.find_link_by_index(index)?.is_none() {
                return Ok(true);
            }
        }
        Ok(false)
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
    /// Whether it is down. One that was not created here may be down on purpose.
    is_down: bool,
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
    if let Some(index) = link.master {
        let found = container.find_link_by_index(index)?;
        let master = found.map_or_else(|| index.to_string(), |link| link.name);
        if master == wanted.name {
            records().write_first(at, &Joined::Refused { refused: link.index })?;
        }
        return Err(has_master(&link, &master));
    }
    let vrf = match container.find_link(wanted.name)? {
        Some(link) => wanted.accept(&link)?,
        None => wanted.create(at, rb)?,
    };
    let mut routes = container.routes_through(&link)?;
    RouteEntry::sort_by_dependence(&mut routes);
    let addresses = container.ipv6_addresses(&link)?;
    let port = Port { at, container, link, addresses, routes, deadline: cx.deadline() };
    records().write(at, &port.member_of(vrf))?;
    rb.undo("forget the VRF", || records().remove(&at.key));
    // Before the change, which can half-succeed: the link may be down and not yet up again.
    let what = format!("take {:?} out of VRF {:?}", port.link.name, wanted.name);
    let failed = port.clone();
    rb.undo(what, move || failed.take_out(vrf));
    set_master(container, &port.link, vrf.index)?;
    port.put_back(Some(vrf.table))?;
    sweep(container, &port.link, routes::MAIN)
}

fn has_master(link: &Link, master: &str) -> Error {
    let msg = format!("interface {} has already a master set: {master}", link.name);
    Error::new(Code::CONFLICT, msg)
}

/// The interface as a port of a VRF, and what it loses when it gets another master.
#[derive(Clone)]
struct Port<'a> {
    at: &'a Attachment,
    container: &'a Netlink,
    link: Link,
    addresses: Vec<AddressEntry>,
    routes: Vec<RouteEntry>,
    /// The limit for duplicate address detection of restored addresses.
    deadline: Deadline,
}

impl Port<'_> {
    /// What the record says once the interface is in the VRF.
    fn member_of(&self, vrf: Vrf) -> Joined {
        let moved = self.routes.iter().filter(|route| route.is_in_main());
        let routes = routes::keep(moved);
        Joined::Member { vrf: vrf.index, link: self.link.index, routes }
    }

    /// The undo of [`join`].
    fn take_out(&self, vrf: Vrf) -> Result<()> {
        let now = self.container.find_link_by_index(self.link.index)?;
        if let Some(member) = member_of(vrf.index, now) {
            set_master(self.container, &member, NO_MASTER)?;
        }
        sweep(self.container, &self.link, vrf.table)?;
        self.put_back(None)
    }

    /// Restores what the link has lost; routes of the main table go to `table`, if one is given.
    fn put_back(&self, table: Option<u32>) -> Result<()> {
        let mut errors = ErrorList::default();
        if let Some(left) = errors.push(self.container.ipv6_addresses(&self.link)) {
            let is_lost = |of: &&AddressEntry| !left.iter().any(|left| left.net == of.net);
            // The kernel puts a new address in front of the others, and lists and prefers the first.
            for lost in self.addresses.iter().rev().filter(is_lost) {
                errors.push(self.container.put_address(&self.link, lost));
            }
        }
        // A route may name a source address, which must not be tentative at that time. The other
        // routes do not depend on it: an undo restores them even if an address is lost.
        errors.push(addresses::settle_if_tentative(self.at, &self.link, self.deadline));
        errors.push(self.put_back_routes(table));
        errors.finish()
    }

    fn put_back_routes(&self, table: Option<u32>) -> Result<()> {
        ErrorList::of(self.routes.iter().map(|route| match table {
            Some(table) if route.is_in_main() => self.put_route(&route.in_table(table)),
            _ => self.put_route(route),
        }))
    }

    /// Adds a route, if need be with an on-link gateway. The route to a gateway may have been
    /// removed since, or be by another link: the kernel requires it only when a route is new.
    fn put_route(&self, route: &RouteEntry) -> Result<()> {
        match self.container.put_route(&self.link, route) {
            Err(e) if e.is_unreachable() => self.container.put_route(&self.link, &route.on_link()),
            done => done,
        }
    }
}

/// Removes what the kernel leaves in the link's former table: the link's next hops of IPv6 routes
/// that another link has too.
fn sweep(container: &Netlink, link: &Link, table: u32) -> Result<()> {
    let mut left = container.routes_through(link)?;
    left.retain(|route| route.table == table);
    left.iter().try_for_each(|route| container.delete_route(link, route))
}

impl Wanted<'_> {
    /// Requires a link with the VRF's name to be that VRF.
    fn accept(&self, link: &Link) -> Result<Vrf> {
        let (name, table) = (self.name, table_of(link)?);
        match self.table.filter(|wanted| *wanted != table) {
            None => {
                let is_down = !link.up && link.alias == ALIAS;
                Ok(Vrf { index: link.index, table, is_down })
            }
            Some(wanted) => {
                Err(Error::config("table", format_args!("{wanted} is not that of VRF {name:?}"))
                    .expecting(format_args!("{table} or none"))
                    .with_code(Code::CONFLICT)
                    .saying(format_args!(
                        "VRF {name} already exist with different routing table {table}"
                    )))
            }
        }
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
        Ok(Vrf { index, table, is_down: false })
    }
}

fn table_of(link: &Link) -> Result<u32> {
    routes::table_of_vrf(link).ok_or_else(|| {
        let name = &link.name;
        let problem = format!("{name:?} is a {} of the container", link.kind_text());
        Error::config("vrfname", problem)
            .expecting("a VRF or no link")
            .with_code(Code::CONFLICT)
            .saying(format_args!("Netlink {name} is not a VRF"))
    })
}

/// The link, if it is a port of the VRF.
fn member_of(vrf: u32, link: Option<Link>) -> Option<Link> {
    link.filter(|link| link.master == Some(vrf))
}

fn set_master(container: &Netlink, link: &Link, master: u32) -> Result<()> {
    container.change_link(link, &LinkChange { master: Some(master), ..LinkChange::default() })
}

/// Removes the interface from its VRF. A VRF that was created here is deleted with its last
/// interface.
pub fn leave(cx: &Context<'_>, at: &Detachment, configured: &str) -> Result<()> {
    if let Some(netns) = &at.netns {
        for membership in Membership::find(netns, at, configured)? {
            membership.end(cx, netns, at)?;
        }
    }
    records().remove(&at.key)
}

/// What DEL has to undo.
enum Membership {
    /// ADD recorded it, by the ifindexes.
    Recorded { vrf: u32, link: u32 },
    /// ADD was killed while it created the VRF of this name.
    Draft(String),
    /// The configuration has the VRF's name: there is no record.
    Configured(String),
}

impl Membership {
    /// The one of the record, and the one of the configuration if there is no record, or if what it
    /// names is gone: the reference may have made another one since.
    fn find(netns: &Netns, at: &Detachment, configured: &str) -> Result<Vec<Membership>> {
        let by_name = || Membership::Configured(configured.to_owned());
        let Some(record) = records().find::<Joined>(&at.key)? else { return Ok(vec![by_name()]) };
        if !record.is_of(netns)? {
            return Ok(vec![]); // both were deleted with their namespace
        }
        let container = netns.netlink()?;
        let named = container.find_link(at.key.ifname.as_str())?;
        let is_stale = named.is_some() && record.kept.is_gone(container)?;
        let recorded = match record.kept {
            Joined::Member { vrf, link, .. } => Some(Membership::Recorded { vrf, link }),
            Joined::Creating { creates } => Some(Membership::Draft(creates)),
            Joined::Refused { .. } => None,
        };
        Ok(recorded.into_iter().chain(is_stale.then(by_name)).collect())
    }

    fn end(&self, cx: &Context<'_>, netns: &Netns, at: &Detachment) -> Result<()> {
        let container = netns.netlink()?;
        if self.find_vrf(container)?.is_none() {
            return Ok(());
        }
        // An ADD may be about to join it. A process that hangs could hold the lock indefinitely,
        // and DEL has to work.
        let lock = netns.lock(cx.deadline());
        let _lock = lock.map_err(|e| warn(format_args!("{e}; going on without"))).ok();
        let Some(vrf) = self.find_vrf(container)? else { return Ok(()) };
        let link = match self {
            Membership::Recorded { link, .. } => container.find_link_by_index(*link)?,
            Membership::Draft(_) | Membership::Configured(_) => {
                container.find_link(at.key.ifname.as_str())?
            }
        };
        let mut is_released = false;
        if let Some(link) = member_of(vrf.index, link)
            && !is_another_s(netns, at, &vrf, &link)?
        {
            set_master(container, &link, NO_MASTER)?;
            sweep(container, &link, table_of(&vrf)?)?;
            is_released = true;
        }
        // The reference sets no alias and keeps no record: its VRF is deleted as well.
        let is_made = match self {
            Membership::Recorded { .. } => false,
            Membership::Draft(_) => vrf.alias.is_empty(),
            Membership::Configured(_) => is_released,
        };
        if (vrf.alias == ALIAS || is_made) && container.ports(&vrf)?.is_empty() {
            container.delete_link(vrf.index)?;
        }
        Ok(())
    }

    fn find_vrf(&self, container: &Netlink) -> Result<Option<Link>> {
        let found = match self {
            Membership::Recorded { vrf, .. } => container.find_link_by_index(*vrf)?,
            Membership::Draft(name) | Membership::Configured(name) => container.find_link(name)?,
        };
        Ok(found.filter(|link| link.kind == KIND))
    }
}

/// Whether another attachment has put the link into the VRF, by its record.
fn is_another_s(netns: &Netns, at: &Detachment, vrf: &Link, link: &Link) -> Result<bool> {
    let has_joined = |other: &Found<Joined>| match other.kept {
        Joined::Member { vrf: of, link: member, .. } => (of, member) == (vrf.index, link.index),
        Joined::Refused { .. } | Joined::Creating { .. } => false,
    };
    Ok(records().others_in(Site::of(at, netns))?.iter().any(has_joined))
}

/// Removes the records of this network's attachments that are not valid. Their VRFs are in a
/// container, and disappear with it.
pub fn collect_garbage(cx: &Context<'_>, valid: &ValidAttachments) -> Result<()> {
    records().forget_stale::<Joined>(&cx.config.name, valid)
}
