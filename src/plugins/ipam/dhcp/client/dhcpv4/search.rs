//! Acquiring a lease: from DHCPDISCOVER to DHCPACK (RFC 2131, section 4.4.1).

use std::net::Ipv4Addr;
use std::time::Duration;

use super::{
    Action, Client, Intent, Lease, Message, Moment, NEVER, Phase, Reason, Request, SHORTEST_WAIT,
    Troubles, Turn, code,
};
use crate::plugins::ipam::dhcp::client::{self, Client as _, PROBE, jittered};

/// The pause after the second NAK in a row; it doubles with each further one.
const AFTER_NAK: Duration = Duration::from_secs(1);
/// How long other servers have to offer the container's address, once its own server has offered
/// another.
const AFTER_OTHER_OFFER: Duration = Duration::from_secs(1);

impl Client {
    /// Begins an exchange with a DHCPDISCOVER to all servers.
    pub(super) fn discover(&mut self, turn: &mut Turn<'_>) {
        self.phase = Phase::Discovering;
        self.xid = turn.random.word();
        self.wait = self.setup.timeout;
        self.other = None;
        self.send_discover(turn);
    }

    pub(super) fn send_discover(&mut self, turn: &mut Turn<'_>) {
        self.count_seconds(turn.now);
        if self.lost {
            self.wait = self.setup.resend_max;
        }
        self.wait_for_answer(turn);
        if self.lease.is_some() {
            self.listen_briefly(turn.now); // this may go on for days
        }
        let discover = self.setup.discover(self.xid, self.secs, self.wanted);
        turn.actions.push(Action::Send(discover));
    }

    /// Sets the wait for the next answer, which doubles each time.
    fn wait_for_answer(&mut self, turn: &mut Turn<'_>) {
        self.next = turn.now + jittered(self.wait.max(SHORTEST_WAIT), turn.random);
        self.listening = Some(self.next);
        self.wait = (self.wait * 2).min(self.setup.resend_max);
    }

    /// Takes the first offer. If the container has an address, takes only an offer of that address.
    pub(super) fn take_offer(&mut self, address: Ipv4Addr, server: Ipv4Addr, turn: &mut Turn<'_>) {
        if matches!(address.octets()[0], 0 | 127 | 224..) {
            self.troubles.note(format!("{server} offers {address}, which no host can have"));
            return;
        }
        if let Some(lease) = &self.lease {
            if lease.net.addr() != address {
                // Another server may not know the address on the link at all, so that its offer of
                // a different one means nothing.
                if lease.server == server && !self.lost {
                    self.other = Some(address);
                    self.limit = self.limit.min(turn.now + AFTER_OTHER_OFFER);
                }
                return;
            }
            // An earlier offer of another address no longer matters.
            self.limit = if self.lost { NEVER } else { lease.times.expires };
        }
        let is_on_link = self.lease.is_some() && !self.lost;
        let mut probed_until = Moment::ZERO;
        if self.setup.probe && !is_on_link {
            turn.actions.push(Action::Probe(address.into()));
            probed_until = turn.now + PROBE;
        }
        let intent = Intent { address, server, xid: self.xid };
        if self.lease.is_none() {
            turn.actions.push(Action::Intend(client::Intent::V4(intent))); // a lease that exists is already in the journal
        }
        self.wait = self.setup.timeout;
        self.asked = turn.now;
        self.send_request(Request { intent, sent: 0, probed_until, granted: None }, turn);
    }

    pub(super) fn send_request(&mut self, mut request: Request, turn: &mut Turn<'_>) {
        request.sent += 1;
        self.wait_for_answer(turn);
        turn.actions.push(Action::Send(self.setup.request(&request.intent, self.secs)));
        self.phase = Phase::Requesting(request);
    }

    pub(super) fn take_ack(&mut self, ack: &Message, mut request: Request, turn: &mut Turn<'_>) {
        let Intent { address, server, .. } = request.intent;
        if ack.yiaddr != address {
            let other = ack.yiaddr;
            self.troubles.note(format!("{server} grants {other} where it has offered {address}"));
            return;
        }
        let why = match Lease::of_ack(ack, server, self.asked, self.lease.as_ref()) {
            None => "DHCP option Subnet Mask not found in DHCPACK".to_owned(),
            Some(lease) if !lease.is_for_a_host() => {
                format!("{server} gives {}, which no host can have", lease.net)
            }
            Some(lease) if turn.now >= request.probed_until => return self.bind(lease, turn),
            Some(lease) => {
                // It is bound when the probe of its address is over.
                self.next = request.probed_until;
                self.listening = Some(self.next);
                request.granted = Some(lease);
                self.phase = Phase::Requesting(request);
                return;
            }
        };
        turn.actions.extend(self.release(turn.random).map(Action::Send));
        turn.actions.push(Action::GaveUp(why));
    }

    /// The lease is granted, new or extended.
    pub(super) fn bind(&mut self, mut lease: Lease, turn: &mut Turn<'_>) {
        lease.times.spread(turn.random);
        self.phase = Phase::Bound;
        (self.next, self.limit, self.listening) = (lease.times.t1, NEVER, None);
        self.wanted = Some(lease.net.addr());
        self.refusals = 0;
        self.troubles = Troubles::default();
        let was_lost = std::mem::take(&mut self.lost);
        let before = self.lease.replace(lease.clone());
        let lease = client::Lease::V4(lease);
        turn.actions.push(match before {
            None => Action::Bound(lease),
            Some(_) if was_lost => Action::Regained(lease),
            Some(_) => Action::Renewed(lease),
        });
    }

    /// The server refuses the address that it has offered. After the first NAK in a row there is no
    /// pause; it doubles with each further one.
    pub(super) fn take_nak(&mut self, nak: &Message, server: Ipv4Addr, turn: &mut Turn<'_>) {
        let why = match nak.options.get(code::MESSAGE) {
            Some(text) => String::from_utf8_lossy(text).escape_debug().to_string(),
            None => "no reason given".to_owned(),
        };
        self.troubles.note(format!("{server} has refused DHCPREQUEST: {why}"));
        let pause = match self.refusals {
            0 => Duration::ZERO,
            others => AFTER_NAK * 2_u32.saturating_pow((others - 1).min(16)),
        };
        self.refusals += 1;
        self.search_again(pause.min(self.setup.resend_max), turn);
    }

    /// Looks for servers after a pause; after the longest one once the lease is lost, since there
    /// is no hurry.
    pub(super) fn search_again(&mut self, pause: Duration, turn: &mut Turn<'_>) {
        self.wanted = self.wanted.filter(|_| self.lease.is_some()); // a wish without a lease may be what the server refuses
        let pause = if self.lost { self.setup.resend_max } else { pause };
        if pause.is_zero() {
            return self.discover(turn);
        }
        let pause = pause.max(SHORTEST_WAIT);
        self.phase = Phase::Waiting;
        self.next = turn.now + pause + turn.random.below(pause / 5);
        self.listening = None;
    }

    /// Ends the search: its time is over.
    pub(super) fn give_up(&mut self, turn: &mut Turn<'_>) {
        if let Some(lease) = &self.lease {
            let other = self.other.filter(|_| turn.now < lease.times.expires);
            return self.lose(other.map_or(Reason::Expired, Reason::OtherAddress), turn);
        }
        // The DHCPACK may be lost or still to come, so release what was requested.
        turn.actions.extend(self.release(turn.random).map(Action::Send));
        let within = self.setup.resend_timeout.as_secs();
        let troubles = self.troubles.or("no answer to DHCPDISCOVER");
        let why = format!("no more tries within {within}s: {troubles}");
        turn.actions.push(Action::GaveUp(why));
    }
}
