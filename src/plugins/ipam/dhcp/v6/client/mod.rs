//! The client (RFC 8415, section 18): a state machine that takes the time and the received packets,
//! and returns actions. Servers grant addresses and routers advertise the rest (RFC 4861, section
//! 6.3): it asks both at once.

mod advertisements;
mod keep;
mod phase;
mod routers;
mod search;
mod servers;
mod setup;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
mod timer;

use std::net::Ipv6Addr;
use std::time::Duration;

use self::phase::{Exchange, Holding, Phase, Stage};
use self::routers::Routers;
use self::setup::Content;
pub use self::setup::{Intent, Mode, Setup, duid, release_of};
use self::timer::Timing;
use super::lease::Lease;
use super::message::{Kind, Message};
use super::router::Advertisement;
use crate::hex;
use crate::plugins::ipam::dhcp::client::{self, Reason, State, Troubles};
use crate::sys::clock::{Moment, NEVER};
use crate::sys::random::Random;

/// SOL_MAX_RT of RFC 8415, section 7.6.
const SOL_MAX_RT: Duration = Duration::from_secs(3600);
/// The pause before servers are asked again after a refusal.
const AFTER_REFUSAL: Duration = Duration::from_secs(1);
/// How long to listen for answers once the container must not hold open sockets until the next
/// message.
const LISTENING: Duration = Duration::from_secs(5);

/// What the caller must do now.
pub type Action = client::Action<Outgoing, Ipv6Addr, Intent, Lease>;

/// One call of the client.
pub type Turn<'a> = client::Turn<'a, Action>;

/// A multicast message on the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// A message to the servers.
    Message(Message),
    /// A solicitation to the routers.
    Routers,
}

/// A DHCPv6 or SLAAC client on one link.
#[derive(Clone, Debug)]
pub struct Client {
    setup: Setup,
    phase: Phase,
    holding: Holding,
    routers: Routers,
    /// The address to ask servers for.
    wanted: Option<Ipv6Addr>,
    /// When the search for a lease ends.
    limit: Moment,
    /// When the client stops listening for answers.
    listening: Option<Moment>,
    sol_max_rt: Duration,
    /// Why there is no lease yet.
    troubles: Troubles,
}

impl Client {
    /// Creates a client that tries to acquire a lease, preferably with the address `wanted`.
    pub fn acquire(
        setup: Setup,
        wanted: Option<Ipv6Addr>,
        turn: Turn<'_>,
    ) -> (Client, Vec<Action>) {
        let mut client = Client::new(setup);
        client.wanted = wanted;
        client.limit = turn.now + client.setup.within;
        client.routers.ask(turn.now);
        client.search(turn.now);
        let actions = client.on_time(turn);
        (client, actions)
    }

    /// Creates a client for a lease that was held, or `lost`, when the daemon exited. The first
    /// [`Client::on_time`] finds out what is due.
    pub fn resume(setup: Setup, lease: Lease, lost: bool, now: Moment) -> Client {
        let mut client = Client::new(setup);
        client.wanted = Some(lease.address);
        client.holding = Holding::Lease(lease, Stage::Bound);
        if lost {
            client.holding.lose();
            client.search(now);
        }
        client
    }

    fn new(setup: Setup) -> Client {
        Client {
            setup,
            phase: Phase::Quiet,
            holding: Holding::Nothing,
            routers: Routers::default(),
            wanted: None,
            limit: NEVER,
            listening: None,
            sol_max_rt: SOL_MAX_RT,
            troubles: Troubles::default(),
        }
    }

    /// Ends the search for the first lease at `latest`, if not before: it may have been queued for
    /// part of its time.
    pub fn end_by(&mut self, latest: Moment) {
        self.limit = self.limit.min(latest);
    }

    /// When [`Client::on_time`] must be called, if nothing happens before.
    pub fn deadline(&self) -> Moment {
        let routers = self.routers.due(self.setup.mode);
        let all = [self.holding.end_of_stage(), self.phase.due(), routers, self.listening];
        all.into_iter().flatten().fold(self.limit, Moment::min)
    }

    /// Whether an answer may arrive now, or something is due that may send. Until a container has
    /// its first address, this is always so; later its sockets must not stay open for days.
    pub fn needs_sockets(&self, now: Moment) -> bool {
        let is_first = matches!(self.holding, Holding::Nothing) && self.state() != State::Ended;
        let is_listening = self.listening.is_some_and(|until| now < until);
        is_first || is_listening || self.phase.is_settling() || now >= self.deadline()
    }

    /// The client's state.
    pub fn state(&self) -> State {
        match (&self.holding, &self.phase) {
            (_, Phase::Ended) => State::Ended,
            (Holding::Lost(_), _) => State::Expired,
            (Holding::Lease(_, Stage::Bound), _) => State::Bound,
            (Holding::Lease(_, Stage::Renewing), _) => State::Renewing,
            (Holding::Lease(_, Stage::Rebinding), _) => State::Rebinding,
            (_, Phase::Requesting { .. } | Phase::Declining { .. }) => State::Requesting,
            // A router's prefix is not requested.
            (_, Phase::Settling { .. }) if self.setup.mode == Mode::Dhcp => State::Requesting,
            _ => State::Selecting,
        }
    }

    /// The container's lease, or the one it has lost.
    pub fn lease(&self) -> Option<&Lease> {
        self.holding.lease()
    }

    /// Does what is due by now.
    #[inline(never)] // all events share one copy
    pub fn on_time(&mut self, mut turn: Turn<'_>) -> Vec<Action> {
        self.listening = self.listening.filter(|until| turn.now < *until);
        self.settle(&mut turn);
        if turn.now >= self.limit {
            self.give_up(&mut turn);
        }
        self.keep(&mut turn);
        while self.phase.exchange().is_some_and(|exchange| turn.now >= exchange.timer.due) {
            self.go_on(&mut turn);
        }
        self.go_on_with_routers(&mut turn);
        turn.actions
    }

    /// Takes a server's message; ignores those for other clients and those not expected (RFC 8415,
    /// section 16).
    pub fn on_message(&mut self, message: &Message, mut turn: Turn<'_>) -> Vec<Action> {
        self.take_message(message, &mut turn);
        self.on_time(turn)
    }

    /// Takes a router's advertisement, if expected. An address made from its prefix has the second
    /// half of the link-local address, as the kernel would choose it.
    pub fn on_router(
        &mut self,
        told: Advertisement,
        link_local: Ipv6Addr,
        mut turn: Turn<'_>,
    ) -> Vec<Action> {
        self.take_advertisement(told, link_local, &mut turn);
        self.on_time(turn)
    }

    /// Takes a neighbour's claim of an address.
    pub fn on_conflict(&mut self, address: Ipv6Addr, turn: Turn<'_>) -> Vec<Action> {
        self.phase.claim(address);
        self.on_time(turn)
    }

    /// Ends the client. The returned message releases what it has or has requested.
    pub fn release(&mut self, random: &mut Random) -> Option<Message> {
        let owed = self.owed();
        self.end();
        let intent = owed.filter(|_| self.setup.mode == Mode::Dhcp)?;
        Some(release_of(&intent, &self.setup, random))
    }

    /// What there is to release.
    fn owed(&self) -> Option<Intent> {
        match (&self.holding, &self.phase) {
            (Holding::Lease(lease, _), _) | (_, Phase::Settling { lease, .. }) => {
                Some(Intent::of(lease))
            }
            (_, Phase::Requesting { intent, .. }) => Some(intent.clone()),
            _ => None,
        }
    }

    fn end(&mut self) {
        self.phase = Phase::Ended;
        self.holding = Holding::Nothing;
        self.routers.stop();
        self.limit = NEVER;
        self.listening = None;
    }

    fn exchange(&self, kind: Kind, start: Moment) -> Exchange {
        Exchange::new(Timing::of_kind(kind, self.sol_max_rt), start)
    }

    /// Takes the next step of an exchange that is due.
    fn go_on(&mut self, turn: &mut Turn<'_>) {
        match &self.phase {
            // The time for all servers to answer is over.
            Phase::Soliciting { best: Some(offer), .. } => {
                let intent = offer.intent.clone();
                self.request(intent, turn);
            }
            Phase::Declining { exchange, .. } if exchange.timer.is_exhausted() => {
                self.search(turn.now);
            }
            Phase::Requesting { exchange, intent, .. } if exchange.timer.is_exhausted() => {
                self.troubles.note(format!("no answer of {} to Request", name_of(&intent.server)));
                self.start_over(turn.now);
            }
            _ => self.send(turn),
        }
    }

    /// Starts over after a Request that failed.
    fn start_over(&mut self, start: Moment) {
        match self.holding {
            Holding::Lease(_, stage) => {
                self.phase = Phase::Extending(self.exchange(stage.kind(), start));
            }
            Holding::Nothing | Holding::Lost(_) => self.search(start),
        }
    }

    fn send(&mut self, turn: &mut Turn<'_>) {
        let Some(exchange) = self.phase.exchange_mut() else { return };
        exchange.sends(turn.now, turn.random);
        let message = self.message(turn.now);
        turn.actions.extend(message.map(Outgoing::Message).map(Action::Send));
        self.listening = Some(turn.now + LISTENING);
    }

    /// The message of the exchange.
    fn message(&self, now: Moment) -> Option<Message> {
        let exchange = self.phase.exchange()?;
        let content = self.content()?;
        Some(self.setup.message(content, exchange.transaction, now - exchange.timer.began))
    }

    fn content(&self) -> Option<Content> {
        match (&self.phase, &self.holding) {
            (Phase::Soliciting { .. }, _) => Some(Content::to_all(Kind::Solicit, self.wanted)),
            (Phase::Requesting { intent, .. }, _) => Some(Content::about(Kind::Request, intent)),
            (Phase::Declining { intent, .. }, _) => Some(Content::about(Kind::Decline, intent)),
            (Phase::Extending(_), Holding::Lease(lease, stage)) => Some(extension(lease, *stage)),
            _ => None,
        }
    }
}

/// A message that asks to extend the lease.
fn extension(lease: &Lease, stage: Stage) -> Content {
    match stage.kind() {
        Kind::Rebind => Content::to_all(Kind::Rebind, Some(lease.address)),
        kind => Content::about(kind, &Intent::of(lease)),
    }
}

/// A server's name in error messages: its DUID.
fn name_of(server: &[u8]) -> String {
    format!("server {}", hex::encode(server))
}
