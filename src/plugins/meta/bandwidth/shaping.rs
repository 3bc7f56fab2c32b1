//! Queues with a rate, and the filters that send packets there.

use std::cell::RefCell;

use ipnet::IpNet;

use super::bucket::{FASTEST, Limit, is_of_add};
use super::conf::{Limits, Traffic};
use super::ifb::{self, RECEIVED, ROOT, target};
use crate::error::{Code, Error, ErrorList, Result};
use crate::net::netlink::{
    FQ_CODEL, Filter, Handle, HtbClass, Link, LinkChange, Netlink, Qdisc, QdiscKind, Side, Verdict,
};
use crate::plugin::part::{Part, Target};
use crate::rollback::Rollback;
use crate::steps::link_record;

/// The HTB class of limited packets, and the bucket that limits them.
const LIMITED: Handle = Handle::new(1, 0x30);
const QUEUE: Handle = Handle::new(0x30, 0);
/// The ingress qdisc, which has the filters that redirect.
const INGRESS: Qdisc =
    Qdisc { parent: Handle::INGRESS, handle: RECEIVED, kind: QdiscKind::Ingress };
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

/// The limit of traffic to the container, in a queue of the host's end, or in a class of an HTB if
/// filters select it.
pub struct Ingress<'p, 'a> {
    /// What is limited.
    pub shaped: &'p Shaped<'a>,
    /// The limit.
    pub limit: Limit,
}

impl<'a> Part<'a> for Ingress<'_, 'a> {
    fn what(&self) -> String {
        format!("limit ingress at {:?} to {} bit/s", self.shaped.link.name, self.limit.rate)
    }

    fn make(&self, _: Target<'a>, rb: &mut Rollback<'a>) -> Result<()> {
        let Ingress { shaped, limit } = *self;
        let Shaped { host, link, traffic } = *shaped;
        if *traffic == Traffic::All {
            return shaped.limit_all(link, limit, rb);
        }
        create(host, link, at_root(QdiscKind::Htb), rb)?;
        host.create_htb_class(link, ROOT, &UNHURRIED)?;
        let kind = QdiscKind::Tbf(limit.bucket(link.mtu));
        host.create_qdisc(link, &Qdisc { parent: LIMITED, handle: QUEUE, kind })?;
        shaped.fill(link, QUEUE, limit)?;
        shaped.create_filters(ROOT, &ingress_filters(traffic))
    }

    fn make_again(&self, on: Target<'a>, rb: &mut Rollback<'a>) -> Result<()> {
        delete_queue(self.shaped.host, self.shaped.link, Sought::Exactly(self.limit))?;
        self.make(on, rb)
    }

    fn compare(&self, _: Target<'a>) -> Result<()> {
        let Ingress { shaped, limit } = *self;
        let Shaped { host, link, traffic } = *shaped;
        if *traffic == Traffic::All {
            return shaped.verify_bucket(link, Handle::ROOT, limit);
        }
        let name = &link.name;
        if host.qdisc_at(link, Handle::ROOT)? != Some(at_root(QdiscKind::Htb)) {
            let problem = format!("the qdisc of {name:?} is another, expected htb {ROOT}");
            return Err(Error::check(problem));
        }
        if host.htb_classes(link)? != [UNHURRIED] {
            let problem = format!("the classes of {name:?} are others, expected {LIMITED} alone");
            return Err(Error::check(problem));
        }
        ErrorList::of([
            shaped.verify_bucket(link, LIMITED, limit),
            verify_filters(host, link, ROOT, &ingress_filters(traffic)),
        ])
    }
}

/// The limit of traffic from the container, which is redirected to the queue of an ifb.
pub struct Egress<'p, 'a> {
    /// What is limited.
    pub shaped: &'p Shaped<'a>,
    /// The limit.
    pub limit: Limit,
    /// Gets the ifb.
    pub made: &'p RefCell<Option<Link>>,
}

impl<'a> Part<'a> for Egress<'_, 'a> {
    fn what(&self) -> String {
        format!("limit egress at {:?} to {} bit/s", self.shaped.link.name, self.limit.rate)
    }

    fn make(&self, Target { at, .. }: Target<'a>, rb: &mut Rollback<'a>) -> Result<()> {
        let Shaped { host, link, traffic } = *self.shaped;
        let ifb = ifb::create(host, &at.key, link.mtu, rb)?;
        self.shaped.limit_all(&ifb, self.limit, rb)?;
        host.change_link(&ifb, &LinkChange { up: Some(true), ..LinkChange::default() })?;
        create(host, link, INGRESS, rb)?;
        self.shaped.create_filters(RECEIVED, &egress_filters(traffic, &ifb))?;
        self.made.replace(Some(ifb));
        Ok(())
    }

    /// The filters go before the ifb: packets redirected to a missing link are lost.
    fn make_again(&self, on: Target<'a>, rb: &mut Rollback<'a>) -> Result<()> {
        let Shaped { host, link, .. } = *self.shaped;
        let ifb = ifb::find(host, &on.at.key, Some(link))?;
        delete_redirection(host, link, ifb.as_ref())?;
        ifb.map_or(Ok(()), |ifb| link_record::delete_link(host, ifb.index))?;
        self.make(on, rb)
    }

    fn compare(&self, Target { at, .. }: Target<'a>) -> Result<()> {
        let Shaped { host, link, traffic } = *self.shaped;
        let ifb = ifb::find_made(host, &at.key)?;
        let is_down = || Err(Error::check(format!("ifb {:?} is down", ifb.name)));
        ErrorList::of([
            if ifb.up { Ok(()) } else { is_down() },
            self.shaped.verify_bucket(&ifb, Handle::ROOT, self.limit),
            verify_filters(host, link, RECEIVED, &egress_filters(traffic, &ifb)),
        ])
    }
}

impl<'a> Shaped<'a> {
    /// Limits all that leaves by a link: the host's end or the ifb.
    fn limit_all(&self, link: &Link, limit: Limit, rb: &mut Rollback<'a>) -> Result<()> {
        create(self.host, link, at_root(QdiscKind::Tbf(limit.bucket(self.link.mtu))), rb)?;
        self.fill(link, ROOT, limit)
    }

    /// Creates the fair queue in a bucket, if it is wanted. It goes with the bucket.
    fn fill(&self, link: &Link, bucket: Handle, limit: Limit) -> Result<()> {
        if !limit.queue.fair {
            return Ok(());
        }
        let kind = QdiscKind::Other(FQ_CODEL.to_owned());
        let queue = Qdisc { parent: bucket.first_class(), handle: bucket.next(), kind };
        self.host.create_qdisc(link, &queue)
    }

    fn create_filters(&self, qdisc: Handle, filters: &[Filter]) -> Result<()> {
        filters.iter().try_for_each(|filter| self.host.create_filter(self.link, qdisc, filter))
    }

    /// Verifies that the qdisc at this place of a link, the host's end or the ifb, is the bucket
    /// that we or the reference make. Its handle does not matter.
    fn verify_bucket(&self, link: &Link, parent: Handle, limit: Limit) -> Result<()> {
        let expected = limit.bucket(self.link.mtu);
        let qdisc = self.required_at(link, parent, "tbf")?;
        let found = match qdisc.kind {
            QdiscKind::Tbf(found) => found,
            other => return Err(of_other_kind(link, parent, &other, "tbf")),
        };
        // A bucket for a larger MTU is right too: the MTU may have been lowered since.
        if !limit.makes(found, self.link.mtu) {
            // with the reference's word for each
            let mut numbers = vec![
                ("Rate", "rate", found.rate, expected.rate),
                ("Limit", "limit", found.limit.into(), expected.limit.into()),
                ("Buffer", "burst, in ticks,", found.buffer.into(), expected.buffer.into()),
            ];
            numbers.retain(|(.., found, expected)| found != expected);
            let differences: Vec<String> = numbers
                .iter()
                .map(|(_, what, found, expected)| format!("{what} {found}, expected {expected}"))
                .collect();
            let problem = format!("qdisc tbf of {:?} has {}", link.name, differences.join("; "));
            return Err(match numbers.first() {
                Some((word, ..)) => {
                    Error::check(problem).saying(format_args!("{word} doesn't match"))
                }
                None => Error::check(problem),
            });
        }
        if !limit.queue.fair {
            return Ok(());
        }
        let class = qdisc.handle.first_class();
        match self.required_at(link, class, FQ_CODEL)?.kind {
            found if found.name() == FQ_CODEL => Ok(()),
            other => Err(of_other_kind(link, class, &other, FQ_CODEL)),
        }
    }

    /// The qdisc at this place, which must be there.
    fn required_at(&self, link: &Link, parent: Handle, kind: &str) -> Result<Qdisc> {
        let found = self.host.qdisc_at(link, parent)?;
        found.ok_or_else(|| {
            let name = &link.name;
            Error::check(format!("{name:?} has no qdisc at {parent}, expected {kind}"))
                .saying("Failed to find qdisc")
        })
    }
}

fn of_other_kind(link: &Link, parent: Handle, found: &QdiscKind, expected: &str) -> Error {
    let kind = found.name();
    Error::check(format!("{:?} has qdisc {kind} at {parent}, expected {expected}", link.name))
}

/// Returns the qdisc at a link's root.
fn at_root(kind: QdiscKind) -> Qdisc {
    Qdisc { parent: Handle::ROOT, handle: ROOT, kind }
}

/// Creates a qdisc. When it is deleted, everything below it is too.
fn create<'a>(host: &'a Netlink, link: &Link, qdisc: Qdisc, rb: &mut Rollback<'a>) -> Result<()> {
    host.create_qdisc(link, &qdisc).map_err(|error| {
        if !error.is_exists() {
            return error;
        }
        let details = format_args!("{:?} has another qdisc there already", link.name);
        error.with_code(Code::CONFLICT).with_details(details)
    })?;
    let of = link.clone();
    let handle = qdisc.handle;
    rb.undo(format_args!("delete qdisc {handle} of {:?}", link.name), move || {
        delete(host, &of, &qdisc)
    });
    Ok(())
}

fn delete(host: &Netlink, link: &Link, qdisc: &Qdisc) -> Result<()> {
    host.delete_qdisc(link, qdisc.parent, qdisc.handle, qdisc.kind.name())
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
    let filters_of = |subnets: &[IpNet], verdict| -> Vec<Filter> {
        let filter = |net: &IpNet| {
            // All filters of one priority must be of one family.
            let priority = if net.addr().is_ipv4() { 1 } else { 2 };
            Filter::of_subnet(priority, side, net, verdict)
        };
        subnets.iter().map(filter).collect()
    };
    match traffic {
        Traffic::All => vec![Filter::of_all(1, limited)],
        Traffic::With(subnets) => filters_of(subnets, limited),
        Traffic::WithoutThat(subnets) => {
            let mut filters = filters_of(subnets, UNLIMITED);
            filters.push(Filter::of_all(3, limited));
            filters
        }
    }
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

/// Removes the limits from the host's end: its queue, and the redirection to the ifb or to a link
/// that is gone. Anything that ADD would create differently belongs to an administrator, and may be
/// why ADD failed.
pub fn unlimit(host: &Netlink, link: &Link, limits: &Limits, ifb: Option<&Link>) -> Result<()> {
    let any = Sought::Any { latency: limits.queue.latency };
    delete_queue(host, link, limits.ingress.map_or(any, Sought::Exactly))?;
    delete_redirection(host, link, ifb)
}

/// A bucket to delete.
#[derive(Clone, Copy)]
enum Sought {
    /// That of this limit.
    Exactly(Limit),
    /// That of any limit with this latency.
    Any { latency: u64 },
}

/// Removes the queue for traffic to the container, if ADD creates it like this.
fn delete_queue(host: &Netlink, link: &Link, sought: Sought) -> Result<()> {
    let root = host.qdisc_at(link, Handle::ROOT)?.filter(|root| root.handle == ROOT);
    let Some(root) = root else { return Ok(()) };
    let is_ours = match &root.kind {
        QdiscKind::Tbf(found) => match sought {
            Sought::Exactly(limit) => limit.makes(*found, 0),
            Sought::Any { latency } => is_of_add(*found, latency),
        },
        QdiscKind::Htb => host.qdisc_at(link, LIMITED)?.is_some_and(|queue| queue.handle == QUEUE),
        QdiscKind::Ingress | QdiscKind::Other(_) => false,
    };
    if is_ours { delete(host, link, &root) } else { Ok(()) }
}

/// Removes the redirection of traffic from the container to the ifb, or to a link that is gone.
fn delete_redirection(host: &Netlink, link: &Link, ifb: Option<&Link>) -> Result<()> {
    let filters = host.filters(link, RECEIVED)?;
    let redirects = |filter: &Filter| {
        target(filter).is_some_and(|to| to == 0 || ifb.is_some_and(|ifb| ifb.index == to))
    };
    let are_ours = filters.iter().any(redirects)
        && filters.iter().all(|filter| redirects(filter) || filter.verdict == UNLIMITED);
    let is_ours =
        |qdisc: Qdisc| qdisc.handle == RECEIVED && matches!(qdisc.kind, QdiscKind::Ingress);
    // If the filters are deleted, the ifb shows that the qdisc was made for it.
    if are_ours
        || filters.is_empty()
            && ifb.is_some()
            && host.qdisc_at(link, Handle::INGRESS)?.is_some_and(is_ours)
    {
        delete(host, link, &INGRESS)?;
    }
    Ok(())
}
