//! The client of RFC 2131, section 4.4: a state machine that is told the time and what has come, and says what to do.

mod setup;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::Ipv4Addr;
use std::time::Duration;

pub use self::setup::{Destination, Intent, Outgoing, Patience, Setup, release_of};
use super::lease::{Lease, NEVER};
use super::message::{Message, MessageType, Op};
use super::options::code;
use crate::net::mac::MacAddr;
use crate::net::random::Random;

/// A point in time: since the machine was started ([`since_boot`](crate::net::clock::since_boot)).
pub type Moment = Duration;

/// How often an offer is requested before it counts as withdrawn.
const REQUESTS: u32 = 3;
/// How long the owner of an address has to answer a probe.
const PROBE: Duration = Duration::from_millis(50);
/// Before the next try after DECLINE (RFC 2131, section 3.1, 5).
const AFTER_DECLINE: Duration = Duration::from_secs(10);
/// Before the next try after the second NAK in a row; then twice as long each time.
const AFTER_NAK: Duration = Duration::from_secs(1);
/// How long other servers have to offer the address that was ours, once one has offered another.
const AFTER_OTHER_OFFER: Duration = Duration::from_secs(1);
/// The least time between two renewals (RFC 2131, section 4.4.5), unless the lease is short.
const RENEWAL_PAUSE: Duration = Duration::from_secs(60);
/// Into how many pauses a short lease is cut.
const RENEWAL_PAUSES: u32 = 16;
/// The least time between two renewals of any lease.
const SHORTEST_RENEWAL_PAUSE: Duration = Duration::from_secs(1);
/// The least time that any answer is waited for.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);
/// T1 comes early by up to this part of itself, so that containers which were started together are not renewed together.
const T1_SPREAD: u32 = 32;

/// Where a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It looks for servers.
    Selecting,
    /// It has asked for what was offered.
    Requesting,
    /// It waits before it looks for servers again: the last time it was refused, or the address was somebody else's.
    Waiting,
    /// It has a lease.
    Bound,
    /// It has a lease and has asked its server for more time.
    Renewing,
    /// It has a lease and has asked all servers for more time.
    Rebinding,
    /// It has lost its lease and tries to get the same address again.
    Expired,
    /// It has given up, or given its lease back.
    Ended,
}

/// Why an address must leave the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its time was over.
    Expired,
    /// A server has refused it, and none has offered it again.
    Refused,
    /// A server has refused it and offers this one only, which the container cannot be given.
    OtherAddress(Ipv4Addr),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Expired => f.write_str("expired"),
            Reason::Refused => f.write_str("refused"),
            Reason::OtherAddress(other) => write!(f, "refused, {other} offered"),
        }
    }
}

/// What has to be done now, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a message.
    Send(Outgoing),
    /// Ask by ARP who has the address.
    Probe(Ipv4Addr),
    /// Journal it before the message that follows.
    Intend(Intent),
    /// There is a lease where there was none: journal it.
    Bound(Lease),
    /// The lease has more time: journal it.
    Renewed(Lease),
    /// The address must leave the link. The client tries to get it again.
    Lost(Reason),
    /// The address that was lost is ours again: put it back, and journal the lease.
    Regained(Lease),
    /// There will be no lease, and why. The client has ended.
    GaveUp(String),
}

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
    /// Until when answers are expected.
    listening: Option<Moment>,
    /// NAKs in a row.
    refusals: u32,
    /// What was offered in place of the address that was ours.
    other: Option<Ipv4Addr>,
    /// Why there is no lease yet.
    trouble: String,
}

impl Client {
    /// A client that looks for a lease, if possible with the address that is `wanted`.
    pub fn acquire(setup: Setup, wanted: Option<Ipv4Addr>, now: Moment, random: &mut Random) -> (Client, Vec<Action>) {
        let mut client = Client::new(setup, now);
        client.wanted = wanted;
        client.limit = client.end_of_search();
        let actions = client.discover(now, random);
        (client, actions)
    }

    /// A client that had a lease, or had `lost` it, when the daemon ended. The first [`Client::on_time`] finds out by
    /// the clock what is due.
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
            listening: None,
            refusals: 0,
            other: None,
            trouble: String::new(),
        }
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
            Phase::Requesting(request) if request.sent < REQUESTS => self.send_request(request, now, random),
            Phase::Requesting(request) => {
                self.trouble = format!("no answer of {} to DHCPREQUEST", request.intent.server);
                self.search_again(Duration::ZERO, now, random)
            }
            Phase::Bound | Phase::Renewing | Phase::Rebinding => self.keep(now, random),
        }
    }

    /// Takes what a server has sent; what is not for us, or is not awaited, is nothing.
    pub fn on_message(&mut self, message: &Message, now: Moment, random: &mut Random) -> Vec<Action> {
        if !self.is_for_us(message) {
            return vec![];
        }
        let server = message.options.address(code::SERVER_ID).filter(|server| !server.is_unspecified());
        match (self.phase.clone(), message.kind()) {
            (Phase::Discovering, Some(MessageType::Offer)) => match server {
                Some(server) => self.take_offer(message.yiaddr, server, now, random),
                None => vec![],
            },
            (Phase::Requesting(request), Some(kind)) if server == Some(request.intent.server) => match kind {
                MessageType::Ack if request.granted.is_none() => self.take_ack(message, request, now, random),
                MessageType::Nak => self.take_nak(message, request.intent.server, now, random),
                _ => vec![],
            },
            (Phase::Renewing | Phase::Rebinding, Some(MessageType::Ack)) => self.take_renewal(message, server, random),
            (Phase::Renewing | Phase::Rebinding, Some(MessageType::Nak)) => self.take_refusal(server, now, random),
            _ => vec![],
        }
    }

    /// Takes that `holder` answers ARP for an address.
    pub fn on_conflict(&mut self, address: Ipv4Addr, holder: MacAddr, now: Moment, random: &mut Random) -> Vec<Action> {
        let Phase::Requesting(Request { intent, probed_until, .. }) = &self.phase else { return vec![] };
        if intent.address != address || *probed_until == Moment::ZERO || holder == self.setup.mac {
            return vec![];
        }
        let decline = Action::Send(self.setup.decline(intent));
        self.trouble = format!("{address} is in use by {holder}");
        let more = self.search_again(AFTER_DECLINE, now, random);
        [decline].into_iter().chain(more).collect()
    }

    /// Ends the client. What it has, or has asked for, is to be given back by this message.
    pub fn release(&mut self, random: &mut Random) -> Option<Outgoing> {
        let (address, server) = match (&self.phase, &self.lease) {
            (Phase::Requesting(Request { intent, .. }), _) => (intent.address, intent.server),
            (Phase::Bound | Phase::Renewing | Phase::Rebinding, Some(lease)) => (lease.address, lease.server),
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

    /// A hardware address may be that of many links (ipvlan), so an echoed client id has to be ours (RFC 6842).
    fn is_for_us(&self, message: &Message) -> bool {
        let id = message.options.get(code::CLIENT_ID);
        message.op == Op::Reply
            && message.xid == self.xid
            && message.chaddr == self.setup.mac
            && id.is_none_or(|id| id == self.setup.client_id())
    }

    /// Begins an exchange: every server is asked.
    fn discover(&mut self, now: Moment, random: &mut Random) -> Vec<Action> {
        self.phase = Phase::Discovering;
        self.xid = random.word();
        self.wait = self.setup.patience.timeout;
        self.other = None;
        self.send_discover(now, random)
    }

    fn send_discover(&mut self, now: Moment, random: &mut Random) -> Vec<Action> {
        if self.trouble.is_empty() {
            "no answer to DHCPDISCOVER".clone_into(&mut self.trouble);
        }
        self.secs = seconds(now.saturating_sub(self.began));
        if self.lost {
            // This may go on for days, and nothing shall be open in the container for that long.
            self.next = now + jittered(self.setup.patience.resend_max, random);
            self.listening = Some(self.next.min(now + self.setup.patience.timeout.max(SHORTEST_WAIT)));
        } else {
            self.wait_for_answer(now, random);
        }
        vec![Action::Send(self.setup.discover(self.xid, self.secs, self.wanted))]
    }

    /// Waits, and the next time twice as long.
    fn wait_for_answer(&mut self, now: Moment, random: &mut Random) {
        self.next = now + jittered(self.wait, random);
        self.listening = Some(self.next);
        self.wait = (self.wait * 2).min(self.setup.patience.resend_max);
    }

    /// Does nothing for at least this long, and then looks for servers.
    fn pause(&mut self, pause: Duration, now: Moment, random: &mut Random) {
        let pause = pause.max(SHORTEST_WAIT);
        self.phase = Phase::Waiting;
        self.next = now + pause + random.below(pause / 5);
        self.listening = None;
    }

    /// When the search for a lease ends: what the container has may go on as long, what it has lost is looked for for ever.
    fn end_of_search(&self) -> Moment {
        let end = self.began + self.setup.patience.resend_timeout;
        match &self.lease {
            _ if self.lost => NEVER,
            Some(lease) => end.min(lease.expires),
            None => end,
        }
    }

    /// The first offer is taken. Of a container that has an address, only that address is.
    fn take_offer(&mut self, address: Ipv4Addr, server: Ipv4Addr, now: Moment, random: &mut Random) -> Vec<Action> {
        if address.is_unspecified() || address.is_broadcast() || address.is_multicast() || address.is_loopback() {
            return vec![];
        }
        let is_on_link = self.lease.is_some() && !self.lost;
        if self.lease.as_ref().is_some_and(|lease| lease.address != address) {
            if is_on_link {
                self.other = Some(address);
                self.limit = self.limit.min(now + AFTER_OTHER_OFFER);
            }
            return vec![];
        }
        self.limit = self.end_of_search(); // no matter what else was offered
        let intent = Intent { address, server, xid: self.xid };
        let mut actions = vec![];
        let mut probed_until = Moment::ZERO;
        if self.setup.probe && !is_on_link {
            actions.push(Action::Probe(address));
            probed_until = now + PROBE;
        }
        if self.lease.is_none() {
            actions.push(Action::Intend(intent)); // a lease that there was is in the journal
        }
        self.wait = self.setup.patience.timeout;
        self.asked = now;
        let request = Request { intent, sent: 0, probed_until, granted: None };
        actions.extend(self.send_request(request, now, random));
        actions
    }

    fn send_request(&mut self, mut request: Request, now: Moment, random: &mut Random) -> Vec<Action> {
        request.sent += 1;
        self.wait_for_answer(now, random);
        let message = Action::Send(self.setup.request(self.secs, &request.intent));
        self.phase = Phase::Requesting(request);
        vec![message]
    }

    fn take_ack(&mut self, ack: &Message, mut request: Request, now: Moment, random: &mut Random) -> Vec<Action> {
        if ack.yiaddr != request.intent.address {
            return vec![];
        }
        let Some(lease) = Lease::of_ack(ack, request.intent.server, self.asked, self.lease.as_ref()) else {
            self.end();
            let release = Action::Send(release_of(&request.intent, &self.setup, random));
            return vec![release, Action::GaveUp("DHCP option Subnet Mask not found in DHCPACK".to_owned())];
        };
        if now >= request.probed_until {
            return self.bind(lease, random);
        }
        self.next = request.probed_until;
        self.listening = Some(self.next);
        request.granted = Some(lease);
        self.phase = Phase::Requesting(request);
        vec![]
    }

    /// The lease is ours, anew or for longer.
    fn bind(&mut self, mut lease: Lease, random: &mut Random) -> Vec<Action> {
        if lease.t1 != NEVER {
            lease.t1 -= random.below(lease.t1.saturating_sub(lease.acquired) / T1_SPREAD);
        }
        self.phase = Phase::Bound;
        (self.next, self.limit, self.listening) = (lease.t1, NEVER, None);
        self.wanted = Some(lease.address);
        self.refusals = 0;
        self.trouble.clear();
        let was_lost = std::mem::take(&mut self.lost);
        vec![match self.lease.replace(lease.clone()) {
            None => Action::Bound(lease),
            Some(_) if was_lost => Action::Regained(lease),
            Some(_) => Action::Renewed(lease),
        }]
    }

    /// The server has thought better of what it has offered.
    fn take_nak(&mut self, nak: &Message, server: Ipv4Addr, now: Moment, random: &mut Random) -> Vec<Action> {
        let why = nak.options.get(code::MESSAGE).map(|text| String::from_utf8_lossy(text).escape_debug().to_string());
        self.trouble = format!("{server} has refused DHCPREQUEST: {}", why.as_deref().unwrap_or("no reason given"));
        self.refusals += 1;
        let doubled = AFTER_NAK * 2_u32.saturating_pow(self.refusals.saturating_sub(2).min(16));
        let pause = if self.refusals == 1 { Duration::ZERO } else { doubled.min(self.setup.patience.resend_max) };
        self.search_again(pause, now, random)
    }

    /// Looks for servers after a pause; after the longest where there is no hurry any more.
    fn search_again(&mut self, pause: Duration, now: Moment, random: &mut Random) -> Vec<Action> {
        self.wanted = self.wanted.filter(|_| self.lease.is_some()); // what was only a wish may be the trouble
        let pause = if self.lost { self.setup.patience.resend_max } else { pause };
        if pause.is_zero() {
            return self.discover(now, random);
        }
        self.pause(pause, now, random);
        vec![]
    }

    /// Sees to a lease by the clock.
    fn keep(&mut self, now: Moment, random: &mut Random) -> Vec<Action> {
        let Some(lease) = self.lease.clone() else { return vec![] };
        if now >= lease.expires {
            return self.lose(Reason::Expired, now, random);
        }
        if now < lease.t1.min(lease.t2) {
            self.next = lease.t1.min(lease.t2);
            return vec![];
        }
        if matches!(self.phase, Phase::Bound) {
            self.began = now;
        }
        let of_any = now >= lease.t2;
        let end = if of_any { lease.expires } else { lease.t2.min(lease.expires) };
        self.phase = if of_any { Phase::Rebinding } else { Phase::Renewing };
        // A new one each time: so an answer tells which request it is to, and the lease's time runs from there.
        self.xid = random.word();
        self.asked = now;
        self.secs = seconds(now.saturating_sub(self.began));
        let shortest = lease.expires.saturating_sub(lease.acquired) / RENEWAL_PAUSES;
        let pause = ((end - now) / 2).max(shortest.max(SHORTEST_RENEWAL_PAUSE).min(RENEWAL_PAUSE));
        self.next = end.min(now + pause);
        self.listening = Some(self.next.min(now + self.setup.patience.timeout.max(SHORTEST_WAIT)));
        vec![Action::Send(self.setup.renew(self.xid, self.secs, &lease, of_any))]
    }

    /// A server gives more time. It may be another one than before, and then it is asked the next time.
    fn take_renewal(&mut self, ack: &Message, server: Option<Ipv4Addr>, random: &mut Random) -> Vec<Action> {
        let Some(before) = self.lease.as_ref().filter(|lease| lease.address == ack.yiaddr) else { return vec![] };
        match Lease::of_ack(ack, server.unwrap_or(before.server), self.asked, Some(before)) {
            Some(lease) => self.bind(lease, random),
            None => vec![],
        }
    }

    /// A server gives no more time. Often it has only forgotten the lease, and offers the same address again: then the
    /// container does not notice.
    fn take_refusal(&mut self, server: Option<Ipv4Addr>, now: Moment, random: &mut Random) -> Vec<Action> {
        let its_server = self.lease.as_ref().map(|lease| lease.server);
        if matches!(self.phase, Phase::Renewing) && server.is_some() && server != its_server {
            return vec![];
        }
        self.began = now;
        self.limit = self.end_of_search();
        self.refusals = 1;
        self.discover(now, random)
    }

    /// The search has taken too long.
    fn give_up(&mut self, now: Moment, random: &mut Random) -> Vec<Action> {
        if let Some(lease) = &self.lease {
            let reason = match self.other {
                _ if now >= lease.expires => Reason::Expired,
                Some(other) => Reason::OtherAddress(other),
                None => Reason::Refused,
            };
            return self.lose(reason, now, random);
        }
        // Its acknowledgement may be lost, or yet to come.
        let release = self.release(random).map(Action::Send);
        let within = self.setup.patience.resend_timeout.as_secs();
        let why = format!("no more tries within {within}s: {}", self.trouble);
        release.into_iter().chain([Action::GaveUp(why)]).collect()
    }

    /// The address must leave the link. What has expired may be had again at once.
    fn lose(&mut self, reason: Reason, now: Moment, random: &mut Random) -> Vec<Action> {
        self.lost = true;
        self.limit = NEVER;
        self.began = now;
        let more = match reason {
            Reason::Expired => self.discover(now, random),
            Reason::Refused | Reason::OtherAddress(_) => self.search_again(Duration::ZERO, now, random),
        };
        [Action::Lost(reason)].into_iter().chain(more).collect()
    }
}

/// A tenth more or less, so that clients which were started together do not send together.
fn jittered(wait: Duration, random: &mut Random) -> Duration {
    let wait = wait.max(SHORTEST_WAIT);
    wait - wait / 10 + random.below(wait / 5)
}

fn seconds(duration: Duration) -> u16 {
    u16::try_from(duration.as_secs()).unwrap_or(u16::MAX)
}
