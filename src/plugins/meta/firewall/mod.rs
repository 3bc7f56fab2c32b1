//! `firewall`: lets packets to and from a container pass the host's firewall, and can isolate it
//! from containers on other bridges.
//! <https://www.cni.dev/plugins/current/meta/firewall/>
//!
//! An accept in a table of our own overrides no drop elsewhere. So the accepts are where the drops
//! are: in iptables' table `filter`, of either kind, or in a zone of firewalld. Our own state is in
//! a table of its own (`table`).

mod conf;
mod firewalld;
mod netlink;
mod programs;
mod rules;
mod table;
mod zone;

use std::net::IpAddr;

use self::conf::{Backend, Conf, Isolation, Policy, Wish};
pub use self::table::LAYOUT;
use self::table::{Held, Notes};
use crate::cni::attachment::Key;
use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::error::{Code, Error, ErrorList, Result, warn};
use crate::family::Family;
use crate::net::iptables::Iptables;
use crate::net::nft::NfFamily;
use crate::net::nft::owned::{Owner, Replaced, Search};
use crate::net::sysctl::Sysctl;
use crate::plugin::{Attachment, Context, Detachment, Handles, Kind, Plugin};
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
        let result = prev_result::require_chained(cx, "missing prevResult from earlier plugin")?;
        let wish = Wish::of(conf, &result)?;
        let admission = Admission { cx, conf, backend: conf.resolve_backend(cx)?, wish: &wish };
        let notes = admission.require_ready()?;
        transaction(|rb| {
            let replaced = table::claim(cx.handles(), &at.key, &wish, notes)?;
            let are_new = replaced.as_ref().is_some_and(Replaced::is_empty);
            let outdated = replaced
                .as_ref()
                .map(|replaced| table::outdated(replaced, &wish.ips))
                .unwrap_or_default();
            rb.undo("give the addresses back", || {
                replaced.map_or(Ok(()), |replaced| give_back(cx, &at.key, &replaced))
            });
            admission.accept(&at.key, are_new, rb)?;
            // No record leads a DEL to these addresses any more, and other containers may get them.
            remove_accepts(cx.handles(), &outdated)?;
            leave_zones(cx, &outdated.sources)
        })?;
        Ok(result)
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        let wish = Wish::of(
            conf,
            &prev_result::require_chained(cx, "missing prevResult from earlier plugin")?,
        )?;
        let backend = conf.resolve_backend(cx)?;
        Admission { cx, conf, backend, wish: &wish }.verify(&at.key)
    }

    fn del(cx: &Context<'_>, conf: &Conf, at: &Detachment) -> Result<()> {
        let told: Vec<IpAddr> = at.prev_result.iter().flat_map(conf::addresses).collect();
        let owner = nft_owner::of(&at.key);
        remove(cx, conf, &table::held(cx.handles(), &owner, &told, Search::Ledger)?)?;
        table::release(cx.handles(), &owner, Search::Ledger)
    }

    fn status(cx: &Context<'_>, conf: &Conf) -> Result<()> {
        let backend = conf.resolve_backend(cx)?;
        require(cx, conf, backend).map_err(|e| e.with_code(Code::NOT_AVAILABLE))?;
        tell_what_passes_unseen(conf);
        tell_what_drops(cx.handles())
    }

    fn gc(cx: &Context<'_>, conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        let mut errors = ErrorList::default();
        for (owner, stale) in
            nft_owner::invalid(cx.handles(), &table::LAYOUT, &cx.config.name, valid)?
        {
            errors.push(valid.remove(|| stale, || remove_stale(cx, conf, &owner)));
        }
        errors.finish()
    }
}

/// An attachment whose packets are to pass the firewall.
struct Admission<'a> {
    cx: &'a Context<'a>,
    conf: &'a Conf,
    backend: Backend,
    wish: &'a Wish,
}

impl<'a> Admission<'a> {
    /// Detects every foreseeable failure before anything is changed.
    fn require_ready(&self) -> Result<Notes<'a>> {
        require_plain_bridge(self.backend, self.wish)?;
        let notes = self.notes();
        notes.require(self.cx.handles())?;
        match self.backend {
            Backend::Firewalld => firewalld::require(self.cx)?.require_zone(self.zone())?,
            Backend::Iptables => programs::of_host(self.cx.handles(), &self.wish.ips)
                .iter()
                .try_for_each(Iptables::require)?,
            Backend::Nftables => self.cx.handles().require_nft().map(drop)?,
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

    /// Accepts the packets. `are_new` means that there can be no rules for these addresses yet.
    fn accept(&self, key: &Key, are_new: bool, rb: &mut Rollback<'a>) -> Result<()> {
        let wish = self.wish;
        let handles = self.cx.handles();
        match self.backend {
            Backend::Firewalld => accept_by_firewalld(self.cx, self.zone(), &wish.ips, rb),
            Backend::Iptables => accept_by_programs(
                programs::of_host(handles, &wish.ips),
                wish,
                wish.isolation.as_ref(),
                rb,
            ),
            Backend::Nftables => {
                let added = netlink::accept(handles, wish, are_new)?;
                let accepts = added.accepts();
                rb.undo("remove the rules", move || netlink::take_back(handles, &added));
                table::note_rules(handles, key, &accepts)?;
                accept_by_programs(programs::of_legacy(handles, &wish.ips)?, wish, None, rb)
            }
        }
    }

    /// Verifies that the result of `accept`, and our own table, are as ADD left them.
    fn verify(&self, key: &Key) -> Result<()> {
        let wish = self.wish;
        let handles = self.cx.handles();
        require_plain_bridge(self.backend, wish)?;
        table::verify(handles, key, wish, self.notes())?;
        match self.backend {
            Backend::Firewalld => firewalld::require(self.cx)?.verify(self.zone(), &wish.ips),
            Backend::Iptables => programs::verify(
                &programs::of_host(handles, &wish.ips),
                wish,
                wish.isolation.as_ref(),
            ),
            Backend::Nftables => {
                let held = table::held(handles, &nft_owner::of(key), &[], Search::Ledger)?;
                netlink::verify(handles, wish, &held.rules)?;
                programs::verify(&programs::of_legacy(handles, &wish.ips)?, wish, None)
            }
        }
    }
}

/// Refuses a bridge name that iptables reads as a pattern: `br+` matches every link whose name
/// begins with `br`.
fn require_plain_bridge(backend: Backend, wish: &Wish) -> Result<()> {
    let is_plain = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
    };
    match &wish.isolation {
        Some(Isolation { bridge, .. })
            if backend == Backend::Iptables && !is_plain(bridge.as_str()) =>
        {
            Err(Error::config(
                "prevResult.interfaces[0].name",
                format_args!("{:?} cannot be passed to iptables", bridge.as_str()),
            )
            .expecting("letters, digits and \"_.-\"")
            .with_details("backend \"nftables\" takes any name"))
        }
        _ => Ok(()),
    }
}

fn accept_by_programs<'a>(
    programs: Vec<Iptables<'a>>,
    wish: &Wish,
    isolation: Option<&Isolation>,
    rb: &mut Rollback<'a>,
) -> Result<()> {
    for iptables in programs {
        let added = programs::accept(&iptables, wish, isolation)?;
        rb.undo(format_args!("remove the rules of {}", iptables.name()), move || {
            programs::take_back(&iptables, &added)
        });
    }
    Ok(())
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

/// Undoes `table::claim`. A previous owner of an address that was detached since has left its
/// accepts to us, so they are removed here.
fn give_back(cx: &Context<'_>, key: &Key, replaced: &Replaced) -> Result<()> {
    let left = table::give_back(cx.handles(), key, replaced)?;
    let mut errors = ErrorList::default();
    errors.push(remove_accepts(cx.handles(), &left));
    errors.push(leave_zones(cx, &left.sources));
    errors.finish()
}

/// Removes what a stale attachment has, for GC.
fn remove_stale(cx: &Context<'_>, conf: &Conf, owner: &Owner) -> Result<()> {
    remove(cx, conf, &table::held(cx.handles(), owner, &[], Search::Comments)?)?;
    table::release(cx.handles(), owner, Search::Comments)
}

/// Removes whatever lets the attachment's packets pass, whichever backend made it: the
/// configuration may have changed since. The records of the attachment stay until all of that has
/// succeeded; the caller releases them then.
fn remove(cx: &Context<'_>, conf: &Conf, held: &Held) -> Result<()> {
    let mut errors = ErrorList::default();
    errors.push(remove_accepts(cx.handles(), held));
    errors.push(leave_zones(cx, &held.sources));
    errors.push(leave_zone_perhaps(cx, conf, &held.unknown));
    errors.finish()
}

fn remove_accepts(handles: &Handles, held: &Held) -> Result<()> {
    if held.ips.is_empty() {
        return Ok(());
    }
    let mut errors = ErrorList::default();
    errors.push(handles.iptables().settle());
    errors.push(netlink::remove(handles, held));
    errors.push(
        programs::of_legacy(handles, &held.ips)
            .and_then(|programs| programs::remove(&programs, held)),
    );
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

/// The same for addresses without a record, such as those that the reference attached: they may be
/// in the configured zone. Unless the configuration selects firewalld, a bus that does not answer
/// does not fail the removal of a container.
fn leave_zone_perhaps(cx: &Context<'_>, conf: &Conf, ips: &[IpAddr]) -> Result<()> {
    let sources: Vec<(IpAddr, String)> =
        ips.iter().map(|ip| (*ip, conf.firewalld_zone.0.clone())).collect();
    match leave_zones(cx, &sources) {
        Err(error) if conf.backend != Some(Backend::Firewalld) => {
            warn(format_args!(
                "firewall: addresses may be left in firewalld zone {:?}: {error}",
                conf.firewalld_zone.0
            ));
            Ok(())
        }
        done => done,
    }
}

/// Requires that the backend has what an ADD would need.
fn require(cx: &Context<'_>, conf: &Conf, backend: Backend) -> Result<()> {
    match backend {
        Backend::Firewalld => {
            if conf.ingress_policy != Policy::Open {
                cx.handles().require_nft()?;
            }
            firewalld::require(cx)?.require_zone(&conf.firewalld_zone.0)
        }
        Backend::Iptables => programs::require(cx.handles()),
        Backend::Nftables => cx.handles().require_nft().map(drop),
    }
}

/// Warns of packets between containers of one bridge that no rule sees, if they are to be dropped.
fn tell_what_passes_unseen(conf: &Conf) {
    let passes = |family| !Sysctl::bridge_netfilter(family).read().is_ok_and(|value| value == "1");
    if conf.ingress_policy == Policy::Isolated && Family::ALL.into_iter().any(passes) {
        warn(
            "firewall: the host does not see what containers of one bridge send each other, unless br_netfilter shows it: \
             ingressPolicy \"isolated\" needs net/bridge/bridge-nf-call-iptables = 1 and net/bridge/bridge-nf-call-ip6tables = 1",
        );
    }
}

/// Warns of chains that drop everything that they do not accept, and that cannot have rules of
/// ours. They may accept containers by rules of their own, so that is not an error.
fn tell_what_drops(handles: &Handles) -> Result<()> {
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
    programs::legacy_that_cannot_be_written(handles)?.into_iter().for_each(|name| {
        warn(format_args!(
            "firewall: the host has tables of {name}, and not its programs: what they drop stays dropped"
        ));
    });
    Ok(())
}

/// NF_INET_FORWARD.
const FORWARD_HOOK: u32 = 2;
