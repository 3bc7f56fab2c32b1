//! Acquiring a lease: from Solicit, or a router's prefix, to the address on the link (RFC 8415,
//! sections 18.2.1 and 18.2.2); and keeping it: Renew, Rebind and expiry (sections 18.2.4 and
//! 18.2.5); messages from servers (sections 18.2.9 and 18.2.10).

use std::net::Ipv6Addr;
use std::time::Duration;

use super::phase::{Holding, Phase, Probe, Stage};
use super::routers::Routers;
use super::{AFTER_REFUSAL, Action, Client, IAID, Mode, Reason, Troubles, Turn, name_of};
use crate::plugins::ipam::dhcp::client::{self, Client as _, PROBE};
use crate::plugins::ipam::dhcp::reader::Reader;
use crate::plugins::ipam::dhcp::v6::lease::{Intent, Lease};
use crate::plugins::ipam::dhcp::v6::{Association, Grant, Kind, Message, Status, options};
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

/// The preference of a server to choose at once, without waiting for others (RFC 8415, section
/// 18.2.9).
const AT_ONCE: u8 = 255;
/// The valid range for SOL_MAX_RT from a server (RFC 8415, section 21.24), in seconds.
const SOL_MAX_RT_RANGE: std::ops::RangeInclusive<u32> = 60..=86_400;

/// A server's message to this client.
struct Answer<'a> {
    message: &'a Message,
    server: &'a [u8],
    association: Option<Association>,
}

impl Answer<'_> {
    /// A request of an address to this server.
    fn intent(&self, address: Ipv6Addr) -> Intent {
        Intent { address, server: self.server.to_vec() }
    }
}

impl Client {
    /// Takes a server's message; ignores those for other clients and those not expected (RFC 8415,
    /// section 16).
    pub(super) fn take_message(&mut self, message: &Message, turn: &mut Turn<'_>) {
        let Some(timer) = self.timer.as_ref().filter(|timer| timer.sent != 0) else { return };
        let options = &message.options;
        let is_ours = message.transaction == timer.transaction
            && options.get(options::CLIENT_ID) == Some(&self.setup.duid);
        let server = options.get(options::SERVER_ID).unwrap_or_default();
        if !is_ours || server.is_empty() {
            return;
        }
        let longest = options.get(options::SOL_MAX_RT).and_then(|value| Reader::new(value).u32());
        if let Some(longest) = longest.filter(|seconds| SOL_MAX_RT_RANGE.contains(seconds)) {
            self.sol_max_rt = Duration::from_secs(longest.into());
        }
        let answer = Answer { message, server, association: message.association(IAID) };
        match (&self.phase, message.kind) {
            (Phase::Soliciting { .. }, Kind::Advertise) => self.take_offer(&answer, turn),
            (Phase::Requesting { .. } | Phase::Extending, Kind::Reply) => {
                self.take_reply(&answer, turn)
            }
            (Phase::Declining { .. }, Kind::Reply) => self.search(turn.now + AFTER_REFUSAL),
            _ => (),
        }
    }

    /// Takes an Advertise. If the container has had an address, only an offer of that address
    /// counts. The best offer is the one with the highest preference, and the first of these; it is
    /// requested at once if no other is worth waiting for.
    fn take_offer(&mut self, answer: &Answer<'_>, turn: &mut Turn<'_>) {
        let name = name_of(answer.server);
        let status = answer.association.as_ref().map(|told| told.status);
        if [Some(answer.message.status()), status].contains(&Some(Status::NO_ADDRESSES)) {
            self.troubles.note(format!("{name} has no address left (NoAddrsAvail)"));
        }
        let Some(told) = &answer.association else { return };
        let held = self.lease().map(|lease| lease.net.addr());
        let is_fit =
            |grant: &&Grant| grant.valid != 0 && held.is_none_or(|held| held == grant.address);
        let Some(grant) = told.addresses.iter().find(is_fit) else {
            if let Some(offered) = told.offered {
                self.troubles.note(format!("{name} offers {offered}, which is not usable"));
            }
            return;
        };
        let preference = answer.message.preference();
        let is_last =
            preference == AT_ONCE || self.timer.as_ref().is_some_and(|timer| timer.sent > 1);
        let Phase::Soliciting { best } = &mut self.phase else { return };
        let (_, intent) = match best {
            Some(best) if preference <= best.0 => best,
            _ => best.insert((preference, answer.intent(grant.address))),
        };
        if is_last {
            let intent = intent.clone();
            self.request(intent, turn);
        }
    }

    /// Takes the answer to Request, Renew or Rebind (RFC 8415, section 18.2.10). After any other
    /// Reply the client keeps waiting.
    fn take_reply(&mut self, answer: &Answer<'_>, turn: &mut Turn<'_>) {
        let is_requesting = matches!(self.phase, Phase::Requesting { .. });
        let status = match (answer.message.status(), &answer.association) {
            (Status::SUCCESS, Some(association)) => association.status,
            (status, _) => status,
        };
        match (status, &answer.association) {
            (Status::SUCCESS, Some(association)) => {
                self.take_association(association, answer, turn)
            }
            (Status::NO_BINDING, _) if !is_requesting => {
                // The server has lost the lease, or never had it: it may grant it again.
                if let Some(lease) = self.lease() {
                    let intent = answer.intent(lease.net.addr());
                    self.request(intent, turn);
                }
            }
            (Status::NO_ADDRESSES | Status::NOT_ON_LINK | Status::NO_BINDING, _)
                if is_requesting =>
            {
                let name = name_of(answer.server);
                self.troubles.note(format!("{name} has refused the Request (status {})", status.0));
                self.take_refusal(answer.server, turn);
            }
            _ => (),
        }
    }

    /// Takes a granted address. If there is a lease, only its address counts.
    fn take_association(&mut self, told: &Association, answer: &Answer<'_>, turn: &mut Turn<'_>) {
        let held = self.lease().map(|lease| lease.net.addr());
        let is_fit = |grant: &&Grant| held.map_or(grant.valid != 0, |held| held == grant.address);
        match told.addresses.iter().find(is_fit) {
            Some(grant) if grant.valid != 0 => {
                let lease = Lease {
                    server: answer.server.to_vec(),
                    name_servers: answer.message.name_servers(),
                    domains: answer.message.domains(),
                    ..Lease::of_grant(grant, told.t1, told.t2, turn.now)
                };
                self.take_lease(lease, turn);
            }
            Some(_) => self.take_refusal(answer.server, turn), // its lifetime is over
            None if matches!(self.phase, Phase::Requesting { .. }) => {
                // Release an address that was granted in place of the requested one.
                if let Some(other) = told.addresses.first() {
                    let release = self.setup.release(&answer.intent(other.address), turn.random);
                    turn.actions.push(Action::Send(release));
                }
                self.take_refusal(answer.server, turn);
            }
            None => (),
        }
    }

    /// The container cannot have the address, or not any longer. For a leased address, only its own
    /// server can decide that.
    fn take_refusal(&mut self, server: &[u8], turn: &mut Turn<'_>) {
        match &self.holding {
            Holding::Lease(lease, _) if lease.server == server => self.lose(Reason::Refused, turn),
            Holding::Lease(..) if matches!(self.phase, Phase::Requesting { .. }) => {
                self.start_over(turn.now + AFTER_REFUSAL);
            }
            Holding::Lease(..) => (), // other servers are asked too
            Holding::Nothing | Holding::Lost(_) => self.search(turn.now + AFTER_REFUSAL),
        }
    }
}
