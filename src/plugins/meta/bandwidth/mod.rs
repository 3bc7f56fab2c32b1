//! `bandwidth`: limits what a container receives and sends.
//! <https://www.cni.dev/plugins/current/meta/bandwidth/>
//!
//! Packets to the container wait in a queue of the host's end of its veth pair. Packets from it are
//! redirected to an ifb, a link that does nothing but have a queue. Kinds, numbers and names are
//! the reference's, so each implementation removes and checks what the other has made.

mod bucket;
mod conf;
mod ifb;
mod shaping;

use std::cell::RefCell;

use self::conf::Limits;
use self::shaping::{Egress, Ingress, Shaped};
use crate::cni::attachment::Key;
use crate::cni::conf::ValidAttachments;
use crate::cni::result::{AddResult, Interface};
use crate::error::{Code, Error, ErrorList, Result, warn};
use crate::net::netlink::{FQ_CODEL, Link, Netlink};
use crate::plugin::part::{Parts, Target};
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin};
use crate::repair::Repairs;
use crate::rollback::transaction;
use crate::steps::{container_link, interface, link_alias, link_record, prev_result, veth};

pub use self::conf::Conf;

/// The `bandwidth` plugin.
pub struct Bandwidth;

impl Plugin for Bandwidth {
    const NAME: &'static str = "bandwidth";
    const KIND: Kind = Kind::Meta;
    const ABOUT: &'static str = "limits what a container receives and sends";
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let mut result = prev_result::require_chained(cx, "must be called as chained plugin")?;
        let limits = &conf.limits;
        if limits.are_none() {
            return Ok(result);
        }
        let link = peer(cx, at)?;
        if leaves_out_peer(cx.host()?, at, &result)? {
            result.interfaces.push(interface::on_host(&link)); // CHECK and DEL know it by the result
        }
        require_named(&link, at, &result)?;
        limits.require_passing(link.mtu)?;
        let shaped = Shaped { host: cx.host()?, link: &link, traffic: &limits.traffic };
        let ifb = RefCell::default();
        transaction(|rb| parts(&shaped, limits, &ifb).make(Target { cx, at }, rb))?;
        result.interfaces.extend(ifb.into_inner().as_ref().map(interface::on_host));
        Ok(result)
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        let result = prev_result::require_chained(cx, "must be called as a chained plugin")?;
        let limits = &conf.limits;
        let host = cx.host()?;
        if limits.are_none() {
            return Ok(());
        }
        let link = host_end(cx, at, &result)?;
        let shaped = Shaped { host, link: &link, traffic: &limits.traffic };
        parts(&shaped, limits, &RefCell::default()).compare(Target { cx, at })
    }

    fn del(cx: &Context<'_>, conf: &Conf, at: &Detachment) -> Result<()> {
        let host = cx.host()?;
        let mut errors = ErrorList::default();
        let end = errors.push(find_host_end(host, at)).flatten();
        let ifb = errors.push(ifb::find(host, &at.key, end.as_ref())).flatten();
        let link = end.filter(|end| {
            link_alias::is_of(&end.alias, &at.key)
                || may_be_of(end, &at.key, at.prev_result.as_ref())
        });
        let postponed = cx.handles().postponed();
        let ifb_index = ifb.as_ref().map(|ifb| ifb.index);
        // The filters go before the ifb: packets redirected to a missing link are lost.
        if let Some(link) = link {
            // The limits, if known, distinguish our queue from an administrator's; DEL may not know
            // them.
            let limits = conf.read_limits(cx).unwrap_or_default();
            errors.push(postponed.undo_unless_deleted(host, link.index, move |host| {
                shaping::unlimit(host, &link, &limits, ifb.as_ref())
            }));
        }
        if let Some(index) = ifb_index {
            errors.push(postponed.delete_link(host, index));
        }
        errors.finish()
    }

    /// The runtime names the containers to limit only at ADD. If the network itself has no limits,
    /// a kernel without the feature is a warning and not an error: otherwise a runtime would start
    /// no container at all, for a feature that few of them need.
    fn status(cx: &Context<'_>, conf: &Conf) -> Result<()> {
        let limits = &conf.limits;
        let mut queues = ["tbf"].into_iter().chain(limits.queue.fair.then_some(FQ_CODEL));
        let able = queues
            .try_for_each(|kind| require_qdisc(cx, kind))
            .and_then(|()| container_link::require_kind(cx, ifb::KIND));
        match able {
            Err(error) if limits.are_none() => {
                warn(format_args!("bandwidth: no container can be limited: {error}"));
                Ok(())
            }
            ready => ready,
        }
    }

    fn gc(cx: &Context<'_>, _conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        ifb::collect_garbage(cx, valid)
    }

    /// Limits both directions again.
    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        let result = prev_result::require_chained(cx, "must be called as a chained plugin")?;
        let limits = &conf.limits;
        if limits.are_none() {
            return Ok(());
        }
        let link = host_end(cx, at, &result)?;
        let shaped = Shaped { host: cx.host()?, link: &link, traffic: &limits.traffic };
        parts(&shaped, limits, &RefCell::default()).repair(Target { cx, at }, repairs)
    }
}

/// The limits of both directions. `made` gets the ifb.
fn parts<'p, 'a>(
    shaped: &'p Shaped<'a>,
    limits: &Limits,
    made: &'p RefCell<Option<Link>>,
) -> Parts<'p, 'a> {
    let mut parts = Parts::default();
    parts.extend("ingress limit", limits.ingress.map(|limit| Ingress { shaped, limit }));
    parts.extend("egress limit", limits.egress.map(|limit| Egress { shaped, limit, made }));
    parts
}

/// Fails with code 50 if the kernel lacks a kind of queue.
fn require_qdisc(cx: &Context<'_>, kind: &str) -> Result<()> {
    if cx.host()?.has_qdisc(kind).map_err(|e| e.with_code(Code::NOT_AVAILABLE))? {
        return Ok(());
    }
    Err(Error::new(Code::NOT_AVAILABLE, format!("the kernel has no qdisc {kind}"))
        .with_details(format_args!("is the module sch_{kind} available?")))
}

/// Returns the host's end of the container's veth pair, which prevResult must have.
fn host_end(cx: &Context<'_>, at: &Attachment, result: &AddResult) -> Result<Link> {
    let link = peer(cx, at)?;
    require_named(&link, at, result)?;
    Ok(link)
}

/// Returns the host's end of the container's veth pair, as the kernel has it.
fn peer(cx: &Context<'_>, at: &Attachment) -> Result<Link> {
    let ifname = at.ifname();
    let container = at.netlink()?.link(ifname)?;
    if container.kind != veth::KIND {
        let kind = if container.kind.is_empty() { "hardware" } else { &container.kind };
        let problem = format!("it is of type {kind}, bandwidth can limit veth only");
        return Err(Error::new(Code::INVALID_CONFIG, problem).saying(format_args!(
            "container interface {ifname} has no veth peer: interface {ifname:?} was not a veth interface"
        )));
    }
    let found = veth::other_end(cx.host()?, at.netns()?, &container)?;
    let problem = || format!("the other end of {ifname:?} is not on the host");
    found.ok_or_else(|| Error::new(Code::INVALID_CONFIG, problem()).saying(NO_PEER))
}

fn require_named(link: &Link, at: &Attachment, result: &AddResult) -> Result<()> {
    if may_be_of(link, &at.key, Some(result)) {
        return Ok(());
    }
    let (name, ifname) = (&link.name, at.ifname());
    let problem =
        format_args!("the veth peer {name:?} of the container's {ifname:?} is not among them");
    Err(Error::config("prevResult.interfaces", problem).saying(NO_PEER))
}

/// Whether the result has the container's interface and no veth of the host: some plugins name only
/// what is in the container.
fn leaves_out_peer(host: &Netlink, at: &Attachment, result: &AddResult) -> Result<bool> {
    let is_own = |one: &Interface| one.name == at.ifname() && one.sandbox == at.netns_path;
    if !result.interfaces.iter().any(is_own) {
        return Ok(false);
    }
    for other in result.interfaces.iter().filter(|other| other.sandbox.is_empty()) {
        if host.find_link(&other.name)?.is_none_or(|link| link.kind == veth::KIND) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a host's end may be the attachment's by what a container cannot write: its alias names no
/// other attachment, and the result, if it is known, has it. Results before 0.3.0 have no
/// interfaces.
fn may_be_of(link: &Link, key: &Key, result: Option<&AddResult>) -> bool {
    let lists =
        |result: &AddResult| result.interfaces.is_empty() || interface::has_on_host(result, link);
    !link_alias::is_of_another(&link.alias, key) && result.is_none_or(lists)
}

/// The reference's sentence.
const NO_PEER: &str = "no veth peer of container interface found in host ns";

/// Finds the host's end for DEL: by the name that we give it, else through the container, whose
/// netns path may lead to another container by now, and its interface to another pair.
fn find_host_end(host: &Netlink, at: &Detachment) -> Result<Option<Link>> {
    if let Some(own) = veth::find_host_end(host, &at.key)? {
        return Ok(Some(own));
    }
    let Some(netns) = &at.netns else { return Ok(None) };
    let ifname = at.key.ifname.as_str();
    let Some(container) = link_record::find_named(netns.netlink()?, ifname)? else {
        return Ok(None);
    };
    veth::other_end(host, netns, &container)
}
