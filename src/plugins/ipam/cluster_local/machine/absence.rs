//! Nodes without a heartbeat: with `reclaimAfter` the daemon fences them and frees their blocks, as the
//! command `ipam reclaim` does for an operator.
//!
//! No timer wakes the daemon for this. With each heartbeat it reads the records of the nodes that follow
//! its own by name, among those with blocks in its realms: `PRESENT` nodes with a heartbeat and, before these,
//! those without one. So a few other nodes watch each node, whatever the size of the cluster. Of the nodes
//! without a heartbeat it measures at most `MOST` absences, those that are due first, and reads `IN_TURN` of the
//! others, so that each of them is read in turn.
//!
//! A node counts as absent between two reads only if both find no key `alive` and are at most `PAUSE`
//! apart: a heartbeat writes a key that lasts longer than that, so the second read would find it. After a
//! longer pause, such as a lost contact, the absence is measured again from zero. The transaction of the fence
//! compares the record and the absence of the key `alive`, so several daemons may try it at once. Then each
//! of them frees the node's keys ([`freeing`](super::freeing)).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::ended::Ended;
use super::super::engine::{
    Answer, Change, Name, NodeRecord, NodeState, Operation, RealmState, Standing, Versioned,
};
use super::Machine;
use super::contact::{ALIVE, Contact};
use super::interface::{Line, Turn};
use super::purpose::{Purpose, Result};
use crate::sys::clock::{Moment, NEVER};

/// How many nodes with a heartbeat a daemon watches.
const PRESENT: usize = 3;
/// How many absences a daemon measures at once.
const MOST: usize = 64;
/// How many records of further nodes without a heartbeat it reads with one heartbeat.
const IN_TURN: usize = 16;
/// The longest pause between two reads of one absence. It is shorter than `ALIVE`: the lease of a key `alive`
/// counts from its grant, and the client may take some seconds from the grant to the write of the key.
const PAUSE: Duration = Duration::from_secs(ALIVE as u64 - 10);

/// What this daemon knows of other nodes.
#[derive(Clone, Debug, Default)]
pub struct Others {
    /// The nodes with blocks in each realm, each with its lowest incarnation that has a block. The map may
    /// still contain a node that has released its last block since the realm was listed.
    owners: BTreeMap<Name, BTreeMap<Name, u64>>,
    /// The nodes without a heartbeat.
    absent: BTreeMap<Name, Absence>,
    /// The nodes that this daemon does not fence. The record of such a node lacks `reclaimAfter`, so that only an
    /// operator may reclaim it; or the node is fenced; or the daemon has found no record of it that it can read.
    exempt: BTreeSet<Name>,
    /// The node that was read last of those that are read in turn.
    last_in_turn: Option<Name>,
    /// The reclaimed nodes: with each list of a realm this daemon deletes their keys in it.
    pub(super) ended: BTreeMap<Name, Ended>,
}

/// A node without a heartbeat.
#[derive(Clone, Debug)]
struct Absence {
    /// Its record, unchanged since the absence began.
    record: Versioned<NodeRecord>,
    /// When the first read ended that found no key `alive`.
    since: Moment,
    /// When the last such read was sent.
    seen: Moment,
    /// When the node may be fenced.
    due: Moment,
}

impl Others {
    /// The lowest incarnation with a block of a node.
    pub(super) fn lowest(&self, node: &Name) -> Option<u64> {
        self.owners.values().filter_map(|owners| owners.get(node)).min().copied()
    }

    /// The nodes to read: of those that follow `own` by name until `PRESENT` of them have a heartbeat, the absent
    /// ones that are due first, and some of the others without a heartbeat in turn.
    fn wards(&mut self, own: &Name) -> Vec<Name> {
        let (mut wards, mut without) = self.followers(own);
        without.sort_by_key(|name| self.absent.get(name).map_or(NEVER, |absence| absence.due));
        let absent = without.iter().take_while(|name| self.absent.contains_key(name)).count();
        let mut rest = without.split_off(absent.min(MOST));
        rest.sort_unstable(); // the turn does not depend on when an absence is due
        let next = rest
            .partition_point(|name| self.last_in_turn.as_ref().is_some_and(|last| name <= last));
        rest.rotate_left(next);
        rest.truncate(IN_TURN);
        self.last_in_turn = rest.last().cloned();
        wards.append(&mut without);
        wards.append(&mut rest);
        wards
    }

    /// The first `PRESENT` nodes after `own` that have a heartbeat or were not read yet, and the nodes before and
    /// between them.
    fn followers(&self, own: &Name) -> (Vec<Name>, Vec<Name>) {
        let all: BTreeSet<&Name> = self.owners.values().flat_map(BTreeMap::keys).collect();
        let (before, after): (Vec<&Name>, Vec<&Name>) =
            all.into_iter().filter(|name| *name != own).partition(|name| *name < own);
        let mut present = vec![];
        let mut without = vec![];
        for name in after.into_iter().chain(before) {
            if self.absent.contains_key(name) || self.exempt.contains(name) {
                without.push(name.clone());
                continue;
            }
            present.push(name.clone());
            if present.len() == PRESENT {
                break;
            }
        }
        (present, without)
    }

    /// Forgets nodes without blocks.
    fn forget_gone(&mut self) {
        let owners = &self.owners;
        let has_blocks = |name: &Name| owners.values().any(|owners| owners.contains_key(name));
        self.absent.retain(|name, _| has_blocks(name));
        self.exempt.retain(has_blocks);
        self.ended.retain(|name, _| has_blocks(name));
    }

    /// Records a read that found no key `alive` of a node, which may be absent for `longest`; returns whether it
    /// has been absent for as long.
    fn is_late(
        &mut self,
        node: &Name,
        record: Versioned<NodeRecord>,
        [sent, now]: [Moment; 2],
        longest: Duration,
    ) -> bool {
        let before = self
            .absent
            .get(node)
            .filter(|before| before.record == record && now.saturating_sub(before.seen) <= PAUSE);
        let since = before.map_or(now, |before| before.since);
        let due = since.saturating_add(longest);
        self.absent.insert(node.clone(), Absence { record, since, seen: sent, due });
        due <= now
    }
}

impl Machine {
    /// Reads the records of other nodes, beside a heartbeat.
    pub(super) fn look_at_others(&mut self, turn: &mut Turn<'_>) {
        if self.setup.reclaim_after.is_none() || self.relation.contact != Contact::Together {
            return;
        }
        self.others.forget_gone();
        for node in self.others.wards(&self.setup.node) {
            let purpose = Purpose::Ward(node.clone(), turn.now);
            self.send(purpose, Operation::ReadNode { node }, turn);
        }
    }

    /// The outcome of reading another node's record.
    pub(super) fn after_looking_at(
        &mut self,
        node: &Name,
        sent: Moment,
        result: Result,
        turn: &mut Turn<'_>,
    ) {
        let Result::Done(_, Answer::Node(state)) = result else {
            return self.exempt_for_now(node);
        };
        if self.is_doubtful(&state) {
            return self.others.absent.clear(); // absences of another history of the store
        }
        let Some(record) = state.record else { return self.exempt_for_now(node) };
        self.free_if_over(node, &record.value);
        let promised =
            record.value.reclaim_after.filter(|_| record.value.standing == Standing::Live);
        match promised {
            Some(_) => self.others.exempt.remove(node),
            None => self.others.exempt.insert(node.clone()),
        };
        match (promised.zip(self.setup.reclaim_after), state.alive) {
            (Some((theirs, own)), None) => {
                let longest = own.max(Duration::from_secs(theirs));
                if self.others.is_late(node, record.clone(), [sent, turn.now], longest) {
                    self.fence(node, record, turn);
                }
            }
            (_, Some(_)) | (None, None) => drop(self.others.absent.remove(node)),
        }
    }

    /// A node has no record, or the store refuses to let this node read it: another node is watched instead.
    fn exempt_for_now(&mut self, node: &Name) {
        if self.relation.contact == Contact::Together {
            self.others.absent.remove(node);
            self.others.exempt.insert(node.clone());
        }
    }

    /// Whether the store may have been restored since the contact began.
    fn is_doubtful(&self, state: &NodeState) -> bool {
        self.relation.contact != Contact::Together
            || self.relation.suspect
            || state.epoch != self.relation.epoch
    }

    /// Fences a node that has been absent for `reclaimAfter`, the longer one of its own and this node's.
    fn fence(&mut self, node: &Name, seen: Versioned<NodeRecord>, turn: &mut Turn<'_>) {
        let purpose = Purpose::Fence(node.clone(), seen.value.incarnation.saturating_add(1));
        self.send(purpose, Operation::Fence { node: node.clone(), seen }, turn);
    }

    /// The outcome of a fence. If it is unknown, or another daemon has fenced the node, the next read of the
    /// record decides.
    pub(super) fn after_fencing(
        &mut self,
        node: &Name,
        incarnation: u64,
        result: Result,
        turn: &mut Turn<'_>,
    ) {
        self.others.absent.remove(node);
        if let Result::Done(..) = result {
            turn.log(Line::Reclaimed(node.clone()));
            self.free(Ended { node: node.clone(), incarnation, is_back: false });
        }
    }

    /// Notes which nodes have blocks in a listed realm.
    pub(super) fn note_owners(&mut self, realm: &Name, state: &RealmState) {
        if self.setup.reclaim_after.is_none() {
            return;
        }
        let mut owners = BTreeMap::new();
        for claimed in state.blocks.iter().filter_map(|found| found.claimed.as_ref()) {
            let lowest = owners.entry(claimed.owner.node.clone()).or_insert(u64::MAX);
            *lowest = claimed.owner.incarnation.min(*lowest);
        }
        self.others.owners.insert(realm.clone(), owners);
    }

    /// Notes the owner of a block that a hint of a watch names.
    pub(super) fn note_owner(&mut self, realm: &Name, change: &Change) {
        let Change::Claimed(found) = change else { return };
        let Some(claimed) = found.claimed.as_ref() else { return };
        if let Some(owners) = self.others.owners.get_mut(realm) {
            let owner = &claimed.owner;
            owners.entry(owner.node.clone()).or_insert(owner.incarnation);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::plugins::ipam::cluster_local::held::Token;

    fn record() -> Versioned<NodeRecord> {
        let value = NodeRecord {
            uid: Token(2),
            incarnation: 0,
            standing: Standing::Live,
            version: String::new(),
            reclaim_after: Some(600),
        };
        Versioned { value, revision: 1 }
    }

    /// A key `alive` that was written 5 s after the grant of its lease lasts for 55 s.
    #[test]
    fn reads_that_may_miss_a_heartbeat_measure_no_absence() {
        let node: Name = "n2".parse().unwrap();
        let seconds = Duration::from_secs;
        let mut others = Others::default();
        for (sent, answered, since) in
            [(100, 101, 101), (125, 126, 101), (175, 176, 176), (220, 225, 176)]
        {
            let look = [seconds(sent), seconds(answered)];
            let is_late = others.is_late(&node, record(), look, seconds(49));
            assert_eq!(others.absent[&node].since, seconds(since), "the read of {sent}");
            assert_eq!(is_late, answered == 225);
        }
    }

    fn name(number: u64) -> Name {
        format!("n{number:03}").parse().unwrap()
    }

    /// 200 nodes with blocks.
    fn many() -> Others {
        let mut others = Others::default();
        let owners = (0..200).map(|number| (name(number), 0)).collect();
        others.owners.insert("default".parse().unwrap(), owners);
        others
    }

    fn wards(others: &mut Others, own: u64) -> Vec<String> {
        others.wards(&name(own)).iter().map(ToString::to_string).collect()
    }

    /// Exempt nodes do not count against the number of watched nodes.
    #[test]
    fn exempt_nodes_leave_as_many_others_to_watch() {
        let mut others = many();
        assert_eq!(wards(&mut others, 7), ["n008", "n009", "n010"]);
        assert_eq!(wards(&mut others, 198), ["n199", "n000", "n001"]);
        others.exempt.insert(name(9));
        assert_eq!(wards(&mut others, 7), ["n008", "n010", "n011", "n009"]);
        others.owners.clear();
        others.forget_gone();
        assert!(others.exempt.is_empty() && wards(&mut others, 7).is_empty());
    }

    #[test]
    fn each_of_200_exempt_nodes_is_read_in_turn() {
        let mut others = many();
        others.exempt.extend((0..200).map(name));
        let mut read = BTreeSet::new();
        for _ in 0..200_usize.div_ceil(IN_TURN) {
            let wards = wards(&mut others, 7);
            assert_eq!(wards.len(), IN_TURN);
            read.extend(wards);
        }
        assert_eq!(read.len(), 199);
    }

    /// An absence is measured only if the node is read with each heartbeat.
    #[test]
    fn the_absences_that_are_due_first_are_read_each_time() {
        let mut others = many();
        let late = Duration::from_secs(3600);
        for number in 0..200 {
            others.is_late(
                &name(number),
                record(),
                [late, late],
                late - Duration::from_secs(number),
            );
        }
        let first: Vec<String> = (136..200).rev().map(|number| name(number).to_string()).collect();
        let mut read = BTreeSet::new();
        for _ in 0..200_usize.div_ceil(IN_TURN) {
            let wards = wards(&mut others, 7);
            assert_eq!((&wards[..MOST], wards.len()), (&first[..], MOST + IN_TURN));
            read.extend(wards);
        }
        assert_eq!(read.len(), 199);
    }
}
