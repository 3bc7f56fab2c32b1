//! The phase of a client, and what its container holds. The two are independent: a client may
//! renew, request or search while the container has the address, and also after it has lost it.

use std::net::Ipv6Addr;
use std::time::Duration;

use super::setup::Intent;
use super::timer::{Timer, Timing};
use crate::plugins::ipam::dhcp::v6::lease::Lease;
use crate::plugins::ipam::dhcp::v6::message::Kind;
use crate::sys::clock::Moment;
use crate::sys::random::Random;

/// How long the owner of an address has to answer a probe.
const PROBE: Duration = Duration::from_millis(50);

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
    /// Solicit: servers are asked for offers.
    Soliciting { exchange: Exchange, best: Option<Offer> },
    /// Request of an offered address. The address is probed at the same time, unless the link has it.
    Requesting { exchange: Exchange, intent: Intent, probe: Option<Probe> },
    /// Renew or Rebind, depending on the lease's [`Stage`].
    Extending(Exchange),
    /// The lease is granted, but not bound yet: it waits for routers and for the probe of its
    /// address, until `next` at first.
    Settling { lease: Lease, probe: Probe, next: Moment },
    /// Decline: the probe of a granted address was answered.
    Declining { exchange: Exchange, intent: Intent },
    /// The client has given up, or has released its lease.
    Ended,
}

/// A message to servers and its retransmission.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The id that answers repeat; chosen when the message is first sent.
    pub transaction: u32,
    /// When to send it.
    pub timer: Timer,
}

/// An address that a server has advertised.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The address and the server.
    pub intent: Intent,
    /// The server's preference.
    pub preference: u8,
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

impl Holding {
    /// The container's lease, or the one it has lost.
    pub fn lease(&self) -> Option<&Lease> {
        match self {
            Holding::Nothing => None,
            Holding::Lease(lease, _) | Holding::Lost(lease) => Some(lease),
        }
    }

    /// When the lease leaves its stage.
    pub fn end_of_stage(&self) -> Option<Moment> {
        match self {
            Holding::Lease(lease, stage) => Some(stage.end(lease)),
            Holding::Nothing | Holding::Lost(_) => None,
        }
    }

    /// Takes the address away.
    pub fn lose(&mut self) {
        *self = match std::mem::take(self) {
            Holding::Lease(lease, _) => Holding::Lost(lease),
            other => other,
        };
    }
}

impl Stage {
    /// The stage that a lease has reached by `now`.
    pub fn of(lease: &Lease, now: Moment) -> Stage {
        if now >= lease.t2 {
            Stage::Rebinding
        } else if now >= lease.t1 {
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
        match self {
            Stage::Bound => lease.t1.min(lease.expires),
            Stage::Renewing => lease.t2.min(lease.expires),
            Stage::Rebinding => lease.expires,
        }
    }
}

impl Phase {
    /// The exchange with servers.
    pub fn exchange(&self) -> Option<&Exchange> {
        match self {
            Phase::Soliciting { exchange, .. }
            | Phase::Requesting { exchange, .. }
            | Phase::Extending(exchange)
            | Phase::Declining { exchange, .. } => Some(exchange),
            Phase::Quiet | Phase::Settling { .. } | Phase::Ended => None,
        }
    }

    /// See [`Phase::exchange`].
    pub fn exchange_mut(&mut self) -> Option<&mut Exchange> {
        match self {
            Phase::Soliciting { exchange, .. }
            | Phase::Requesting { exchange, .. }
            | Phase::Extending(exchange)
            | Phase::Declining { exchange, .. } => Some(exchange),
            Phase::Quiet | Phase::Settling { .. } | Phase::Ended => None,
        }
    }

    /// Notes that the owner of an address has answered its probe, if there is one.
    pub fn claim(&mut self, address: Ipv6Addr) {
        if let Some(probe) = self.probe_mut().filter(|probe| probe.address == address) {
            probe.is_claimed = true;
        }
    }

    /// The probe of the address that is requested or granted.
    fn probe_mut(&mut self) -> Option<&mut Probe> {
        match self {
            Phase::Requesting { probe, .. } => probe.as_mut(),
            Phase::Settling { probe, .. } => Some(probe),
            _ => None,
        }
    }

    /// When it goes on, unless a message arrives before.
    pub fn due(&self) -> Option<Moment> {
        match self {
            Phase::Settling { next, .. } => Some(*next),
            other => Some(other.exchange()?.timer.due),
        }
    }

    /// Whether a granted lease waits to be bound.
    pub fn is_settling(&self) -> bool {
        matches!(self, Phase::Settling { .. })
    }
}

impl Exchange {
    /// An exchange with its first message at `start`.
    pub fn new(timing: Timing, start: Moment) -> Exchange {
        Exchange { transaction: 0, timer: Timer::new(timing, start) }
    }

    /// Notes that the message is sent now.
    pub fn sends(&mut self, now: Moment, random: &mut Random) {
        if self.timer.sent == 0 {
            self.transaction = random.word() & 0xff_ffff;
        }
        self.timer.sends(now, random);
    }
}

impl Probe {
    /// A probe that is sent now.
    pub fn new(address: Ipv6Addr, now: Moment) -> Probe {
        Probe { address, until: now + PROBE, is_claimed: false }
    }
}
