//! How long a node uses its blocks without a heartbeat, if `reclaimAfter` lets others reclaim it.
//!
//! The node's record promises a time, and others reclaim it no sooner than that after they saw that its
//! heartbeat had ended. The files of blocks say until when plugins allocate from them, so that a
//! daemon that is dead, stopped or cut off stops them as well. The order keeps the promise: a file is
//! bounded before the record says so, and it is extended only after the store has taken a heartbeat.

use std::time::Duration;

use super::super::engine::Name;
use super::Machine;
use super::contact::Contact;
use super::interface::{Line, Mark, Turn};
use super::network::Network;
use crate::sys::clock::Moment;

/// The part of `reclaimAfter` for which blocks are used after a heartbeat. The rest is for an ADD
/// that has begun, and for clocks that differ.
fn use_of(reclaim_after: Duration) -> Duration {
    reclaim_after * 3 / 4
}

/// How much sooner than they could files may say that it ends: they are not written with each sign.
fn slack_of(reclaim_after: Duration) -> Duration {
    reclaim_after / 4
}

impl Machine {
    /// What the node's record says of `reclaimAfter`.
    pub(super) fn promise(&self) -> Option<u64> {
        self.setup.reclaim_after.map(|after| after.as_secs())
    }

    /// When the use of blocks ends without another heartbeat, in seconds since boot. None without
    /// `reclaimAfter`, and before the first sign.
    pub(super) fn term(&self) -> Option<u64> {
        Some((self.relation.alive? + use_of(self.setup.reclaim_after?)).as_secs())
    }

    /// Whether the file of a network says that it is used in this boot, and until when.
    pub(super) fn is_confirmed(&self, network: &Network) -> bool {
        let Some(after) = self.setup.reclaim_after else {
            return network.confirmed == self.setup.boot && network.until.is_none();
        };
        let is_current =
            |(term, until): (u64, u64)| until <= term && until + slack_of(after).as_secs() >= term;
        network.confirmed == self.setup.boot
            && self.term().zip(network.until).is_some_and(is_current)
    }

    /// Writes into the file of a network until when it is used in this boot.
    pub(super) fn confirm(&mut self, name: &Name, until: Option<u64>, turn: &mut Turn<'_>) {
        let may_write = |network: &&Network| !network.confirming && network.confirm_due <= turn.now;
        if self.networks.get(name).filter(may_write).is_some() {
            let boot = self.setup.boot.clone();
            self.mark(name, vec![Mark::Confirm { boot, until }], vec![], turn);
        }
    }

    /// Shortens what files say that is longer than the promise, also without contact to the store.
    pub(super) fn bound_terms(&mut self, turn: &mut Turn<'_>) {
        let bounded = self
            .networks
            .iter()
            .filter_map(|(name, network)| Some((name.clone(), self.bound(network)?)));
        let bounded: Vec<(Name, u64)> = bounded.collect();
        for (name, until) in bounded {
            self.confirm(&name, Some(until), turn);
        }
        self.log_end(turn);
    }

    /// When the use of a network must end, if its file says that it ends later or never. A file without
    /// an end may be of a time long before the last heartbeat.
    fn bound(&self, network: &Network) -> Option<u64> {
        let after = self.setup.reclaim_after?;
        let most = self.term().unwrap_or_else(|| (self.now + use_of(after)).as_secs());
        match network.until {
            _ if network.confirmed != self.setup.boot => None,
            None => Some(self.term().unwrap_or(self.now.as_secs())),
            Some(until) => (until > most).then_some(most),
        }
    }

    /// Whether each file says no more than the record is about to promise.
    pub(super) fn keeps_promise(&self) -> bool {
        let keeps = |network: &Network| !network.confirming && self.bound(network).is_none();
        self.setup.reclaim_after.is_none() || self.networks.values().all(keeps)
    }

    /// Logs once that blocks are not used any more.
    fn log_end(&mut self, turn: &mut Turn<'_>) {
        let is_away = matches!(self.relation.contact, Contact::Away { .. });
        let is_stopped = is_away && self.is_stopped(turn.now);
        if is_stopped && !self.relation.is_stopped {
            turn.log(Line::Stopped);
        }
        self.relation.is_stopped = is_stopped;
    }

    /// Whether the node has sent no heartbeat for so long that it gives no address.
    pub fn is_stopped(&self, now: Moment) -> bool {
        self.term().is_some_and(|term| term <= now.as_secs())
    }
}

impl Network {
    /// Whether plugins allocate from its active blocks.
    pub(super) fn is_usable(&self, boot: &str, now: Moment) -> bool {
        self.confirmed == boot && self.until.is_none_or(|until| now.as_secs() < until)
    }
}
