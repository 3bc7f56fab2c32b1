//! Keeping a lease: renewal, rebinding and expiry (RFC 2131, section 4.4.5).

use std::time::Duration;

use super::{Action, Client, Lease, Message, NEVER, Phase, Reason, Turn};

/// The shortest time between two renewals (RFC 2131, section 4.4.5), unless the lease is short.
const RENEWAL_PAUSE: Duration = Duration::from_secs(60);
/// The number of pauses in a short lease.
const RENEWAL_PAUSES: u32 = 16;
/// The shortest time between two renewals of any lease.
const SHORTEST_RENEWAL_PAUSE: Duration = Duration::from_secs(1);

impl Client {
    /// Does what the times of the lease require by now: asks its server to extend it; from T2 on,
    /// any server.
    pub(super) fn keep(&mut self, turn: &mut Turn<'_>) {
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
    pub(super) fn take_renewal(&mut self, ack: &Message, turn: &mut Turn<'_>) {
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
    pub(super) fn take_refusal(&mut self, nak: &Message, turn: &mut Turn<'_>) {
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
    pub(super) fn lose(&mut self, reason: Reason, turn: &mut Turn<'_>) {
        self.lost = true;
        self.limit = NEVER;
        self.began = turn.now;
        turn.actions.push(Action::Lost(reason));
        self.discover(turn);
    }
}
