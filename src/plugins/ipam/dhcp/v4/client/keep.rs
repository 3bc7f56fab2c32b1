//! Keeping a lease: renewal, rebinding and expiry (RFC 2131, section 4.4.5).

use std::net::Ipv4Addr;
use std::time::Duration;

use super::{Action, Client, Moment, Phase, Reason, SHORTEST_WAIT, seconds};
use crate::plugins::ipam::dhcp::v4::lease::Lease;
use crate::plugins::ipam::dhcp::v4::message::Message;
use crate::sys::clock::NEVER;
use crate::sys::random::Random;

/// The shortest time between two renewals (RFC 2131, section 4.4.5), unless the lease is short.
const RENEWAL_PAUSE: Duration = Duration::from_secs(60);
/// The number of pauses in a short lease.
const RENEWAL_PAUSES: u32 = 16;
/// The shortest time between two renewals of any lease.
const SHORTEST_RENEWAL_PAUSE: Duration = Duration::from_secs(1);

impl Client {
    /// Does what the times of the lease require by `now`.
    pub(super) fn keep(&mut self, now: Moment, random: &mut Random) -> Vec<Action> {
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
        // A new xid each time, so that an answer identifies its request; the lease's time runs from
        // that request.
        self.xid = random.word();
        self.asked = now;
        self.secs = seconds(now.saturating_sub(self.began));
        let shortest = lease.expires.saturating_sub(lease.acquired) / RENEWAL_PAUSES;
        let pause = ((end - now) / 2).max(shortest.max(SHORTEST_RENEWAL_PAUSE).min(RENEWAL_PAUSE));
        self.next = end.min(now + pause);
        self.listening = Some(self.next.min(now + self.setup.patience.timeout.max(SHORTEST_WAIT)));
        vec![Action::Send(self.setup.renew(self.xid, self.secs, &lease, of_any))]
    }

    /// Takes a server's extension of the lease. Another server may grant it, and then gets the next
    /// renewal.
    pub(super) fn take_renewal(
        &mut self,
        ack: &Message,
        server: Option<Ipv4Addr>,
        random: &mut Random,
    ) -> Vec<Action> {
        let Some(before) = self.lease.as_ref().filter(|lease| lease.address == ack.yiaddr) else {
            return vec![];
        };
        match Lease::of_ack(ack, server.unwrap_or(before.server), self.asked, Some(before)) {
            Some(lease) => self.bind(lease, random),
            None => vec![],
        }
    }

    /// Takes a server's refusal to extend the lease. Often the server has only lost the lease and
    /// offers the same address again: then the container notices nothing.
    pub(super) fn take_refusal(
        &mut self,
        server: Option<Ipv4Addr>,
        now: Moment,
        random: &mut Random,
    ) -> Vec<Action> {
        let its_server = self.lease.as_ref().map(|lease| lease.server);
        let is_its_own = server == its_server || matches!(self.phase, Phase::Rebinding);
        if server.is_none() || !is_its_own {
            return vec![];
        }
        self.began = now;
        self.limit = self.end_of_search();
        self.refusals = 1;
        self.discover(now, random)
    }

    /// Gives the address up, so that it leaves the link, and tries at once to get it again: a
    /// server that probes an address before it offers it found it in use while it was on the link.
    pub(super) fn lose(&mut self, reason: Reason, now: Moment, random: &mut Random) -> Vec<Action> {
        self.lost = true;
        self.limit = NEVER;
        self.began = now;
        [Action::Lost(reason)].into_iter().chain(self.discover(now, random)).collect()
    }
}
