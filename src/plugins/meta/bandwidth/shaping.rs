//! Queues with a rate, and the filters that send packets there.

use ipnet::IpNet;

use super::bucket::{FASTEST, Limit, is_of_add};
use super::conf::Traffic;
use crate::error::{Code, Error, Result};
use crate::net::netlink::{
    Bucket, Filter, Handle, HtbClass, Link, LinkChange, Netlink, Qdisc, QdiscKind, Side, Verdict,
};
use crate::rollback::Rollback;

/// The handle of a link's root qdisc.
const ROOT: Handle = Handle::new(1, 0);
/// The HTB class of limited packets, and the bucket that limits them.
const LIMITED: Handle = Handle::new(1, 0x30);
const QUEUE: Handle = Handle::new(0x30, 0);
/// The handle of the ingress qdisc, for packets that a link has received.
const RECEIVED: Handle = Handle::new(0xffff, 0);
/// The class itself limits nothing: unlike tbf, HTB does not segment the super-packets of TCP, so a
/// short queue would drop nearly all of them. The kernel logs once per queue that tbf is not
/// work-conserving, which HTB tolerates.
const UNHURRIED: HtbClass =
    HtbClass { handle: LIMITED, rate: FASTEST, ceil: FASTEST, buffer: u32::MAX };
/// The verdict for packets that continue unchanged: in an HTB it is the qdisc itself, which does
/// not limit.
const UNLIMITED: Verdict = Verdict::Class(ROOT);

/// The host's end of a container's veth pair, and which of its traffic is limited.
pub struct Shaped<'a> {
    /// The host's netlink socket.
    pub host: &'a Netlink,
    /// The host's end. A packet on it has to pass every queue.
    pub link: &'a Link,
    /// The traffic to limit.
    pub traffic: &'a Traffic,
}

impl<'a> Shaped<'a> {
    /// Limits traffic to the container, in a queue of the host's end.
    pub fn limit_ingress(&self, limit: Limit, rb: &mut Rollback<'a>) -> Result<()> {
        let Shaped { host, link, traffic } = *self;
        let bucket = limit.bucket(link.mtu);
        if *traffic == Traffic::All {
            return create_root(host, link, QdiscKind::Tbf(bucket), rb);
        }
        create_root(host, link, QdiscKind::Htb, rb)?;
        host.create_htb_class(link, ROOT, &UNHURRIED)?;
        host.create_qdisc(
            link,
            &Qdisc { parent: LIMITED, handle: QUEUE, kind: QdiscKind::Tbf(bucket) },
        )?;
        for filter in ingress_filters(traffic) {
            host.create_filter(link, ROOT, &filter)?;
        }
        Ok(())
    }

    /// Limits traffic from the container: sets up the ifb with a queue, and redirects the traffic
    /// to it.
    pub fn limit_egress(&self, ifb: &Link, limit: Limit, rb: &mut Rollback<'a>) -> Result<()> {
        let Shaped { host, link, traffic } = *self;
        create_root(host, ifb, QdiscKind::Tbf(limit.bucket(link.mtu)), rb)?;
        host.change_link(ifb, &LinkChange { up: Some(true), ..LinkChange::default() })?;
        create(
            host,
            link,
            Qdisc { parent: Handle::INGRESS, handle: RECEIVED, kind: QdiscKind::Ingress },
            rb,
        )?;
        for filter in egress_filters(traffic, ifb) {
            host.create_filter(link, RECEIVED, &filter)?;
        }
        Ok(())
    }

    /// Verifies that traffic to the container waits in the expected queue.
    pub fn verify_ingress(&self, limit: Limit) -> Result<()> {
        let Shaped { host, link, traffic } = *self;
        if *traffic == Traffic::All {
            return self.verify_bucket(link, Handle::ROOT, limit);
        }
        let root = Qdisc { parent: Handle::ROOT, handle: ROOT, kind: QdiscKind::Htb };
        if host.qdisc_at(link, Handle::ROOT)? != Some(root) {
            return Err(Error::check(format!(
                "the qdisc of {:?} is another, expected htb {ROOT}",
                link.name
            )));
        }
        if host.htb_classes(link)? != [UNHURRIED] {
            return Err(Error::check(format!(
                "the classes of {:?} are others, expected {LIMITED} alone",
                link.name
            )));
        }
        self.verify_bucket(link, LIMITED, limit)?;
        verify_filters(host, link, ROOT, &ingress_filters(traffic))
    }

    /// Verifies that traffic from the container goes to the ifb and waits in the expected queue.
    pub fn verify_egress(&self, ifb: &Link, limit: Limit) -> Result<()> {
        self.verify_bucket(ifb, Handle::ROOT, limit)?;
        verify_filters(self.host, self.link, RECEIVED, &egress_filters(self.traffic, ifb))
    }

    /// Verifies that the qdisc at this place of a link, the host's end or the ifb, is the bucket
    /// that we or the reference make. Its handle does not matter.
    fn verify_bucket(&self, link: &Link, parent: Handle, limit: Limit) -> Result<()> {
        let Some(qdisc) = self.host.qdisc_at(link, parent)? else {
            return Err(Error::check(format!(
                "{:?} has no qdisc at {parent}, expected tbf",
                link.name
            ))
            .saying("Failed to find qdisc"));
        };
        let QdiscKind::Tbf(found) = qdisc.kind else {
            let kind = qdisc.kind.name();
            return Err(Error::check(format!(
                "{:?} has qdisc {kind} at {parent}, expected tbf",
                link.name
            )));
        };
        // A bucket for a larger MTU is right too: the MTU may have been lowered since.
        if limit.makes(found, self.link.mtu) {
            Ok(())
        } else {
            Err(other_bucket(link, found, limit.bucket(self.link.mtu)))
        }
    }
}

/// Returns CHECK's error for a bucket with other numbers.
fn other_bucket(link: &Link, found: Bucket, expected: Bucket) -> Error {
    let numbers = [
        ("Rate", "rate", found.rate, expected.rate),
        ("Limit", "limit", found.limit.into(), expected.limit.into()),
        ("Buffer", "burst, in ticks,", found.buffer.into(), expected.buffer.into()),
    ];
    let differs: Vec<(&str, String)> = numbers
        .into_iter()
        .filter(|(_, _, found, expected)| found != expected)
        .map(|(word, what, found, expected)| (word, format!("{what} {found}, expected {expected}")))
        .collect();
    let all: Vec<&str> = differs.iter().map(|(_, difference)| difference.as_str()).collect();
    let error = Error::check(format!("qdisc tbf of {:?} has {}", link.name, all.join("; ")));
    match differs.first() {
        Some((word, _)) => error.saying(format_args!("{word} doesn't match")),
        None => error,
    }
}

fn create_root<'a>(
    host: &'a Netlink,
    link: &Link,
    kind: QdiscKind,
    rb: &mut Rollback<'a>,
) -> Result<()> {
    create(host, link, Qdisc { parent: Handle::ROOT, handle: ROOT, kind }, rb)
}

/// Creates a qdisc. When it is deleted, everything below it is too.
fn create<'a>(host: &'a Netlink, link: &Link, qdisc: Qdisc, rb: &mut Rollback<'a>) -> Result<()> {
    host.create_qdisc(link, &qdisc).map_err(|e| {
        if e.is_exists() {
            e.with_code(Code::CONFLICT)
                .with_details(format_args!("{:?} has another qdisc there already", link.name))
        } else {
            e
        }
    })?;
    let of = link.clone();
    rb.undo(format_args!("delete qdisc {} of {:?}", qdisc.handle, link.name), move || {
        host.delete_qdisc(&of, qdisc.parent, qdisc.handle, qdisc.kind.name())
    });
    Ok(())
}

fn ingress_filters(traffic: &Traffic) -> Vec<Filter> {
    filters(traffic, Side::Source, Verdict::Class(LIMITED))
}

fn egress_filters(traffic: &Traffic, ifb: &Link) -> Vec<Filter> {
    filters(traffic, Side::Destination, Verdict::Redirect(ifb.index))
}

/// Returns the filters of one direction, which match the remote address on `side`. For all traffic
/// it is the reference's single filter.
fn filters(traffic: &Traffic, side: Side, limited: Verdict) -> Vec<Filter> {
    match traffic {
        Traffic::All => vec![Filter::of_all(1, limited)],
        Traffic::With(subnets) => filters_of(subnets, side, limited),
        Traffic::WithoutThat(subnets) => {
            let mut filters = filters_of(subnets, side, UNLIMITED);
            filters.push(Filter::of_all(3, limited));
            filters
        }
    }
}

/// Returns one filter per subnet.
fn filters_of(subnets: &[IpNet], side: Side, verdict: Verdict) -> Vec<Filter> {
    let filter = |net: &IpNet| {
        // All filters of one priority must be of one family.
        let priority = if net.addr().is_ipv4() { 1 } else { 2 };
        Filter::of_subnet(priority, side, net, verdict)
    };
    subnets.iter().map(filter).collect()
}

fn verify_filters(host: &Netlink, link: &Link, qdisc: Handle, expected: &[Filter]) -> Result<()> {
    let found = host.filters(link, qdisc)?;
    let missing = expected.iter().filter(|filter| !found.contains(filter)).count();
    let others = found.iter().filter(|filter| !expected.contains(filter)).count();
    if missing + others == 0 {
        Ok(())
    } else {
        Err(Error::check(format!(
            "of the filters of {:?} at {qdisc} {missing} of {} are missing, and {others} others are there",
            link.name,
            expected.len()
        )))
    }
}

/// Whether packets that the link receives are redirected to the ifb.
pub fn is_redirected_to(host: &Netlink, link: &Link, ifb: &Link) -> Result<bool> {
    Ok(redirects(host, link)?.contains(&ifb.index))
}

/// Returns the ifindexes of the links that received packets are redirected to.
pub fn redirects(host: &Netlink, link: &Link) -> Result<Vec<u32>> {
    let target = |filter: Filter| {
        if let Verdict::Redirect(index) = filter.verdict { Some(index) } else { None }
    };
    Ok(host.filters(link, RECEIVED)?.into_iter().filter_map(target).collect())
}

/// Whether a link has a queue like those that ADD creates.
pub fn is_limited(host: &Netlink, link: &Link) -> Result<bool> {
    let root = host.qdisc_at(link, Handle::ROOT)?;
    Ok(root.is_some_and(|root| root.handle == ROOT && matches!(root.kind, QdiscKind::Tbf(_))))
}

/// Removes the limits from the host's end: its queue, and the redirection to the ifb or to a link
/// that is gone. Anything that ADD would create differently belongs to an administrator, and may be
/// why ADD failed.
pub fn unlimit(
    host: &Netlink,
    link: &Link,
    ingress: Option<Limit>,
    ifb: Option<&Link>,
) -> Result<()> {
    delete_queue(host, link, ingress)?;
    delete_redirection(host, link, ifb)
}

fn delete_queue(host: &Netlink, link: &Link, ingress: Option<Limit>) -> Result<()> {
    let Some(root) = host.qdisc_at(link, Handle::ROOT)?.filter(|root| root.handle == ROOT) else {
        return Ok(());
    };
    let is_ours = match &root.kind {
        QdiscKind::Tbf(found) => {
            ingress.map_or_else(|| is_of_add(*found), |limit| limit.makes(*found, 0))
        }
        QdiscKind::Htb => host.qdisc_at(link, LIMITED)?.is_some_and(|queue| queue.handle == QUEUE),
        _ => false,
    };
    if is_ours {
        host.delete_qdisc(link, root.parent, root.handle, root.kind.name())
    } else {
        Ok(())
    }
}

fn delete_redirection(host: &Netlink, link: &Link, ifb: Option<&Link>) -> Result<()> {
    let redirects = |filter: &Filter| match filter.verdict {
        Verdict::Redirect(index) => index == 0 || ifb.is_some_and(|ifb| ifb.index == index),
        _ => false,
    };
    let filters = host.filters(link, RECEIVED)?;
    let are_ours = filters.iter().any(redirects)
        && filters.iter().all(|filter| redirects(filter) || filter.verdict == UNLIMITED);
    // If the filters are deleted, the ifb shows that the qdisc was made for it.
    if are_ours || filters.is_empty() && ifb.is_some() && has_ingress(host, link)? {
        host.delete_qdisc(link, Handle::INGRESS, RECEIVED, QdiscKind::Ingress.name())?;
    }
    Ok(())
}

fn has_ingress(host: &Netlink, link: &Link) -> Result<bool> {
    let found = host.qdisc_at(link, Handle::INGRESS)?;
    Ok(found
        .is_some_and(|qdisc| qdisc.handle == RECEIVED && matches!(qdisc.kind, QdiscKind::Ingress)))
}
