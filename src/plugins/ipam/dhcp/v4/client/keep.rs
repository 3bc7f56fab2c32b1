//! Keeping a lease: renewal, rebinding and expiry (RFC 2131, section 4.4.5).

use std::net::Ipv4Addr;
use std::time::Duration;

use super::{Action, Client, Phase, Reason, SHORTEST_WAIT, Turn, seconds};
use crate::plugins::ipam::dhcp::v4::lease::Lease;
use crate::plugins::ipam::dhcp::v4::message::Message;
use crate::sys::clock::NEVER;

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
        let now = turn.now;
        if now >= lease.expires {
            self.lose(Reason::Expired, turn)
        } else if now < lease.t1.min(lease.t2) {
            self.next = lease.t1.min(lease.t2);
        } else {
            self.renew(&lease, turn);
        }
    }

    /// Asks its server to extend the lease; from T2 on, any server.
    fn renew(&mut self, lease: &Lease, turn: &mut Turn<'_>) {
        let now = turn.now;
        if matches!(self.phase, Phase::Bound) {
            self.began = now;
        }
        let of_any = now >= lease.t2;
        let end = if of_any { lease.expires } else { lease.t2.min(lease.expires) };
        self.phase = if of_any { Phase::Rebinding } else { Phase::Renewing };
        // A new xid each time, so that an answer identifies its request; the lease's time runs from
        // that request.
        self.exchange.xid = turn.random.word();
        self.asked = now;
        self.exchange.secs = seconds(now.saturating_sub(self.began));
        let shortest = lease.expires.saturating_sub(lease.acquired) / RENEWAL_PAUSES;
        let pause = ((end - now) / 2).max(shortest.max(SHORTEST_RENEWAL_PAUSE).min(RENEWAL_PAUSE));
        self.next = end.min(now + pause);
        self.listening = Some(self.next.min(now + self.setup.patience.timeout.max(SHORTEST_WAIT)));
        turn.actions.push(Action::Send(self.setup.renew(self.exchange, lease, of_any)));
    }

    /// Takes a server's extension of the lease. Another server may grant it, and then gets the next
    /// renewal.
    pub(super) fn take_renewal(
        &mut self,
        ack: &Message,
        server: Option<Ipv4Addr>,
        turn: &mut Turn<'_>,
    ) {
        let Some(before) = self.lease.as_ref().filter(|lease| lease.address == ack.yiaddr) else {
            return;
        };
        let server = server.unwrap_or(before.server);
        if let Some(lease) = Lease::of_ack(ack, server, self.asked, Some(before)) {
            self.bind(lease, turn);
        }
    }

    /// Takes a server's refusal to extend the lease. Often the server has only lost the lease and
    /// offers the same address again: then the container notices nothing.
    pub(super) fn take_refusal(&mut self, server: Option<Ipv4Addr>, turn: &mut Turn<'_>) {
        let its_server = self.lease.as_ref().map(|lease| lease.server);
        let is_its_own = server == its_server || matches!(self.phase, Phase::Rebinding);
        if server.is_none() || !is_its_own {
            return;
        }
        self.began = turn.now;
        self.limit = self.end_of_search();
        self.refusals = 1;
        self.discover(turn);
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
