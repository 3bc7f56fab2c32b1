//! Comparing the blocks on the disk with the keys in the store, after a long gap or a restore.
//!
//! A key that is missing is claimed again with the same token. Keys of this node that no block on the
//! disk knows are left by a claim that was given up; they are deleted.

use std::collections::BTreeSet;

use super::super::block::Block;
use super::super::engine::{Claimed, Found, Name, Operation, RealmState, Seen};
use super::super::held::{State, Token};
use super::Machine;
use super::contact::Contact;
use super::interface::{Line, Turn};
use super::network::{Key, Network, Step, Tracked};
use super::purpose::Purpose;
use super::realm::Listed;

impl Machine {
    /// Lists each realm of this node: also one without blocks may have a claim that came late.
    pub(super) fn verify(&mut self, turn: &mut Turn<'_>) {
        let realms: BTreeSet<Name> =
            self.networks.values().map(|network| network.realm.clone()).collect();
        for network in self.networks.values_mut() {
            network.doubt_all();
        }
        for realm in &realms {
            self.list(realm, turn);
        }
        self.relation.contact = Contact::Verifying(realms);
    }

    /// Asks for all keys of a realm.
    pub(super) fn list(&mut self, name: &Name, turn: &mut Turn<'_>) {
        let sent = self.last_id + 1;
        self.realms.entry(name.clone()).or_default().ask(sent);
        let operation = Operation::List { realm: name.clone() };
        self.send(Purpose::List(name.clone(), sent), operation, turn);
    }

    /// A realm was listed.
    pub(super) fn on_listed(&mut self, name: &Name, listed: Listed, turn: &mut Turn<'_>) {
        self.compare(name, &listed);
        self.delete_orphans(name, &listed.state, turn);
        self.note_owners(name, &listed.state);
        self.free_ended(name, &listed.state, turn);
        self.compare_pools(name, &listed.state.pools, turn);
        if let Contact::Verifying(realms) = &mut self.relation.contact {
            realms.remove(name);
        }
        let realm = self.realms.entry(name.clone()).or_default();
        realm.take(listed, turn.now);
        if !realm.watched {
            realm.watched = true;
            let from = realm.revision + 1;
            let watch = Operation::Watch { realm: name.clone(), from };
            self.send(Purpose::Watch(name.clone()), watch, turn);
        }
    }

    /// Compares each block of the realm that waits for nothing and is not known better.
    fn compare(&mut self, realm: &Name, listed: &Listed) {
        let uid = self.setup.uid;
        for network in self.networks.values_mut().filter(|network| network.realm == *realm) {
            network.compare_origins(&listed.state.blocks, uid);
            for tracked in network.blocks.values_mut() {
                if tracked.step == Step::Rest
                    && tracked.held.of.is_none()
                    && tracked.known < listed.sent
                {
                    tracked.learn(&listed.state, uid);
                }
            }
        }
    }

    /// Deletes keys and notes of this node that belong to nothing on its disk.
    fn delete_orphans(&mut self, realm: &Name, state: &RealmState, turn: &mut Turn<'_>) {
        if !self.setup.is_complete {
            return;
        }
        if !self.relation.may_act() {
            return self.recheck_later(realm, turn); // the contact was lost since it was asked for
        }
        for found in &state.blocks {
            if let Some(seen) = self.orphan(realm, found) {
                turn.log(Line::Orphan(seen.block));
                let release = Operation::Release { realm: realm.clone(), seen };
                self.send(Purpose::Orphan(realm.clone()), release, turn);
            } else if self.may_give_up(realm, found) {
                self.recheck_later(realm, turn); // by then the disk shows whether the key is an orphan
            }
        }
        let notes = state.notes.iter().filter(|(_, note)| note.by.uid == self.setup.uid);
        let stale: Vec<Block> =
            notes.map(|(block, _)| *block).filter(|block| !self.notes(realm, *block)).collect();
        for block in stale {
            let note = Operation::NoteConflict { realm: realm.clone(), block, note: None };
            self.send(Purpose::Orphan(realm.clone()), note, turn);
        }
    }

    fn orphan(&self, realm: &Name, found: &Found) -> Option<Seen> {
        let claimed =
            found.claimed.as_ref().filter(|claimed| claimed.owner.uid == self.setup.uid)?;
        if self.is_kept_vacant(realm, claimed) {
            return None;
        }
        let networks = self.networks.values().filter(|network| network.realm == *realm);
        let is_known =
            networks.into_iter().any(|network| network.knows(found.block, claimed.token));
        let seen = Seen { block: found.block, claimed: claimed.clone(), revision: found.revision };
        (!is_known).then_some(seen)
    }

    /// Whether a key is of a claim of this node that the node may be giving up: the store may execute the claim
    /// after a read that has found no key, and before this list.
    fn may_give_up(&self, realm: &Name, found: &Found) -> bool {
        let claimed = found.claimed.as_ref().filter(|claimed| claimed.owner.uid == self.setup.uid);
        let mut networks = self.networks.values().filter(|network| network.realm == *realm);
        claimed.is_some() && networks.any(|network| network.doubts_claim(found.block))
    }

    /// Whether this node has noted a conflict about the block, or is about to.
    pub(super) fn notes(&self, realm: &Name, block: Block) -> bool {
        let networks = self.networks.values().filter(|network| network.realm == *realm);
        let tracked = networks.filter_map(|network| network.blocks.get(&block));
        tracked.into_iter().any(|tracked| tracked.noted || tracked.held.state == State::Conflict)
    }

    /// Goes on once each block's key is known and none has to be claimed again.
    pub(super) fn finish_verifying(&mut self, turn: &mut Turn<'_>) {
        let Contact::Verifying(realms) = &self.relation.contact else { return };
        let is_known = self.networks.values().all(Network::is_verified);
        if realms.is_empty() && is_known && self.confirm_all(turn) {
            self.on_verified(turn);
        }
    }

    /// Confirms the networks that came after the contact: they have nothing to verify.
    pub(super) fn confirm_new(&mut self, turn: &mut Turn<'_>) {
        if self.relation.contact == Contact::Together {
            self.confirm_all(turn);
        }
    }

    /// Confirms each network for this boot; returns whether all are.
    fn confirm_all(&mut self, turn: &mut Turn<'_>) -> bool {
        let open = self.networks.iter().filter(|(_, network)| !self.is_confirmed(network));
        let open: Vec<Name> = open.map(|(name, _)| name.clone()).collect();
        // The limit counts from the first heartbeat.
        if self.setup.reclaim_after.is_none() || self.term().is_some() {
            for name in &open {
                self.confirm(name, self.term(), turn);
            }
        }
        open.is_empty()
    }
}

impl Network {
    /// Nothing that was known of keys counts any more.
    fn doubt_all(&mut self) {
        for tracked in self.blocks.values_mut().filter(|tracked| tracked.key != Key::Unsent) {
            tracked.key = Key::Doubt;
            tracked.due = std::time::Duration::ZERO;
        }
        self.origins.values_mut().for_each(|key| *key = Key::Doubt);
    }

    /// Whether each block that is in use has a key that is known.
    fn is_verified(&self) -> bool {
        let is_known = |tracked: &Tracked| match tracked.held.state {
            State::Active | State::Settling => {
                tracked.step == Step::Rest
                    && matches!(tracked.key, Key::Own(_))
                    && !tracked.contested
            }
            State::Claiming | State::Returning | State::Lost | State::Conflict => true,
        };
        self.origins.is_empty() && self.blocks.values().all(is_known)
    }

    fn compare_origins(&mut self, found: &[Found], uid: Token) {
        let parts = self.blocks.values().filter_map(|tracked| tracked.held.of);
        let parts: Vec<_> = parts.collect();
        for (block, key) in
            self.origins.iter_mut().filter(|(block, _)| !self.asking.contains(block))
        {
            let of_block = parts.iter().find(|origin| origin.block == *block);
            if let Some(origin) = of_block {
                *key = key_of(found, *block, (origin.token, uid));
            }
        }
    }

    /// Whether the key of a block with this token belongs to something on the disk. Parts of a split share
    /// their token.
    pub(super) fn knows(&self, block: Block, token: Token) -> bool {
        let is_of = |tracked: &Tracked| {
            let origin = tracked.held.of.map(|origin| (origin.block, origin.token));
            (tracked.held.block, tracked.held.token) == (block, token)
                || origin == Some((block, token))
        };
        self.blocks.values().any(is_of)
    }
}

impl Tracked {
    /// Learns of its key from keys that were read.
    pub(super) fn learn(&mut self, state: &RealmState, uid: Token) {
        if self.key != Key::Unsent {
            self.key = key_of(&state.blocks, self.held.block, (self.held.token, uid));
        }
        let mut others = state.notes.iter().filter(|(_, note)| note.by.uid != uid);
        self.contested = others.any(|(block, _)| block.overlaps(self.held.block));
    }
}

/// The key of a block with this token and uid, among keys that were read.
pub(super) fn key_of(found: &[Found], block: Block, (token, uid): (Token, Token)) -> Key {
    let mut key = Key::Absent;
    for found in found.iter().filter(|found| found.block.overlaps(block)) {
        let is_claim = |claimed: &Claimed| {
            claimed.token == token && claimed.owner.uid == uid && !claimed.vacant
        };
        if found.block == block && found.claimed.as_ref().is_some_and(|claimed| claimed.vacant) {
            continue; // any node may take it over
        }
        if found.block == block && found.claimed.as_ref().is_some_and(is_claim) {
            return Key::Own(found.revision);
        }
        key = Key::Foreign;
    }
    key
}
