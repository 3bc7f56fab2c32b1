//! Acquiring a lease: from DHCPDISCOVER to DHCPACK (RFC 2131, section 4.4.1).

use std::net::Ipv4Addr;
use std::time::Duration;

use super::{
    Action, Client, Intent, Moment, Phase, Reason, Request, SHORTEST_WAIT, release_of, seconds,
};
use crate::plugins::ipam::dhcp::client::Troubles;
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
/// T1 comes early by up to this fraction of itself, so that containers started together do not
/// renew together.
const T1_SPREAD: u32 = 32;

impl Client {
    /// Begins an exchange with a DHCPDISCOVER to all servers.
    pub(super) fn discover(&mut self, now: Moment, random: &mut Random) -> Vec<Action> {
        self.phase = Phase::Discovering;
        self.xid = random.word();
        self.wait = self.setup.patience.timeout;
        self.other = None;
        self.send_discover(now, random)
    }

    pub(super) fn send_discover(&mut self, now: Moment, random: &mut Random) -> Vec<Action> {
        self.secs = seconds(now.saturating_sub(self.began));
        if self.lost {
            self.wait = self.setup.patience.resend_max;
        }
        self.wait_for_answer(now, random);
        if self.lease.is_some() {
            // This may go on for days, and the container must not hold open sockets that long.
            self.listening =
                Some(self.next.min(now + self.setup.patience.timeout.max(SHORTEST_WAIT)));
        }
        vec![Action::Send(self.setup.discover(self.xid, self.secs, self.wanted))]
    }

    /// Sets the wait for the next answer, which doubles each time.
    fn wait_for_answer(&mut self, now: Moment, random: &mut Random) {
        self.next = now + jittered(self.wait, random);
        self.listening = Some(self.next);
        self.wait = (self.wait * 2).min(self.setup.patience.resend_max);
    }

    /// Waits for at least `pause`, then looks for servers.
    fn pause(&mut self, pause: Duration, now: Moment, random: &mut Random) {
        let pause = pause.max(SHORTEST_WAIT);
        self.phase = Phase::Waiting;
        self.next = now + pause + random.below(pause / 5);
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
    pub(super) fn take_offer(
        &mut self,
        address: Ipv4Addr,
        server: Ipv4Addr,
        now: Moment,
        random: &mut Random,
    ) -> Vec<Action> {
        if matches!(address.octets()[0], 0 | 127 | 224..) {
            self.troubles.note(format!("{server} offers {address}, which no host can have"));
            return vec![];
        }
        let is_on_link = self.lease.is_some() && !self.lost;
        if let Some(lease) = self.lease.as_ref().filter(|lease| lease.address != address) {
            // Another server may not know this address at all, so its offer of a different one
            // means nothing.
            if is_on_link && lease.server == server {
                self.other = Some(address);
                self.limit = self.limit.min(now + AFTER_OTHER_OFFER);
            }
            return vec![];
        }
        self.limit = self.end_of_search(); // an earlier offer of another address no longer matters
        let intent = Intent { address, server, xid: self.xid };
        let mut actions = vec![];
        let mut probed_until = Moment::ZERO;
        if self.setup.probe && !is_on_link {
            actions.push(Action::Probe(address));
            probed_until = now + PROBE;
        }
        if self.lease.is_none() {
            actions.push(Action::Intend(intent)); // a lease that exists is already in the journal
        }
        self.wait = self.setup.patience.timeout;
        self.asked = now;
        let request = Request { intent, sent: 0, probed_until, granted: None };
        actions.extend(self.send_request(request, now, random));
        actions
    }

    pub(super) fn send_request(
        &mut self,
        mut request: Request,
        now: Moment,
        random: &mut Random,
    ) -> Vec<Action> {
        request.sent += 1;
        self.wait_for_answer(now, random);
        let message = Action::Send(self.setup.request(self.secs, &request.intent));
        self.phase = Phase::Requesting(request);
        vec![message]
    }

    pub(super) fn take_ack(
        &mut self,
        ack: &Message,
        mut request: Request,
        now: Moment,
        random: &mut Random,
    ) -> Vec<Action> {
        if ack.yiaddr != request.intent.address {
            let Intent { address, server, .. } = request.intent;
            self.troubles
                .note(format!("{server} grants {} where it has offered {address}", ack.yiaddr));
            return vec![];
        }
        let server = request.intent.server;
        let granted = match Lease::of_ack(ack, server, self.asked, self.lease.as_ref()) {
            None => Err("DHCP option Subnet Mask not found in DHCPACK".to_owned()),
            Some(lease) if !lease.is_for_a_host() => {
                Err(format!("{server} gives {}, which no host can have", lease.net()))
            }
            Some(lease) => Ok(lease),
        };
        let lease = match granted {
            Ok(lease) => lease,
            Err(why) => {
                self.end();
                let release = Action::Send(release_of(&request.intent, &self.setup, random));
                return vec![release, Action::GaveUp(why)];
            }
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

    /// The lease is granted, new or extended.
    pub(super) fn bind(&mut self, mut lease: Lease, random: &mut Random) -> Vec<Action> {
        if lease.t1 != NEVER {
            lease.t1 -= random.below(lease.t1.saturating_sub(lease.acquired) / T1_SPREAD);
        }
        self.phase = Phase::Bound;
        (self.next, self.limit, self.listening) = (lease.t1, NEVER, None);
        self.wanted = Some(lease.address);
        self.refusals = 0;
        self.troubles = Troubles::default();
        let was_lost = std::mem::take(&mut self.lost);
        vec![match self.lease.replace(lease.clone()) {
            None => Action::Bound(lease),
            Some(_) if was_lost => Action::Regained(lease),
            Some(_) => Action::Renewed(lease),
        }]
    }

    /// The server refuses the address that it has offered.
    pub(super) fn take_nak(
        &mut self,
        nak: &Message,
        server: Ipv4Addr,
        now: Moment,
        random: &mut Random,
    ) -> Vec<Action> {
        let why = nak
            .options
            .get(code::MESSAGE)
            .map(|text| String::from_utf8_lossy(text).escape_debug().to_string());
        let why = why.as_deref().unwrap_or("no reason given");
        self.troubles.note(format!("{server} has refused DHCPREQUEST: {why}"));
        self.refusals += 1;
        let doubled = AFTER_NAK * 2_u32.saturating_pow(self.refusals.saturating_sub(2).min(16));
        let pause = if self.refusals == 1 {
            Duration::ZERO
        } else {
            doubled.min(self.setup.patience.resend_max)
        };
        self.search_again(pause, now, random)
    }

    /// Looks for servers after a pause; after the longest one once the lease is lost, since there
    /// is no hurry.
    pub(super) fn search_again(
        &mut self,
        pause: Duration,
        now: Moment,
        random: &mut Random,
    ) -> Vec<Action> {
        self.wanted = self.wanted.filter(|_| self.lease.is_some()); // a wish without a lease may be what the server refuses
        let pause = if self.lost { self.setup.patience.resend_max } else { pause };
        if pause.is_zero() {
            return self.discover(now, random);
        }
        self.pause(pause, now, random);
        vec![]
    }

    /// Ends the search: its time is over.
    pub(super) fn give_up(&mut self, now: Moment, random: &mut Random) -> Vec<Action> {
        if let Some(lease) = &self.lease {
            let other = self.other.filter(|_| now < lease.expires);
            return self.lose(other.map_or(Reason::Expired, Reason::OtherAddress), now, random);
        }
        // The DHCPACK may be lost or still to come, so release what was requested.
        let release = self.release(random).map(Action::Send);
        let within = self.setup.patience.resend_timeout.as_secs();
        let why = format!(
            "no more tries within {within}s: {}",
            self.troubles.or("no answer to DHCPDISCOVER")
        );
        release.into_iter().chain([Action::GaveUp(why)]).collect()
    }
}

/// Adds or subtracts up to a tenth, so that clients started together do not send together.
pub(super) fn jittered(wait: Duration, random: &mut Random) -> Duration {
    let wait = wait.max(SHORTEST_WAIT);
    wait - wait / 10 + random.below(wait / 5)
}
