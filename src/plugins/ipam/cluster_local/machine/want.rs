//! The `want` key: a node that finds nothing free says so, and other nodes give back what they can spare.

use std::time::Duration;

use super::super::block::Block;
use super::super::engine::{Change, Found, Name, Operation, Want};
use super::super::pool::Span;
use super::Machine;
use super::contact::Contact;
use super::interface::Turn;
use super::purpose::{Purpose, Result};
use super::realm::REFRESH;
use crate::sys::clock::Moment;

/// How long a want lasts without being written again, in seconds.
const TTL: u32 = 30;
/// The pause before a list that a hint requires: by then, writes that are under way have reached the disk.
const UNTIL_WRITTEN: Duration = Duration::from_millis(20);
/// The pause before a node gives back, and between one block and the next.
const ROUND: Duration = Duration::from_millis(50);

impl Machine {
    /// Takes a hint of a watch.
    pub(super) fn on_change(&mut self, name: &Name, change: Change) {
        self.note_owner(name, &change);
        let is_vacant =
            |found: &Found| found.claimed.as_ref().is_some_and(|claimed| claimed.vacant);
        let must_list = match &change {
            Change::Claimed(found) => !is_vacant(found) && self.is_unknown_claim(found),
            Change::Noted(block, Some(note)) if note.by.uid == self.setup.uid => {
                !self.notes(name, *block) // a late request has written the note again
            }
            Change::Noted(block, Some(_)) => self.holds(name, *block),
            Change::Released(_) | Change::Wanted(..) | Change::Noted(..) => false,
        };
        let is_release = match &change {
            Change::Released(_) => true,
            Change::Claimed(found) => is_vacant(found),
            Change::Wanted(..) | Change::Noted(..) => false,
        };
        let Some(realm) = self.realms.get_mut(name) else { return };
        match &change {
            Change::Wanted(node, found) if *node == self.setup.node => {
                realm.compare_want(found.as_ref());
            }
            _ => (),
        }
        realm.hint(change, self.now);
        if must_list {
            realm.recheck = Some(self.now + UNTIL_WRITTEN);
        }
        if is_release {
            self.networks
                .values_mut()
                .filter(|network| network.realm == *name)
                .for_each(|network| network.resume(self.now));
        }
    }

    /// Whether a key of this node belongs to no block on the disk, or to a claim that the node may be giving
    /// up: the store may execute a late request after a read that has found no key.
    fn is_unknown_claim(&self, found: &Found) -> bool {
        let claimed = found.claimed.as_ref().filter(|claimed| claimed.owner.uid == self.setup.uid);
        claimed.is_some_and(|claimed| {
            let mut networks = self.networks.values();
            !networks.any(|network| {
                network.knows(found.block, claimed.token) && !network.doubts_claim(found.block)
            })
        })
    }

    fn holds(&self, realm: &Name, block: Block) -> bool {
        let networks = self.networks.values().filter(|network| network.realm == *realm);
        networks.into_iter().any(|network| network.blocks.keys().any(|own| own.overlaps(block)))
    }

    /// Writes, refreshes and deletes this node's wants, and lists realms that have to be.
    pub(super) fn keep_wants(&mut self, turn: &mut Turn<'_>) {
        if self.relation.contact != Contact::Together {
            return;
        }
        let names: Vec<Name> = self.realms.keys().cloned().collect();
        for name in names {
            self.keep_want(&name, turn);
            self.recheck(&name, turn);
        }
    }

    fn recheck(&mut self, name: &Name, turn: &mut Turn<'_>) {
        let Some(realm) = self.realms.get_mut(name) else { return };
        if realm.asked.is_none() && realm.recheck.is_some_and(|at| at <= turn.now) {
            realm.recheck = None;
            self.list(name, turn);
        }
    }

    fn keep_want(&mut self, name: &Name, turn: &mut Turn<'_>) {
        let wanted = self.wanted(name);
        let Some(realm) = self.realms.get_mut(name) else { return };
        let is_due = match (&wanted, &realm.want) {
            (None, None) => false,
            (Some(want), Some((written, due))) => want != written || *due <= turn.now,
            (None, Some(_)) | (Some(_), None) => true,
        };
        if !is_due || realm.wanting {
            return;
        }
        realm.wanting = true;
        realm.want = wanted.clone().map(|want| (want, turn.after(REFRESH)));
        let node = self.setup.node.clone();
        let operation = Operation::Want { realm: name.clone(), node, want: wanted, ttl: TTL };
        self.send(Purpose::Want(name.clone()), operation, turn);
    }

    /// What the ADDs lack whose pools are full.
    fn wanted(&self, realm: &Name) -> Option<Want> {
        let mut want = Want::default();
        for network in self.networks.values().filter(|network| network.realm == *realm) {
            for waiting in network.requests.iter().filter(|waiting| waiting.is_full) {
                want.count += 1;
                want.names.extend(waiting.names.iter().cloned());
                let pool = network.pool_of(&waiting.request);
                match (&waiting.request.name, waiting.request.address) {
                    (Some(_), _) if !waiting.wants_any => (),
                    (None, Some(ip)) => want.spans.extend(Span::new(ip, ip)),
                    (Some(_), _) | (None, None) => {
                        want.spans.extend(pool.iter().flat_map(|pool| pool.spans()))
                    }
                }
            }
        }
        want.spans.sort_unstable();
        want.spans.dedup();
        want.names.sort_unstable();
        want.names.dedup();
        (want.count > 0).then_some(want)
    }

    /// A want was written, or was not: then it is written again.
    pub(super) fn after_wanting(&mut self, realm: &Name, result: Result) {
        let Some(realm) = self.realms.get_mut(realm) else { return };
        realm.wanting = false;
        if !matches!(result, Result::Done(..)) {
            realm.want = realm.want.take().map(|(want, _)| (want, Moment::ZERO));
        }
    }

    /// Whether it is time to give back to others, which goes on in rounds as long as they want.
    pub(super) fn is_round(&mut self, name: &Name, turn: &mut Turn<'_>) -> bool {
        let next = turn.after(ROUND);
        let Some(realm) = self.realms.get_mut(name) else { return false };
        realm.wants.retain(|_, (_, heard)| *heard + Duration::from_secs(TTL.into()) > turn.now);
        if realm.wants.is_empty() {
            realm.round = None;
            return false;
        }
        let is_due = realm.round.is_some_and(|round| round <= turn.now);
        if is_due || realm.round.is_none() {
            realm.round = Some(next);
        }
        is_due
    }
}
