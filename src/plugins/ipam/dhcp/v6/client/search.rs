//! Acquiring a lease: from Solicit, or a router's prefix, to the address on the link (RFC 8415,
//! section 18.2.1 and 18.2.2).

use std::net::Ipv6Addr;
use std::time::Duration;

use super::phase::{Holding, Phase, Probe, Stage};
use super::{Action, Client, Intent, Mode, Outgoing, Turn};
use crate::plugins::ipam::dhcp::client::{Troubles, early_t1};
use crate::plugins::ipam::dhcp::v6::lease::Lease;
use crate::plugins::ipam::dhcp::v6::message::Kind;
use crate::sys::clock::{Moment, NEVER};

/// The pause before routers are asked again, if another host now has the lost address.
const AFTER_CONFLICT: Duration = Duration::from_secs(60);

impl Client {
    /// Looks for a server or a router to get an address from, from `start` on.
    pub(super) fn search(&mut self, start: Moment) {
        match self.setup.mode {
            Mode::Dhcp => {
                let exchange = self.exchange(Kind::Solicit, start);
                self.phase = Phase::Soliciting { exchange, best: None };
            }
            Mode::Slaac => {
                self.phase = Phase::Quiet;
                self.routers.ask(start);
            }
        }
    }

    /// Requests an offered address. An address that the link does not have is probed first.
    pub(super) fn request(&mut self, intent: Intent, turn: &mut Turn<'_>) {
        if matches!(self.holding, Holding::Nothing) {
            turn.actions.push(Action::Intend(intent.clone())); // a lease that exists is already in the journal
        }
        self.routers.ask_if_unknown(turn.now);
        let is_on_link = matches!(self.holding, Holding::Lease(..));
        let probe = (!is_on_link).then(|| probe(intent.address, turn));
        let exchange = self.exchange(Kind::Request, turn.now);
        self.phase = Phase::Requesting { exchange, intent, probe };
    }

    /// Binds an extension at once; a new lease waits for its probe and for the routers.
    pub(super) fn take_lease(&mut self, lease: Lease, turn: &mut Turn<'_>) {
        if matches!(self.holding, Holding::Lease(..)) {
            return self.bind(lease, turn);
        }
        let probe = match &self.phase {
            Phase::Requesting { probe: Some(probe), .. } if probe.address == lease.address => {
                probe.clone()
            }
            _ => probe(lease.address, turn),
        };
        self.phase = Phase::Settling { lease, probe, next: turn.now };
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
            *next = probe.until.max(self.routers.until());
        }
        if turn.now >= *next {
            let lease = lease.clone();
            self.bind(lease, turn);
        }
    }

    /// Declines the address: another host has it.
    fn decline(&mut self, lease: &Lease, turn: &mut Turn<'_>) {
        self.troubles.note(format!("{} is in use by another", lease.address));
        match (self.setup.mode, &self.holding) {
            (Mode::Dhcp, _) => {
                let exchange = self.exchange(Kind::Decline, turn.now);
                self.phase = Phase::Declining { exchange, intent: Intent::of(lease) };
            }
            // There is no other address to try.
            (Mode::Slaac, Holding::Nothing) => self.give_up(turn),
            (Mode::Slaac, _) => self.search(turn.now + AFTER_CONFLICT),
        }
    }

    /// The lease is granted, new or extended.
    pub(super) fn bind(&mut self, mut lease: Lease, turn: &mut Turn<'_>) {
        lease.learn(self.routers.known(), self.lease());
        lease.t1 = early_t1(lease.t1, turn.now, turn.random);
        self.phase = Phase::Quiet;
        self.limit = NEVER;
        self.troubles = Troubles::default();
        self.wanted = Some(lease.address);
        let is_first = matches!(self.holding, Holding::Nothing);
        if self.routers.has_default() || is_first || self.setup.mode == Mode::Slaac {
            self.routers.stop();
            self.listening = None;
        }
        turn.actions.push(self.hold(lease));
    }

    /// Takes the lease in place of what the container had.
    fn hold(&mut self, lease: Lease) -> Action {
        let now_held = Holding::Lease(lease.clone(), Stage::Bound);
        match std::mem::replace(&mut self.holding, now_held) {
            Holding::Nothing => Action::Bound(lease),
            Holding::Lease(..) => Action::Renewed(lease),
            Holding::Lost(_) => Action::Regained(lease),
        }
    }

    /// Ends the search: its time is over, or it cannot succeed.
    pub(super) fn give_up(&mut self, turn: &mut Turn<'_>) {
        let why = self.why_none(turn.now);
        // The Reply to a Request may be lost or still to come, so release what was requested.
        turn.actions.extend(self.release(turn.random).map(Outgoing::Message).map(Action::Send));
        turn.actions.push(Action::GaveUp(why));
    }

    /// Why there is no lease when the search ends.
    fn why_none(&self, now: Moment) -> String {
        let told = self.troubles.or(self.silence());
        if now < self.limit {
            return told;
        }
        format!("no more tries within {}s: {told}", self.setup.within.as_secs())
    }

    /// The trouble if nothing was heard.
    fn silence(&self) -> &'static str {
        match self.setup.mode {
            Mode::Dhcp => "no answer to Solicit",
            Mode::Slaac => "no router has answered",
        }
    }
}

/// Probes an address.
fn probe(address: Ipv6Addr, turn: &mut Turn<'_>) -> Probe {
    turn.actions.push(Action::Probe(address));
    Probe::new(address, turn.now)
}
