//! Acquiring a lease: from Solicit, or a router's prefix, to the address on the link (RFC 8415,
//! sections 18.2.1 and 18.2.2); and keeping it: Renew, Rebind and expiry (sections 18.2.4 and
//! 18.2.5).

use std::net::Ipv6Addr;
use std::time::Duration;

use super::phase::{Holding, Phase, Probe, Stage};
use super::routers::Routers;
use super::{AFTER_REFUSAL, Action, Client, Intent, Mode, Reason, Troubles, Turn};
use crate::plugins::ipam::dhcp::client::{self, Client as _, PROBE};
use crate::plugins::ipam::dhcp::v6::lease::Lease;
use crate::plugins::ipam::dhcp::v6::message::Kind;
use crate::sys::clock::{Moment, NEVER};

/// The pause before routers are asked again, if another host now has the lost address.
const AFTER_CONFLICT: Duration = Duration::from_secs(60);

impl Client {
    /// Looks for a server or a router to get an address from, from `start` on.
    pub(super) fn search(&mut self, start: Moment) {
        match self.setup.mode {
            Mode::Dhcp => self.begin(Phase::Soliciting { best: None }, Kind::Solicit, start),
            Mode::Slaac => {
                self.fall_silent(Phase::Quiet);
                self.routers.ask(start);
            }
        }
    }

    /// Requests an offered address. An address that the link does not have is probed first.
    pub(super) fn request(&mut self, intent: Intent, turn: &mut Turn<'_>) {
        if matches!(self.holding, Holding::Nothing) {
            turn.actions.push(Action::Intend(client::Intent::V6(intent.clone()))); // a lease that exists is already in the journal
        }
        if self.routers.asking.is_none() && self.routers.known.is_empty() {
            self.routers.ask(turn.now);
        }
        let is_on_link = matches!(self.holding, Holding::Lease(..));
        let probe = (!is_on_link).then(|| probe(intent.address, turn));
        self.begin(Phase::Requesting { intent, probe }, Kind::Request, turn.now);
    }

    /// Binds an extension at once; a new lease waits for its probe and for the routers.
    pub(super) fn take_lease(&mut self, lease: Lease, turn: &mut Turn<'_>) {
        if matches!(self.holding, Holding::Lease(..)) {
            return self.bind(lease, turn);
        }
        let address = lease.net.addr();
        let probe = match &self.phase {
            Phase::Requesting { probe: Some(probe), .. } if probe.address == address => {
                probe.clone()
            }
            _ => probe(address, turn),
        };
        self.fall_silent(Phase::Settling { lease, probe, next: turn.now });
    }

    /// Binds a granted lease once the probe is over and a router is known or routers have had their
    /// time.
    pub(super) fn settle(&mut self, turn: &mut Turn<'_>) {
        let Phase::Settling { lease, probe, next } = &mut self.phase else { return };
        if probe.is_claimed {
            let lease = lease.clone();
            return self.decline(&lease, turn);
        }
        *next = probe.until;
        if !self.routers.has_default() {
            *next = probe.until.max(self.routers.until);
        }
        if turn.now >= *next {
            let lease = lease.clone();
            self.bind(lease, turn);
        }
    }

    /// Declines the address: another host has it.
    fn decline(&mut self, lease: &Lease, turn: &mut Turn<'_>) {
        self.troubles.note(format!("{} is in use by another", lease.net.addr()));
        match (self.setup.mode, &self.holding) {
            (Mode::Dhcp, _) => {
                let intent = Intent::of(lease);
                self.begin(Phase::Declining { intent }, Kind::Decline, turn.now);
            }
            // There is no other address to try.
            (Mode::Slaac, Holding::Nothing) => self.give_up(turn),
            (Mode::Slaac, _) => self.search(turn.now + AFTER_CONFLICT),
        }
    }

    /// The lease is granted, new or extended.
    pub(super) fn bind(&mut self, mut lease: Lease, turn: &mut Turn<'_>) {
        lease.learn(&self.routers.known, self.lease());
        lease.times.spread(turn.random);
        self.fall_silent(Phase::Quiet);
        self.limit = NEVER;
        self.troubles = Troubles::default();
        self.wanted = Some(lease.net.addr());
        let is_first = matches!(self.holding, Holding::Nothing);
        if self.routers.has_default() || is_first || self.setup.mode == Mode::Slaac {
            self.routers.asking = None;
            self.listening = None;
        }
        let now_held = Holding::Lease(lease.clone(), Stage::Bound);
        let lease = client::Lease::V6(lease);
        turn.actions.push(match std::mem::replace(&mut self.holding, now_held) {
            Holding::Nothing => Action::Bound(lease),
            Holding::Lease(..) => Action::Renewed(lease),
            Holding::Lost(_) => Action::Regained(lease),
        });
    }

    /// Does what the times of the lease require: asks servers or routers for more time.
    pub(super) fn keep(&mut self, turn: &mut Turn<'_>) {
        let Holding::Lease(lease, stage) = &mut self.holding else { return };
        if turn.now >= lease.times.expires {
            return self.lose(Reason::Expired, turn);
        }
        let reached = Stage::of(lease, turn.now);
        if reached > *stage {
            *stage = reached;
            self.routers.ask(turn.now);
            if self.setup.mode == Mode::Dhcp {
                self.start_over(turn.now);
            }
        }
    }

    /// Gives the address up, so that it leaves the link. After an expiry it is requested again at
    /// once.
    pub(super) fn lose(&mut self, reason: Reason, turn: &mut Turn<'_>) {
        self.holding = match std::mem::take(&mut self.holding) {
            Holding::Lease(lease, _) => Holding::Lost(lease),
            other => other,
        };
        self.routers = Routers::default();
        turn.actions.push(Action::Lost(reason));
        let pause = if reason == Reason::Expired { Duration::ZERO } else { AFTER_REFUSAL };
        self.search(turn.now + pause);
    }

    /// Ends the search: its time is over, or it cannot succeed.
    pub(super) fn give_up(&mut self, turn: &mut Turn<'_>) {
        let mut why = self.troubles.or(match self.setup.mode {
            Mode::Dhcp => "no answer to Solicit",
            Mode::Slaac => "no router has answered",
        });
        if turn.now >= self.limit {
            why = format!("no more tries within {}s: {why}", self.setup.within.as_secs());
        }
        // The Reply to a Request may be lost or still to come, so release what was requested.
        turn.actions.extend(self.release(turn.random).map(Action::Send));
        turn.actions.push(Action::GaveUp(why));
    }
}

/// Probes an address.
fn probe(address: Ipv6Addr, turn: &mut Turn<'_>) -> Probe {
    turn.actions.push(Action::Probe(address.into()));
    Probe { address, until: turn.now + PROBE, is_claimed: false }
}
