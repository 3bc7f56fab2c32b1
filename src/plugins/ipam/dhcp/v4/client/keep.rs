//! Keeping a lease: renewal, rebinding and expiry (RFC 2131, section 4.4.5).

use std::net::Ipv4Addr;
use std::time::Duration;

use super::{Action, Client, Phase, Reason, Turn, seconds};
use crate::plugins::ipam::dhcp::v4::lease::Lease;
use crate::plugins::ipam::dhcp::v4::message::Message;
use crate::sys::clock::{Moment, NEVER};

/// The shortest time between two renewals (RFC 2131, section 4.4.5), unless the lease is short.
const RENEWAL_PAUSE: Duration = Duration::from_secs(60);
/// The number of pauses in a short lease.
const RENEWAL_PAUSES: u32 = 16;
/// The shortest time between two renewals of any lease.
const SHORTEST_RENEWAL_PAUSE: Duration = Duration::from_secs(1);

impl Client {
    /// Does what the times of the lease require by now.
    pub(super) fn keep(&mut self, turn: &mut Turn<'_>) {
        let Some(lease) = self.lease.clone() else { return };
        if turn.now >= lease.expires {
            self.lose(Reason::Expired, turn)
        } else if turn.now < lease.first_renewal() {
            self.next = lease.first_renewal();
        } else {
            self.renew(&lease, turn);
        }
    }

    /// Asks its server to extend the lease; from T2 on, any server.
    fn renew(&mut self, lease: &Lease, turn: &mut Turn<'_>) {
        if matches!(self.phase, Phase::Bound) {
            self.began = turn.now;
        }
        let of_any = turn.now >= lease.t2;
        self.phase = if of_any { Phase::Rebinding } else { Phase::Renewing };
        self.next = next_renewal(lease, turn.now);
        self.listen_briefly(turn.now);
        self.identify_request(turn);
        turn.actions.push(Action::Send(self.setup.renew(self.exchange, lease, of_any)));
    }

    /// Chooses a new xid for each request, so that an answer identifies its request; the lease's
    /// time runs from that request.
    fn identify_request(&mut self, turn: &mut Turn<'_>) {
        self.exchange.xid = turn.random.word();
        self.asked = turn.now;
        self.exchange.secs = seconds(turn.now.saturating_sub(self.began));
    }

    /// Takes a server's extension of the lease. Another server may grant it, and then gets the next
    /// renewal.
    pub(super) fn take_renewal(&mut self, ack: &Message, turn: &mut Turn<'_>) {
        let Some(before) = self.lease.as_ref().filter(|lease| lease.address == ack.yiaddr) else {
            return;
        };
        let server = ack.server().unwrap_or(before.server);
        if let Some(lease) = Lease::of_ack(ack, server, self.asked, Some(before)) {
            self.bind(lease, turn);
        }
    }

    /// Takes a server's refusal to extend the lease. Often the server has only lost the lease and
    /// offers the same address again: then the container notices nothing.
    pub(super) fn take_refusal(&mut self, nak: &Message, turn: &mut Turn<'_>) {
        if !nak.server().is_some_and(|server| self.may_refuse(server)) {
            return;
        }
        self.began = turn.now;
        self.limit = self.end_of_search();
        self.refusals = 1;
        self.discover(turn);
    }

    /// Whether the server can refuse the lease: its own; from T2 on, any.
    fn may_refuse(&self, server: Ipv4Addr) -> bool {
        matches!(self.phase, Phase::Rebinding)
            || self.lease.as_ref().is_some_and(|lease| lease.server == server)
    }

    /// Gives the address up, so that it leaves the link, and tries at once to get it again: a
    /// server that probes an address before it offers it found it in use while it was on the link.
    pub(super) fn lose(&mut self, reason: Reason, turn: &mut Turn<'_>) {
        self.lost = true;
        self.limit = NEVER;
        self.began = turn.now;
        turn.actions.push(Action::Lost(reason));
        self.discover(turn);
    }
}

/// When to ask again to extend the lease: after half of the time that is left.
fn next_renewal(lease: &Lease, now: Moment) -> Moment {
    let end = end_of_phase(lease, now);
    let pause = ((end - now) / 2).max(renewal_pause(lease));
    end.min(now + pause)
}

/// T2, and after it the expiry of the lease.
fn end_of_phase(lease: &Lease, now: Moment) -> Moment {
    if now >= lease.t2 { lease.expires } else { lease.t2.min(lease.expires) }
}

/// The shortest time between two renewals of this lease.
fn renewal_pause(lease: &Lease) -> Duration {
    let of_short = lease.expires.saturating_sub(lease.acquired) / RENEWAL_PAUSES;
    of_short.max(SHORTEST_RENEWAL_PAUSE).min(RENEWAL_PAUSE)
}
