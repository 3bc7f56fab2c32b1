//! The client (RFC 8415, section 18): a state machine that is told the time and what has come, and
//! says what to do. Servers grant addresses, routers tell the rest (RFC 4861, section 6.3): both
//! are asked at once.

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
/// Before servers are asked again after a refusal.
const AFTER_REFUSAL: Duration = Duration::from_secs(1);
/// Before the next look for routers, where the address that was lost is somebody else's now.
const AFTER_CONFLICT: Duration = Duration::from_secs(60);
/// How long the owner of an address has to answer a probe.
const PROBE: Duration = Duration::from_millis(50);
/// How long routers have to answer. They take up to half a second, or three where they have just
/// told others (RFC 4861, section 6.2.6); the second solicitation is sent after four.
const ROUTERS: Duration = Duration::from_secs(5);
/// How long answers are awaited where nothing shall be open for as long as the next one is not
/// sent.
const LISTENING: Duration = Duration::from_secs(5);
/// T1 comes early by up to this part of itself, so that containers which were started together are
/// not renewed together.
const T1_SPREAD: u32 = 32;

/// What has to be done now.
pub type Action = client::Action<Outgoing, Ipv6Addr, Intent, Lease>;

/// What is sent to all on the link whom it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// A message to the servers.
    Message(Message),
    /// A question to the routers.
    Routers,
}

/// A message to servers and the wait for their answer.
#[derive(Clone, Debug)]
struct Exchange {
    kind: Kind,
    transaction: u32,
    timer: Timer,
}

/// What a server has advertised.
#[derive(Clone, Debug)]
struct Offer {
    address: Ipv6Addr,
    server: Vec<u8>,
    preference: u8,
}

/// What was granted, while routers or the owner of the address may have something to say.
#[derive(Clone, Debug)]
struct Settling {
    lease: Lease,
    /// When to look at it again.
    next: Moment,
}

/// A client of one link.
#[derive(Clone, Debug)]
pub struct Client {
    setup: Setup,
    state: State,
    /// With servers.
    exchange: Option<Exchange>,
    /// The solicitation of routers.
    asking: Option<Timer>,
    /// Until when these are waited for.
    routers_until: Moment,
    /// Those that have answered.
    routers: Vec<Advertisement>,
    /// The best one so far, or the one that was taken.
    offer: Option<Offer>,
    /// The address that was probed last, and until when its owner may answer.
    probed: Option<(Ipv6Addr, Moment)>,
    /// That owner has answered.
    conflict: bool,
    settling: Option<Settling>,
    /// The lease that the container has, or has lost.
    lease: Option<Lease>,
    /// The address that servers are asked for.
    wanted: Option<Ipv6Addr>,
    /// When the search for a lease ends.
    limit: Moment,
    /// Until when answers are expected.
    listening: Option<Moment>,
    sol_max_rt: Duration,
    /// Why there is no lease yet.
    troubles: Troubles,
}

/// One call: the time, chance, and what is to be done.
struct Turn<'a> {
    now: Moment,
    random: &'a mut Random,
    actions: Vec<Action>,
}

impl Client {
    /// A client that looks for a lease, if possible with the address that is `wanted`.
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

    /// A client that had a lease, or had `lost` it, when the daemon ended. The first
    /// [`Client::on_time`] finds out by the clock what is due.
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

    /// The search for the first lease ends at this time, or before: some of its time is over when
    /// it begins.
    pub fn end_by(&mut self, latest: Moment) {
        self.limit = self.limit.min(latest);
    }

    /// When [`Client::on_time`] has to be called, unless something else comes before.
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

    /// When the lease has to be seen to.
    fn next_stage(&self) -> Option<Moment> {
        let lease = self.lease.as_ref()?;
        match self.state {
            State::Bound => Some(lease.t1.min(lease.expires)),
            State::Renewing => Some(lease.t2.min(lease.expires)),
            State::Rebinding => Some(lease.expires),
            _ => None,
        }
    }

    /// Whether an answer may come now, or something is due that may send. As long as a container
    /// waits for its first address, it may; later, nothing shall be open in it for days.
    pub fn needs_sockets(&self, now: Moment) -> bool {
        let is_first = self.lease.is_none() && self.state != State::Ended;
        let is_listening = self.listening.is_some_and(|until| now < until);
        is_first || is_listening || self.settling.is_some() || now >= self.deadline()
    }

    /// Where the client is.
    pub fn state(&self) -> State {
        self.state
    }

    /// The lease that the container has, or had if it is lost.
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// Looks at the clock.
    pub fn on_time(&mut self, now: Moment, random: &mut Random) -> Vec<Action> {
        self.turn(now, random, |_, _| ())
    }

    /// Takes what a server has sent; what is not for us, or is not awaited, is nothing (RFC 8415,
    /// section 16).
    pub fn on_message(
        &mut self,
        message: &Message,
        now: Moment,
        random: &mut Random,
    ) -> Vec<Action> {
        self.turn(now, random, |client, turn| client.take_message(message, turn))
    }

    /// Takes what a router tells, if it is awaited. An address that is made of its prefix has the
    /// second half of the link's own address, as the kernel would take it.
    pub fn on_router(
        &mut self,
        told: Advertisement,
        link_local: Ipv6Addr,
        now: Moment,
        random: &mut Random,
    ) -> Vec<Action> {
        self.turn(now, random, |client, turn| client.take_advertisement(told, link_local, turn))
    }

    /// Takes that somebody on the link says that he has an address.
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

    /// Ends the client. What it has, or has asked for, is to be given back by this message.
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

    /// Takes what has come, and then does what is due.
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

    #[inline(never)] // of four callers
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
            self.asking = None; // there is none
        }
        if let Some(timer) = self.asking.as_mut().filter(|timer| now >= timer.due) {
            timer.sends(now, turn.random);
            turn.actions.push(Action::Send(Outgoing::Routers));
            self.listening = Some(now + LISTENING);
        }
    }

    /// Looks for whoever has an address for us, from `start` on.
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

    /// The exchange is due: what comes next in it.
    fn go_on(&mut self, turn: &mut Turn<'_>) {
        let Some(exchange) = &self.exchange else { return };
        match exchange.kind {
            // All servers have had their second.
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

    /// After a Request that came to nothing.
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

    /// Requests what was offered. An address that the link does not have is tried first.
    fn request(&mut self, turn: &mut Turn<'_>) {
        let Some(offer) = self.offer.clone() else { return };
        if self.lease.is_none() {
            self.state = State::Requesting;
            turn.actions.push(Action::Intend(offer.intent())); // a lease that there was is in the journal
        }
        if self.asking.is_none() && self.routers.is_empty() {
            self.ask_routers(turn.now);
        }
        self.probe(offer.address, turn);
        self.begin(Kind::Request, turn.now);
    }

    /// Tries an address, unless that was done in this search or the link has it.
    fn probe(&mut self, address: Ipv6Addr, turn: &mut Turn<'_>) {
        let is_on_link = self.lease.is_some() && self.state != State::Expired;
        let was_probed = self.probed.is_some_and(|(probed, _)| probed == address);
        if !is_on_link && !was_probed {
            turn.actions.push(Action::Probe(address));
            self.probed = Some((address, turn.now + PROBE));
            self.conflict = false;
        }
    }

    /// More time is taken at once; what is new has to be tried, and is told with what routers tell.
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

    /// Takes what was granted, if nobody has more to say about it.
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

    /// The address is somebody else's.
    fn decline(&mut self, turn: &mut Turn<'_>) {
        self.conflict = false;
        if let Some((address, _)) = self.probed {
            self.troubles.note(format!("{address} is in use by another"));
        }
        match self.setup.mode {
            Mode::Dhcp => self.begin(Kind::Decline, turn.now),
            Mode::Slaac if self.lease.is_some() => self.search(turn.now + AFTER_CONFLICT),
            Mode::Slaac => self.give_up(turn), // there is no other one to be had
        }
    }

    /// The lease is ours, anew or for longer.
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

    /// Sees to a lease by the clock.
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

    /// The address must leave the link. What has expired may be had again at once.
    fn lose(&mut self, reason: Reason, turn: &mut Turn<'_>) {
        self.state = State::Expired;
        self.asking = None;
        self.routers.clear();
        turn.actions.push(Action::Lost(reason));
        self.search(
            turn.now + if reason == Reason::Expired { Duration::ZERO } else { AFTER_REFUSAL },
        );
    }

    /// The search has taken too long, or can come to nothing.
    fn give_up(&mut self, turn: &mut Turn<'_>) {
        let is_late = turn.now >= self.limit;
        // The Reply to a Request may be lost, or yet to come.
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

/// A server as error texts name it: by its DUID.
fn name_of(server: &[u8]) -> String {
    format!("server {}", hex::encode(server))
}

impl Offer {
    fn intent(&self) -> Intent {
        Intent { address: self.address, server: self.server.clone() }
    }
}
