//! The phase of a client, and what its container holds. The two are independent: a client may
//! renew, request or search while the container has the address, and also after it has lost it.

use std::net::Ipv6Addr;
use std::time::Duration;

use crate::plugins::ipam::dhcp::client::jittered;
use crate::plugins::ipam::dhcp::v6::Kind;
use crate::plugins::ipam::dhcp::v6::lease::{Intent, Lease};
use crate::sys::clock::Moment;
use crate::sys::random::Random;

/// What the container has.
#[derive(Clone, Debug, Default)]
pub enum Holding {
    /// Nothing yet, or nothing any more.
    #[default]
    Nothing,
    /// A lease.
    Lease(Lease, Stage),
    /// The lease that it had: the address has left the link.
    Lost(Lease),
}

/// How far the time of a lease has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// T1 is still to come.
    Bound,
    /// Since T1, its server is asked to extend it.
    Renewing,
    /// Since T2, any server is.
    Rebinding,
}

/// What is under way with the servers, or with an address that one of them or a router has given.
#[derive(Clone, Debug)]
pub enum Phase {
    /// Nothing: the lease has time, or only routers are asked.
    Quiet,
    /// Solicit: servers are asked for offers. The best so far, with the preference of its server.
    Soliciting { best: Option<(u8, Intent)> },
    /// Request of an offered address. The address is probed at the same time, unless the link has it.
    Requesting { intent: Intent, probe: Option<Probe> },
    /// Renew or Rebind, depending on the lease's [`Stage`].
    Extending,
    /// The lease is granted, but not bound yet: it waits for routers and for the probe of its
    /// address, until `next` at first.
    Settling { lease: Lease, probe: Probe, next: Moment },
    /// Decline: the probe of a granted address was answered.
    Declining { intent: Intent },
    /// The client has given up, or has released its lease.
    Ended,
}

/// The probe of an address.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The address.
    pub address: Ipv6Addr,
    /// When it counts as free.
    pub until: Moment,
    /// Its owner has answered.
    pub is_claimed: bool,
}

/// A message and its retransmission (RFC 8415, section 15; RFC 7559 for routers).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timer {
    /// IRT: the wait for the first answer.
    first: Duration,
    /// MRT: the longest wait; 0 means no limit.
    longest: Duration,
    /// MRC: how often the message is sent; 0 means no limit.
    count: u32,
    /// The id that answers of servers repeat; chosen when the message is first sent.
    pub transaction: u32,
    /// When the message was first sent.
    pub began: Moment,
    /// The last wait.
    wait: Duration,
    /// When to send it next.
    pub due: Moment,
    /// How often it was sent.
    pub sent: u32,
}

impl Stage {
    /// The stage that a lease has reached by `now`.
    pub fn of(lease: &Lease, now: Moment) -> Stage {
        if now >= lease.times.t2 {
            Stage::Rebinding
        } else if now >= lease.times.t1 {
            Stage::Renewing
        } else {
            Stage::Bound
        }
    }

    /// The message that extends a lease in this stage.
    pub fn kind(self) -> Kind {
        if self == Stage::Rebinding { Kind::Rebind } else { Kind::Renew }
    }

    /// When the lease leaves this stage.
    pub fn end(self, lease: &Lease) -> Moment {
        let end = match self {
            Stage::Bound => lease.times.t1,
            Stage::Renewing => lease.times.t2,
            Stage::Rebinding => lease.times.expires,
        };
        end.min(lease.times.expires)
    }
}

impl Phase {
    /// Whether a granted lease waits to be bound.
    pub fn is_settling(&self) -> bool {
        matches!(self, Phase::Settling { .. })
    }
}

impl Timer {
    /// The timer of a DHCPv6 message that is first sent at `start` (RFC 8415, section 7.6). For
    /// Solicit, servers set the longest wait.
    pub fn of_kind(kind: Kind, sol_max_rt: Duration, start: Moment) -> Timer {
        let (first, longest, count) = match kind {
            Kind::Solicit => (1, sol_max_rt.as_secs(), 0),
            Kind::Renew | Kind::Rebind => (10, 600, 0),
            Kind::Request => (1, 30, 10),
            Kind::Decline | Kind::Release => (1, 0, 4),
            Kind::Advertise | Kind::Reply => (0, 0, 1), // only servers send these
        };
        Timer::new(first, longest, count, start)
    }

    /// The timer of Router Solicitation.
    pub fn of_routers(start: Moment) -> Timer {
        Timer::new(4, 3600, 0, start)
    }

    fn new(first: u64, longest: u64, count: u32, start: Moment) -> Timer {
        let [first, longest] = [first, longest].map(Duration::from_secs);
        let wait = Duration::ZERO;
        Timer { first, longest, count, transaction: 0, began: start, wait, due: start, sent: 0 }
    }

    /// Whether the message was sent as often as allowed.
    pub fn is_exhausted(&self) -> bool {
        self.count != 0 && self.sent >= self.count
    }

    /// Notes that the message is sent now. Each wait doubles, plus or minus a random tenth; the
    /// first is never shortened, so that all servers have their second to answer.
    pub fn sends(&mut self, now: Moment, random: &mut Random) {
        if self.sent == 0 {
            self.transaction = random.word() & 0xff_ffff;
            self.began = now;
            self.wait = self.first + random.below(self.first / 10);
        } else {
            self.wait = jittered(self.wait * 2, random);
        }
        if !self.longest.is_zero() && self.wait > self.longest {
            self.wait = jittered(self.longest, random);
        }
        self.sent += 1;
        self.due = now + self.wait;
    }
}
