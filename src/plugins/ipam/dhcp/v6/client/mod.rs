//! The client (RFC 8415, section 18): a state machine that takes the time and the received packets,
//! and returns actions. Servers grant addresses and routers advertise the rest (RFC 4861, section
//! 6.3): it asks both at once.

mod routers;
mod servers;
mod setup;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
mod timer;

use std::net::Ipv6Addr;
use std::time::Duration;

pub use self::setup::{Intent, Mode, Setup, duid, release_of};
use self::timer::{Timer, Timing};
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
/// The pause before routers are asked again, if another host now has the lost address.
const AFTER_CONFLICT: Duration = Duration::from_secs(60);
/// How long the owner of an address has to answer a probe.
const PROBE: Duration = Duration::from_millis(50);
/// How long routers have to answer. They take up to half a second, or three if they have just
/// advertised to other hosts (RFC 4861, section 6.2.6); the second solicitation is sent after four.
const ROUTERS: Duration = Duration::from_secs(5);
/// How long to listen for answers once the container must not hold open sockets until the next
/// message.
const LISTENING: Duration = Duration::from_secs(5);
/// T1 comes early by up to this fraction of itself, so that containers started together do not
/// renew together.
const T1_SPREAD: u32 = 32;

/// What the caller must do now.
pub type Action = client::Action<Outgoing, Ipv6Addr, Intent, Lease>;

/// A multicast message on the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// A message to the servers.
    Message(Message),
    /// A solicitation to the routers.
    Routers,
}

/// A message to servers and its retransmission.
#[derive(Clone, Debug)]
struct Exchange {
    kind: Kind,
    transaction: u32,
    timer: Timer,
}

/// An address that a server has advertised.
#[derive(Clone, Debug)]
struct Offer {
    address: Ipv6Addr,
    server: Vec<u8>,
    preference: u8,
}

/// A granted lease that is not bound yet: it waits for routers and for the probe of its address.
#[derive(Clone, Debug)]
struct Settling {
    lease: Lease,
    /// When to look at it again.
    next: Moment,
}

/// A DHCPv6 or SLAAC client on one link.
#[derive(Clone, Debug)]
pub struct Client {
    setup: Setup,
    state: State,
    /// The exchange with servers.
    exchange: Option<Exchange>,
    /// The solicitation of routers.
    asking: Option<Timer>,
    /// When to stop waiting for routers.
    routers_until: Moment,
    /// The routers that have answered.
    routers: Vec<Advertisement>,
    /// The best offer so far, or the one that was taken.
    offer: Option<Offer>,
    /// The address that was probed last, and when that probe ends.
    probed: Option<(Ipv6Addr, Moment)>,
    /// The owner of the probed address has answered.
    conflict: bool,
    settling: Option<Settling>,
    /// The container's lease, or the one it has lost.
    lease: Option<Lease>,
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

/// One call of the client: the time, random numbers, and the actions to return.
struct Turn<'a> {
    now: Moment,
    random: &'a mut Random,
    actions: Vec<Action>,
}

impl Client {
    /// Creates a client that tries to acquire a lease, preferably with the address `wanted`.
    pub fn acquire(
        setup: Setup,
        wanted: Option<Ipv6Addr>,
        now: Moment,
        random: &mut Random,
    ) -> (Client, Vec<Action>) {
        let mut client = Client::new(setup, State::Selecting);
        client.wanted = wanted;
        client.limit = now + client.setup.within;
        client.ask_routers(now);
        client.search(now);
        let actions = client.turn(now, random, |_, _| ());
        (client, actions)
    }

    /// Creates a client for a lease that was held, or `lost`, when the daemon exited. The first
    /// [`Client::on_time`] finds out what is due.
    pub fn resume(setup: Setup, lease: Lease, lost: bool, now: Moment) -> Client {
        let mut client = Client::new(setup, if lost { State::Expired } else { State::Bound });
        client.wanted = Some(lease.address);
        client.lease = Some(lease);
        if lost {
            client.search(now);
        }
        client
    }

    fn new(setup: Setup, state: State) -> Client {
        Client {
            setup,
            state,
            exchange: None,
            asking: None,
            routers_until: NEVER,
            routers: vec![],
            offer: None,
            probed: None,
            conflict: false,
            settling: None,
            lease: None,
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
        let routers_until = self
            .asking
            .as_ref()
            .filter(|_| self.setup.mode == Mode::Dhcp)
            .map(|_| self.routers_until);
        let all = [
            Some(self.limit),
            self.next_stage(),
            self.exchange.as_ref().map(|exchange| exchange.timer.due),
            self.asking.as_ref().map(|timer| timer.due),
            routers_until,
            self.settling.as_ref().map(|settling| settling.next),
            self.listening,
        ];
        all.into_iter().flatten().min().unwrap_or(NEVER)
    }

    /// When the lease enters its next stage.
    fn next_stage(&self) -> Option<Moment> {
        let lease = self.lease.as_ref()?;
        match self.state {
            State::Bound => Some(lease.t1.min(lease.expires)),
            State::Renewing => Some(lease.t2.min(lease.expires)),
            State::Rebinding => Some(lease.expires),
            _ => None,
        }
    }

    /// Whether an answer may arrive now, or something is due that may send. Until a container has
    /// its first address, this is always so; later its sockets must not stay open for days.
    pub fn needs_sockets(&self, now: Moment) -> bool {
        let is_first = self.lease.is_none() && self.state != State::Ended;
        let is_listening = self.listening.is_some_and(|until| now < until);
        is_first || is_listening || self.settling.is_some() || now >= self.deadline()
    }

    /// The client's state.
    pub fn state(&self) -> State {
        self.state
    }

    /// The container's lease, or the one it has lost.
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// Does what is due by `now`.
    pub fn on_time(&mut self, now: Moment, random: &mut Random) -> Vec<Action> {
        self.turn(now, random, |_, _| ())
    }

    /// Takes a server's message; ignores those for other clients and those not expected (RFC 8415,
    /// section 16).
    pub fn on_message(
        &mut self,
        message: &Message,
        now: Moment,
        random: &mut Random,
    ) -> Vec<Action> {
        self.turn(now, random, |client, turn| client.take_message(message, turn))
    }

    /// Takes a router's advertisement, if expected. An address made from its prefix has the second
    /// half of the link-local address, as the kernel would choose it.
    pub fn on_router(
        &mut self,
        told: Advertisement,
        link_local: Ipv6Addr,
        now: Moment,
        random: &mut Random,
    ) -> Vec<Action> {
        self.turn(now, random, |client, turn| client.take_advertisement(told, link_local, turn))
    }

    /// Takes a neighbour's claim of an address.
    pub fn on_conflict(
        &mut self,
        address: Ipv6Addr,
        now: Moment,
        random: &mut Random,
    ) -> Vec<Action> {
        self.turn(now, random, |client, _| {
            client.conflict |= client.probed.is_some_and(|(probed, _)| probed == address);
        })
    }

    /// Ends the client. The returned message releases what it has or has requested.
    pub fn release(&mut self, random: &mut Random) -> Option<Message> {
        let is_requested = self.settling.is_some() || self.is_sending(Kind::Request);
        let intent = match (self.state, &self.lease, &self.offer) {
            (State::Bound | State::Renewing | State::Rebinding, Some(lease), _) => {
                Some(Intent { address: lease.address, server: lease.server.clone() })
            }
            (_, _, Some(offer)) if is_requested => Some(offer.intent()),
            _ => None,
        };
        self.end();
        let intent = intent.filter(|_| self.setup.mode == Mode::Dhcp)?;
        Some(release_of(&intent, &self.setup, random))
    }

    fn end(&mut self) {
        self.state = State::Ended;
        (self.exchange, self.asking, self.settling) = (None, None, None);
        (self.limit, self.listening) = (NEVER, None);
    }

    /// Takes an event, then does what is due.
    fn turn(
        &mut self,
        now: Moment,
        random: &mut Random,
        take: impl FnOnce(&mut Client, &mut Turn<'_>),
    ) -> Vec<Action> {
        let mut turn = Turn { now, random, actions: vec![] };
        take(self, &mut turn);
        self.do_what_is_due(&mut turn);
        turn.actions
    }

    #[inline(never)] // the four callers share one copy
    fn do_what_is_due(&mut self, turn: &mut Turn<'_>) {
        let now = turn.now;
        self.listening = self.listening.filter(|until| now < *until);
        self.settle(turn);
        if now >= self.limit {
            self.give_up(turn);
        }
        self.keep(turn);
        while self.exchange.as_ref().is_some_and(|exchange| now >= exchange.timer.due) {
            self.go_on(turn);
        }
        if self.setup.mode == Mode::Dhcp && now >= self.routers_until {
            self.asking = None; // there is no router
        }
        if let Some(timer) = self.asking.as_mut().filter(|timer| now >= timer.due) {
            timer.sends(now, turn.random);
            turn.actions.push(Action::Send(Outgoing::Routers));
            self.listening = Some(now + LISTENING);
        }
    }

    /// Looks for a server or a router to get an address from, from `start` on.
    fn search(&mut self, start: Moment) {
        if self.lease.is_none() {
            self.state = State::Selecting;
        }
        (self.offer, self.probed, self.conflict) = (None, None, false);
        match self.setup.mode {
            Mode::Dhcp => self.begin(Kind::Solicit, start),
            Mode::Slaac => self.ask_routers(start),
        }
    }

    fn begin(&mut self, kind: Kind, start: Moment) {
        let timer = Timer::new(Timing::of_kind(kind, self.sol_max_rt), start);
        self.exchange = Some(Exchange { kind, transaction: 0, timer });
    }

    fn is_sending(&self, kind: Kind) -> bool {
        self.exchange.as_ref().is_some_and(|exchange| exchange.kind == kind)
    }

    fn ask_routers(&mut self, start: Moment) {
        self.routers.clear();
        self.asking = Some(Timer::new(Timing::ROUTERS, start));
        self.routers_until = start + ROUTERS;
    }

    /// Takes the next step of an exchange that is due.
    fn go_on(&mut self, turn: &mut Turn<'_>) {
        let Some(exchange) = &self.exchange else { return };
        match exchange.kind {
            // The time for all servers to answer is over.
            Kind::Solicit if self.offer.is_some() => self.request(turn),
            Kind::Decline if exchange.timer.is_exhausted() => self.search(turn.now),
            Kind::Request if exchange.timer.is_exhausted() => {
                let server =
                    self.offer.as_ref().map(|offer| name_of(&offer.server)).unwrap_or_default();
                self.troubles.note(format!("no answer of {server} to Request"));
                self.start_over(turn.now);
            }
            _ => self.send(turn),
        }
    }

    /// Starts over after a Request that failed.
    fn start_over(&mut self, start: Moment) {
        match self.state {
            State::Renewing => self.begin(Kind::Renew, start),
            State::Rebinding => self.begin(Kind::Rebind, start),
            _ => self.search(start),
        }
    }

    fn send(&mut self, turn: &mut Turn<'_>) {
        let Some(exchange) = &mut self.exchange else { return };
        if exchange.timer.sent == 0 {
            exchange.transaction = turn.random.word() & 0xff_ffff;
        }
        exchange.timer.sends(turn.now, turn.random);
        let kind = exchange.kind;
        let offer = self.offer.as_ref();
        let lease = self.lease.as_ref();
        let (server, address) = match kind {
            Kind::Solicit => (None, self.wanted),
            Kind::Rebind => (None, lease.map(|lease| lease.address)),
            Kind::Renew => (lease.map(|lease| &lease.server), lease.map(|lease| lease.address)),
            _ => (offer.map(|offer| &offer.server), offer.map(|offer| offer.address)),
        };
        let elapsed = turn.now - exchange.timer.began;
        let server = server.map(Vec::as_slice).unwrap_or_default();
        turn.actions.push(Action::Send(Outgoing::Message(self.setup.message(
            kind,
            exchange.transaction,
            elapsed,
            server,
            address,
        ))));
        self.listening = Some(turn.now + LISTENING);
    }

    /// Requests the offered address. An address that the link does not have is probed first.
    fn request(&mut self, turn: &mut Turn<'_>) {
        let Some(offer) = self.offer.clone() else { return };
        if self.lease.is_none() {
            self.state = State::Requesting;
            turn.actions.push(Action::Intend(offer.intent())); // a lease that exists is already in the journal
        }
        if self.asking.is_none() && self.routers.is_empty() {
            self.ask_routers(turn.now);
        }
        self.probe(offer.address, turn);
        self.begin(Kind::Request, turn.now);
    }

    /// Probes an address, unless this search has done so or the link has it.
    fn probe(&mut self, address: Ipv6Addr, turn: &mut Turn<'_>) {
        let is_on_link = self.lease.is_some() && self.state != State::Expired;
        let was_probed = self.probed.is_some_and(|(probed, _)| probed == address);
        if !is_on_link && !was_probed {
            turn.actions.push(Action::Probe(address));
            self.probed = Some((address, turn.now + PROBE));
            self.conflict = false;
        }
    }

    /// Binds an extension at once; a new lease waits for its probe and for the routers.
    fn take_lease(&mut self, lease: Lease, turn: &mut Turn<'_>) {
        self.exchange = None;
        match self.state {
            State::Renewing | State::Rebinding => self.bind(lease, turn),
            _ => {
                self.probe(lease.address, turn);
                self.settling = Some(Settling { lease, next: turn.now });
            }
        }
    }

    /// Binds a granted lease once the probe is over and a router is known or routers have had their
    /// time.
    fn settle(&mut self, turn: &mut Turn<'_>) {
        let Some(settling) = &mut self.settling else { return };
        if self.conflict {
            self.settling = None;
            self.decline(turn);
            return;
        }
        let probed_until = self.probed.map_or(Moment::ZERO, |(_, until)| until);
        let has_router = self.routers.iter().any(|told| told.lifetime != 0);
        settling.next =
            if has_router { probed_until } else { probed_until.max(self.routers_until) };
        if turn.now >= settling.next {
            let lease = settling.lease.clone();
            self.bind(lease, turn);
        }
    }

    /// Declines the address: another host has it.
    fn decline(&mut self, turn: &mut Turn<'_>) {
        self.conflict = false;
        if let Some((address, _)) = self.probed {
            self.troubles.note(format!("{address} is in use by another"));
        }
        match self.setup.mode {
            Mode::Dhcp => self.begin(Kind::Decline, turn.now),
            Mode::Slaac if self.lease.is_some() => self.search(turn.now + AFTER_CONFLICT),
            Mode::Slaac => self.give_up(turn), // there is no other address to try
        }
    }

    /// The lease is granted, new or extended.
    fn bind(&mut self, mut lease: Lease, turn: &mut Turn<'_>) {
        lease.learn(&self.routers, self.lease.as_ref());
        if lease.t1 != NEVER {
            lease.t1 -= turn.random.below(lease.t1.saturating_sub(turn.now) / T1_SPREAD);
        }
        let has_router = self.routers.iter().any(|told| told.lifetime != 0);
        let is_renewal = self.lease.is_some();
        if has_router || !is_renewal || self.setup.mode == Mode::Slaac {
            (self.asking, self.listening) = (None, None);
        }
        (self.exchange, self.settling, self.offer) = (None, None, None);
        self.limit = NEVER;
        self.troubles = Troubles::default();
        self.wanted = Some(lease.address);
        let was_lost = self.state == State::Expired;
        self.state = State::Bound;
        turn.actions.push(match self.lease.replace(lease.clone()) {
            None => Action::Bound(lease),
            Some(_) if was_lost => Action::Regained(lease),
            Some(_) => Action::Renewed(lease),
        });
    }

    /// Does what the times of the lease require.
    fn keep(&mut self, turn: &mut Turn<'_>) {
        let Some(lease) = self.lease.as_ref().filter(|_| self.next_stage().is_some()) else {
            return;
        };
        if turn.now >= lease.expires {
            self.lose(Reason::Expired, turn);
        } else if turn.now >= lease.t2 && self.state != State::Rebinding {
            self.renew(State::Rebinding, Kind::Rebind, turn.now);
        } else if turn.now >= lease.t1 && self.state == State::Bound {
            self.renew(State::Renewing, Kind::Renew, turn.now);
        }
    }

    fn renew(&mut self, state: State, kind: Kind, now: Moment) {
        self.state = state;
        self.ask_routers(now);
        if self.setup.mode == Mode::Dhcp {
            self.begin(kind, now);
        }
    }

    /// Gives the address up, so that it leaves the link. After an expiry it is requested again at
    /// once.
    fn lose(&mut self, reason: Reason, turn: &mut Turn<'_>) {
        self.state = State::Expired;
        self.asking = None;
        self.routers.clear();
        turn.actions.push(Action::Lost(reason));
        self.search(
            turn.now + if reason == Reason::Expired { Duration::ZERO } else { AFTER_REFUSAL },
        );
    }

    /// Ends the search: its time is over, or it cannot succeed.
    fn give_up(&mut self, turn: &mut Turn<'_>) {
        let is_late = turn.now >= self.limit;
        // The Reply to a Request may be lost or still to come, so release what was requested.
        turn.actions.extend(self.release(turn.random).map(Outgoing::Message).map(Action::Send));
        let within = self.setup.within.as_secs();
        let told = self.troubles.or(match self.setup.mode {
            Mode::Dhcp => "no answer to Solicit",
            Mode::Slaac => "no router has answered",
        });
        let why = if is_late { format!("no more tries within {within}s: {told}") } else { told };
        turn.actions.push(Action::GaveUp(why));
    }
}

/// A server's name in error messages: its DUID.
fn name_of(server: &[u8]) -> String {
    format!("server {}", hex::encode(server))
}

impl Offer {
    fn intent(&self) -> Intent {
        Intent { address: self.address, server: self.server.clone() }
    }
}
