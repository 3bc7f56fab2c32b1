//! What a reclaimed node has left in the store. The operator's command frees it, and so do the daemons
//! that reclaim a node by themselves.

use super::engine::{Claimed, Found, Identity, Name, Operation, RealmState, Seen};

/// A node whose earlier incarnations are over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The node.
    pub node: Name,
    /// The first incarnation that is not over.
    pub incarnation: u64,
    /// It has registered again since.
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

    /// What deletes the notes of the node: a conflict with it has ended, and its pools are nobody's.
    pub fn drop_notes(&self, realm: &Name, state: &RealmState) -> Vec<Operation> {
        let conflicts = state.notes.iter().filter(|(_, note)| self.is_over(&note.by));
        let conflicts = conflicts.map(|(block, note)| Operation::EndConflict {
            realm: realm.clone(),
            block: *block,
            note: note.clone(),
        });
        let pools = state.pools.iter().filter(|(_, note)| note.by == self.node && !self.is_back);
        let pools = pools.map(|(hash, note)| Operation::DropPool {
            realm: realm.clone(),
            hash: hash.clone(),
            note: note.clone(),
        });
        conflicts.chain(pools).collect()
    }

    /// Whether nothing of the ended incarnations is left. Notes of pools are no claim.
    pub fn is_gone(&self, state: &RealmState) -> bool {
        self.blocks(state).next().is_none()
            && !state.notes.iter().any(|(_, note)| self.is_over(&note.by))
    }
}

/// What deletes a block's key as it was found.
pub fn release(realm: &Name, found: &Found, claimed: &Claimed) -> Operation {
    let seen = Seen { block: found.block, claimed: claimed.clone(), revision: found.revision };
    Operation::Release { realm: realm.clone(), seen }
}
