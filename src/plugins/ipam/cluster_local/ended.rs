//! The keys that a reclaimed node has left in the store, and the operations that delete them. Both `ipam
//! reclaim` and the daemons with `reclaimAfter` send these.

use super::engine::{Claimed, Found, Identity, Name, Operation, RealmState, Seen};

/// A node that was reclaimed: a fence has ended all incarnations of it before `incarnation`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The node.
    pub node: Name,
    /// Its first incarnation that has not ended.
    pub incarnation: u64,
    /// Whether it has registered again since the fence.
    pub is_back: bool,
}

impl Ended {
    fn is_over(&self, owner: &Identity) -> bool {
        owner.node == self.node && owner.incarnation < self.incarnation
    }

    /// The blocks of the ended incarnations.
    pub fn blocks<'s>(
        &'s self,
        state: &'s RealmState,
    ) -> impl Iterator<Item = (&'s Found, &'s Claimed)> {
        let claimed =
            state.blocks.iter().filter_map(|found| Some((found, found.claimed.as_ref()?)));
        claimed.filter(|(_, claimed)| self.is_over(&claimed.owner))
    }

    /// The operations that delete the node's notes of conflicts and, unless it has registered again, those of
    /// its pools.
    pub fn drop_notes(&self, realm: &Name, state: &RealmState) -> Vec<Operation> {
        let mut operations = self.end_conflicts(realm, state);
        operations.extend(self.drop_pools(realm, state));
        operations
    }

    /// The operations that delete the notes of conflicts of the ended incarnations.
    pub fn end_conflicts(&self, realm: &Name, state: &RealmState) -> Vec<Operation> {
        let conflicts = state.notes.iter().filter(|(_, note)| self.is_over(&note.by));
        let conflicts = conflicts.map(|(block, note)| Operation::EndConflict {
            realm: realm.clone(),
            block: *block,
            note: note.clone(),
        });
        conflicts.collect()
    }

    /// The operations that delete the notes of the node's pools, unless it has registered again. A note contains
    /// no incarnation.
    pub fn drop_pools(&self, realm: &Name, state: &RealmState) -> Vec<Operation> {
        let pools = state.pools.iter().filter(|(_, note)| note.by == self.node && !self.is_back);
        let pools = pools.map(|(hash, note)| Operation::DropPool {
            realm: realm.clone(),
            hash: hash.clone(),
            note: note.clone(),
        });
        pools.collect()
    }

    /// Whether the realm has no block and no note of a conflict of the ended incarnations. Notes of pools do
    /// not matter: they keep no address from other nodes.
    pub fn is_gone(&self, state: &RealmState) -> bool {
        self.blocks(state).next().is_none()
            && !state.notes.iter().any(|(_, note)| self.is_over(&note.by))
    }
}

/// The operation that deletes a block's key if it is still as it was found.
pub fn release(realm: &Name, found: &Found, claimed: &Claimed) -> Operation {
    let seen = Seen { block: found.block, claimed: claimed.clone(), revision: found.revision };
    Operation::Release { realm: realm.clone(), seen }
}
