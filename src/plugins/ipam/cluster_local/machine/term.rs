//! How long a node uses its blocks without a heartbeat, if `reclaimAfter` lets others reclaim it.
//!
//! The node's record contains `reclaimAfter`. Other nodes reclaim it no sooner than that time after they
//! found its key `alive` expired. Each `blocks.json` contains the time until which plugins allocate from
//! its blocks. So plugins stop allocating even if the node's daemon is dead, stopped or cut off. Two rules
//! make this safe: the daemon writes the limit into the file before it writes `reclaimAfter` into the
//! record, and it extends the limit only after the store has accepted a heartbeat.

use std::time::Duration;

use super::super::engine::Name;
use super::super::held::is_over;
use super::Machine;
use super::contact::Contact;
use super::interface::{Line, Mark, Turn};
use super::network::Network;
use crate::sys::clock::Moment;

/// The part of `reclaimAfter` for which plugins allocate after a heartbeat. The rest is a margin for an
/// ADD that is under way and for clocks that run at different rates.
fn use_of(reclaim_after: Duration) -> Duration {
    reclaim_after * 3 / 4
}

/// How far the limit in a file may lag behind: not every heartbeat writes the files.
fn slack_of(reclaim_after: Duration) -> Duration {
    reclaim_after / 4
}

impl Machine {
    /// `reclaimAfter` in seconds, as the node's record is to contain it.
    pub(super) fn promise(&self) -> Option<u64> {
        self.setup.reclaim_after.map(|after| after.as_secs())
    }

    /// Until when plugins may allocate without another heartbeat, in seconds since boot. None without
    /// `reclaimAfter`, and before the first heartbeat.
    pub(super) fn term(&self) -> Option<u64> {
        Some((self.relation.alive? + use_of(self.setup.reclaim_after?)).as_secs())
    }

    /// Whether the file of a network is confirmed for this boot, with a limit that is neither too late nor too
    /// far behind.
    pub(super) fn is_confirmed(&self, network: &Network) -> bool {
        let Some(after) = self.setup.reclaim_after else {
            return network.confirmed == self.setup.boot && network.until.is_none();
        };
        let is_current =
            |(term, until): (u64, u64)| until <= term && until + slack_of(after).as_secs() >= term;
        network.confirmed == self.setup.boot
            && self.term().zip(network.until).is_some_and(is_current)
    }

    /// Confirms the file of a network for this boot, until this time.
    pub(super) fn confirm(&mut self, name: &Name, until: Option<u64>, turn: &mut Turn<'_>) {
        let may_write = |network: &&Network| !network.confirming && network.confirm_due <= turn.now;
        if self.networks.get(name).filter(may_write).is_some() {
            let boot = self.setup.boot.clone();
            self.mark(name, vec![Mark::Confirm { boot, until }], vec![], turn);
        }
    }

    /// Lowers limits in files that are later than the node's `reclaimAfter` allows, also without contact to
    /// the store.
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

    /// The limit that the file of a network must get, if its own is later or absent. A file without a limit is
    /// of a configuration without `reclaimAfter`: before the first heartbeat its network is not used.
    fn bound(&self, network: &Network) -> Option<u64> {
        let after = self.setup.reclaim_after?;
        let most = self.term().unwrap_or_else(|| (self.now + use_of(after)).as_secs());
        match network.until {
            _ if network.confirmed != self.setup.boot => None,
            None => Some(self.term().unwrap_or(self.now.as_secs())),
            Some(until) => (until > most).then_some(most),
        }
    }

    /// Whether the limit in each file is within the `reclaimAfter` that the record is about to contain.
    pub(super) fn keeps_promise(&self) -> bool {
        self.setup.reclaim_after.is_none() || self.networks.values().all(|net| self.keeps(net))
    }

    fn keeps(&self, network: &Network) -> bool {
        !network.confirming && self.bound(network).is_none()
    }

    /// Why the node may not register yet. The error of a write that failed comes first: it names the file.
    pub(super) fn unkept(&self) -> String {
        let rule = "blocks.json of each network must be written before the node registers";
        let late = self.networks.values().filter(|network| !self.keeps(network));
        let failed = late.filter_map(|network| network.unwritten.as_ref()).next();
        failed.map_or_else(|| rule.to_owned(), |error| format!("{error}; {rule}"))
    }

    /// Logs once that plugins no longer allocate.
    fn log_end(&mut self, turn: &mut Turn<'_>) {
        let is_away = matches!(self.relation.contact, Contact::Away { .. });
        let is_stopped = is_away && self.is_stopped(turn.now);
        if is_stopped && !self.relation.is_stopped {
            turn.log(Line::Stopped);
        }
        self.relation.is_stopped = is_stopped;
    }

    /// Whether the store has accepted no heartbeat for so long that plugins allocate no address.
    pub fn is_stopped(&self, now: Moment) -> bool {
        self.term().is_some_and(|term| is_over(term, now))
    }
}

impl Network {
    /// Whether plugins allocate from its active blocks.
    pub(super) fn is_usable(&self, boot: &str, now: Moment) -> bool {
        self.confirmed == boot && self.until.is_none_or(|until| !is_over(until, now))
    }
}
