//! The client of RFC 2131, section 4.4: a state machine that takes the time and the received
//! messages, and returns actions. [`search`] acquires a lease; what keeps it (section 4.4.5) is here.

mod search;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::hex;
use crate::net::mac::MacAddr;
use crate::net::packet_socket::Claim;
use crate::plugins::ipam::dhcp::client::{
    self, Action, Heard, Outgoing, Reason, State, Troubles, Turn,
};
use crate::plugins::ipam::dhcp::v4::lease::{Intent, Lease};
use crate::plugins::ipam::dhcp::v4::options::code;
use crate::plugins::ipam::dhcp::v4::{Message, MessageType, Op};
use crate::sys::clock::{Moment, NEVER};
use crate::sys::random::Random;

/// How often an offer is requested before it counts as withdrawn.
const REQUESTS: u32 = 3;
/// The pause before the next search after DECLINE (RFC 2131, section 3.1, 5).
const AFTER_DECLINE: Duration = Duration::from_secs(10);
/// The shortest wait for any answer.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);

/// The shortest time between two renewals (RFC 2131, section 4.4.5), unless the lease is short.
const RENEWAL_PAUSE: Duration = Duration::from_secs(60);
/// The number of pauses in a short lease.
const RENEWAL_PAUSES: u32 = 16;
/// The shortest time between two renewals of any lease.
const SHORTEST_RENEWAL_PAUSE: Duration = Duration::from_secs(1);

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
    /// The transaction id of the exchange.
    xid: u32,
    /// Seconds since the search, or the renewal, began; part of each request.
    secs: u16,
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
    /// Creates a client that tries to acquire a lease, preferably with the address `wanted`, until
    /// `latest`, if not for a shorter time: it may have been queued for part of it.
    pub fn acquire(
        setup: Setup,
        wanted: Option<Ipv4Addr>,
        latest: Moment,
        mut turn: Turn<'_>,
    ) -> (Client, Vec<Action>) {
        let mut client = Client::new(setup, turn.now);
        client.wanted = wanted;
        client.limit = latest.min(turn.now + client.setup.resend_timeout);
        client.discover(&mut turn);
        (client, turn.actions)
    }

    /// Creates a client for a lease that was held, or `lost`, when the daemon exited. The first
    /// [`Client::on_time`] finds out what is due.
    pub fn resume(setup: Setup, lease: Lease, lost: bool, now: Moment) -> Client {
        let mut client = Client::new(setup, now);
        client.wanted = Some(lease.net.addr());
        client.phase = if lost { Phase::Waiting } else { Phase::Bound };
        client.next = if lost { now } else { lease.times.t1.min(lease.times.expires) };
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
            secs: 0,
            began: now,
            asked: now,
            wait: Duration::ZERO,
            next: now,
            limit: NEVER,
            listening: None,
            refusals: 0,
            other: None,
            troubles: Troubles::default(),
        }
    }

    /// The container's lease, or the one it has lost.
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// Does what the times of the lease require by now: asks its server to extend it; from T2 on,
    /// any server.
    fn keep(&mut self, turn: &mut Turn<'_>) {
        let Some(Lease { net, server, times, .. }) = self.lease.clone() else { return };
        if turn.now >= times.expires {
            return self.lose(Reason::Expired, turn);
        }
        if turn.now < times.t1 {
            self.next = times.t1;
            return;
        }
        if matches!(self.phase, Phase::Bound) {
            self.began = turn.now;
        }
        let of_any = turn.now >= times.t2;
        self.phase = if of_any { Phase::Rebinding } else { Phase::Renewing };
        // Ask again after half of the time that is left.
        let end = if of_any { times.expires } else { times.t2.min(times.expires) };
        let of_short = times.expires.saturating_sub(times.acquired) / RENEWAL_PAUSES;
        let pause = of_short.max(SHORTEST_RENEWAL_PAUSE).min(RENEWAL_PAUSE);
        self.next = end.min(turn.now + ((end - turn.now) / 2).max(pause));
        self.listen_briefly(turn.now);
        // A new xid for each request, so that an answer identifies its request; the lease's time
        // runs from that request.
        self.xid = turn.random.word();
        self.asked = turn.now;
        self.count_seconds(turn.now);
        let server = Some(server).filter(|_| !of_any);
        let renew = self.setup.renew(self.xid, self.secs, net.addr(), server);
        turn.actions.push(Action::Send(renew));
    }

    /// Takes a server's extension of the lease. Another server may grant it, and then gets the next
    /// renewal.
    fn take_renewal(&mut self, ack: &Message, turn: &mut Turn<'_>) {
        let Some(before) = self.lease.as_ref().filter(|lease| lease.net.addr() == ack.yiaddr)
        else {
            return;
        };
        let server = ack.server().unwrap_or(before.server);
        if let Some(lease) = Lease::of_ack(ack, server, self.asked, Some(before)) {
            self.bind(lease, turn);
        }
    }

    /// Takes a server's refusal to extend the lease: of its own server; from T2 on, of any. Often
    /// the server has only lost the lease and offers the same address again: then the container
    /// notices nothing.
    fn take_refusal(&mut self, nak: &Message, turn: &mut Turn<'_>) {
        let (Some(server), Some(lease)) = (nak.server(), &self.lease) else { return };
        if matches!(self.phase, Phase::Rebinding) || lease.server == server {
            self.began = turn.now;
            self.limit = lease.times.expires;
            self.refusals = 1;
            self.discover(turn);
        }
    }

    /// Gives the address up, so that it leaves the link, and tries at once to get it again: a
    /// server that probes an address before it offers it found it in use while it was on the link.
    fn lose(&mut self, reason: Reason, turn: &mut Turn<'_>) {
        self.lost = true;
        self.limit = NEVER;
        self.began = turn.now;
        turn.actions.push(Action::Lost(reason));
        self.discover(turn);
    }

    /// Takes a server's message to this client, if it is expected.
    fn take_message(&mut self, message: &Message, turn: &mut Turn<'_>) {
        use MessageType::{Ack, Nak, Offer};
        let Some(kind) = message.kind() else { return };
        let address = message.yiaddr;
        match (self.phase.clone(), kind) {
            (Phase::Discovering, Offer) => match message.server() {
                Some(server) => self.take_offer(address, server, turn),
                None => {
                    let note = format!("an offer of {address} does not say by which server");
                    self.troubles.note(note);
                }
            },
            (Phase::Requesting(request), Ack | Nak) => {
                let server = request.intent.server;
                if message.server() != Some(server) {
                    return;
                }
                match kind {
                    Nak => self.take_nak(message, server, turn),
                    _ if request.granted.is_none() => self.take_ack(message, request, turn),
                    _ => (),
                }
            }
            (Phase::Renewing | Phase::Rebinding, Ack) => self.take_renewal(message, turn),
            (Phase::Renewing | Phase::Rebinding, Nak) => self.take_refusal(message, turn),
            _ => (),
        }
    }

    /// Takes an ARP answer: another host has an address.
    fn take_claim(&mut self, claim: &Claim, turn: &mut Turn<'_>) {
        let Phase::Requesting(Request { intent, probed_until, .. }) = &self.phase else { return };
        let Intent { address, server, .. } = intent;
        let is_probed = *address == claim.address && *probed_until != Moment::ZERO;
        if is_probed && claim.mac != self.setup.mac {
            turn.actions.push(Action::Send(self.setup.decline(intent)));
            let note = format!("{address}, which {server} offers, is in use by {}", claim.mac);
            self.troubles.note(note);
            self.search_again(AFTER_DECLINE, turn);
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
            && message.xid == self.xid
            && message.chaddr == self.setup.mac
            && id.is_none_or(|id| id == self.setup.client_id())
    }

    /// Notes for the next message how long the search, or the renewal, has taken.
    fn count_seconds(&mut self, now: Moment) {
        let elapsed = now.saturating_sub(self.began).as_secs();
        self.secs = u16::try_from(elapsed).unwrap_or(u16::MAX);
    }

    /// Listens for the time in which an answer is usual: the container must not hold open sockets
    /// until the next message.
    fn listen_briefly(&mut self, now: Moment) {
        let patience = self.setup.timeout.max(SHORTEST_WAIT);
        self.listening = Some(self.next.min(now + patience));
    }
}

impl client::Client for Client {
    fn deadline(&self) -> Moment {
        self.next.min(self.limit).min(self.listening.unwrap_or(NEVER))
    }

    fn needs_sockets(&self, now: Moment) -> bool {
        self.listening.is_some_and(|until| now < until) || now >= self.deadline()
    }

    fn state(&self) -> State {
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

    fn on_time(&mut self, mut turn: Turn<'_>) -> Vec<Action> {
        self.listening = self.listening.filter(|until| turn.now < *until);
        if turn.now >= self.limit {
            self.give_up(&mut turn);
        } else if turn.now >= self.next {
            let turn = &mut turn;
            match self.phase.clone() {
                Phase::Ended => (),
                Phase::Waiting => self.discover(turn),
                Phase::Discovering => self.send_discover(turn),
                Phase::Requesting(Request { granted: Some(lease), .. }) => self.bind(lease, turn),
                Phase::Requesting(request) if request.sent < REQUESTS => {
                    self.send_request(request, turn)
                }
                Phase::Requesting(Request { intent: Intent { server, .. }, .. }) => {
                    self.troubles.note(format!("no answer of {server} to DHCPREQUEST"));
                    self.search_again(Duration::ZERO, turn);
                }
                Phase::Bound | Phase::Renewing | Phase::Rebinding => self.keep(turn),
            }
        }
        turn.actions
    }

    fn on_heard(&mut self, heard: Heard, mut turn: Turn<'_>) -> Vec<Action> {
        match heard {
            Heard::V4(message) if self.is_for_us(&message) => {
                self.take_message(&message, &mut turn)
            }
            Heard::ClaimV4(claim) => self.take_claim(&claim, &mut turn),
            // for the error of a failed ADD
            Heard::Malformed(IpAddr::V4(from)) => {
                self.troubles.note(format!("what {from} sends is not a DHCP message"))
            }
            _ => (),
        }
        turn.actions
    }

    fn release(&mut self, random: &mut Random) -> Option<Outgoing> {
        let owed = match (&self.phase, &self.lease) {
            (Phase::Requesting(request), _) => Some(request.intent),
            (Phase::Bound | Phase::Renewing | Phase::Rebinding, Some(lease)) => {
                Some(Intent::of(lease))
            }
            _ => None,
        };
        self.end();
        Some(self.setup.release(&owed?, random))
    }
}

/// The longest message to accept: Ethernet's MTU.
const MAX_MESSAGE_SIZE: u16 = 1500;

/// The settings of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The hardware address of the link, which is Ethernet.
    pub mac: MacAddr,
    /// The value of option 61, unless `provide` has one.
    pub client_id: Vec<u8>,
    /// Servers must broadcast their answers: the link does not receive frames to its hardware
    /// address.
    pub broadcast: bool,
    /// Probe an address by ARP before using it.
    pub probe: bool,
    /// Options to send to the server in place of the client's own, except those that define the
    /// message.
    pub provide: Vec<Provided>,
    /// Options to request from the server.
    pub request: Vec<u8>,
    /// The wait for the first answer; each further wait doubles.
    pub timeout: Duration,
    /// The longest of these waits.
    pub resend_max: Duration,
    /// The total time to acquire a lease.
    pub resend_timeout: Duration,
}

/// An option to send to the server: its code and its value, which is serialised in hex.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provided(pub u8, #[serde(with = "hex")] pub Vec<u8>);

impl Setup {
    /// DHCPDISCOVER; asks for the address `wanted`, if any.
    pub(super) fn discover(&self, xid: u32, secs: u16, wanted: Option<Ipv4Addr>) -> Outgoing {
        let mut message = self.message(MessageType::Discover, xid, secs);
        message.broadcast = self.broadcast;
        if let Some(wanted) = wanted {
            message.options.set(code::REQUESTED_ADDRESS, &wanted.octets());
        }
        Outgoing::V4 { message, server: None }
    }

    /// DHCPREQUEST for an offered address.
    pub(super) fn request(&self, intent: &Intent, secs: u16) -> Outgoing {
        let mut message = self.message(MessageType::Request, intent.xid, secs);
        message.broadcast = self.broadcast;
        intent.write(&mut message.options);
        Outgoing::V4 { message, server: None }
    }

    /// DHCPREQUEST to extend the lease of an address, to its server or to any.
    pub(super) fn renew(
        &self,
        xid: u32,
        secs: u16,
        address: Ipv4Addr,
        server: Option<Ipv4Addr>,
    ) -> Outgoing {
        let mut message = self.message(MessageType::Request, xid, secs);
        message.ciaddr = address;
        message.options.remove(code::REQUESTED_ADDRESS);
        Outgoing::V4 { message, server }
    }

    /// DHCPDECLINE of an offered address that another host has.
    pub(super) fn decline(&self, intent: &Intent) -> Outgoing {
        let mut message = self.bare(MessageType::Decline, intent.xid);
        intent.write(&mut message.options);
        Outgoing::V4 { message, server: None }
    }

    /// DHCPRELEASE of an address that is leased, or was requested and may be granted by now.
    pub fn release(&self, intent: &Intent, random: &mut Random) -> Outgoing {
        let mut message = self.bare(MessageType::Release, random.word());
        message.ciaddr = intent.address;
        message.options.set(code::SERVER_ID, &intent.server.octets());
        Outgoing::V4 { message, server: Some(intent.server) }
    }

    /// The value of option 61. The reference leaves the provided one out of RELEASE, so that the
    /// server does not find the lease.
    pub(super) fn client_id(&self) -> &[u8] {
        let provided = self.provide.iter().rfind(|provided| provided.0 == code::CLIENT_ID);
        provided.map_or(&self.client_id, |provided| &provided.1)
    }

    /// A message that requests something.
    fn message(&self, kind: MessageType, xid: u32, secs: u16) -> Message {
        let mut message = self.bare(kind, xid);
        message.secs = secs;
        let options = &mut message.options;
        options.set(code::MAX_MESSAGE_SIZE, &MAX_MESSAGE_SIZE.to_be_bytes());
        if !self.request.is_empty() {
            options.set(code::PARAMETER_REQUEST, &self.request);
        }
        for Provided(code, value) in &self.provide {
            if !matches!(*code, code::MESSAGE_TYPE | code::SERVER_ID | code::OVERLOAD) {
                options.set(*code, value);
            }
        }
        message
    }

    /// A message that only identifies its sender.
    fn bare(&self, kind: MessageType, xid: u32) -> Message {
        let mut message = Message::of_client(kind, xid, &self.mac);
        message.options.set(code::CLIENT_ID, self.client_id());
        message
    }
}
