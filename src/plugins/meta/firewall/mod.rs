//! `firewall`: lets packets to and from a container pass the host's firewall, and can isolate it
//! from containers on other bridges.
//! <https://www.cni.dev/plugins/current/meta/firewall/>
//!
//! An accept in a table of our own overrides no drop elsewhere. So the accepts are where the drops
//! are: in iptables' table `filter`, of either kind, or in a zone of firewalld. Our own state is in
//! a table of its own (`table`).

mod conf;
pub mod firewalld;
mod netlink;
mod programs;
mod rules;
mod table;
mod verdict;

use std::net::IpAddr;

use self::conf::{Backend, Conf, Isolation, Policy, Wish};
pub use self::netlink::MADE;
pub use self::table::LAYOUT;
use self::table::{Held, Notes};
use crate::cni::attachment::Key;
use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::error::{Code, Error, ErrorList, Result, warn};
use crate::family::Family;
use crate::net::iptables::Iptables;
use crate::net::nft::NfFamily;
use crate::net::nft::owned::{Owner, Search};
use crate::net::sysctl::Sysctl;
use crate::plugin::part::{Part, Parts, Target};
use crate::plugin::{Attachment, Context, Detachment, Handles, Kind, Plugin};
use crate::repair::Repairs;
use crate::rollback::{Rollback, transaction};
use crate::steps::{nft_owner, prev_result};

/// The `firewall` plugin.
pub struct Firewall;

impl Plugin for Firewall {
    const NAME: &'static str = "firewall";
    const KIND: Kind = Kind::Meta;
    const ABOUT: &'static str =
        "lets a container's packets pass the host's firewall, and keeps bridges from each other";
    const VERSIONS: &'static [&'static str] = &["0.4.0", "1.0.0", "1.1.0"];
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let result = chained(cx)?;
        let wish = Wish::of(conf, &result)?;
        let admission = Admission::of(cx, conf, &wish)?;
        transaction(|rb| admission.make(Target { cx, at }, rb))?;
        Ok(result)
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        let wish = Wish::of(conf, &chained(cx)?)?;
        Admission::of(cx, conf, &wish)?.compare(Target { cx, at })
    }

    fn del(cx: &Context<'_>, conf: &Conf, at: &Detachment) -> Result<()> {
        let told: Vec<IpAddr> = at.prev_result.iter().flat_map(conf::addresses).collect();
        remove(cx, conf, &nft_owner::of(&at.key), &told, Search::Ledger)
    }

    fn status(cx: &Context<'_>, conf: &Conf) -> Result<()> {
        let handles = cx.handles();
        let require = |backend| match backend {
            Backend::Firewalld => {
                if conf.ingress_policy != Policy::Open {
                    handles.require_nft()?;
                }
                firewalld::require(cx)?.require_zone(&conf.firewalld_zone.0)
            }
            Backend::Iptables => handles.iptables().require_table(programs::FILTER),
            Backend::Nftables => handles.require_nft().map(drop),
        };
        require(conf.resolve_backend(cx)?).map_err(|e| e.with_code(Code::NOT_AVAILABLE))?;
        warn_of_unseen_packets(conf);
        warn_of_drops(handles)
    }

    fn gc(cx: &Context<'_>, conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        let mut errors = ErrorList::default();
        let invalid = nft_owner::invalid(cx.handles(), &LAYOUT, &cx.config.name, valid)?;
        for (owner, stale) in invalid {
            let work = || remove(cx, conf, &owner, &[], Search::Comments);
            errors.push(valid.remove(|| stale, work));
        }
        errors.finish()
    }

    /// Accepts the packets again, and records the addresses.
    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        let wish = Wish::of(conf, &chained(cx)?)?;
        let mut parts = Parts::default();
        parts.push("admission", Admission { is_repaired: true, ..Admission::of(cx, conf, &wish)? });
        parts.repair(Target { cx, at }, repairs)
    }
}

/// Returns the result of the earlier plugin.
fn chained(cx: &Context<'_>) -> Result<AddResult> {
    prev_result::require_chained(cx, "missing prevResult from earlier plugin")
}

/// An attachment whose packets are to pass the firewall.
struct Admission<'a> {
    cx: &'a Context<'a>,
    conf: &'a Conf,
    backend: Backend,
    wish: &'a Wish,
    /// Whether the records of the addresses are compared as well: the reference makes none.
    is_repaired: bool,
}

impl<'a> Admission<'a> {
    fn of(cx: &'a Context<'a>, conf: &'a Conf, wish: &'a Wish) -> Result<Admission<'a>> {
        let backend = conf.resolve_backend(cx)?;
        Ok(Admission { cx, conf, backend, wish, is_repaired: false })
    }

    /// Detects every foreseeable failure before anything is changed.
    fn require_ready(&self) -> Result<Notes<'a>> {
        require_plain_bridge(self.backend, self.wish)?;
        let notes = self.notes();
        notes.require(self.cx.handles())?;
        let handles = self.cx.handles();
        match self.backend {
            Backend::Firewalld => firewalld::require(self.cx)?.require_zone(self.zone())?,
            Backend::Iptables => {
                let programs = programs::of_host(handles, &self.wish.ips);
                programs.iter().try_for_each(Iptables::require)?;
            }
            Backend::Nftables => handles.require_nft().map(drop)?,
        }
        Ok(notes)
    }

    /// Returns what our own table records besides the addresses. iptables has its own chains for
    /// isolation.
    fn notes(&self) -> Notes<'a> {
        let isolation = self.wish.isolation.as_ref();
        Notes {
            isolation: isolation.filter(|_| self.backend != Backend::Iptables),
            zone: (self.backend == Backend::Firewalld).then_some(self.zone()),
        }
    }

    fn zone(&self) -> &'a str {
        &self.conf.firewalld_zone.0
    }

    /// Records the addresses as the attachment's. Returns whether there can be no rules for them yet,
    /// and what the attachment had before for others.
    fn claim(&self, key: &'a Key, notes: Notes<'_>, rb: &mut Rollback<'a>) -> Result<(bool, Held)> {
        let Admission { cx, wish, .. } = *self;
        let Some(replaced) = table::claim(cx.handles(), key, wish, notes)? else {
            return Ok((false, Held::default()));
        };
        let claimed = (replaced.is_empty(), table::outdated(&replaced, &wish.ips));
        rb.undo("give the addresses back", move || {
            // A previous owner of an address that was detached since has left its accepts to us.
            let left = table::give_back(cx.handles(), key, &replaced)?;
            revoke(cx, &left).finish()
        });
        Ok(claimed)
    }

    /// Accepts the packets. `are_new` means that there can be no rules for these addresses yet.
    fn accept(&self, key: &Key, are_new: bool, rb: &mut Rollback<'a>) -> Result<()> {
        let Admission { cx, wish, .. } = *self;
        let handles = cx.handles();
        let (programs, isolation) = match self.backend {
            Backend::Firewalld => return accept_by_firewalld(cx, self.zone(), &wish.ips, rb),
            Backend::Iptables => (programs::of_host(handles, &wish.ips), wish.isolation.as_ref()),
            Backend::Nftables => {
                let added = netlink::accept(handles, wish, are_new)?;
                let accepts = added.accepts();
                rb.undo("remove the rules", move || netlink::take_back(handles, &added));
                table::note_rules(handles, key, &accepts)?;
                (programs::to_accept_by_legacy(handles, &wish.ips)?, None)
            }
        };
        for iptables in programs {
            let added = programs::accept(&iptables, wish, isolation)?;
            rb.undo(format_args!("remove the rules of {}", iptables.name()), move || {
                programs::take_back(&iptables, &added)
            });
        }
        Ok(())
    }

    fn verify_accepts(&self, key: &Key) -> Result<()> {
        let Admission { cx, wish, .. } = *self;
        match self.backend {
            Backend::Firewalld => firewalld::require(cx)?.verify(self.zone(), &wish.ips),
            Backend::Iptables => {
                let programs = programs::of_host(cx.handles(), &wish.ips);
                programs::verify(&programs, wish, wish.isolation.as_ref())
            }
            Backend::Nftables => {
                let handles = cx.handles();
                let legacy = programs::of_legacy(handles, &wish.ips)?;
                let held = table::held(handles, &nft_owner::of(key), &[], Search::Ledger);
                ErrorList::of([
                    held.and_then(|held| netlink::verify(handles, wish, &held.rules)),
                    programs::verify_legacy(handles, &legacy, wish),
                ])
            }
        }
    }
}

impl<'a> Part<'a> for Admission<'a> {
    fn what(&self) -> String {
        let ips: Vec<String> = self.wish.ips.iter().map(IpAddr::to_string).collect();
        let ips = ips.join(" and ");
        match self.backend {
            Backend::Firewalld => format!("add {ips} to zone {:?} of firewalld", self.zone()),
            Backend::Iptables | Backend::Nftables => format!("accept packets of {ips}"),
        }
    }

    fn make(&self, on: Target<'a>, rb: &mut Rollback<'a>) -> Result<()> {
        let key = &on.at.key;
        let notes = self.require_ready()?;
        let (are_new, outdated) = self.claim(key, notes, rb)?;
        self.accept(key, are_new, rb)?;
        // What the attachment had before for other addresses: no record leads a DEL to it any more, and
        // other containers may get the addresses.
        remove_accepts(self.cx.handles(), &outdated)?;
        leave_zones(self.cx, &outdated.sources)
    }

    /// Takes no address from another attachment, and adds no rule that is left.
    fn make_again(&self, on: Target<'a>, _: &mut Rollback<'a>) -> Result<()> {
        let key = &on.at.key;
        let notes = self.require_ready()?;
        table::refuse_taken(self.cx.handles(), key, self.wish, notes)?;
        transaction(|rb| {
            self.claim(key, notes, rb)?;
            self.accept(key, false, rb)
        })
    }

    fn compare(&self, Target { at, .. }: Target<'a>) -> Result<()> {
        require_plain_bridge(self.backend, self.wish)?;
        let (handles, wish) = (self.cx.handles(), self.wish);
        ErrorList::of([
            table::verify(handles, &at.key, wish, self.notes()),
            self.verify_accepts(&at.key),
        ])?;
        match self.is_repaired {
            true => table::verify_recorded(handles, &at.key, wish, self.notes()),
            false => Ok(()),
        }
    }
}

/// Refuses a bridge name that iptables reads as a pattern: `br+` matches every link whose name
/// begins with `br`.
fn require_plain_bridge(backend: Backend, wish: &Wish) -> Result<()> {
    match &wish.isolation {
        Some(Isolation { bridge, .. })
            if backend == Backend::Iptables && !rules::is_plain(bridge.as_str()) =>
        {
            let problem = format_args!("{:?} cannot be passed to iptables", bridge.as_str());
            Err(Error::config("prevResult.interfaces[0].name", problem)
                .expecting("letters, digits and \"_.-\"")
                .with_details("backend \"nftables\" takes any name"))
        }
        _ => Ok(()),
    }
}

fn accept_by_firewalld<'a>(
    cx: &'a Context<'_>,
    zone: &'a str,
    ips: &[IpAddr],
    rb: &mut Rollback<'a>,
) -> Result<()> {
    let mut firewalld = firewalld::require(cx)?;
    for ip in ips.iter().copied() {
        if !firewalld.has(zone, ip)? {
            // Register the undo first: the answer may be lost after the address was added.
            rb.undo(format_args!("remove {ip} from the zone"), move || {
                leave_zones(cx, &[(ip, zone.to_owned())])
            });
            firewalld.add(zone, ip)?;
        }
    }
    Ok(())
}

/// Removes the accepts that are recorded, wherever they are.
fn revoke(cx: &Context<'_>, held: &Held) -> ErrorList {
    let mut errors = ErrorList::default();
    errors.push(remove_accepts(cx.handles(), held));
    errors.push(leave_zones(cx, &held.sources));
    errors
}

/// Removes whatever lets the attachment's packets pass, whichever backend made it: the
/// configuration may have changed since. The records of the attachment stay until all of that has
/// succeeded. `told` are its addresses, as far as DEL knows them.
fn remove(
    cx: &Context<'_>,
    conf: &Conf,
    owner: &Owner,
    told: &[IpAddr],
    search: Search,
) -> Result<()> {
    let held = &table::held(cx.handles(), owner, told, search)?;
    let mut errors = revoke(cx, held);
    // Addresses without a record, such as those that the reference attached, may be in the configured
    // zone.
    let zone = &conf.firewalld_zone.0;
    let unknown: Vec<_> = held.unknown.iter().map(|ip| (*ip, zone.clone())).collect();
    match leave_zones(cx, &unknown) {
        // Unless the configuration selects firewalld, a bus that does not answer does not fail the
        // removal of a container.
        Err(error) if conf.backend != Some(Backend::Firewalld) => warn(format_args!(
            "firewall: addresses may be left in firewalld zone {zone:?}: {error}"
        )),
        done => {
            errors.push(done);
        }
    }
    errors.finish()?;
    nft_owner::release(cx.handles(), &LAYOUT, owner, search).map(drop)
}

fn remove_accepts(handles: &Handles, held: &Held) -> Result<()> {
    if held.ips.is_empty() {
        return Ok(());
    }
    let mut errors = ErrorList::default();
    errors.push(handles.iptables().settle());
    errors.push(netlink::remove(handles, held));
    errors.push(programs::remove_of_legacy(handles, held));
    errors.finish()
}

/// Removes addresses from the zones that they were added to. If firewalld is not running, it has
/// none of our addresses any more.
fn leave_zones(cx: &Context<'_>, sources: &[(IpAddr, String)]) -> Result<()> {
    if sources.is_empty() {
        return Ok(());
    }
    firewalld::find(cx)?.map_or(Ok(()), |mut firewalld| firewalld.remove(sources))
}

/// Warns of packets between containers of one bridge that no rule sees, if they are to be dropped.
fn warn_of_unseen_packets(conf: &Conf) {
    let is_unseen =
        |family| !Sysctl::bridge_netfilter(family).read().is_ok_and(|value| value == "1");
    if conf.ingress_policy == Policy::Isolated && Family::ALL.into_iter().any(is_unseen) {
        warn(
            "firewall: the host does not see what containers of one bridge send each other, unless br_netfilter shows it: \
             ingressPolicy \"isolated\" needs net/bridge/bridge-nf-call-iptables = 1 and net/bridge/bridge-nf-call-ip6tables = 1",
        );
    }
}

/// Warns of chains that drop everything that they do not accept, and that cannot have rules of
/// ours. They may accept containers by rules of their own, so that is not an error.
fn warn_of_drops(handles: &Handles) -> Result<()> {
    let Some(nft) = handles.nft()? else { return Ok(()) };
    for family in [NfFamily::Inet, NfFamily::Ip, NfFamily::Ip6] {
        for (table, chain) in nft.dropping_chains(family, FORWARD_HOOK)? {
            if (table.as_str(), chain.as_str()) != ("filter", rules::FORWARD) {
                warn(format_args!(
                    "firewall: chain {chain:?} of nftables table \"{family} {table}\" drops what it does not accept, and no other \
                     table can change that: it must accept the containers' packets itself"
                ));
            }
        }
    }
    for iptables in programs::legacy(handles)?.iter().filter(|it| it.require().is_err()) {
        warn(format_args!(
            "firewall: the host has tables of {}, and not its programs: what they drop stays dropped",
            iptables.name()
        ));
    }
    Ok(())
}

/// NF_INET_FORWARD.
const FORWARD_HOOK: u32 = 2;
