//! Keeping a lease: Renew, Rebind and expiry (RFC 8415, sections 18.2.4 and 18.2.5).

use std::time::Duration;

use super::phase::{Holding, Stage};
use super::routers::Routers;
use super::{AFTER_REFUSAL, Action, Client, Mode, Reason, Turn};
use crate::sys::clock::Moment;

impl Client {
    /// Does what the times of the lease require.
    pub(super) fn keep(&mut self, turn: &mut Turn<'_>) {
        let Holding::Lease(lease, stage) = &mut self.holding else { return };
        if turn.now >= lease.expires {
            return self.lose(Reason::Expired, turn);
        }
        let reached = Stage::of(lease, turn.now);
        if reached > *stage {
            *stage = reached;
            self.extend(turn.now);
        }
    }

    /// Asks for more time, of servers or of routers.
    fn extend(&mut self, now: Moment) {
        self.routers.ask(now);
        if self.setup.mode == Mode::Dhcp {
            self.start_over(now);
        }
    }

    /// Gives the address up, so that it leaves the link. After an expiry it is requested again at
    /// once.
    pub(super) fn lose(&mut self, reason: Reason, turn: &mut Turn<'_>) {
        self.holding.lose();
        self.routers = Routers::default();
        turn.actions.push(Action::Lost(reason));
        let pause = if reason == Reason::Expired { Duration::ZERO } else { AFTER_REFUSAL };
        self.search(turn.now + pause);
    }
}
