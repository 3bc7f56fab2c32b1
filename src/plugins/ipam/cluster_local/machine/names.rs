//! An ADD that needs the address of a name.
//!
//! A name has one key in its realm, whatever the number of nodes. It is free to take while it is vacant;
//! only its owner makes it so, under the lock of its leases, when another node wants it. A node whose ADD
//! needs a name does the first of these that it can:
//!
//! | what the store has | what is done |
//! |---|---|
//! | the name, vacant | take it over |
//! | the name, vacant, with a note of a conflict about its address | wait until the note is deleted |
//! | the name, of another node | want it, until the ADD gives up |
//! | no such name, an address without a key | claim that |
//! | no such name, an address whose name is vacant | take that over: the other name has lost it |
//! | no such name, and no other address | vacate the own name that was used longest ago, or want some |

use std::time::Duration;

use super::super::block::Block;
use super::super::engine::{Answer, Claimed, Name, Operation, Seen};
use super::super::held::Held;
use super::super::pool::Pool;
use super::super::sticky::NOTED;
use super::claim::{AFTER_FULL, is_allocated_from};
use super::interface::{Contest, Holder, Mark, Reply, RequestId, Turn};
use super::network::{Network, Tracked, Waiting};
use super::purpose::{Purpose, Result};
use super::{Action, At, Machine};
use crate::sys::clock::Moment;

/// How many names of others are wanted at once when no address is left for another one.
const VICTIMS: usize = 8;
/// The pause before the next address is tried, after one that is being claimed already or was lost.
const SOON: Duration = Duration::from_millis(20);

/// A name as the store has it: networks do not share their names.
pub fn full_name(network: &str, name: &str) -> String {
    format!("{network}/{name}")
}

/// The next step for an ADD.
enum Choice {
    /// It waits for an address that it is about to have, or that has to be given back first.
    Wait,
    /// It tries again in a moment.
    Soon,
    /// The realm has to be listed.
    List,
    /// Claim or take over this address.
    Take(Block),
    /// Give up this own address, whose name is used by no attachment.
    Vacate(Block),
    /// Another node has the name.
    Elsewhere(Seen),
    /// The name is vacant, and a node has noted a conflict about its address. Each event looks again, so also the
    /// hint that the note was deleted.
    Contested(Contest),
    /// No address is left: these names may lose theirs.
    Full(Vec<String>),
}

impl Machine {
    /// Does the next step for each ADD of a network that needs a name.
    pub(super) fn claim_for_names(&mut self, name: &Name, turn: &mut Turn<'_>) {
        let Some(network) = self.networks.get(name).filter(|network| self.may_claim_for(network))
        else {
            return;
        };
        let is_due =
            |waiting: &&Waiting| waiting.request.name.is_some() && waiting.pause <= turn.now;
        let due: Vec<Waiting> = network.requests.iter().filter(is_due).cloned().collect();
        for waiting in due {
            let choice = self.choice(&waiting, turn).unwrap_or(Choice::Wait);
            self.note_contest(waiting.request.id, None);
            self.choose_name(&waiting, choice, turn);
        }
    }

    fn choice(&self, waiting: &Waiting, turn: &mut Turn<'_>) -> Option<Choice> {
        let network = self.networks.get(&waiting.request.network)?;
        let name = waiting.request.name.as_deref()?;
        let pool = network.names.get(waiting.request.pool)?;
        let realm = self.realms.get(&network.realm)?;
        let is_free = |block: &Block| !self.tracks(*block, &network.realm);
        if network.named(name).is_some() {
            return None;
        }
        if realm.listed == 0 {
            return Some(Choice::List);
        }
        let is_fresh = realm.listed > waiting.since;
        if let Some(seen) = realm.named(&full_name(waiting.request.network.as_str(), name)) {
            let noted = realm.noted_by(seen.block);
            return Some(match noted.filter(|_| seen.claimed.vacant) {
                Some(node) => {
                    Choice::Contested(Contest { address: seen.block.first(), node: node.clone() })
                }
                None if seen.claimed.vacant => Choice::Take(seen.block),
                None if is_fresh => Choice::Elsewhere(seen.clone()),
                None => Choice::List,
            });
        }
        match realm.candidate(pool, None, turn.random) {
            Some(block) if is_free(&block) => return Some(Choice::Take(block)),
            Some(_) => return Some(Choice::Soon),
            None => (),
        }
        let may_take = |seen: &&Seen| {
            seen.claimed.vacant && is_free(&seen.block) && realm.noted_by(seen.block).is_none()
        };
        let vacant = realm.names_in(pool).find(may_take);
        Some(match (vacant, network.forgotten(pool)) {
            (Some(seen), _) => Choice::Take(seen.block),
            (None, _) if !is_fresh => Choice::List,
            (None, Some(block)) => Choice::Vacate(block),
            (None, None) => Choice::Full(self.victims(realm.names_in(pool), turn)),
        })
    }

    /// The next address is tried after a moment.
    fn pause_name(&mut self, id: RequestId, turn: &mut Turn<'_>) {
        let pause = turn.after(SOON);
        if let Some(waiting) = self.waiting(id) {
            waiting.pause = pause;
        }
    }

    /// The claim of a name's address was lost: the realm is listed before the next one.
    pub(super) fn after_losing_name(&mut self, at: &At, turn: &mut Turn<'_>) {
        let Some(network) = self.networks.get_mut(&at.network) else { return };
        let name = network.blocks.get(&at.block).and_then(|tracked| tracked.held.sticky.clone());
        if name.is_none() {
            return;
        }
        for waiting in network.requests.iter_mut().filter(|waiting| waiting.request.name == name) {
            waiting.since = self.last_id;
            waiting.pause = turn.after(SOON);
        }
        let realm = network.realm.clone();
        if let Some(realm) = self.realms.get_mut(&realm) {
            realm.recheck = Some(turn.now);
        }
    }

    /// Some names of other nodes, by chance.
    fn victims<'s>(
        &self,
        names: impl Iterator<Item = &'s Seen>,
        turn: &mut Turn<'_>,
    ) -> Vec<String> {
        let others = names.filter(|seen| seen.claimed.owner.uid != self.setup.uid);
        let mut names: Vec<(u64, String)> = others
            .filter_map(|seen| Some((turn.random.number(), seen.claimed.sticky.clone()?)))
            .collect();
        names.sort_unstable();
        names.into_iter().take(VICTIMS).map(|(_, name)| name).collect()
    }

    fn choose_name(&mut self, waiting: &Waiting, choice: Choice, turn: &mut Turn<'_>) {
        let network = waiting.request.network.clone();
        match choice {
            Choice::Wait => (),
            Choice::Soon => self.pause_name(waiting.request.id, turn),
            Choice::List => self.list_for(&network, turn),
            Choice::Take(block) => {
                let Some(realm) = self.networks.get(&network).map(|network| &network.realm) else {
                    return;
                };
                if !self.tracks(block, realm) {
                    self.intend(&At { network, block }, waiting.request.name.clone(), turn);
                }
            }
            Choice::Vacate(block) => self.give_up(&At { network, block }, turn),
            Choice::Elsewhere(seen) => self.want_name(waiting, &seen, turn),
            Choice::Contested(contest) => self.note_contest(waiting.request.id, Some(contest)),
            Choice::Full(names) => {
                if let Some(waiting) = self.wait_for_name(waiting, names, turn) {
                    waiting.wants_any = true;
                }
            }
        }
    }

    fn note_contest(&mut self, id: RequestId, contest: Option<Contest>) {
        if let Some(waiting) = self.waiting(id) {
            waiting.contest = contest;
        }
    }

    fn list_for(&mut self, network: &Name, turn: &mut Turn<'_>) {
        let Some(realm) = self.networks.get(network).map(|network| network.realm.clone()) else {
            return;
        };
        if self.realms.get(&realm).is_some_and(|realm| realm.asked.is_none()) {
            self.list(&realm, turn);
        }
    }

    /// Another node has the name: it is asked for it, and whether it lives.
    fn want_name(&mut self, waiting: &Waiting, seen: &Seen, turn: &mut Turn<'_>) {
        let names = seen.claimed.sticky.iter().cloned().collect();
        let node = seen.claimed.owner.node.clone();
        let Some(waiting) = self.wait_for_name(waiting, names, turn) else { return };
        let is_known = waiting.holder.as_ref().is_some_and(|holder| holder.node == node);
        if !is_known {
            let holder = Holder { address: seen.block.first(), node: node.clone(), is_alive: None };
            waiting.holder = Some(holder);
        }
        let purpose = Purpose::Holder(waiting.request.id);
        self.send(purpose, Operation::ReadNode { node }, turn);
    }

    /// An ADD waits for what others give back; then the realm is listed again.
    fn wait_for_name(
        &mut self,
        waiting: &Waiting,
        names: Vec<String>,
        turn: &mut Turn<'_>,
    ) -> Option<&mut Waiting> {
        let (since, pause) = (self.last_id, turn.after(AFTER_FULL));
        let waiting = self.waiting(waiting.request.id)?;
        waiting.is_full = true;
        waiting.wants_any = false;
        waiting.names = names;
        waiting.since = since;
        waiting.pause = pause;
        Some(waiting)
    }

    fn waiting(&mut self, id: RequestId) -> Option<&mut Waiting> {
        let mut all = self.networks.values_mut().flat_map(|network| &mut network.requests);
        all.find(|waiting| waiting.request.id == id)
    }

    /// The outcome of reading the record of a name's owner. A node without a heartbeat releases no name; one
    /// that has just returned has time for its first heartbeat until the next read.
    pub(super) fn after_asking_for_holder(
        &mut self,
        id: RequestId,
        result: Result,
        turn: &mut Turn<'_>,
    ) {
        let Result::Done(_, Answer::Node(state)) = result else { return };
        let Some(waiting) = self.waiting(id) else { return };
        let Some(holder) = &mut waiting.holder else { return };
        let is_gone = holder.is_alive == Some(false) && state.alive.is_none();
        holder.is_alive = Some(state.alive.is_some());
        if is_gone {
            let reply = Reply::Elsewhere(holder.clone());
            turn.actions.push(Action::Reply { request: id, reply });
            self.forget_request(id);
        }
    }

    /// Gives up the addresses of names that another node wants and no attachment has.
    pub(super) fn give_names(&mut self, realm: &Name, wanted: &[String], turn: &mut Turn<'_>) {
        if wanted.is_empty() {
            return;
        }
        let mut given = vec![];
        for (name, network) in self.networks.iter().filter(|(_, network)| network.realm == *realm) {
            let free = network.blocks.values().filter(|tracked| network.is_free(tracked));
            for Tracked { held, .. } in free {
                let Some(sticky) = &held.sticky else { continue };
                let is_wanted = wanted.contains(&full_name(name.as_str(), sticky));
                if is_wanted && !network.waits_for(sticky) {
                    given.push(At { network: name.clone(), block: held.block });
                }
            }
        }
        for at in given {
            self.give_up(&at, turn);
        }
    }

    /// Whether the key of a block stays when it is given back: the name keeps its address.
    pub(super) fn keeps_name(&self, at: &At, held: &Held) -> bool {
        let network = self.networks.get(&at.network);
        held.sticky.is_some() && network.is_some_and(|network| network.keeps(held.block))
    }

    /// Whether a vacant key is one of a network of this node that keeps names.
    pub(super) fn is_kept_vacant(&self, realm: &Name, claimed: &Claimed) -> bool {
        let Some(name) = claimed.sticky.as_ref().filter(|_| claimed.vacant) else { return false };
        let mut networks = self.networks.iter().filter(|(_, network)| network.realm == *realm);
        networks.any(|(network, known)| {
            !known.names.is_empty() && name.starts_with(&full_name(network.as_str(), ""))
        })
    }

    /// Notes from time to time which names are used: the one that was used longest ago loses its
    /// address first.
    pub(super) fn note_use(&mut self, turn: &mut Turn<'_>) {
        let mut used = vec![];
        for (name, network) in &self.networks {
            let stale = network.blocks.values().filter(|tracked| {
                tracked.held.sticky.is_some()
                    && tracked.held.since + NOTED <= turn.wall
                    && tracked.is_idle()
                    && network.leases_in(tracked.held.block) > 0
            });
            let marks =
                stale.map(|tracked| Mark::Put(Held { since: turn.wall, ..tracked.held.clone() }));
            let marks: Vec<Mark> = marks.collect();
            used.extend((!marks.is_empty()).then(|| (name.clone(), marks)));
        }
        for (name, marks) in used {
            self.mark(&name, marks, vec![], turn);
        }
    }
}

impl Network {
    /// The block of a name, in whatever state.
    fn named(&self, name: &str) -> Option<&Tracked> {
        self.blocks.values().find(|tracked| tracked.held.sticky.as_deref() == Some(name))
    }

    /// Whether plugins find the address of a name in the pool of this number.
    pub(super) fn has_name(&self, name: &str, pool: usize) -> bool {
        let is_of_pool = |tracked: &&Tracked| {
            let pool = self.names.get(pool);
            is_allocated_from(tracked) && pool.is_some_and(|pool| pool.meets(tracked.held.block))
        };
        self.named(name).filter(is_of_pool).is_some()
    }

    /// Whether the block is kept for a name.
    pub(super) fn is_for_name(&self, tracked: &Tracked) -> bool {
        tracked.held.sticky.is_some() && self.keeps(tracked.held.block)
    }

    /// Whether the addresses of a block are for names.
    fn keeps(&self, block: Block) -> bool {
        self.names.iter().any(|pool| pool.meets(block))
    }

    pub(super) fn waits_for(&self, name: &str) -> bool {
        self.requests.iter().any(|waiting| waiting.request.name.as_deref() == Some(name))
    }

    /// The address in a pool whose name was used longest ago, of those without an attachment.
    fn forgotten(&self, pool: &Pool) -> Option<Block> {
        let names = self.blocks.values().filter(|tracked| self.is_free(tracked));
        let idle = names.filter(|tracked| {
            let name = tracked.held.sticky.as_deref();
            pool.meets(tracked.held.block) && name.is_some_and(|name| !self.waits_for(name))
        });
        idle.min_by_key(|tracked| tracked.held.since).map(|tracked| tracked.held.block)
    }

    /// Others have given something back: ADDs try again now.
    pub(super) fn resume(&mut self, now: Moment) {
        self.pause = now;
        self.requests.iter_mut().for_each(|waiting| waiting.pause = now);
    }
}
