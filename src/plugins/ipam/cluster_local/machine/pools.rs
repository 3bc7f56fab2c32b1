//! Notes of the pools of networks: a network with other ranges on another node is a mistake in a
//! configuration, which the log, `ipam blocks` and STATUS report.
//!
//! Notes only warn. Claims exclude each other whatever the pools are.

use std::collections::BTreeMap;

use super::super::engine::{Name, Operation, PoolNote};
use super::Machine;
use super::interface::{Line, Mark, Turn};
use super::network::Network;
use super::purpose::Purpose;
use crate::cni::attachment::hash8;
use crate::hex;

/// Notes by their hashes.
type Notes = BTreeMap<String, PoolNote>;

impl Machine {
    /// Compares the notes of a listed realm with this node's pools: writes those that are missing,
    /// deletes its own that are stale, and remembers which networks other nodes have otherwise.
    pub(super) fn compare_pools(
        &mut self,
        realm: &Name,
        notes: &[(String, PoolNote)],
        turn: &mut Turn<'_>,
    ) {
        if !self.relation.may_act() {
            return; // the contact was lost since the realm was asked for
        }
        let own = self.own_pools(realm);
        for (hash, note) in own.iter().filter(|(hash, _)| !has(notes, hash)) {
            let (realm, hash, note) = (realm.clone(), hash.clone(), note.clone());
            self.send(Purpose::Pool, Operation::NotePool { realm, hash, note }, turn);
        }
        for (hash, note) in notes.iter().filter(|(hash, _)| !own.contains_key(hash)) {
            if note.by == self.setup.node && self.setup.is_complete {
                let (realm, hash, note) = (realm.clone(), hash.clone(), note.clone());
                self.send(Purpose::Pool, Operation::DropPool { realm, hash, note }, turn);
            }
        }
        self.mark_differing(realm, &differing(&own, notes, &self.setup.node), turn);
    }

    /// The notes that this node writes of the realm's networks.
    fn own_pools(&self, realm: &Name) -> Notes {
        let networks = self.networks.iter().filter(|(_, network)| network.realm == *realm);
        networks.flat_map(|(name, network)| notes_of(name, network, &self.setup.node)).collect()
    }

    /// Writes what has changed into the files of the networks.
    fn mark_differing(
        &mut self,
        realm: &Name,
        differing: &BTreeMap<String, Name>,
        turn: &mut Turn<'_>,
    ) {
        let networks = self.networks.iter().filter(|(_, network)| network.realm == *realm);
        let changes = networks.filter_map(|(name, network)| {
            let now = differing.get(name.as_str()).cloned();
            (now != network.differs).then(|| (name.clone(), now))
        });
        let changes: Vec<(Name, Option<Name>)> = changes.collect();
        for (network, differs) in changes {
            if let Some(node) = &differs {
                turn.log(Line::PoolsDiffer(network.clone(), node.clone()));
            }
            self.mark(&network, vec![Mark::Differs(differs)], vec![], turn);
        }
    }
}

fn has(notes: &[(String, PoolNote)], hash: &str) -> bool {
    notes.iter().any(|(other, _)| other == hash)
}

fn notes_of(name: &Name, network: &Network, by: &Name) -> Vec<(String, PoolNote)> {
    let note = |pool: &super::super::pool::Pool| {
        let spans: Vec<String> = pool.spans().iter().map(ToString::to_string).collect();
        let text = format!("{name} /{} {}", pool.length(), spans.join(" "));
        let (network, spans) = (name.as_str().to_owned(), pool.spans().to_vec());
        let note = PoolNote { by: by.clone(), network, spans, length: pool.length() };
        (hex::encode(&hash8(&text)), note)
    };
    network.pools.iter().map(note).collect()
}

/// The networks of this node with a note of another node that is none of this node's pools.
fn differing(own: &Notes, notes: &[(String, PoolNote)], node: &Name) -> BTreeMap<String, Name> {
    let is_here = |note: &PoolNote| own.values().any(|mine| mine.network == note.network);
    let others = notes
        .iter()
        .filter(|(hash, note)| note.by != *node && !own.contains_key(hash) && is_here(note));
    others.map(|(_, note)| (note.network.clone(), note.by.clone())).collect()
}
