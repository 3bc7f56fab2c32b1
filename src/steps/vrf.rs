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

pub use self::parts::{check, repair};

use crate::cni::conf::ValidAttachments;
use crate::deadline::Deadline;
use crate::error::{Code, Error, ErrorList, Result, warn};
use crate::net::netlink::{
    AddressEntry, Link, LinkChange, LinkKind, LinkSpec, Netlink, RouteEntry,
};
use crate::net::netns::Netns;
use crate::plugin::{Attachment, Context, Detachment};
use crate::rollback::Rollback;
use crate::steps::records::{Found, Records, Site};
use crate::steps::routing_table::{self, Used};
use crate::steps::{addresses, kept_routes};

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
        /// The [`kept_routes`] that were moved from the main table.
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
    let link = at.netlink()?.link(at.ifname())?;
    refuse_master(at, &link, wanted.name)?;
    let vrf = wanted.ensure(at, rb)?;
    let port = Port::read(at, link, cx.deadline())?;
    records().write(at, &port.member_of(vrf))?;
    rb.undo("forget the VRF", || records().remove(&at.key));
    // Before the change, which can half-succeed: the link may be down and not yet up again.
    port.take_out_on_failure(wanted.name, vrf, rb);
    port.put_into(vrf)
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

impl<'a> Port<'a> {
    fn read(at: &'a Attachment, link: Link, deadline: Deadline) -> Result<Port<'a>> {
        let container = at.netlink()?;
        let mut routes = container.routes_through(&link)?;
        RouteEntry::sort_by_dependence(&mut routes);
        let addresses = container.ipv6_addresses(&link)?;
        Ok(Port { at, container, link, addresses, routes, deadline })
    }

    /// What the record says once the interface is in the VRF.
    fn member_of(&self, vrf: Vrf) -> Joined {
        let moved = self.routes.iter().filter(|route| route.is_in_main());
        let routes = kept_routes::keep(moved);
        Joined::Member { vrf: vrf.index, link: self.link.index, routes }
    }

    fn put_into(&self, vrf: Vrf) -> Result<()> {
        set_master(self.container, &self.link, vrf.index)?;
        self.put_back(Some(vrf.table))?;
        sweep(self.container, &self.link, routing_table::MAIN)
    }

    fn take_out_on_failure(&self, vrf_name: &str, vrf: Vrf, rb: &mut Rollback<'a>) {
        let port = self.clone();
        let what = format!("take {:?} out of VRF {vrf_name:?}", self.link.name);
        rb.undo(what, move || port.take_out(vrf));
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
        errors.push(self.put_back_addresses());
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

    fn put_back_addresses(&self) -> Result<()> {
        let left = self.container.ipv6_addresses(&self.link)?;
        // The kernel puts a new address in front of the others, and lists and prefers the first.
        let mut errors = ErrorList::default();
        for address in self.addresses.iter().rev().filter(|address| is_lost(address, &left)) {
            errors.push(self.container.put_address(&self.link, address));
        }
        errors.finish()
    }
}

fn is_lost(address: &AddressEntry, left: &[AddressEntry]) -> bool {
    !left.iter().any(|left| left.net == address.net)
}

/// Removes what the kernel leaves in the link's former table: the link's next hops of IPv6 routes
/// that another link has too.
fn sweep(container: &Netlink, link: &Link, table: u32) -> Result<()> {
    let mut left = container.routes_through(link)?;
    left.retain(|route| route.table == table);
    left.iter().try_for_each(|route| container.delete_route(link, route))
}

/// Refuses a link that has a master.
fn refuse_master(at: &Attachment, link: &Link, vrf: &str) -> Result<()> {
    let Some(index) = link.master else { return Ok(()) };
    let found = at.netlink()?.find_link_by_index(index)?;
    let master = found.map_or_else(|| index.to_string(), |link| link.name);
    if master == vrf {
        records().write_first(at, &Joined::Refused { refused: link.index })?;
    }
    Err(has_master(link, &master))
}

fn has_master(link: &Link, master: &str) -> Error {
    let msg = format!("interface {} has already a master set: {master}", link.name);
    Error::new(Code::CONFLICT, msg)
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
            None => Ok(Vrf { index: link.index, table, is_down: !link.up && link.alias == ALIAS }),
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
        let table = self.choose_table(container)?;
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

    fn choose_table(&self, container: &Netlink) -> Result<u32> {
        match self.table {
            Some(table) => Ok(table),
            None => Used::find(container, &container.rules()?)?.take_free(FIRST_TABLE),
        }
    }
}

fn table_of(link: &Link) -> Result<u32> {
    routing_table::table_of_vrf(link).ok_or_else(|| not_a_vrf(link))
}

fn not_a_vrf(link: &Link) -> Error {
    let name = &link.name;
    let problem = format!("{name:?} is a {} of the container", link.kind_text());
    Error::config("vrfname", problem)
        .expecting("a VRF or no link")
        .with_code(Code::CONFLICT)
        .saying(format_args!("Netlink {name} is not a VRF"))
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
        let container = netns.netlink()?;
        for membership in Membership::find(netns, at, configured)? {
            Exit { cx, netns, container, at, membership }.run()?;
        }
    }
    records().remove(&at.key)
}

/// What DEL has to undo.
struct Membership {
    vrf: Which,
    link: Which,
    evidence: Evidence,
}

/// How DEL knows what it has to undo.
#[derive(Clone, Copy)]
enum Evidence {
    /// ADD recorded it.
    Record,
    /// ADD was killed while it created the VRF.
    Draft,
    /// The configuration says it: there is no record.
    Configuration,
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
    /// The one of the record, and the one of the configuration if there is no record, or if what it
    /// names is gone: the reference may have made another one since.
    fn find(netns: &Netns, at: &Detachment, configured: &str) -> Result<Vec<Membership>> {
        let by_name = || Membership::of_name(configured, at, Evidence::Configuration);
        let Some(record) = records().find::<Joined>(&at.key)? else { return Ok(vec![by_name()]) };
        if !record.is_of(netns)? {
            return Ok(vec![]); // both were deleted with their namespace
        }
        let container = netns.netlink()?;
        let named = container.find_link(at.key.ifname.as_str())?;
        let is_stale = named.is_some() && record.kept.is_gone(container)?;
        let recorded = Membership::of_record(&record.kept, at);
        Ok(recorded.into_iter().chain(is_stale.then(by_name)).collect())
    }

    fn of_record(joined: &Joined, at: &Detachment) -> Option<Membership> {
        match joined {
            Joined::Member { vrf, link, .. } => Some(Membership::of_indexes(*vrf, *link)),
            Joined::Creating { creates } => Some(Membership::of_name(creates, at, Evidence::Draft)),
            Joined::Refused { .. } => None,
        }
    }

    fn of_indexes(vrf: u32, link: u32) -> Membership {
        let link = Which::Index(link);
        Membership { vrf: Which::Index(vrf), link, evidence: Evidence::Record }
    }

    fn of_name(vrf: &str, at: &Detachment, evidence: Evidence) -> Membership {
        let link = Which::Name(at.key.ifname.to_string());
        Membership { vrf: Which::Name(vrf.to_owned()), link, evidence }
    }
}

/// The exit of an interface from its VRF.
struct Exit<'a> {
    cx: &'a Context<'a>,
    netns: &'a Netns,
    container: &'a Netlink,
    at: &'a Detachment,
    membership: Membership,
}

impl Exit<'_> {
    fn run(&self) -> Result<()> {
        if self.find_vrf()?.is_none() {
            return Ok(());
        }
        // An ADD may be about to join it. A process that hangs could hold the lock indefinitely,
        // and DEL has to work.
        let lock = self.netns.lock(self.cx.deadline());
        let _lock = lock.map_err(|e| warn(format_args!("{e}; going on without"))).ok();
        match self.find_vrf()? {
            Some(vrf) => self.leave(&vrf),
            None => Ok(()),
        }
    }

    fn find_vrf(&self) -> Result<Option<Link>> {
        let found = self.membership.vrf.find(self.container)?;
        Ok(found.filter(|link| link.kind == KIND))
    }

    fn leave(&self, vrf: &Link) -> Result<()> {
        let is_released = self.release(vrf)?;
        if self.ends(vrf, is_released) && self.container.ports(vrf)?.is_empty() {
            self.container.delete_link(vrf.index)
        } else {
            Ok(())
        }
    }

    /// Whether the VRF is deleted with its last interface. The reference sets no alias and keeps no
    /// record: its VRF is deleted as well.
    fn ends(&self, vrf: &Link, is_released: bool) -> bool {
        vrf.alias == ALIAS
            || match self.membership.evidence {
                Evidence::Record => false,
                Evidence::Draft => vrf.alias.is_empty(),
                Evidence::Configuration => is_released,
            }
    }

    /// Removes the interface from the VRF, if this attachment has put it there; returns whether it
    /// has.
    fn release(&self, vrf: &Link) -> Result<bool> {
        match member_of(vrf.index, self.membership.link.find(self.container)?) {
            Some(link) if !self.is_another_s(vrf, &link)? => {
                set_master(self.container, &link, NO_MASTER)?;
                sweep(self.container, &link, table_of(vrf)?)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Whether another attachment has put the link into the VRF, by its record.
    fn is_another_s(&self, vrf: &Link, link: &Link) -> Result<bool> {
        let others = records().others_in(Site::of(self.at, self.netns))?;
        Ok(others.iter().any(|other| has_joined(other, vrf, link)))
    }
}

fn has_joined(record: &Found<Joined>, vrf: &Link, link: &Link) -> bool {
    match &record.kept {
        Joined::Member { vrf: of, link: member, .. } => *of == vrf.index && *member == link.index,
        Joined::Refused { .. } | Joined::Creating { .. } => false,
    }
}

/// Removes the records of this network's attachments that are not valid. Their VRFs are in a
/// container, and disappear with it.
pub fn collect_garbage(cx: &Context<'_>, valid: &ValidAttachments) -> Result<()> {
    records().forget_stale::<Joined>(&cx.config.name, valid)
}
