//! Acquiring a lease: from DHCPDISCOVER to DHCPACK (RFC 2131, section 4.4.1).

use std::net::Ipv4Addr;
use std::time::Duration;

use super::{
    Action, Client, Intent, Moment, Phase, Reason, Request, SHORTEST_WAIT, Turn, release_of,
    seconds,
};
use crate::plugins::ipam::dhcp::client::{Troubles, early_t1};
use crate::plugins::ipam::dhcp::v4::lease::Lease;
use crate::plugins::ipam::dhcp::v4::message::Message;
use crate::plugins::ipam::dhcp::v4::options::code;
use crate::sys::clock::NEVER;
use crate::sys::random::Random;

/// How long the owner of an address has to answer a probe.
const PROBE: Duration = Duration::from_millis(50);
/// The pause after the second NAK in a row; it doubles with each further one.
const AFTER_NAK: Duration = Duration::from_secs(1);
/// How long other servers have to offer the container's address, once its own server has offered
/// another.
const AFTER_OTHER_OFFER: Duration = Duration::from_secs(1);

impl Client {
    /// Begins an exchange with a DHCPDISCOVER to all servers.
    pub(super) fn discover(&mut self, turn: &mut Turn<'_>) {
        self.phase = Phase::Discovering;
        self.exchange.xid = turn.random.word();
        self.wait = self.setup.patience.timeout;
        self.other = None;
        self.send_discover(turn);
    }

    pub(super) fn send_discover(&mut self, turn: &mut Turn<'_>) {
        self.exchange.secs = seconds(turn.now.saturating_sub(self.began));
        if self.lost {
            self.wait = self.setup.patience.resend_max;
        }
        self.wait_for_answer(turn);
        if self.lease.is_some() {
            self.listen_briefly(turn.now); // this may go on for days
        }
        let discover = self.setup.discover(self.exchange, self.wanted);
        turn.actions.push(Action::Send(discover));
    }

    /// Listens for the time in which an answer is usual: the container must not hold open sockets
    /// until the next message.
    pub(super) fn listen_briefly(&mut self, now: Moment) {
        let patience = self.setup.patience.timeout.max(SHORTEST_WAIT);
        self.listening = Some(self.next.min(now + patience));
    }

    /// Sets the wait for the next answer, which doubles each time.
    fn wait_for_answer(&mut self, turn: &mut Turn<'_>) {
        self.next = turn.now + jittered(self.wait, turn.random);
        self.listening = Some(self.next);
        self.wait = (self.wait * 2).min(self.setup.patience.resend_max);
    }

    /// Waits for at least `pause`, then looks for servers.
    fn pause(&mut self, pause: Duration, turn: &mut Turn<'_>) {
        let pause = pause.max(SHORTEST_WAIT);
        self.phase = Phase::Waiting;
        self.next = turn.now + pause + turn.random.below(pause / 5);
        self.listening = None;
    }

    /// When the search for a lease ends: at the expiry of the lease that the container has; never
    /// for a lost one.
    pub(super) fn end_of_search(&self) -> Moment {
        match &self.lease {
            _ if self.lost => NEVER,
            Some(lease) => lease.expires,
            None => self.latest.min(self.began + self.setup.patience.resend_timeout),
        }
    }

    /// Takes the first offer. If the container has an address, takes only an offer of that address.
    pub(super) fn take_offer(&mut self, address: Ipv4Addr, server: Ipv4Addr, turn: &mut Turn<'_>) {
        if matches!(address.octets()[0], 0 | 127 | 224..) {
            self.troubles.note(format!("{server} offers {address}, which no host can have"));
        } else if self.lease.as_ref().is_some_and(|lease| lease.address != address) {
            self.note_other(address, server, turn.now);
        } else {
            let intent = Intent { address, server, xid: self.exchange.xid };
            self.request_offer(intent, turn);
        }
    }

    /// Notes an offer in place of the address on the link. Another server may not know that address
    /// at all, so its offer of a different one means nothing.
    fn note_other(&mut self, address: Ipv4Addr, server: Ipv4Addr, now: Moment) {
        let is_its_own = self.lease.as_ref().is_some_and(|lease| lease.server == server);
        if is_its_own && !self.lost {
            self.other = Some(address);
            self.limit = self.limit.min(now + AFTER_OTHER_OFFER);
        }
    }

    fn request_offer(&mut self, intent: Intent, turn: &mut Turn<'_>) {
        self.limit = self.end_of_search(); // an earlier offer of another address no longer matters
        let probed_until = self.probe(intent.address, turn);
        if self.lease.is_none() {
            turn.actions.push(Action::Intend(intent)); // a lease that exists is already in the journal
        }
        self.wait = self.setup.patience.timeout;
        self.asked = turn.now;
        self.send_request(Request { intent, sent: 0, probed_until, granted: None }, turn);
    }

    /// Probes an address that the link does not have. Returns when the probe ends.
    fn probe(&self, address: Ipv4Addr, turn: &mut Turn<'_>) -> Moment {
        if self.is_on_link() || !self.setup.probe {
            return Moment::ZERO;
        }
        turn.actions.push(Action::Probe(address));
        turn.now + PROBE
    }

    /// Whether the link has the address of the lease.
    fn is_on_link(&self) -> bool {
        self.lease.is_some() && !self.lost
    }

    pub(super) fn send_request(&mut self, mut request: Request, turn: &mut Turn<'_>) {
        request.sent += 1;
        self.wait_for_answer(turn);
        turn.actions.push(Action::Send(self.setup.request(self.exchange.secs, &request.intent)));
        self.phase = Phase::Requesting(request);
    }

    pub(super) fn take_ack(&mut self, ack: &Message, request: Request, turn: &mut Turn<'_>) {
        let Intent { address, server, .. } = request.intent;
        if ack.yiaddr != address {
            let other = ack.yiaddr;
            self.troubles.note(format!("{server} grants {other} where it has offered {address}"));
            return;
        }
        match self.granted(ack, server) {
            Ok(lease) if turn.now >= request.probed_until => self.bind(lease, turn),
            Ok(lease) => self.await_probe(request, lease),
            Err(why) => self.reject(&request.intent, why, turn),
        }
    }

    /// Binds the lease when the probe of its address is over.
    fn await_probe(&mut self, mut request: Request, lease: Lease) {
        self.next = request.probed_until;
        self.listening = Some(self.next);
        request.granted = Some(lease);
        self.phase = Phase::Requesting(request);
    }

    /// Releases an address that no host can use, and ends the client.
    fn reject(&mut self, intent: &Intent, why: String, turn: &mut Turn<'_>) {
        self.end();
        let release = release_of(intent, &self.setup, turn.random);
        turn.actions.extend([Action::Send(release), Action::GaveUp(why)]);
    }

    /// The lease that the ACK grants, or why no host can use it.
    fn granted(&self, ack: &Message, server: Ipv4Addr) -> Result<Lease, String> {
        let lease = Lease::of_ack(ack, server, self.asked, self.lease.as_ref())
            .ok_or("DHCP option Subnet Mask not found in DHCPACK")?;
        if lease.is_for_a_host() {
            Ok(lease)
        } else {
            Err(format!("{server} gives {}, which no host can have", lease.net()))
        }
    }

    /// The lease is granted, new or extended.
    pub(super) fn bind(&mut self, mut lease: Lease, turn: &mut Turn<'_>) {
        lease.t1 = early_t1(lease.t1, lease.acquired, turn.random);
        self.phase = Phase::Bound;
        (self.next, self.limit, self.listening) = (lease.t1, NEVER, None);
        self.wanted = Some(lease.address);
        self.refusals = 0;
        self.troubles = Troubles::default();
        turn.actions.push(self.hold(lease));
    }

    /// Takes the lease in place of the one before, if any.
    fn hold(&mut self, lease: Lease) -> Action {
        let was_lost = std::mem::take(&mut self.lost);
        match self.lease.replace(lease.clone()) {
            None => Action::Bound(lease),
            Some(_) if was_lost => Action::Regained(lease),
            Some(_) => Action::Renewed(lease),
        }
    }

    /// The server refuses the address that it has offered.
    pub(super) fn take_nak(&mut self, nak: &Message, server: Ipv4Addr, turn: &mut Turn<'_>) {
        let why = reason_of(nak);
        self.troubles.note(format!("{server} has refused DHCPREQUEST: {why}"));
        self.refusals += 1;
        self.search_again(self.pause_after_nak(), turn);
    }

    /// None after the first NAK in a row; it doubles with each further one.
    fn pause_after_nak(&self) -> Duration {
        let Some(doublings) = self.refusals.checked_sub(2) else { return Duration::ZERO };
        let doubled = AFTER_NAK * 2_u32.saturating_pow(doublings.min(16));
        doubled.min(self.setup.patience.resend_max)
    }

    /// Looks for servers after a pause; after the longest one once the lease is lost, since there
    /// is no hurry.
    pub(super) fn search_again(&mut self, pause: Duration, turn: &mut Turn<'_>) {
        self.wanted = self.wanted.filter(|_| self.lease.is_some()); // a wish without a lease may be what the server refuses
        let pause = if self.lost { self.setup.patience.resend_max } else { pause };
        if pause.is_zero() { self.discover(turn) } else { self.pause(pause, turn) }
    }

    /// Ends the search: its time is over.
    pub(super) fn give_up(&mut self, turn: &mut Turn<'_>) {
        if let Some(lease) = &self.lease {
            let other = self.other.filter(|_| turn.now < lease.expires);
            return self.lose(other.map_or(Reason::Expired, Reason::OtherAddress), turn);
        }
        // The DHCPACK may be lost or still to come, so release what was requested.
        turn.actions.extend(self.release(turn.random).map(Action::Send));
        turn.actions.push(Action::GaveUp(self.why_none()));
    }

    /// Why there is no lease when the search ends.
    fn why_none(&self) -> String {
        let within = self.setup.patience.resend_timeout.as_secs();
        let troubles = self.troubles.or("no answer to DHCPDISCOVER");
        format!("no more tries within {within}s: {troubles}")
    }
}

/// The reason that a server gives for a refusal.
fn reason_of(nak: &Message) -> String {
    match nak.options.get(code::MESSAGE) {
        Some(text) => String::from_utf8_lossy(text).escape_debug().to_string(),
        None => "no reason given".to_owned(),
    }
}

/// Adds or subtracts up to a tenth, so that clients started together do not send together.
pub(super) fn jittered(wait: Duration, random: &mut Random) -> Duration {
    let wait = wait.max(SHORTEST_WAIT);
    wait - wait / 10 + random.below(wait / 5)
}
