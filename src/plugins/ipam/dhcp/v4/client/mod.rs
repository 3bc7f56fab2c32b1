//! The client of RFC 2131, section 4.4: a state machine that is told the time and what has come,
//! and says what to do.

mod keep;
mod search;
mod setup;
#[cfg(test)]
mod tests;

use std::net::Ipv4Addr;
use std::time::Duration;

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
/// Before the next try after DECLINE (RFC 2131, section 3.1, 5).
const AFTER_DECLINE: Duration = Duration::from_secs(10);
/// The least time that any answer is waited for.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);

/// What has to be done now.
pub type Action = client::Action<Outgoing, Ipv4Addr, Intent, Lease>;

/// What a client is doing.
#[derive(Clone, Debug)]
enum Phase {
    /// It waits for `next`, to look for servers then.
    Waiting,
    Discovering,
    Requesting(Request),
    Bound,
    Renewing,
    Rebinding,
    Ended,
}

/// A request for what was offered.
#[derive(Clone, Debug)]
struct Request {
    intent: Intent,
    sent: u32,
    /// Until when an owner of the address may answer.
    probed_until: Moment,
    /// What was granted while that was not over.
    granted: Option<Lease>,
}

/// A client of one link.
#[derive(Debug)]
pub struct Client {
    setup: Setup,
    phase: Phase,
    /// The lease that the container has, or has lost.
    lease: Option<Lease>,
    lost: bool,
    /// The address that servers are asked for.
    wanted: Option<Ipv4Addr>,
    /// Of the exchange.
    xid: u32,
    /// When the client began to look for a lease or for more time.
    began: Moment,
    /// When the request was sent, from which on the time of the lease runs.
    asked: Moment,
    /// `secs` of the exchange.
    secs: u16,
    /// How long the next answer is waited for.
    wait: Duration,
    /// When the phase has to be looked at.
    next: Moment,
    /// When the search for a lease ends.
    limit: Moment,
    /// When that for the first lease ends at the latest.
    latest: Moment,
    /// Until when answers are expected.
    listening: Option<Moment>,
    /// NAKs in a row.
    refusals: u32,
    /// What was offered in place of the address that was ours.
    other: Option<Ipv4Addr>,
    /// Why there is no lease yet.
    troubles: Troubles,
}

impl Client {
    /// A client that looks for a lease, if possible with the address that is `wanted`.
    pub fn acquire(
        setup: Setup,
        wanted: Option<Ipv4Addr>,
        now: Moment,
        random: &mut Random,
    ) -> (Client, Vec<Action>) {
        let mut client = Client::new(setup, now);
        client.wanted = wanted;
        client.limit = client.end_of_search();
        let actions = client.discover(now, random);
        (client, actions)
    }

    /// A client that had a lease, or had `lost` it, when the daemon ended. The first
    /// [`Client::on_time`] finds out by the clock what is due.
    pub fn resume(setup: Setup, lease: Lease, lost: bool, now: Moment) -> Client {
        let mut client = Client::new(setup, now);
        client.wanted = Some(lease.address);
        client.phase = if lost { Phase::Waiting } else { Phase::Bound };
        client.next = if lost { now } else { lease.t1.min(lease.t2).min(lease.expires) };
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
            xid: 0,
            began: now,
            asked: now,
            secs: 0,
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

    /// The search for the first lease ends at this time, or before: some of its time is over when
    /// it begins.
    pub fn end_by(&mut self, latest: Moment) {
        self.latest = latest;
        self.limit = self.limit.min(latest);
    }

    /// When [`Client::on_time`] has to be called, unless something else comes before.
    pub fn deadline(&self) -> Moment {
        self.next.min(self.limit).min(self.listening.unwrap_or(NEVER))
    }

    /// Whether an answer may come now, or something is due that may send.
    pub fn needs_sockets(&self, now: Moment) -> bool {
        self.listening.is_some_and(|until| now < until) || now >= self.deadline()
    }

    /// Where the client is.
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

    /// The lease that the container has, or had if it is lost.
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// Looks at the clock.
    pub fn on_time(&mut self, now: Moment, random: &mut Random) -> Vec<Action> {
        self.listening = self.listening.filter(|until| now < *until);
        if now >= self.limit {
            return self.give_up(now, random);
        }
        if now < self.next {
            return vec![];
        }
        match self.phase.clone() {
            Phase::Ended => vec![],
            Phase::Waiting => self.discover(now, random),
            Phase::Discovering => self.send_discover(now, random),
            Phase::Requesting(Request { granted: Some(lease), .. }) => self.bind(lease, random),
            Phase::Requesting(request) if request.sent < REQUESTS => {
                self.send_request(request, now, random)
            }
            Phase::Requesting(request) => {
                self.troubles
                    .note(format!("no answer of {} to DHCPREQUEST", request.intent.server));
                self.search_again(Duration::ZERO, now, random)
            }
            Phase::Bound | Phase::Renewing | Phase::Rebinding => self.keep(now, random),
        }
    }

    /// Takes what a server has sent; what is not for us, or is not awaited, is nothing.
    pub fn on_message(
        &mut self,
        message: &Message,
        now: Moment,
        random: &mut Random,
    ) -> Vec<Action> {
        if !self.is_for_us(message) {
            return vec![];
        }
        let server =
            message.options.address(code::SERVER_ID).filter(|server| !server.is_unspecified());
        match (self.phase.clone(), message.kind()) {
            (Phase::Discovering, Some(MessageType::Offer)) => match server {
                Some(server) => self.take_offer(message.yiaddr, server, now, random),
                None => {
                    self.troubles.note(format!(
                        "an offer of {} does not say by which server",
                        message.yiaddr
                    ));
                    vec![]
                }
            },
            (Phase::Requesting(request), Some(kind)) if server == Some(request.intent.server) => {
                match kind {
                    MessageType::Ack if request.granted.is_none() => {
                        self.take_ack(message, request, now, random)
                    }
                    MessageType::Nak => self.take_nak(message, request.intent.server, now, random),
                    _ => vec![],
                }
            }
            (Phase::Renewing | Phase::Rebinding, Some(MessageType::Ack)) => {
                self.take_renewal(message, server, random)
            }
            (Phase::Renewing | Phase::Rebinding, Some(MessageType::Nak)) => {
                self.take_refusal(server, now, random)
            }
            _ => vec![],
        }
    }

    /// Takes that `from` has sent what is no message, which an ADD that fails tells.
    pub fn on_malformed(&mut self, from: Ipv4Addr) {
        self.troubles.note(format!("what {from} sends is not a DHCP message"));
    }

    /// Takes that `holder` answers ARP for an address.
    pub fn on_conflict(
        &mut self,
        address: Ipv4Addr,
        holder: MacAddr,
        now: Moment,
        random: &mut Random,
    ) -> Vec<Action> {
        let Phase::Requesting(Request { intent, probed_until, .. }) = &self.phase else {
            return vec![];
        };
        if intent.address != address || *probed_until == Moment::ZERO || holder == self.setup.mac {
            return vec![];
        }
        let decline = Action::Send(self.setup.decline(intent));
        self.troubles
            .note(format!("{address}, which {} offers, is in use by {holder}", intent.server));
        let more = self.search_again(AFTER_DECLINE, now, random);
        [decline].into_iter().chain(more).collect()
    }

    /// Ends the client. What it has, or has asked for, is to be given back by this message.
    pub fn release(&mut self, random: &mut Random) -> Option<Outgoing> {
        let (address, server) = match (&self.phase, &self.lease) {
            (Phase::Requesting(Request { intent, .. }), _) => (intent.address, intent.server),
            (Phase::Bound | Phase::Renewing | Phase::Rebinding, Some(lease)) => {
                (lease.address, lease.server)
            }
            _ => {
                self.end();
                return None;
            }
        };
        self.end();
        Some(self.setup.release(address, server, random.word()))
    }

    fn end(&mut self) {
        self.phase = Phase::Ended;
        (self.next, self.limit, self.listening) = (NEVER, NEVER, None);
    }

    /// A hardware address may be that of many links (ipvlan), so an echoed client id has to be ours
    /// (RFC 6842).
    fn is_for_us(&self, message: &Message) -> bool {
        let id = message.options.get(code::CLIENT_ID);
        message.op == Op::Reply
            && message.xid == self.xid
            && message.chaddr == self.setup.mac
            && id.is_none_or(|id| id == self.setup.client_id())
    }
}

fn seconds(duration: Duration) -> u16 {
    u16::try_from(duration.as_secs()).unwrap_or(u16::MAX)
}
