//! `fastPath`: established flows of a container go from link to link, past the rules.
//!
//! ```text
//! table inet cni_multi_fastpath {
//!   flowtable fast { hook ingress priority filter; devices = { "uplink", "veth1f2e3d4c" } }
//!   set fast4 { type ipv4_addr; elements = { 10.1.0.7 comment "…" } }
//!   set fast6 { type ipv6_addr; … }
//!   set ways4 { type ipv4_addr . ifname; elements = { 10.1.0.7 . "veth1f2e3d4c" comment "…" } }
//!   set ways6 { type ipv6_addr . ifname; … }
//!   set attachments { … }                       # the owner of each element
//!   chain admin { }                             # the administrator's: we only jump to it
//!   chain forward {
//!     type filter hook forward priority 1000; policy accept;
//!     ct state ! established return
//!     ct direction original return
//!     jump admin
//!     ip saddr @fast4 flow add @fast
//!     ip daddr @fast4 flow add @fast
//!     … the same for fast6
//!   }
//! }
//! ```
//! The chain comes after those of everybody else, and only an answer adds a flow: it has passed the
//! rules in both directions then. The links are the host ends of the containers' pairs and the
//! uplinks, those of the host's default routes.
//!
//! The sets `ways4` and `ways6` record what DEL has to end. It removes the container's elements of
//! `fast4` and `fast6` first, so that no packet adds a flow again, and those of the record once all
//! flows have ended: the DEL after one that was killed finds them there.

use std::collections::BTreeSet;
use std::net::IpAddr;

use nix::errno::Errno;

use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::error::{Code, Error, ErrorList, Result, warn};
use crate::family::Family;
use crate::net::conntrack::Conntrack;
use crate::net::netlink::Netlink;
use crate::net::netlink::attr::read_text;
use crate::net::nft::batch::{Batch, Holds, Hook, KeyType, Set, Table};
use crate::net::nft::expr::{Connection, Expressions, Verdict};
use crate::net::nft::owned::{Layout, OwnedElement, Owner, Search, jump_to_admin};
use crate::net::nft::wire::{link_name, octets, read_ip};
use crate::net::nft::{LINKS_OF_REQUEST, NfFamily, Nft};
use crate::plugin::owned::{Owned, Removal, Rest};
use crate::plugin::part::{Part, Target};
use crate::plugin::{Context, Detachment, Handles};
use crate::rollback::Rollback;
use crate::steps::nft_owner;

/// The table.
pub const LAYOUT: Layout = Layout {
    table: TABLE,
    comment: "cni-multi: established flows of containers go past the rules",
    sets: &[&FAST4, &FAST6, &WAYS4, &WAYS6],
    lay_out,
    reliance: None,
};

const TABLE: Table = Table { family: NfFamily::Inet, name: "cni_multi_fastpath" };
const FLOWTABLE: &str = "fast";
const FAST4: Set = Set { name: "fast4", key: &[KeyType::Ipv4], holds: Holds::Keys };
const FAST6: Set = Set { name: "fast6", key: &[KeyType::Ipv6], holds: Holds::Keys };
const WAYS4: Set =
    Set { name: "ways4", key: &[KeyType::Ipv4, KeyType::IfName], holds: Holds::Keys };
const WAYS6: Set =
    Set { name: "ways6", key: &[KeyType::Ipv6, KeyType::IfName], holds: Holds::Keys };
const BASE_CHAIN: &str = "forward";
/// Those of iptables end with 225, and nft(8) names none above 300.
const HOOK: Hook = Hook { kind: "filter", number: 2, priority: 1000 };
/// NF_CT_STATE_BIT(IP_CT_ESTABLISHED).
const ESTABLISHED: u32 = 1 << 1;
/// IP_CT_DIR_ORIGINAL.
const ORIGINAL: u8 = 0;
/// ifindex of `lo` in every namespace.
const LOOPBACK: u32 = 1;
/// How often flows are deleted again that are still in the flowtable.
const TRIES: usize = 5;

/// STATUS: fails with code 50 if the kernel cannot do it.
pub fn status(handles: &Handles) -> Result<()> {
    let required = handles.require_nft().and_then(|nft| LAYOUT.on(nft).require());
    required.map_err(|e| of_fastpath(e).with_code(Code::NOT_AVAILABLE))
}

/// The message of a kernel that cannot do it has its reason.
fn of_fastpath(error: Error) -> Error {
    let lacks = [Errno::ENOENT, Errno::EINVAL, Errno::EOPNOTSUPP];
    let error = match lacks.iter().any(|errno| error.is_errno(*errno)) {
        true => error.with_details(
            "load nf_flow_table_inet and nft_flow_offload, which Linux 5.8 or newer may have, or leave fastPath out",
        ),
        false => error,
    };
    error.context("fastPath")
}

/// The way of a container's packets.
#[derive(Clone, Debug)]
pub struct Path {
    /// The name of the host's end of its pair.
    link: String,
    /// The container's addresses.
    addresses: Vec<IpAddr>,
}

impl Path {
    /// The way through this link of the host to the addresses of the result.
    pub fn through(link: &str, result: &AddResult) -> Path {
        let addresses = result.ips.iter().map(|ip| ip.address.addr()).collect();
        Path { link: link.to_owned(), addresses }
    }

    fn elements(&self) -> Vec<OwnedElement> {
        let ways = self.addresses.iter().map(|ip| Way { ip: *ip, link: self.link.clone() });
        ways.flat_map(|way| [way.fast(), way.record()]).collect()
    }

    fn families(&self) -> impl Iterator<Item = Family> {
        let has = |family: &Family| self.addresses.iter().any(|ip| Family::of(*ip) == *family);
        Family::ALL.into_iter().filter(has)
    }
}

/// An address of a container, and the link that leads to it: what DEL has to end.
struct Way {
    ip: IpAddr,
    link: String,
}

impl Way {
    /// The address's element, by which its flows are added.
    fn fast(&self) -> OwnedElement {
        OwnedElement::of(if self.ip.is_ipv4() { &FAST4 } else { &FAST6 }, octets(self.ip))
    }

    fn record(&self) -> OwnedElement {
        let set = if self.ip.is_ipv4() { &WAYS4 } else { &WAYS6 };
        OwnedElement::of(set, [octets(self.ip), link_name(&self.link)].concat())
    }

    fn read(set: &str, key: &[u8]) -> Option<Way> {
        let address = match set {
            _ if set == WAYS4.name => 4,
            _ if set == WAYS6.name => 16,
            _ => return None,
        };
        let (ip, link) = key.split_at_checked(address)?;
        Some(Way { ip: read_ip(ip)?, link: read_text(link) })
    }
}

/// Adds established flows of the container to the flowtable from now on.
impl<'a> Part<'a> for Path {
    fn what(&self) -> String {
        format!("add flows of {:?} to flowtable {FLOWTABLE:?}", self.link)
    }

    fn make(&self, Target { cx, at }: Target<'a>, rb: &mut Rollback<'a>) -> Result<()> {
        let (handles, owner) = (cx.handles(), nft_owner::of(&at.key));
        let nft = handles.require_nft().map_err(of_fastpath)?;
        let taken = owner.clone();
        rb.undo("delete the fast path", move || delete(handles, &taken, Search::Ledger));
        LAYOUT.on(nft).of(&owner).take(&self.elements()).map_err(of_fastpath)?;
        add_link(nft, &self.link)?;
        self.families().try_for_each(|family| add_uplinks(cx, nft, family))
    }

    /// The links of the flowtable are those of the container and of the host's default routes.
    fn compare(&self, Target { cx, at }: Target<'a>) -> Result<()> {
        let nft = cx.handles().require_nft()?;
        let mut found = ErrorList::default();
        found.push(LAYOUT.on(nft).verify());
        for element in LAYOUT.on(nft).of(&nft_owner::of(&at.key)).missing(&self.elements())? {
            found.add(Error::check(format!("no element in set {:?}", element.set)));
        }
        // Without the table the kernel lists no flowtable.
        found.push(verify_links(cx, nft, self));
        found.finish().map_err(|error| error.context(format_args!("fastPath of {:?}", self.link)))
    }
}

fn verify_links(cx: &Context<'_>, nft: &Nft, path: &Path) -> Result<()> {
    let present = nft.links_of_flowtable(TABLE, FLOWTABLE)?;
    let mut wanted = vec![path.link.clone()];
    for family in path.families() {
        wanted.extend(uplinks(cx, family)?);
    }
    wanted.dedup();
    ErrorList::of(
        wanted.iter().filter(|link| !present.contains(link)).map(|link| {
            Err(Error::check(format!("link {link:?} is not in flowtable {FLOWTABLE:?}")))
        }),
    )
}

fn add_link(nft: &Nft, link: &str) -> Result<()> {
    let mut batch = Batch::default();
    batch.flowtable(TABLE, FLOWTABLE, &[link.to_owned()]);
    nft.commit(&batch, format_args!("fastPath: add link {link:?} to flowtable {FLOWTABLE:?}"))
}

/// Adds the links of the host's default routes. Packets from other links, and from one that is
/// refused, are forwarded as without `fastPath`.
fn add_uplinks(cx: &Context<'_>, nft: &Nft, family: Family) -> Result<()> {
    let uplinks = uplinks(cx, family)?;
    if uplinks.is_empty() {
        warn(format_args!(
            "fastPath: the host has no default route of {family}, so packets from outside take the usual way"
        ));
    }
    for link in uplinks {
        if let Err(error) = add_link(nft, &link) {
            warn(error.with_details("packets that come in by it take the usual way"));
        }
    }
    Ok(())
}

/// The names of the links of the host's default routes.
fn uplinks(cx: &Context<'_>, family: Family) -> Result<Vec<String>> {
    let mut names = vec![];
    for index in Netlink::open()?.into_default_links(family)? {
        let link = cx.host()?.find_link_by_index(index)?.filter(|link| link.index != LOOPBACK);
        names.extend(link.map(|link| link.name));
    }
    Ok(names)
}

/// The fast paths of attachments. The flows that the kernel still tracks are deleted after the link,
/// and before another container can get the address, which they would lead to.
pub struct FastPaths;

impl Owned for FastPaths {
    fn remove(&self, cx: &Context<'_>, at: &Detachment) -> Result<()> {
        delete(cx.handles(), &nft_owner::of(&at.key), Search::Ledger)
    }

    fn collect(&self, cx: &Context<'_>, valid: &ValidAttachments) -> Result<()> {
        let handles = cx.handles();
        let invalid = nft_owner::invalid(handles, &LAYOUT, &cx.config.name, valid)?;
        ErrorList::of(invalid.into_iter().map(|(owner, stale)| {
            valid.remove(|| stale, || delete(handles, &owner, Search::Comments))
        }))
    }

    /// On both sides of the links for DEL; after them for GC, since their addresses become free later.
    fn surround(&self, cx: &Context<'_>, removal: Removal<'_>, rest: Rest<'_>) -> Result<()> {
        let Removal::Del(at) = removal else {
            return ErrorList::of([rest(), removal.run_on(self, cx)]);
        };
        let (handles, owner) = (cx.handles(), nft_owner::of(&at.key));
        let mut errors = ErrorList::default();
        let ways = errors.push(stop(handles, &owner, Search::Ledger)).unwrap_or_default();
        errors.push(rest());
        errors.push(end(handles, &owner, &ways));
        errors.finish()
    }
}

fn delete(handles: &Handles, owner: &Owner, search: Search) -> Result<()> {
    end(handles, owner, &stop(handles, owner, search)?)
}

/// Adds no more flows of an attachment, and returns the ways of those that there are.
fn stop(handles: &Handles, owner: &Owner, search: Search) -> Result<Vec<Way>> {
    let Some(nft) = handles.nft()? else { return Ok(vec![]) };
    if !nft.has_table(TABLE)? {
        return Ok(vec![]);
    }
    let claims = LAYOUT.on(nft).of(owner);
    let stopped = || -> Result<_> {
        let elements = claims.belongings(search)?;
        let ways: Vec<Way> = elements.iter().filter_map(|(set, key)| Way::read(set, key)).collect();
        if ways.is_empty() {
            claims.release(search)?;
        } else if ways.len() < elements.len() {
            claims.take(&ways.iter().map(Way::record).collect::<Vec<_>>())?;
        }
        Ok(ways)
    };
    stopped().map_err(of_fastpath)
}

/// Ends the flows of an attachment and then removes the record of its ways. The caller has deleted
/// the link.
fn end(handles: &Handles, owner: &Owner, ways: &[Way]) -> Result<()> {
    if ways.is_empty() {
        return Ok(());
    }
    let ended = || -> Result<_> {
        ErrorList::of(ways.iter().map(|way| forget_flows(handles, way)))?;
        remove_links(handles, ways)?;
        nft_owner::release(handles, &LAYOUT, owner, Search::Ledger)
    };
    ended().map(drop).map_err(of_fastpath)
}

/// Removes links from the flowtable, which somebody may have deleted.
fn remove_links(handles: &Handles, ways: &[Way]) -> Result<()> {
    let Some(nft) = handles.nft()? else { return Ok(()) };
    for link in ways.iter().map(|way| &way.link).collect::<BTreeSet<_>>() {
        let what = format!("remove link {link:?} from flowtable {FLOWTABLE:?}");
        let mut batch = Batch::default();
        batch.delete_flowtable_link(TABLE, FLOWTABLE, link);
        match nft.commit(&batch, what) {
            Err(error) if error.is_not_found() => (), // before 6.16 it goes with the link
            done => done?,
        }
    }
    Ok(())
}

/// Deletes the flows of an address, unless another container has it by now. The kernel refuses to
/// delete a flow that is in a flowtable. It has taken out those that go through the deleted link,
/// but not those for which it had found no path through that link.
fn forget_flows(handles: &Handles, way: &Way) -> Result<()> {
    let (Some(nft), fast, ip) = (handles.nft()?, way.fast(), way.ip) else { return Ok(()) };
    if nft.element(TABLE, fast.set, &fast.key)?.is_some() {
        return Ok(());
    }
    let conntrack = Conntrack::open()?;
    let mut forgotten = conntrack.forget_address(ip);
    for _ in 0..TRIES {
        if !forgotten.as_ref().is_err_and(|error| error.has_errno(Errno::EBUSY)) {
            return forgotten;
        }
        match end_flows() {
            Err(error) if error.is_not_found() => (), // one of the links is gone since
            ended => ended?,
        }
        forgotten = conntrack.forget_address(ip);
    }
    warn(format_args!("fastPath: flows of {ip} are in a flowtable that is not ours, and stay"));
    Ok(())
}

/// Ends all flows in the flowtable, by making it again; their next packets add them again. The
/// kernel frees the old one later, and close(2) of the socket waits for that.
fn end_flows() -> Result<()> {
    let nft = Nft::open()?;
    nft.again("make the flowtable again", || {
        let mut batch = Batch::of_generation(nft.generation()?);
        if !nft.has_table(TABLE)? {
            return Ok(());
        }
        let links = nft.links_of_flowtable(TABLE, FLOWTABLE)?;
        batch.flush_chain(TABLE, BASE_CHAIN).delete_flowtable(TABLE, FLOWTABLE);
        lay_out(&mut batch, TABLE);
        for links in links.chunks(LINKS_OF_REQUEST) {
            batch.flowtable(TABLE, FLOWTABLE, links);
        }
        nft.commit(&batch, "make the flowtable again")
    })
}

fn lay_out(batch: &mut Batch, table: Table) {
    batch.base_chain(table, BASE_CHAIN, HOOK).flush_chain(table, BASE_CHAIN);
    batch.flowtable(table, FLOWTABLE, &[]);
    batch.rule(table, BASE_CHAIN, |rule| {
        let established = ESTABLISHED.to_ne_bytes();
        rule.connection(Connection::State, 1).mask(1, &established).equal(1, &[0; 4]);
        rule.verdict(&Verdict::Return);
    });
    batch.rule(table, BASE_CHAIN, |rule| {
        rule.connection(Connection::Direction, 1).equal(1, &[ORIGINAL]).verdict(&Verdict::Return);
    });
    jump_to_admin(batch, table, BASE_CHAIN);
    for (family, set) in [(Family::V4, FAST4), (Family::V6, FAST6)] {
        for load in [Expressions::source, Expressions::destination] {
            // `ip saddr @SET flow add @fast`, or `daddr`.
            batch.rule(table, BASE_CHAIN, |rule| {
                load(rule.family(family), family).in_set(set.name, 1, false).flow_add(FLOWTABLE);
            });
        }
    }
}
