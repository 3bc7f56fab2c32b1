//! The client of RFC 2131, section 4.4: a state machine that takes the time and the received
//! messages, and returns actions.

mod keep;
mod search;
mod setup;
#[cfg(test)]
mod tests;

use std::net::Ipv4Addr;
use std::time::Duration;

use self::setup::Exchange;
pub use self::setup::{Destination, Intent, Outgoing, Patience, Setup, release_of};
use super::lease::Lease;
use super::message::{Message, MessageType, Op};
use super::options::code;
use crate::net::mac::MacAddr;
use crate::plugins::ipam::dhcp::client::{self, Reason, State, Troubles};
use crate::sys::clock::{Moment, NEVER};
use crate::sys::random::Random;

/// How often an offer is requested before it counts as withdrawn.
const REQUESTS: u32 = 3;
/// The pause before the next search after DECLINE (RFC 2131, section 3.1, 5).
const AFTER_DECLINE: Duration = Duration::from_secs(10);
/// The shortest wait for any answer.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);

/// What the caller must do now.
pub type Action = client::Action<Outgoing, Ipv4Addr, Intent, Lease>;

/// One call of the client.
pub type Turn<'a> = client::Turn<'a, Action>;

/// The phase of a client.
#[derive(Clone, Debug)]
enum Phase {
    /// It waits until `next` to look for servers.
    Waiting,
    Discovering,
    Requesting(Request),
    Bound,
    Renewing,
    Rebinding,
    Ended,
}

/// A request for an offered address.
#[derive(Clone, Debug)]
struct Request {
    intent: Intent,
    sent: u32,
    /// When the probe of the address ends.
    probed_until: Moment,
    /// The lease, if granted before the probe ended.
    granted: Option<Lease>,
}

/// A DHCPv4 client on one link.
#[derive(Debug)]
pub struct Client {
    setup: Setup,
    phase: Phase,
    /// The container's lease, or the one it has lost.
    lease: Option<Lease>,
    lost: bool,
    /// The address to ask servers for.
    wanted: Option<Ipv4Addr>,
    exchange: Exchange,
    /// When the search, or the renewal, began.
    began: Moment,
    /// When the request was sent; the time of the lease runs from there.
    asked: Moment,
    /// How long to wait for the next answer.
    wait: Duration,
    /// When the next step of the phase is due.
    next: Moment,
    /// When the search for a lease ends.
    limit: Moment,
    /// The latest end of the search for the first lease.
    latest: Moment,
    /// When the client stops listening for answers.
    listening: Option<Moment>,
    /// NAKs in a row.
    refusals: u32,
    /// The address that was offered in place of the container's.
    other: Option<Ipv4Addr>,
    /// Why there is no lease yet.
    troubles: Troubles,
}

impl Client {
    /// Creates a client that tries to acquire a lease, preferably with the address `wanted`.
    pub fn acquire(
        setup: Setup,
        wanted: Option<Ipv4Addr>,
        mut turn: Turn<'_>,
    ) -> (Client, Vec<Action>) {
        let mut client = Client::new(setup, turn.now);
        client.wanted = wanted;
        client.limit = client.end_of_search();
        client.discover(&mut turn);
        (client, turn.actions)
    }

    /// Creates a client for a lease that was held, or `lost`, when the daemon exited. The first
    /// [`Client::on_time`] finds out what is due.
    pub fn resume(setup: Setup, lease: Lease, lost: bool, now: Moment) -> Client {
        let mut client = Client::new(setup, now);
        client.wanted = Some(lease.address);
        client.phase = if lost { Phase::Waiting } else { Phase::Bound };
        client.next = if lost { now } else { lease.first_renewal().min(lease.expires) };
        client.lease = Some(lease);
        client.lost = lost;
        client
    }

    fn new(setup: Setup, now: Moment) -> Client {
        Client {
            setup,
            phase: Phase::Waiting,
            lease: None,
            lost: false,
            wanted: None,
            exchange: Exchange::default(),
            began: now,
            asked: now,
            wait: Duration::ZERO,
            next: now,
            limit: NEVER,
            latest: NEVER,
            listening: None,
            refusals: 0,
            other: None,
            troubles: Troubles::default(),
        }
    }

    /// Ends the search for the first lease at `latest`, if not before: it may have been queued for
    /// part of its time.
    pub fn end_by(&mut self, latest: Moment) {
        self.latest = latest;
        self.limit = self.limit.min(latest);
    }

    /// When [`Client::on_time`] must be called, if nothing happens before.
    pub fn deadline(&self) -> Moment {
        self.next.min(self.limit).min(self.listening.unwrap_or(NEVER))
    }

    /// Whether an answer may arrive now, or something is due that may send.
    pub fn needs_sockets(&self, now: Moment) -> bool {
        self.listening.is_some_and(|until| now < until) || now >= self.deadline()
    }

    /// The client's state.
    pub fn state(&self) -> State {
        match self.phase {
            Phase::Ended => State::Ended,
            _ if self.lost => State::Expired,
            Phase::Waiting => State::Waiting,
            Phase::Discovering => State::Selecting,
            Phase::Requesting(_) => State::Requesting,
            Phase::Bound => State::Bound,
            Phase::Renewing => State::Renewing,
            Phase::Rebinding => State::Rebinding,
        }
    }

    /// The container's lease, or the one it has lost.
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// Does what is due by now.
    pub fn on_time(&mut self, mut turn: Turn<'_>) -> Vec<Action> {
        self.listening = self.listening.filter(|until| turn.now < *until);
        if turn.now >= self.limit {
            self.give_up(&mut turn);
        } else if turn.now >= self.next {
            self.go_on(&mut turn);
        }
        turn.actions
    }

    /// Takes the next step of the phase.
    fn go_on(&mut self, turn: &mut Turn<'_>) {
        match self.phase.clone() {
            Phase::Ended => (),
            Phase::Waiting => self.discover(turn),
            Phase::Discovering => self.send_discover(turn),
            Phase::Requesting(Request { granted: Some(lease), .. }) => self.bind(lease, turn),
            Phase::Requesting(request) if request.sent < REQUESTS => {
                self.send_request(request, turn)
            }
            Phase::Requesting(request) => self.drop_offer(request.intent.server, turn),
            Phase::Bound | Phase::Renewing | Phase::Rebinding => self.keep(turn),
        }
    }

    /// Looks for servers again: one does not answer the request of its offer.
    fn drop_offer(&mut self, server: Ipv4Addr, turn: &mut Turn<'_>) {
        self.troubles.note(format!("no answer of {server} to DHCPREQUEST"));
        self.search_again(Duration::ZERO, turn);
    }

    /// Takes a server's message; ignores those for other clients and those not expected.
    pub fn on_message(&mut self, message: &Message, mut turn: Turn<'_>) -> Vec<Action> {
        if self.is_for_us(message) {
            self.take_message(message, &mut turn);
        }
        turn.actions
    }

    fn take_message(&mut self, message: &Message, turn: &mut Turn<'_>) {
        let kind = message.kind();
        match self.phase.clone() {
            Phase::Discovering if kind == Some(MessageType::Offer) => {
                self.hear_offer(message, turn)
            }
            Phase::Requesting(request) if message.server() == Some(request.intent.server) => {
                self.take_answer(message, request, turn)
            }
            Phase::Renewing | Phase::Rebinding => self.take_answer_to_renewal(message, turn),
            _ => (),
        }
    }

    fn hear_offer(&mut self, offer: &Message, turn: &mut Turn<'_>) {
        let address = offer.yiaddr;
        match offer.server() {
            Some(server) => self.take_offer(address, server, turn),
            None => {
                self.troubles.note(format!("an offer of {address} does not say by which server"))
            }
        }
    }

    /// Takes the answer of the server that the request was for.
    fn take_answer(&mut self, message: &Message, request: Request, turn: &mut Turn<'_>) {
        match message.kind() {
            Some(MessageType::Ack) if request.granted.is_none() => {
                self.take_ack(message, request, turn)
            }
            Some(MessageType::Nak) => self.take_nak(message, request.intent.server, turn),
            _ => (),
        }
    }

    fn take_answer_to_renewal(&mut self, message: &Message, turn: &mut Turn<'_>) {
        match message.kind() {
            Some(MessageType::Ack) => self.take_renewal(message, turn),
            Some(MessageType::Nak) => self.take_refusal(message, turn),
            _ => (),
        }
    }

    /// Notes that `from` has sent an invalid message, for the error of a failed ADD.
    pub fn on_malformed(&mut self, from: Ipv4Addr) {
        self.troubles.note(format!("what {from} sends is not a DHCP message"));
    }

    /// Takes an ARP answer: `holder` has an address.
    pub fn on_conflict(
        &mut self,
        address: Ipv4Addr,
        holder: MacAddr,
        mut turn: Turn<'_>,
    ) -> Vec<Action> {
        if let Some(intent) = self.contested(address, &holder) {
            turn.actions.push(Action::Send(self.setup.decline(&intent)));
            self.troubles
                .note(format!("{address}, which {} offers, is in use by {holder}", intent.server));
            self.search_again(AFTER_DECLINE, &mut turn);
        }
        turn.actions
    }

    /// The intent of requesting the address, if it is being probed and `holder` is another host.
    fn contested(&self, address: Ipv4Addr, holder: &MacAddr) -> Option<Intent> {
        let Phase::Requesting(request) = &self.phase else { return None };
        let is_probed = request.intent.address == address && request.probed_until != Moment::ZERO;
        (is_probed && *holder != self.setup.mac).then_some(request.intent)
    }

    /// Ends the client. The returned message releases what it has or has requested.
    pub fn release(&mut self, random: &mut Random) -> Option<Outgoing> {
        let owed = self.owed();
        self.end();
        Some(release_of(&owed?, &self.setup, random))
    }

    /// What there is to release.
    fn owed(&self) -> Option<Intent> {
        match (&self.phase, &self.lease) {
            (Phase::Requesting(request), _) => Some(request.intent),
            (Phase::Bound | Phase::Renewing | Phase::Rebinding, Some(lease)) => {
                Some(Intent::of(lease))
            }
            _ => None,
        }
    }

    fn end(&mut self) {
        self.phase = Phase::Ended;
        (self.next, self.limit, self.listening) = (NEVER, NEVER, None);
    }

    /// Whether a message is for this client. Links may share a hardware address (ipvlan), so an
    /// echoed client id must be ours (RFC 6842).
    fn is_for_us(&self, message: &Message) -> bool {
        let id = message.options.get(code::CLIENT_ID);
        message.op == Op::Reply
            && message.xid == self.exchange.xid
            && message.chaddr == self.setup.mac
            && id.is_none_or(|id| id == self.setup.client_id())
    }
}

fn seconds(duration: Duration) -> u16 {
    u16::try_from(duration.as_secs()).unwrap_or(u16::MAX)
}
